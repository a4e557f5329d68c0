"""How high reward gets and where it saturates, on curves whose answer can be worked out by hand."""

import numpy as np
import pyarrow as pa
import pytest

from isocompute_jax.gallery import Sweep
from isocompute_jax.gallery.curves import Seeds
from isocompute_jax.gallery.findings import noise_explains, points_of, saturation, saturation_shift, saturation_size
from isocompute_jax.gallery.findings.levels import excess
from isocompute_jax.gallery.tables import Facts

BUDGETS = np.array([1024.0, 2048.0, 4096.0])


def curves(levels, seeds=(0.0, 0.0)):
    """n -> a curve that peaks at a level, half way; what is added to each seed."""
    return {
        n: Seeds(BUDGETS, np.array([[level / 2, level + more, level / 2] for more in seeds])[:, :, None])
        for n, level in levels.items()
    }


def test_what_is_left_is_held_against_a_quarter_of_the_gain():
    """Up to 16 it is 0.2, of which a quarter is 0.05; beyond it there are 0.02 and 0.04, 0.03 on average."""
    level = {4: 0.1, 8: 0.2, 16: 0.3, 32: 0.32, 64: 0.34}
    assert excess(level, 16) == pytest.approx(0.03 - 0.05)
    assert excess(level, 8) == pytest.approx(0.12 - 0.025)
    assert saturation_size(level) == 4.0


@pytest.mark.parametrize(
    ("level", "size"),
    [({4: 0.1, 8: 0.2, 16: 0.4}, 4.0), ({4: 0.3, 8: 0.2, 16: 0.1}, 2.0), ({4: 0.1, 8: 0.5, 16: 0.5}, 3.0)],
    ids=["rises to the end", "falls", "flat from 8"],
)
def test_where_levels_saturate(level, size):
    assert saturation_size(level) == size


def test_saturation_is_sure_where_every_seed_has_it():
    found = saturation(curves({4: 0.1, 8: 0.5, 16: 0.5, 32: 0.52}))
    assert (found.size, found.sure, found.rising) == (8, True, False)
    assert found.gained.value == pytest.approx(0.4) and found.left.value == pytest.approx(0.01)
    assert found.levels[8].value == 0.5
    still = saturation(curves({4: 0.1, 8: 0.2, 16: 0.4}))
    assert (still.size, still.sure, still.rising, still.left.value) == (16, False, True, 0.0)
    open_ = saturation(curves({4: 0.1, 8: 0.2, 16: 0.21}, seeds=(-0.2, 0.2)))
    assert (open_.size, open_.sure, open_.rising) == (8, False, False)


def test_sweeps_are_compared_over_the_n_that_both_have():
    one, other = curves({4: 0.1, 8: 0.5, 16: 0.5}), curves({4: 0.1, 8: 0.2, 16: 0.5, 32: 0.9})
    assert saturation_shift(one, other).value == -1.0


def made(name, levels, *, batch=8, rate=2e-4, exponent=0.0):
    """A sweep of two seeds with those levels."""
    rows = [
        {"group_size": n, "seed": seed, "problems_per_batch": batch, "eval_set": "validation", "compute": c, "avg@4": v}
        for n, level in levels.items()
        for seed in (0, 1)
        for c, v in ((1024, level / 2), (2048, level))
    ]
    shared = {"optimizer.base_lr": rate, "optimizer.base_batch": 64, "optimizer.lr_scaling_exponent": exponent}
    return Sweep(name, pa.Table.from_pylist(rows), Facts(shared, {}, {}))


def test_noise_is_the_rate_over_the_rollouts_of_a_step():
    """At n = 32 and 8 problems a step has 256 rollouts, where a rate as sqrt(B) has grown to twice that at 64."""
    [point] = points_of(made("sqrt", {32: 0.5}, exponent=0.5))
    assert (point.rollouts_per_step, point.problems_per_batch, point.level) == (256, 8, 0.5)
    assert point.rate == pytest.approx(4e-4) and point.noise == pytest.approx(4e-4 / 256)


def test_noise_explains_levels_that_follow_it_alone():
    def level(noise):
        return 0.5 - 0.002 * np.log2(noise / 1e-7) ** 2

    sweeps = [
        made(f"{batch}", {n: level(2e-4 / (n * batch)) for n in (4, 16, 64)}, batch=batch) for batch in (2, 8, 32)
    ]
    assert noise_explains(sweeps).value == pytest.approx(1.0)
    by_n = [made(f"{batch}", {4: 0.1, 16: 0.5, 64: 0.1}, batch=batch) for batch in (2, 8, 32)]
    assert noise_explains(by_n).value < 0.5
