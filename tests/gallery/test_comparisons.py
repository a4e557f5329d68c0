"""Statistics of recorded sweeps, on curves whose answer can be worked out by hand."""

import numpy as np
import pyarrow as pa
import pytest

from isocompute_jax.gallery import Sweep
from isocompute_jax.gallery.curves import Seeds, common_budgets, curves_of, estimate, means, profile_sizes, records_at
from isocompute_jax.gallery.findings import batch_effect, level_gain, rise_of, size_shift, target_shift
from isocompute_jax.gallery.tables import Facts

BUDGETS = np.array([1024.0, 2048.0, 4096.0])


def seeds(*rows):
    """One column, a row for each seed."""
    return Seeds(BUDGETS, np.array(rows, float)[:, :, None])


CROSSING = {4: seeds([0.3, 0.4, 0.2], [0.3, 0.4, 0.2]), 16: seeds([0.1, 0.3, 0.6], [0.1, 0.3, 0.6])}
FLAT = {4: seeds([0.5, 0.5, 0.5], [0.5, 0.5, 0.5]), 16: seeds([0.1, 0.1, 0.1], [0.1, 0.1, 0.1])}


def test_n_rises_by_the_octaves_between_the_leaders():
    found = rise_of(CROSSING)
    assert (found.value, found.low, found.high, found.seeds) == (2.0, 2.0, 2.0, 2)
    assert rise_of(FLAT).value == 0.0


def test_a_curve_that_falls_keeps_its_record():
    np.testing.assert_allclose(records_at(means(CROSSING), BUDGETS), [[0.3, 0.4, 0.4], [0.1, 0.3, 0.6]])
    between = records_at(means(CROSSING), np.array([np.sqrt(2) * 1024]))  # half way in log C
    np.testing.assert_allclose(between[:, 0], [0.35, 0.2])
    assert np.isnan(records_at(means(CROSSING), np.array([500.0]))).all()


def test_the_vertex_of_a_parabola_is_between_the_group_sizes():
    """Through 0.3, 0.5, 0.4 at log2 n = 2, 3, 4: 0.5 + 0.05 u - 0.15 u^2, highest at u = 1/6."""
    for rewards, vertex in (((0.3, 0.5, 0.4), 3 + 1 / 6), ((0.5, 0.3, 0.4), 2.0), ((0.1, 0.2, 0.4), 4.0)):
        one = {n: Seeds(BUDGETS[:1], np.full((1, 1, 1), value)) for n, value in zip((4, 8, 16), rewards, strict=True)}
        assert profile_sizes(means(one), BUDGETS[:1])[0] == pytest.approx(vertex)


def test_shift_is_the_mean_over_log_spaced_budgets():
    """At the last of 13 budgets and the few before it n = 16 leads; in log C the curves cross near its end."""
    budgets = common_budgets(CROSSING, FLAT)
    crossing = np.log2(budgets) > 11 + 0.1 / 0.3  # 0.4 = 0.3 + 0.3 x
    assert size_shift(CROSSING, FLAT).value == pytest.approx(2 * crossing.mean())
    assert size_shift(FLAT, CROSSING).value == pytest.approx(-2 * crossing.mean())


def test_shift_is_over_the_n_that_both_have():
    wider = {**CROSSING, 64: seeds([0.9, 0.9, 0.9], [0.9, 0.9, 0.9])}
    assert size_shift(wider, FLAT) == size_shift(CROSSING, FLAT)
    assert size_shift(FLAT, wider) == size_shift(FLAT, CROSSING)


def test_targets_are_compared_within_the_same_runs():
    both = {n: Seeds(BUDGETS, np.concatenate([CROSSING[n].values, FLAT[n].values], axis=-1)) for n in CROSSING}
    assert target_shift(both) == size_shift(CROSSING, FLAT)


def test_level_is_the_highest_of_the_mean_curves():
    assert level_gain(CROSSING, FLAT).value == pytest.approx(0.1)
    assert level_gain(CROSSING, FLAT, sizes=[4]).value == pytest.approx(-0.1)


def test_spreads_over_batches_and_over_n_are_told_apart():
    other = {n: Seeds(BUDGETS, one.values + 0.02) for n, one in FLAT.items()}
    by_batch, by_size, ratio = batch_effect({2: FLAT, 8: other})
    assert by_batch.value == pytest.approx(0.02 / np.sqrt(2)) and by_size.value == pytest.approx(0.4 / np.sqrt(2))
    assert ratio.value == pytest.approx(0.05)


def test_the_interval_is_that_of_a_mean_over_seeds():
    """Twenty seeds of a standard normal: the mean's standard error is the sample's over sqrt(20)."""
    draws = np.random.default_rng(1).standard_normal((20, 1))
    curves = {4: Seeds(BUDGETS[:1], draws[:, :, None])}
    found = estimate(lambda mean: float(mean[4][1][0, 0]), curves)
    assert found.value == pytest.approx(draws.mean())
    assert (found.high - found.low) / 2 == pytest.approx(1.96 * draws.std() / np.sqrt(20), rel=0.1)
    assert found.sign == 0


def test_curves_are_read_by_size_seed_and_set():
    rows = [
        {"group_size": n, "seed": seed, "eval_set": name, "compute": c, "avg@4": n + seed + c / 1000, "best@4": 1.0}
        for n in (4, 8)
        for seed in (0, 1)
        for name in ("easy", "validation")
        for c in (2000, 0, 1000)
    ]
    sweep = Sweep("made", pa.Table.from_pylist(rows), Facts({}, {}, {}))
    found = curves_of(sweep, "avg@4", "best@4")
    assert sorted(found) == [4, 8]
    np.testing.assert_array_equal(found[8].compute, [1000, 2000])
    np.testing.assert_allclose(found[8].values[1], [[10, 1], [11, 1]])
