"""Resampled frontiers: nothing moves without noise, truth is covered with it, and every draw is reproducible."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from isocompute_jax.fit.curves.fit_options import FitOptions
from isocompute_jax.fit.curves.fitting import fit_curves
from isocompute_jax.fit.curves.forms import hill
from isocompute_jax.fit.curves.points_to_fit import record_breaking
from isocompute_jax.fit.curves.seeds import Curve
from isocompute_jax.fit.frontier.bootstrap import (
    Bootstrap,
    block_length,
    bootstrap,
    leaders_at,
    parameter_intervals,
    replicate_rewards,
    switch_interval,
)
from isocompute_jax.fit.frontier.envelope import frontier
from isocompute_jax.fit.results import Configuration

COMPUTE = np.geomspace(1e3, 1e6, 16)
TRUTHS = {8: (0.1, 0.60, 2e4, 1.0), 32: (0.1, 0.80, 6e4, 1.0)}
CROSSING = (0.7 * 2e4 - 0.5 * 6e4) / (0.5 - 0.7)  # of 0.5 C / (C + 2e4) and 0.7 C / (C + 6e4), by hand: 8e4
QUICK = FitOptions(intervals=False)


def every_point(compute: np.ndarray, reward: np.ndarray) -> np.ndarray:
    return np.ones(len(compute), bool)


def sweep(noise: float, seeds: int, seed: int = 0):
    rng = np.random.default_rng(seed)
    curves = []
    for n, truth in TRUTHS.items():
        values = hill(COMPUTE, *truth) + rng.normal(0, noise, (seeds, len(COMPUTE)))
        curves.append(Curve(Configuration(f"n = {n}", n, 32, 6000), tuple(range(seeds)), COMPUTE, values))
    fits = fit_curves([c.compute for c in curves], [c.reward for c in curves], options=QUICK)
    return curves, fits, frontier(fits, [c.configuration for c in curves])


USE = [np.ones(len(COMPUTE), bool)] * 2


def resample(curves, fits, *, method, seed) -> Bootstrap:
    common = {"use": USE, "errors": None, "keep": every_point, "options": QUICK, "replicates": 60}
    found = bootstrap(curves, fits, method=method, seed=seed, **common)
    assert found is not None
    return found


@pytest.mark.parametrize("method", ["runs", "blocks"])
def test_without_noise_nothing_moves(method):
    curves, fits, envelope = sweep(0.0, 3)
    found = resample(curves, fits, method=method, seed=0)
    assert found.method == method
    (switch,) = envelope.switches
    assert switch.compute == pytest.approx(CROSSING, rel=1e-6)
    interval = switch_interval(found, switch)
    assert interval.share == 1.0
    assert interval.interval95 == pytest.approx((CROSSING, CROSSING), rel=1e-4)
    assert set(leaders_at(found, 5e3)) == {0} and set(leaders_at(found, 5e5)) == {1}


def test_one_seed_twice_is_the_same_and_another_is_not():
    curves, fits, _ = sweep(0.01, 3)
    one, two, other = (resample(curves, fits, method="blocks", seed=seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one.at, two.at)
    assert not np.array_equal(one.at, other.at)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["runs", "blocks"])
def test_the_interval_of_a_switch_covers_the_truth(method):
    covered = 0
    for seed in range(20):
        curves, fits, envelope = sweep(0.02, 6, seed)
        found = resample(curves, fits, method=method, seed=seed)
        switch = next(s for s in envelope.switches if (s.from_index, s.to_index) == (0, 1))
        low, high = switch_interval(found, switch).interval95
        assert low < switch.compute < high
        covered += low <= CROSSING <= high
    assert covered >= 15  # 14 or fewer of 20 has probability 0.0003 at 95% and 0.01 at 88%


def test_auto_draws_seeds_only_where_there_are_enough():
    for seeds, method in ((3, "blocks"), (5, "runs")):
        curves, fits, _ = sweep(0.01, seeds)
        assert resample(curves, fits, method="auto", seed=0).method == method
    common = {
        "use": [np.ones(len(COMPUTE), bool)] * 2,
        "errors": None,
        "keep": every_point,
        "options": QUICK,
        "replicates": 60,
    }
    assert bootstrap(curves, fits, method="none", seed=0, **common) is None


def test_runs_are_means_of_drawn_seeds():
    """With two seeds a replicate is one seed, the other, or their mean: three curves in all."""
    curves, fits, _ = sweep(0.02, 2)
    found = resample(curves, fits, method="runs", seed=0)
    per_seed = [fit_curves([COMPUTE] * 3, [*c.per_seed, c.reward], options=QUICK) for c in curves]
    for k, three in enumerate(per_seed):
        expected = np.array([fit.search.at for fit in three if fit.search is not None])
        distance = np.abs(found.at[:, k, None] - expected).max(axis=2).min(axis=1)
        assert distance.max() < 1e-6
        assert len(np.unique(np.round(found.at[:, k, 1], 6))) == 3


def test_runs_of_seeds_on_different_grids_draw_all_points_of_a_seed():
    """A replicate is fitted to the evaluations of one seed, of the other, or of both."""
    curves, _, _ = sweep(0.02, 2)
    mask = np.arange(len(COMPUTE)) % 2 == np.arange(2)[:, None]  # every second evaluation is the other seed's
    curves = [dataclasses.replace(curve, per_seed=np.where(mask, curve.per_seed, np.nan)) for curve in curves]
    fits = fit_curves([c.compute for c in curves], [c.reward for c in curves], options=QUICK)
    found = resample(curves, fits, method="runs", seed=0)
    for k, curve in enumerate(curves):
        parts = [curve.of_seed(0), curve.of_seed(1), (COMPUTE, curve.reward)]
        three = fit_curves(*([part[i] for part in parts] for i in (0, 1)), options=QUICK)
        expected = np.array([fit.reward(COMPUTE) for fit in three])
        replicates = replicate_rewards(fits[k], found.at[:, k], COMPUTE)
        distance = np.abs(replicates[:, None] - expected).max(axis=2)
        assert distance.min(axis=1).max() < 1e-6
        assert set(distance.argmin(axis=1)) == {0, 1, 2}


def test_blocks_keep_neighbours_together():
    assert [block_length(points) for points in (2, 8, 27, 64)] == [1, 2, 3, 4]


def test_the_rule_for_points_is_applied_to_every_replicate():
    curves, fits, _ = sweep(0.02, 3)
    asked = []

    def keep(compute: np.ndarray, reward: np.ndarray) -> np.ndarray:
        asked.append(len(reward))
        return reward > -1

    bootstrap(curves, fits, use=USE, errors=None, keep=keep, options=QUICK, method="runs", replicates=30, seed=0)
    assert asked == [len(COMPUTE)] * 60


def test_parameter_intervals_are_in_the_parameters_own_units():
    curves, fits, _ = sweep(0.01, 6)
    found = resample(curves, fits, method="runs", seed=0)
    for k, (fit, truth) in enumerate(zip(fits, TRUTHS.values(), strict=True)):
        ends = parameter_intervals(found, fit, k)
        assert list(ends) == list(fit.params)
        for (low, high), value, true in zip(ends.values(), fit.params.values(), truth, strict=True):
            assert low < value < high and abs(value - true) < 2 * (high - low)


def test_drawn_residuals_do_not_pick_high_points_again():
    """Replicates of record-breaking fits lie around the fit, not above it."""
    curves, _, _ = sweep(0.1, 3)
    use = [record_breaking(c.reward, records="strict", bin_width=0.0) for c in curves]
    assert not any(mask.all() for mask in use)
    fits = fit_curves([c.compute for c in curves], [c.reward for c in curves], use=use, options=QUICK)

    def again(compute: np.ndarray, reward: np.ndarray) -> np.ndarray:
        return record_breaking(reward, records="strict", bin_width=0.0)

    found = bootstrap(
        curves, fits, use=use, errors=None, keep=again, options=QUICK, method="blocks", replicates=400, seed=0
    )
    assert found is not None
    for k, fit in enumerate(fits):
        replicates = replicate_rewards(fit, found.at[:, k], np.array([1e5]))
        assert abs(np.median(replicates) - float(fit.reward(1e5))) < 0.3 * replicates.std()
