"""Forecasts of a sweep: joint draws against a Kalman smoother, forms, ranges, and what is borrowed from neighbours."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np
import pytest

from isocompute_jax.fit.curves.falls import Fall
from isocompute_jax.fit.curves.forms import expsat, hill
from isocompute_jax.fit.curves.posterior import Draws
from isocompute_jax.fit.curves.seeds import Curve
from isocompute_jax.fit.frontier import forecast as module
from isocompute_jax.fit.frontier.bootstrap import FittedPoints
from isocompute_jax.fit.frontier.forecast import STEP, forecast
from isocompute_jax.fit.frontier.standings import prospect
from isocompute_jax.fit.results import Configuration, CurveFit

COMPUTE = np.concatenate([[0.0], np.geomspace(1e4, 1e6, 20)])
SIZES = (8, 16, 32, 64)
CONFIGURATIONS = [Configuration(f"n = {n}", n, 32, 1024) for n in SIZES]


def measured(truths, noise=0.004, seed=0):
    rng = np.random.default_rng(seed)
    return [np.clip(truth + noise * rng.normal(size=len(truth)), 0, 1) for truth in truths]


def ask(
    rewards,
    configurations=CONFIGURATIONS,
    *,
    compute=None,
    use=None,
    noise: Any = 0.004,
    rho: Any = 0.0,
    peaks=None,
    **more: Any,
):
    """The forecast of curves of one seed each, at `COMPUTE` and with all points used if nothing else is said."""
    compute = compute or [COMPUTE] * len(rewards)
    use = use or [np.ones(len(c), bool) for c in compute]
    points = []
    noise, rho = (np.broadcast_to(each, len(rewards)) for each in (noise, rho))
    for k, (configuration, reward) in enumerate(zip(configurations, rewards, strict=True)):
        fall = Fall(peaks[k], 0.5, 1e6, 0.1) if peaks and np.isfinite(peaks[k]) else None
        fit = CurveFit("hill", {}, (1e4, 1e6), noise=float(noise[k]), correlation=float(rho[k]), fall=fall)
        curve = Curve(configuration, (0,), compute[k], reward[None])
        points.append(FittedPoints(curve, fit, use[k], np.ones(len(reward))))
    return forecast(points, **more)


HILLS = [hill(COMPUTE, 0.1, a, m, 1.2) for a, m in ((0.5, 3e4), (0.6, 8e4), (0.7, 2e5), (0.8, 5e5))]


@functools.cache
def of_hills():
    return ask(measured(HILLS))


@pytest.mark.slow
def test_neighbours_are_joined_as_a_kalman_smoother_joins_them():
    # Gaussian particles of one coordinate: the joint posterior of a random walk is known in closed form.
    rng = np.random.default_rng(0)
    mean, error, steps = np.array([1.0, 2.5, 2.0]), np.array([0.5, 1.5, 0.4]), [1.0, 2.0]
    count, box = 3000, (0.0, 5.0)
    single = [
        Draws(np.zeros(count), np.full(count, 0.5), -rng.normal(m, e, size=(count, 1)))
        for m, e in zip(mean, error, strict=True)
    ]  # expsat: position = -theta
    joint, _, _ = module._walk("expsat", single, [(0.0, step) for step in steps], box, rng)
    precision = np.diag(error**-2.0)
    for i, step in enumerate(steps):
        walk = 1 / (STEP["position"] ** 2 * step)
        precision[i : i + 2, i : i + 2] += walk * np.array([[1, -1], [-1, 1]])
    covariance = np.linalg.inv(precision)
    wanted = covariance @ (mean / error**2)
    found = np.stack([-draws.theta[:, 0] for draws in joint])
    np.testing.assert_allclose(found.mean(axis=1), wanted, atol=0.06)
    np.testing.assert_allclose(np.cov(found), covariance, atol=0.06)


def test_inside_the_data_the_forecast_is_the_curve():
    found = of_hills()
    rewards = found.rewards(3e5)
    truth = [float(np.interp(np.log(3e5), np.log(COMPUTE[1:]), t[1:])) for t in HILLS]
    np.testing.assert_allclose(rewards.mean(axis=0), truth, atol=0.008)
    assert np.all(rewards.std(axis=0) < 0.01)
    later = found.rewards(16e6)
    assert np.all(later.std(axis=0) > rewards.std(axis=0))


def test_the_form_of_the_data_gets_the_most_weight():
    def best(found):
        return max(found.weights, key=lambda name: found.weights[name])

    assert best(of_hills()) == "hill"
    curves = [expsat(COMPUTE, 0.1, a, np.log(2) / m) for a, m in ((0.5, 3e4), (0.6, 8e4), (0.7, 2e5), (0.8, 5e5))]
    assert best(ask(measured(curves))) == "expsat"
    only = ask(measured(HILLS), forms=("power",))
    assert only.weights == {"power": 1.0}


def test_a_curve_that_has_not_risen_borrows_from_its_neighbours():
    """n = 64 was run to a seventeenth of where it has half of its gain."""
    rewards, use = measured(HILLS), [np.ones(len(COMPUTE), bool)] * 3 + [COMPUTE < 3e4]

    def ends(configurations):
        return ask(rewards, configurations, use=use).rewards(1e8)[:, 3]

    joined, single = ends(CONFIGURATIONS), ends([*CONFIGURATIONS[:3], Configuration("other", 0, 0, 1024)])
    assert joined.std() < 0.5 * single.std() and abs(np.median(joined) - 0.8) < abs(np.median(single) - 0.8)


def test_one_that_is_alike_in_nothing_neither_borrows_nor_drags_others_along():
    """n = 64 is flat to where its neighbour has come to most of its gain."""
    odd = measured([*HILLS[:3], np.full(len(COMPUTE), 0.1)])
    alone = [*CONFIGURATIONS[:3], Configuration("other", 0, 0, 1024)]
    joined, single = ask(odd).rewards(1e8), ask(odd, alone).rewards(1e8)
    np.testing.assert_allclose(joined.mean(axis=0), single.mean(axis=0), atol=0.02)
    assert joined[:, 3].std() > 0.9 * single[:, 3].std()


def test_rewards_scale_with_their_range_and_draws_with_the_seed():
    rewards = measured(HILLS)
    one = of_hills().rewards(4e6)
    hundred = ask([100 * r for r in rewards], noise=0.4, reward_range=(0.0, 100.0)).rewards(4e6)
    np.testing.assert_allclose(hundred, 100 * one, rtol=1e-9)
    np.testing.assert_array_equal(one, ask(rewards).rewards(4e6))
    assert not np.array_equal(one, ask(rewards, seed=1).rewards(4e6))


def test_curves_with_too_few_points_are_left_out():
    rewards = measured(HILLS)
    use = [np.ones(len(COMPUTE), bool)] * 3 + [np.arange(len(COMPUTE)) < 2]
    found = ask(rewards, use=use)
    assert found.members.tolist() == [True, True, True, False]
    assert np.isnan(found.rewards(1e6)[:, 3]).all() and np.isfinite(found.rewards(1e6)[:, :3]).all()


def test_unknown_noise_is_that_of_the_others():
    rewards = measured(HILLS)
    found = ask(rewards, noise=[0.004, 0.004, np.nan, 0.004], rho=[0.0, 0.0, np.nan, 0.0])
    assert found.rewards(1e6)[:, 2].mean() == pytest.approx(HILLS[2][-1], abs=0.01)
    untold = ask(rewards, rho=np.nan)  # fits without intervals know their noise and not its memory
    np.testing.assert_array_equal(untold.rewards(1e6), of_hills().rewards(1e6))


def test_a_prospect_is_read_off_the_draws():
    found = of_hills()
    rewards, read = found.rewards(8e6), found.prospect(8e6, [1, 3])
    assert read.index in (1, 3)
    own, other = (rewards[:, k] for k in ((1, 3) if read.index == 1 else (3, 1)))
    assert read.reward == pytest.approx(own.mean()) and own.mean() >= other.mean()
    assert read.best_share == pytest.approx(np.mean(own >= other))
    assert read.regret == pytest.approx(np.mean(np.maximum(other - own, 0.0)))
    assert read.interval95[0] < read.reward < read.interval95[1]
    assert (len(read.tied) == 1) == (np.mean(other < own) >= 0.975)
    assert found.prospect(8e6, [0]).tied == (0,) and found.prospect(8e6, [0]).regret == 0.0


def test_who_cannot_be_told_apart():
    """The best of many equal curves stands out from each of them by luck, two curves need less."""
    rng = np.random.default_rng(0)
    rewards = 0.5 + 0.01 * rng.normal(size=(4000, 5)) - np.array([0.0, 0.03, 0.031, 0.032, 0.1])
    few, many = (prospect(rewards[:, :k], range(k)) for k in (2, 5))
    assert few.tied == (0,) and many.tied == (0, 1, 2, 3)
    assert few.rival == 1 and few.rival_share == pytest.approx(1 - few.best_share)
    alone = prospect(rewards[:, [0, 4]] * [1, 0], (7, 9))
    assert alone.index == 7 and alone.rival is None and alone.best_share == 1.0 and alone.regret == 0.0


def test_only_choices_are_chosen_and_all_compete():
    rng = np.random.default_rng(0)
    rewards = np.array([0.5, 0.52, 0.49]) + np.array([0.005, 0.03, 0.014]) * rng.normal(size=(4000, 3))
    free, bound = (prospect(rewards, (4, 8, 16), choices=choices) for choices in (None, (4, 16)))
    assert free.index == 8 and free.tied == bound.tied == (4, 8, 16)
    assert bound.index == 4 and bound.rival == 8 and bound.regret > free.regret


def test_draws_that_all_agree_are_no_tie_however_long_their_tail():
    rng = np.random.default_rng(0)
    gap = 0.001 + rng.exponential(size=400) ** 3
    assert gap.mean() < 2 * gap.std()
    assert prospect(np.column_stack([gap, np.zeros(400)]), (4, 8)).tied == (4,)


def test_who_was_not_evaluated_at_the_start_begins_there_too():
    """n = 32 has no evaluation of the base model and none before 1e5: its curve rises from what the others measured."""
    late = [COMPUTE] * 3 + [COMPUTE[COMPUTE > 1e5]]
    rewards = [*measured(HILLS)[:3], measured(HILLS)[3][COMPUTE > 1e5]]

    shared = ask(rewards, compute=late)
    assert shared.start == pytest.approx(np.mean([r[0] for r in rewards[:3]]))
    early = shared.rewards(1.0)
    np.testing.assert_allclose(early.mean(axis=0), 0.1, atol=0.01)
    assert np.all(early <= shared.rewards(3e4) + 1e-12)
    alone = ask([r[c > 0] for c, r in zip(late, rewards, strict=True)], compute=[c[c > 0] for c in late])
    assert alone.start is None and alone.rewards(1.0)[:, 3].std() > 3 * early[:, 3].std()


def test_more_compute_is_never_worth_less_where_curves_fall():
    """Exactly: the reward is that of the best place to stop, whatever the budget."""
    found = ask(measured(HILLS), peaks=[5e5, np.nan, np.nan, np.nan])
    budgets = np.geomspace(1e4, 1e9, 400)
    for k in range(1, 4):
        values = [(draws.mean(), stop) for draws, stop in (found.best_within(k, c) for c in budgets.tolist())]
        worth, stops = np.array(values).T
        assert np.all(np.diff(worth) >= 0) and np.all(np.diff(stops) >= 0) and np.all(stops <= budgets)
        assert stops[-1] < budgets[-1] and worth[-1] > found.rewards(1e9)[:, k].mean() + 0.01
    well = of_hills()
    draws, stop = well.best_within(2, 3e7)
    assert stop == 3e7
    np.testing.assert_array_equal(draws, well.rewards(3e7)[:, 2])


def test_curves_fall_where_others_of_the_sweep_have():
    """The smallest n has collapsed: its neighbour, due next, is no longer expected to be as high."""
    rewards = measured(HILLS)
    well, ill = of_hills(), ask(rewards, peaks=[5e5, np.nan, np.nan, np.nan])
    assert well.collapses is None and ask(rewards, peaks=[np.nan] * 4).collapses is None
    np.testing.assert_array_equal(well.rewards(4e5), ill.rewards(4e5))
    lost = (well.rewards(4e6) - ill.rewards(4e6)).mean(axis=0)
    assert np.all(np.diff(lost) < 0) and lost[1] > 0.05


def test_a_size_that_was_not_run_is_its_neighbour_and_the_drift():
    """A climbs by 0.1 with every factor of two: 128 is expected above 64, less surely so.

    Its draws are those of one model, where the others have data and beyond.
    """
    rewards = measured(HILLS)
    new = Configuration("n = 128", 128, 32, 1024)
    found, without = ask(rewards, untried=[new]), of_hills()
    far = found.rewards(1e9)
    assert far.shape[1] == 5 and found.members.all()
    np.testing.assert_allclose(far[:, :4].mean(axis=0), without.rewards(1e9).mean(axis=0), atol=0.01)
    rise = far[:, 4].mean() - far[:, 3].mean()
    assert 0.02 < rise < 0.12 and far[:, 4].std() > far[:, 3].std()
    assert found.beyond is not None
    for compute in (3e5, 1e6, 1e9):
        np.testing.assert_array_equal(found.rewards(compute)[:, 4], found.beyond.rewards(compute)[:, 4])


def test_beyond_its_data_a_curve_goes_on_by_what_tempered_draws_gain():
    """Inside, nothing of them is used; at its own end each draw goes on without a jump, and never falls."""
    rewards, use = measured(HILLS), [np.ones(len(COMPUTE), bool)] * 3 + [COMPUTE < 2e5]
    found = ask(rewards, use=use)
    assert found.ends is not None and found.beyond is not None
    inside = dataclasses.replace(found, beyond=None)
    end = float(found.ends[3])
    np.testing.assert_array_equal(found.rewards(end), inside.rewards(end))
    np.testing.assert_allclose(found.rewards(end * (1 + 1e-9))[:, 3], found.rewards(end)[:, 3], atol=1e-7)
    np.testing.assert_array_equal(found.rewards(9e5)[:, :3], inside.rewards(9e5)[:, :3])  # their data reach further
    path = np.stack([found.rewards(c) for c in np.geomspace(1e5, 1e8, 30)])
    assert np.all(np.diff(path, axis=0) >= -1e-12) and path.max() <= 1.0
    gained = found.beyond.rewards(16e6)[:, 3] - found.beyond.rewards(end)[:, 3]
    np.testing.assert_allclose(found.rewards(16e6)[:, 3], np.minimum(found.rewards(end)[:, 3] + gained, 1.0))
    assert gained.std() > (inside.rewards(16e6) - inside.rewards(end))[:, 3].std()
