"""Statistics of recorded sweeps, on curves whose answer can be worked out by hand."""

import numpy as np
import pyarrow as pa
import pytest

from research.findings import statistics
from research.record import Facts, Seeds, Sweep

pytestmark = pytest.mark.usefixtures("few_replicates")

BUDGETS = np.array([1024.0, 2048.0, 4096.0])


def seeds(*rows):
    """One column, a row for each seed."""
    return Seeds(BUDGETS, np.array(rows, float)[:, :, None])


CROSSING = {4: seeds([0.3, 0.4, 0.2], [0.3, 0.4, 0.2]), 16: seeds([0.1, 0.3, 0.6], [0.1, 0.3, 0.6])}
FLAT = {4: seeds([0.5, 0.5, 0.5], [0.5, 0.5, 0.5]), 16: seeds([0.1, 0.1, 0.1], [0.1, 0.1, 0.1])}


def test_n_rises_by_the_octaves_between_the_leaders():
    found = statistics.rise_of(CROSSING)
    assert (found.value, found.low, found.high, found.seeds) == (2.0, 2.0, 2.0, 2)
    assert statistics.rise_of(FLAT).value == 0.0


def test_a_curve_that_falls_keeps_its_record():
    np.testing.assert_allclose(
        statistics.records_at(statistics.means(CROSSING), BUDGETS), [[0.3, 0.4, 0.4], [0.1, 0.3, 0.6]]
    )
    between = statistics.records_at(statistics.means(CROSSING), np.array([np.sqrt(2) * 1024]))  # half way in log C
    np.testing.assert_allclose(between[:, 0], [0.35, 0.2])
    assert np.isnan(statistics.records_at(statistics.means(CROSSING), np.array([500.0]))).all()


def test_the_vertex_of_a_parabola_is_between_the_group_sizes():
    """Through 0.3, 0.5, 0.4 at log2 n = 2, 3, 4: 0.5 + 0.05 u - 0.15 u^2, highest at u = 1/6."""
    for rewards, vertex in (((0.3, 0.5, 0.4), 3 + 1 / 6), ((0.5, 0.3, 0.4), 2.0), ((0.1, 0.2, 0.4), 4.0)):
        one = {n: Seeds(BUDGETS[:1], np.full((1, 1, 1), value)) for n, value in zip((4, 8, 16), rewards, strict=True)}
        assert statistics.profile_sizes(statistics.means(one), BUDGETS[:1])[0] == pytest.approx(vertex)


def test_seeds_that_tell_the_best_n_from_those_away_by_hand():
    """At every budget n = 16 has 0.5 and 0.3, n = 4 0.3 in both, n = 64 less: 0.2 and 0.0 ahead."""
    curves = {n: seeds([a] * 3, [b] * 3) for n, a, b in ((4, 0.3, 0.3), (16, 0.5, 0.3), (64, 0.1, 0.2))}
    ahead, deviation, needed = statistics.seeds_to_tell(curves, 1)
    assert (ahead, deviation) == pytest.approx((0.1, 0.02**0.5))
    assert needed == pytest.approx((1.96 * 0.02**0.5 / 0.1) ** 2)


def test_shift_is_the_mean_over_log_spaced_budgets():
    """At the last of 13 budgets and the few before it n = 16 leads; in log C the curves cross near its end."""
    budgets = statistics.common_budgets(CROSSING, FLAT)
    crossing = np.log2(budgets) > 11 + 0.1 / 0.3  # 0.4 = 0.3 + 0.3 x
    assert statistics.size_shift(CROSSING, FLAT).value == pytest.approx(2 * crossing.mean())
    assert statistics.size_shift(FLAT, CROSSING).value == pytest.approx(-2 * crossing.mean())


def test_shift_is_over_the_n_that_both_have():
    wider = {**CROSSING, 64: seeds([0.9, 0.9, 0.9], [0.9, 0.9, 0.9])}
    assert statistics.size_shift(wider, FLAT) == statistics.size_shift(CROSSING, FLAT)
    assert statistics.size_shift(FLAT, wider) == statistics.size_shift(FLAT, CROSSING)


def test_targets_are_compared_within_the_same_runs():
    both = {n: Seeds(BUDGETS, np.concatenate([CROSSING[n].values, FLAT[n].values], axis=-1)) for n in CROSSING}
    assert statistics.target_shift(both) == statistics.size_shift(CROSSING, FLAT)


def test_level_is_the_highest_of_the_mean_curves():
    assert statistics.level_gain(CROSSING, FLAT).value == pytest.approx(0.1)
    assert statistics.level_gain(CROSSING, FLAT, sizes=[4]).value == pytest.approx(-0.1)


def test_spreads_over_batches_and_over_n_are_told_apart():
    other = {n: Seeds(BUDGETS, one.values + 0.02) for n, one in FLAT.items()}
    by_batch, by_size, ratio = statistics.batch_effect({2: FLAT, 8: other})
    assert by_batch.value == pytest.approx(0.02 / np.sqrt(2)) and by_size.value == pytest.approx(0.4 / np.sqrt(2))
    assert ratio.value == pytest.approx(0.05)


def test_the_interval_is_that_of_a_mean_over_seeds(monkeypatch):
    """Twenty seeds of a standard normal: the mean's standard error is the sample's over sqrt(20)."""
    monkeypatch.setattr(statistics, "REPLICATES", 1000)
    draws = np.random.default_rng(1).standard_normal((20, 1))
    curves = {4: Seeds(BUDGETS[:1], draws[:, :, None])}
    found = statistics.estimate(lambda mean: float(mean[4][1][0, 0]), curves)
    assert found.value == pytest.approx(draws.mean())
    assert (found.high - found.low) / 2 == pytest.approx(1.96 * draws.std() / np.sqrt(20), rel=0.1)
    assert found.sign == 0


def curves(levels, seeds=(0.0, 0.0)):
    """n -> a curve that peaks at a level, half way; what is added to each seed."""
    return {
        n: Seeds(BUDGETS, np.array([[level / 2, level + more, level / 2] for more in seeds])[:, :, None])
        for n, level in levels.items()
    }


def test_what_is_left_is_held_against_a_quarter_of_the_gain():
    """Up to 16 it is 0.2, of which a quarter is 0.05; beyond it there are 0.02 and 0.04, 0.03 on average."""
    level = {4: 0.1, 8: 0.2, 16: 0.3, 32: 0.32, 64: 0.34}
    assert statistics.excess(level, 16) == pytest.approx(0.03 - 0.05)
    assert statistics.excess(level, 8) == pytest.approx(0.12 - 0.025)
    assert statistics.saturation_size(level) == 4.0


@pytest.mark.parametrize(
    ("level", "size"),
    [({4: 0.1, 8: 0.2, 16: 0.4}, 4.0), ({4: 0.3, 8: 0.2, 16: 0.1}, 2.0), ({4: 0.1, 8: 0.5, 16: 0.5}, 3.0)],
    ids=["rises to the end", "falls", "flat from 8"],
)
def test_where_levels_saturate(level, size):
    assert statistics.saturation_size(level) == size


def test_saturation_is_sure_where_every_seed_has_it():
    found = statistics.saturation(curves({4: 0.1, 8: 0.5, 16: 0.5, 32: 0.52}))
    assert (found.size, found.sure, found.rising) == (8, True, False)
    assert found.gained.value == pytest.approx(0.4) and found.left.value == pytest.approx(0.01)
    assert found.levels[8].value == 0.5
    still = statistics.saturation(curves({4: 0.1, 8: 0.2, 16: 0.4}))
    assert (still.size, still.sure, still.rising, still.left.value) == (16, False, True, 0.0)
    open_ = statistics.saturation(curves({4: 0.1, 8: 0.2, 16: 0.21}, seeds=(-0.2, 0.2)))
    assert (open_.size, open_.sure, open_.rising) == (8, False, False)


def test_sweeps_are_compared_over_the_n_that_both_have():
    one, other = curves({4: 0.1, 8: 0.5, 16: 0.5}), curves({4: 0.1, 8: 0.2, 16: 0.5, 32: 0.9})
    assert statistics.saturation_shift(one, other).value == -1.0


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
    [point] = statistics.points_of(made("sqrt", {32: 0.5}, exponent=0.5))
    assert (point.rollouts_per_step, point.problems_per_batch, point.level) == (256, 8, 0.5)
    assert point.rate == pytest.approx(4e-4) and point.noise == pytest.approx(4e-4 / 256)


def test_noise_explains_levels_that_follow_it_alone():
    def level(noise):
        return 0.5 - 0.002 * np.log2(noise / 1e-7) ** 2

    sweeps = [
        made(f"{batch}", {n: level(2e-4 / (n * batch)) for n in (4, 16, 64)}, batch=batch) for batch in (2, 8, 32)
    ]
    assert statistics.noise_explains(sweeps).value == pytest.approx(1.0)
    by_n = [made(f"{batch}", {4: 0.1, 16: 0.5, 64: 0.1}, batch=batch) for batch in (2, 8, 32)]
    assert statistics.noise_explains(by_n).value < 0.5
