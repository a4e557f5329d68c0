"""The model of a sweep against simulated truth, and against the same sums done another way."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import scipy.stats

from isocompute_jax.fit.configurations import Configuration, ConfigurationRuns
from isocompute_jax.fit.engine import fit_sweep
from isocompute_jax.fit.engine.observations import MISMATCH, observe, place
from tests.fit.simulated import COMPUTE, METRIC, hill, rising, run_curve, same, sweep

AT = np.geomspace(4e3, 1e6, 8)


def fitted(groups, **given):
    model = fit_sweep(groups, METRIC, **given)
    assert model is not None
    return model


@pytest.fixture(scope="module")
def model():
    return fitted(sweep(rising))


def test_curves_follow_the_truth_inside_the_data(model):
    draws = model.curves(AT)
    truth = np.array([rising(n, AT) for n in (4, 16, 64)])
    assert draws.mean.shape == draws.run.shape == (3, 512, 8)
    assert np.abs(draws.mean.mean(axis=1) - truth).max() < 0.015


def test_intervals_of_many_runs_hold_the_truth():
    """Over 12 sweeps; neighbouring computes are not independent, so a share within 0.9 to 1 is what can be asked."""
    held = []
    for draw in range(12):
        draws = fitted(sweep(rising, draw=draw, seed_sd=0.015)).curves(AT)
        low, high = np.quantile(draws.mean, [0.025, 0.975], axis=1)
        truth = np.array([rising(n, AT) for n in (4, 16, 64)])
        held.append((low <= truth) & (truth <= high))
    assert np.mean(held) >= 0.88


def test_a_run_lies_further_from_the_mean_than_many(model):
    draws = model.curves(AT)
    assert (draws.run.std(axis=1) > draws.mean.std(axis=1)).all()
    assert 0.005 < model.seed_sd < 0.02 and model.noise_sd < 0.012


def test_a_fall_is_followed_and_not_carried_on(model):
    """Inside the data the curve turns; beyond them it stays near where it ended."""

    def turning(n, compute):
        return hill(0.1, 0.5, 3e3)(compute) - 0.15 / (1 + (2e5 / np.maximum(compute, 1e-9)) ** 2)

    draws = fitted(sweep(turning)).curves(np.array([3e4, 1e6, 4e6]))
    peak, end, beyond = draws.mean.mean(axis=(0, 1))
    truth = turning(4, np.array([3e4, 1e6]))
    assert [peak, end] == pytest.approx(truth.tolist(), abs=0.01)
    assert abs(beyond - end) < 0.04


def test_a_saturating_curve_goes_on_beyond_the_data():
    """At 8 times the data the interval holds the truth, and is wider than inside."""
    far = hill(0.1, 0.7, 8e5)
    draws = fitted(sweep(lambda n, c: far(c))).curves(np.array([1e6, 8e6]))
    low, high = np.quantile(draws.mean[1], [0.025, 0.975], axis=0)
    assert low[1] < far(np.array([8e6]))[0] < high[1]
    assert high[1] - low[1] > 2 * (high[0] - low[0])


def test_rewards_in_percent_are_those_of_shares():
    shares, percent = (sweep(rising, scale=(0.0, top)) for top in (1.0, 100.0))
    ours = fitted(shares).curves(AT)
    theirs = fitted(percent, reward_range=(0.0, 100.0)).curves(AT)
    np.testing.assert_allclose(100 * ours.mean, theirs.mean, rtol=1e-6)


def test_draws_are_the_same_on_every_call(model):
    np.testing.assert_array_equal(model.curves(AT, draws=64).mean, model.curves(AT, draws=64).mean)


def test_a_crashed_seed_does_not_bend_the_curve_of_the_others():
    """One seed ends early, 0.05 below the others: where it ends, the mean of the others does not jump."""
    groups = sweep(same, seeds=3, seed_sd=0.0)
    cut = 12
    crashed = run_curve(16, 3, COMPUTE[:cut], same(16, COMPUTE[:cut]) - 0.05 * (COMPUTE[:cut] > 0))
    groups[1] = dataclasses.replace(groups[1], runs=(*groups[1].runs, crashed))
    draws = fitted(groups).curves(COMPUTE[cut - 2 : cut + 2])
    rise = np.diff(draws.mean[1].mean(axis=0))
    truth = np.diff(same(16, COMPUTE[cut - 2 : cut + 2]))
    np.testing.assert_allclose(rise, truth, atol=0.012)


def test_evaluations_of_seeds_on_different_grids_are_used():
    """Every second evaluation of one seed, the others of another."""
    groups = []
    for group in sweep(rising, seeds=2):
        runs = [
            run_curve(group.configuration.group_size, seed, run.compute[seed::2], run.columns[METRIC][seed::2])
            for seed, run in enumerate(group.runs)
        ]
        groups.append(ConfigurationRuns(group.configuration, tuple(runs)))
    draws = fitted(groups).curves(AT)
    truth = np.array([rising(n, AT) for n in (4, 16, 64)])
    assert np.abs(draws.mean.mean(axis=1) - truth).max() < 0.03


def test_many_evaluations_share_bins():
    many = np.concatenate([[0.0], np.geomspace(2e3, 1e6, 800)])
    found = observe(sweep(rising, compute=many), METRIC, (0.0, 1.0))
    assert found is not None and len(found.reward) <= 490
    draws = fitted(sweep(rising, compute=many)).curves(AT)
    assert np.abs(draws.mean.mean(axis=1) - np.array([rising(n, AT) for n in (4, 16, 64)])).max() < 0.02


def test_contrasts_are_orthonormal_between_seeds():
    """Their sum of squares is that of the seeds around their mean."""
    groups = sweep(same, seeds=4)
    found = observe(groups, METRIC, (0.0, 1.0))
    assert found is not None
    values = np.array([[run.columns[METRIC] for run in group.runs] for group in groups])
    around = ((values - values.mean(axis=1, keepdims=True)) ** 2).sum(axis=(0, 1))
    np.testing.assert_allclose((found.contrast**2).sum(axis=0), around, rtol=1e-9)
    np.testing.assert_allclose(found.reward, values.mean(axis=1).ravel(), rtol=1e-12)


def test_configurations_without_an_order_stand_apart():
    base = Configuration("a", 8, 16, 64)
    other = dataclasses.replace(base, name="b", settings=(("loss", "cispo"),))
    larger = dataclasses.replace(base, name="c", group_size=32)
    features, trends, octaves = place([base, dataclasses.replace(other, settings=(("loss", "gspo"),)), larger])
    apart = np.linalg.norm(features[:, None] - features[None], axis=-1)
    assert apart[0, 1] == pytest.approx(MISMATCH) and apart[0, 2] == pytest.approx(2.0)
    assert trends.shape == (3, 1) and trends.sum() == pytest.approx(0.0)
    assert octaves == pytest.approx(np.array([-2, -2, 4]) / 3)


def test_a_configuration_that_was_not_run_is_drawn_from_its_neighbours(model):
    untried = Configuration("n = 128", 128, 8, 64)
    draws = model.curves(AT, untried=(untried,))
    assert draws.mean.shape[0] == 4
    known, new = draws.mean[2].std(axis=0), draws.mean[3].std(axis=0)
    assert (new > known).all()


def test_one_run_that_lies_outside_is_as_rare_as_the_interval_says():
    """Runs made anew of the same truth, in 95% intervals of one run."""
    held = []
    for draw in range(6):
        draws = fitted(sweep(rising, draw=draw, seed_sd=0.015, seeds=4)).curves(AT)
        low, high = np.quantile(draws.run, [0.025, 0.975], axis=1)
        again = sweep(rising, draw=100 + draw, seed_sd=0.015, seeds=8, noise=0.0, compute=np.concatenate([[0], AT]))
        for k, group in enumerate(again):
            held += [(low[k] <= run.columns[METRIC][1:]) & (run.columns[METRIC][1:] <= high[k]) for run in group.runs]
    share, count = np.mean(held), len(held)
    assert share > 0.95 - 3 * scipy.stats.binom(count, 0.95).std() / count
