"""Resampled frontiers: nothing moves without noise, truth is covered with it, and every draw is reproducible."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from isocompute_jax.fit.curves.fit_options import FitOptions
from isocompute_jax.fit.curves.fitting import fit_curves
from isocompute_jax.fit.curves.forms import hill
from isocompute_jax.fit.curves.screening import record_breaking
from isocompute_jax.fit.curves.seeds import Curve
from isocompute_jax.fit.curves.uncertainty import NoiseModel
from isocompute_jax.fit.frontier.bootstrap import (
    Bootstrap,
    FittedPoints,
    block_length,
    bootstrap,
    leaders_at,
    parameter_intervals,
    replicate_rewards,
)
from isocompute_jax.fit.frontier.envelope import frontier
from isocompute_jax.fit.frontier.standings import interval
from isocompute_jax.fit.frontier.switches import switch_interval
from isocompute_jax.fit.results import Configuration

COMPUTE = np.geomspace(1e3, 1e6, 16)
DENSE = np.geomspace(1e3, 1e6, 30)
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
    fits = fit_curves([c.compute for c in curves], [c.reward for c in curves], profiles=False)
    return curves, fits, frontier(fits, [c.configuration for c in curves])


def points(curves, fits, use=None) -> list[FittedPoints]:
    """As they were fitted: all of them, or those of `use`, with equal weights."""
    use = use or [np.ones(len(curve.compute), bool) for curve in curves]
    return [FittedPoints(*each, np.ones(len(each[2]))) for each in zip(curves, fits, use, strict=True)]


def resample(curves, fits, *, method, seed) -> Bootstrap:
    common = {"keep": every_point, "options": QUICK, "replicates": 60}
    found = bootstrap(points(curves, fits), method=method, seed=seed, **common)
    assert found is not None
    return found


@pytest.mark.parametrize("method", ["noise", "runs", "blocks"])
def test_without_noise_nothing_moves(method):
    curves, fits, envelope = sweep(0.0, 3)
    found = resample(curves, fits, method=method, seed=0)
    assert found.method == method
    (switch,) = envelope.switches
    assert switch.compute == pytest.approx(CROSSING, rel=1e-6)
    ends, share = switch_interval(found, switch)
    assert share == 1.0 and ends == pytest.approx((CROSSING, CROSSING), rel=1e-4)
    assert set(leaders_at(found, 5e3)) == {0} and set(leaders_at(found, 5e5)) == {1}


def test_one_seed_twice_is_the_same_and_another_is_not():
    curves, fits, _ = sweep(0.01, 3)
    one, two, other = (resample(curves, fits, method="noise", seed=seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one.at, two.at)
    assert not np.array_equal(one.at, other.at)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["runs", "blocks"])
def test_the_interval_of_a_switch_covers_the_truth(method):
    """For noise, which `auto` draws: `test_intervals_hold_the_truth_as_often_as_they_say`."""
    covered = 0
    for seed in range(20):
        curves, fits, envelope = sweep(0.02, 6, seed)
        found = resample(curves, fits, method=method, seed=seed)
        switch = next(s for s in envelope.switches if (s.from_run, s.to_run) == ("n = 8", "n = 32"))
        low, high = switch_interval(found, switch)[0]
        assert low < switch.compute < high
        covered += low <= CROSSING <= high
    assert covered >= 15  # 14 or fewer of 20 has probability 0.0003 at 95% and 0.01 at 88%


def correlated(seeds: int, rho: float, rng: np.random.Generator) -> list[Curve]:
    """Curves of 30 points with AR(1) noise."""
    curves = []
    for n, truth in TRUTHS.items():
        errors = rng.normal(0, 0.015, (seeds, len(DENSE)))
        for t in range(1, len(DENSE)):
            errors[:, t] = rho * errors[:, t - 1] + np.sqrt(1 - rho**2) * errors[:, t]
        seen = hill(DENSE, *truth) + errors
        curves.append(Curve(Configuration(f"n = {n}", n, 32, 6000), tuple(range(seeds)), DENSE, seen))
    return curves


def coverage(seeds: int, rho: float, studies: int = 60) -> tuple[int, int]:
    """In how many studies the intervals of the switch, and of the reward of n = 32 there, hold the truth."""
    rng, switches, rewards = np.random.default_rng(0), 0, 0
    truth = float(hill(CROSSING, *TRUTHS[32]))
    every = [correlated(seeds, rho, rng) for _ in range(studies)]
    flat = [curve for curves in every for curve in curves]
    fits = fit_curves([curve.compute for curve in flat], [curve.reward for curve in flat], profiles=False)
    for i, curves in enumerate(every):
        own = fits[2 * i : 2 * i + 2]
        found = resample(curves, own, method="auto", seed=i)
        envelope = frontier(own, [curve.configuration for curve in curves])
        switch = next(s for s in envelope.switches if (s.from_run, s.to_run) == ("n = 8", "n = 32"))
        low, high = switch_interval(found, switch)[0]
        switches += low <= CROSSING <= high
        low, high = interval(own[1], 1, CROSSING, found)
        rewards += low <= truth <= high
    return switches, rewards


@pytest.mark.parametrize(("seeds", "rho"), [(3, 0.0), (5, 0.5)])
@pytest.mark.slow
def test_intervals_hold_the_truth_as_often_as_they_say(seeds, rho):
    """52 or fewer of 60 have probability 0.009 at 95%."""
    assert min(coverage(seeds, rho)) >= 53


@pytest.mark.slow
def test_intervals_of_too_little_noise_hold_the_truth_less_often(monkeypatch):
    """So the bound above tells: 53 or more of 60 have probability 0.03 at 78%."""
    drawn = NoiseModel.draw
    monkeypatch.setattr(NoiseModel, "draw", lambda *args: 0.6 * drawn(*args))
    assert max(coverage(3, 0.0)) < 53


def test_auto_draws_noise():
    for seeds in (1, 3, 5):
        curves, fits, _ = sweep(0.01, seeds)
        assert resample(curves, fits, method="auto", seed=0).method == "noise"
    common = {"keep": every_point, "options": QUICK, "replicates": 60}
    assert bootstrap(points(curves, fits), method="none", seed=0, **common) is None


def test_noise_needs_to_be_known():
    curves, _, _ = sweep(0.01, 3)
    blind = fit_curves([c.compute for c in curves], [c.reward for c in curves], options=QUICK)
    with pytest.raises(ValueError, match="with intervals"):
        resample(curves, blind, method="noise", seed=0)


def test_seeds_that_differ_widen_the_interval():
    """Each seed learns earlier or later by a tenth in ln C: the residuals of the mean do not show it."""
    rng, widths = np.random.default_rng(0), []
    for apart in (0.0, 0.1):
        curves = []
        for n, (floor, top, middle, rise) in TRUTHS.items():
            places = middle * np.exp(apart * np.array([-1.2, 0.2, 1.0]))
            rewards = np.array([hill(COMPUTE, floor, top, place, rise) for place in places])
            rewards += rng.normal(0, 0.003, rewards.shape)
            curves.append(Curve(Configuration(f"n = {n}", n, 32, 6000), (0, 1, 2), COMPUTE, rewards))
        fits = fit_curves([c.compute for c in curves], [c.reward for c in curves], profiles=False)
        found = resample(curves, fits, method="noise", seed=0)
        assert found.seeds_differ is (apart > 0)
        (switch,) = frontier(fits, [c.configuration for c in curves]).switches
        widths.append(np.ptp(np.log(switch_interval(found, switch)[0])))
    assert widths[1] > 3 * widths[0]


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

    bootstrap(points(curves, fits), keep=keep, options=QUICK, method="runs", replicates=30, seed=0)
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

    drawn = points(curves, fits, use)
    found = bootstrap(drawn, keep=again, options=QUICK, method="blocks", replicates=400, seed=0)
    assert found is not None
    for k, fit in enumerate(fits):
        replicates = replicate_rewards(fit, found.at[:, k], np.array([1e5]))
        assert abs(np.median(replicates) - float(fit.reward(1e5))) < 0.3 * replicates.std()
