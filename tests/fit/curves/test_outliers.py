"""Outliers: spikes are found, healthy curves lose next to nothing, and what neighbours share is no outlier."""

from __future__ import annotations

import numpy as np

from isocompute_jax.fit import FitOptions, fit_curves
from isocompute_jax.fit.curves.forms import hill
from isocompute_jax.fit.curves.screening import find_outliers, most_outliers

COMPUTE = np.geomspace(2e3, 1e6, 30)
TRUTH = hill(COMPUTE, 0.1, 0.7, 3e4, 1.2)
OPTIONS = FitOptions(intervals=False)
CURVES = 100


def noisy() -> np.ndarray:
    return TRUTH + 0.01 * np.random.default_rng(5).standard_normal((CURVES, len(COMPUTE)))


def outliers(rewards: np.ndarray, options: FitOptions = OPTIONS, compute: np.ndarray = COMPUTE) -> np.ndarray:
    return np.array(find_outliers([compute] * len(rewards), list(rewards), standard_error=None, options=options))


def error(rewards: np.ndarray, left_out: np.ndarray) -> float:
    """Root mean square error of the fitted curves."""
    fits = fit_curves([COMPUTE] * len(rewards), list(rewards), use=list(~left_out), options=OPTIONS)
    return float(np.sqrt(np.mean([(fit.reward(COMPUTE) - TRUTH) ** 2 for fit in fits])))


def test_healthy_curves_keep_95_percent_of_their_efficiency():
    rewards = noisy()
    found = outliers(rewards)
    assert found.any(axis=1).sum() <= 3
    assert (error(rewards, np.zeros_like(found)) / error(rewards, found)) ** 2 > 0.95


def test_two_spikes_are_found_and_cost_little():
    rewards, rng = noisy(), np.random.default_rng(6)
    spiked, where = rewards.copy(), np.zeros(rewards.shape, bool)
    for row, mask in zip(spiked, where, strict=True):
        places = rng.choice(np.arange(2, 28), 2, replace=False)
        row[places] += rng.choice([-0.25, 0.25], 2)
        mask[places] = True
    found = outliers(spiked)
    assert found[where].mean() > 0.95 and (found & ~where).sum() <= 3
    assert error(spiked, found) < 1.3 * error(rewards, np.zeros_like(where)) < 0.3 * error(spiked, np.zeros_like(where))


def test_what_neighbours_share_is_no_outlier():
    rewards = noisy()[:1]
    late = rewards.copy()
    late[:, -2:] += 0.1
    bent = np.clip(TRUTH, 0, 0.4)[None] + 0.0  # no Hill curve has this corner
    assert not outliers(late).any() and not outliers(bent).any()


def test_noise_free_curves_few_points_and_the_base_model_are_left_alone():
    compute = np.concatenate([[0.0], COMPUTE])
    rewards = np.concatenate([[0.5], TRUTH])[None]  # the base model is not on the curve
    assert not outliers(rewards, compute=compute).any()
    assert not outliers(TRUTH[None]).any()
    few = np.geomspace(2e3, 1e6, 7)
    assert not outliers(np.array([[0.1, 0.2, 0.9, 0.4, 0.5, 0.6, 0.6]]), compute=few).any()
    assert [most_outliers(points) for points in (8, 12, 30, 100)] == [1, 2, 3, 10]


def test_outside_the_window_nothing_is_judged():
    rewards = noisy()[:1]
    rewards[0, 1] = 0.9
    assert outliers(rewards)[0, 1]
    assert not outliers(rewards, FitOptions(intervals=False, window=(5e3, 1e6)))[0, 1]
