"""Record-breaking points and Hill curves: goldens, exact recovery, and parity with SciPy."""

from __future__ import annotations

import jax
import numpy as np
import pytest
import scipy.optimize

from isocompute_jax.fit.curves import fit_curves, record_breaking
from isocompute_jax.fit.forms import hill

REWARDS = np.array([0.10, 0.12, 0.11, 0.19, 0.18, 0.21, 0.30, 0.29])


@pytest.mark.parametrize(
    ("records", "bin_width", "expected"),
    [
        ("strict", 0.0, [1, 2, 4, 6, 7]),
        ("bucketed", 0.0, [1, 2, 4, 6, 7]),
        ("bucketed", 0.1, [1, 6, 7]),
        ("bucketed", 0.05, [1, 4, 6, 7]),
        ("off", 0.0, [1, 2, 3, 4, 5, 6, 7, 8]),
    ],
)
def test_record_breaking_goldens(records, bin_width, expected):
    keep = record_breaking(REWARDS, records=records, bin_width=bin_width)
    assert (np.flatnonzero(keep) + 1).tolist() == expected


def test_reward_just_below_an_edge_belongs_above_it():
    assert record_breaking(np.array([0.25, 0.3]), records="bucketed", bin_width=0.1).all()
    assert record_breaking(np.array([0.25, 0.3 - 1e-6]), records="bucketed", bin_width=0.1).tolist() == [True, False]


def test_noise_free_hill_is_recovered():
    truth = [(0.2, 0.4, 1e5, 1.0), (0.05, 0.93, 3e4, 0.7), (0.0, 0.61, 5e5, 2.2), (0.3, 0.97, 2e5, 1.3)]
    compute = np.geomspace(1e3, 1e7, 20)
    fits = fit_curves([compute] * len(truth), [hill(compute, *p) for p in truth])
    for fit, expected in zip(fits, truth, strict=True):
        found = tuple(fit.params.values())
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-9)
        assert fit.status == "ok", fit.message


def test_the_base_model_measures_the_floor():
    compute = np.concatenate([[0.0], np.geomspace(1e4, 1e7, 9)])
    reward = np.concatenate([[0.2], hill(compute[1:], 0.2, 0.5, 1e5, 1.5)])
    (fit,) = fit_curves([compute], [reward])
    np.testing.assert_allclose(tuple(fit.params.values()), (0.2, 0.5, 1e5, 1.5), rtol=1e-6)
    assert fit.window == (1e4, 1e7)


def scipy_sse(compute: np.ndarray, reward: np.ndarray) -> float:
    """Least sum of squares over all four parameters by SciPy's trust region, from nine starts."""

    def residuals(p: np.ndarray) -> np.ndarray:
        floor, gain, log_mid, log_steep = p
        return floor + gain * (1 - floor) / (1 + np.exp(np.exp(log_steep) * (log_mid - np.log(compute)))) - reward

    low, high = np.log(compute[[0, -1]])
    bounds = ([0, 0, low - np.log(100), np.log(0.1)], [1, 1, high + np.log(100), np.log(10)])
    starts = [(0.1, 0.5, mid, steep) for mid in np.linspace(low, high, 3) for steep in (-0.7, 0.0, 0.7)]
    tight = {"xtol": 1e-15, "ftol": 1e-15, "gtol": 1e-15, "max_nfev": 5000}
    return min(float(2 * scipy.optimize.least_squares(residuals, s, bounds=bounds, **tight).cost) for s in starts)


def test_parity_with_scipy_on_noisy_curves():
    rng = np.random.default_rng(0)
    compute = np.geomspace(2e3, 3e5, 16)
    rewards = []
    for _ in range(12):
        truth = (rng.uniform(0, 0.2), rng.uniform(0.4, 0.95), 10 ** rng.uniform(3.5, 6), rng.uniform(0.5, 2.5))
        rewards.append(np.clip(hill(compute, *truth) + rng.normal(0, 0.02, compute.size), 0, 1))
    for fit, reward in zip(fit_curves([compute] * 12, rewards), rewards, strict=True):
        assert fit.sse <= scipy_sse(compute, reward) * (1 + 1e-7)
        assert fit.sse == pytest.approx(np.sum((fit.reward(compute) - reward) ** 2), rel=1e-9)


def test_curves_are_monotone_and_bounded_whatever_the_data():
    rng = np.random.default_rng(1)
    compute = np.geomspace(1e3, 1e6, 7)
    rewards = [rng.uniform(0, 1, 7) for _ in range(10)] + [np.linspace(0.9, 0.1, 7), np.zeros(7), np.ones(7)]
    for fit in fit_curves([compute] * len(rewards), rewards):
        drawn = fit.reward(np.geomspace(1e2, 1e8, 50))
        assert 0 <= fit.params["floor"] <= fit.asymptote <= 1
        assert np.all(np.diff(drawn) >= -1e-12)


def test_flat_short_and_unfinished_curves_say_so():
    compute = np.geomspace(1e3, 1e5, 8)
    flat, short, early, untrained = fit_curves(
        [compute, compute[:3], compute, np.zeros(1)],
        [np.full(8, 0.3), np.array([0.1, 0.2, 0.25]), hill(compute, 0.1, 0.9, 1e6, 1.2), np.array([0.1])],
    )
    assert flat.status == "warning" and "flat" in flat.message
    assert flat.asymptote == pytest.approx(0.3)
    assert short.status == "warning" and "3 points for 4 parameters" in short.message
    assert early.status == "warning" and "the data end at 1e+05, before twice C_mid" in early.message
    assert untrained.status == "failed"


def test_the_callers_precision_is_left_alone():
    before = jax.config.jax_enable_x64
    fit_curves([np.geomspace(1e3, 1e5, 8)], [np.linspace(0.1, 0.5, 8)])
    assert jax.config.jax_enable_x64 == before
    assert jax.numpy.asarray(1.0).dtype == (np.float64 if before else np.float32)
