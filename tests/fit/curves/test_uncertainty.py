"""Standard errors, restricted likelihood and profile intervals against SciPy and dense linear algebra."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.optimize
import scipy.stats

from isocompute_jax.fit.curves import uncertainty
from isocompute_jax.fit.curves.fit_options import FitOptions, prepare
from isocompute_jax.fit.curves.fitting import fit_curves, solve
from isocompute_jax.fit.curves.forms import HILL, hill

COMPUTE = np.geomspace(1e3, 1e6, 20)
TRUTH = (0.1, 0.7, 5e4, 1.2)
NAMES = ("floor", "asymptote", "midpoint", "steepness")


def noisy(seed: int, rho: float = 0.0) -> np.ndarray:
    noise = np.random.default_rng(seed).normal(0, 0.01, 20)
    for i in range(1, 20):
        noise[i] = rho * noise[i - 1] + np.sqrt(1 - rho**2) * noise[i]
    return hill(COMPUTE, *TRUTH) + noise


def noise_of(rewards: list[np.ndarray]) -> tuple[uncertainty.Noise, np.ndarray]:
    """The noise of curves over `COMPUTE`, and their coordinates [K, 4]."""
    options = FitOptions()
    problem, _, _ = prepare([COMPUTE] * len(rewards), rewards, [np.ones(20)] * len(rewards), options=options)
    problem, at, _, _ = solve(problem, options)
    return uncertainty.noise(problem, at, form=HILL), at


def slopes(at: np.ndarray) -> np.ndarray:
    """[20, 4] derivative of the Hill curve in (low, high, ln C_mid, ln B), by hand."""
    x, steepness = np.log(COMPUTE / COMPUTE[0]), np.exp(at[3])
    share = 1 / (1 + np.exp(-steepness * (x - at[2])))
    bend = (at[1] - at[0]) * share * (1 - share) * steepness
    return np.column_stack([1 - share, share, -bend, bend * (x - at[2])])


@pytest.fixture
def independent(monkeypatch):
    """Noise without memory: rho = 0 alone."""
    monkeypatch.setattr(uncertainty, "CORRELATIONS", np.zeros(1))


def test_standard_errors_of_independent_noise_are_scipys(independent):
    reward, sigma = noisy(0), np.random.default_rng(1).uniform(0.5, 2.0, 20)
    plain, weighted = fit_curves([COMPUTE] * 2, [reward] * 2, standard_error=[np.ones(20), sigma])
    for fit, errors in ((plain, np.ones(20)), (weighted, sigma)):
        _, covariance = scipy.optimize.curve_fit(
            hill, COMPUTE, reward, p0=TRUTH, sigma=errors, xtol=1e-14, ftol=1e-14, x_scale=TRUTH, method="trf",
            jac="3-point",
        )  # fmt: skip
        np.testing.assert_allclose([fit.stderr[n] for n in NAMES], np.sqrt(np.diag(covariance)), rtol=1e-4)
        assert fit.correlation == 0.0


def test_what_is_fixed_has_no_error():
    (fit,) = fit_curves([COMPUTE], [noisy(2)], options=FitOptions(fix={"A": 0.7, "B": 1.2}))
    assert fit.stderr["asymptote"] == fit.stderr["steepness"] == 0.0
    assert fit.interval95["asymptote"] == (0.7, 0.7) and fit.interval95["steepness"] == pytest.approx((1.2, 1.2))
    assert fit.stderr["floor"] > 0 and fit.stderr["midpoint"] > 0


def test_weights_are_the_restricted_likelihood_of_dense_algebra():
    rewards = [noisy(5), noisy(6, rho=0.6), noisy(7, rho=-0.5)]
    noise, _ = noise_of(rewards)
    np.testing.assert_allclose(noise.weight.sum(axis=0), 1.0, rtol=1e-12)
    lag = np.abs(np.subtract.outer(np.arange(20), np.arange(20)))
    rho = uncertainty.CORRELATIONS
    for k, reward in enumerate(rewards):
        likelihood = np.empty(len(rho))
        for r, value in enumerate(rho):
            matrix = value**lag if value else np.eye(20)
            at = noise.at[r * len(rewards) + k]
            x = np.log(COMPUTE / COMPUTE[0])
            residual = reward - at[0] - (at[1] - at[0]) / (1 + np.exp(-np.exp(at[3]) * (x - at[2])))
            design, precision = slopes(at), np.linalg.inv(matrix)
            logs = np.linalg.slogdet(matrix)[1] + np.linalg.slogdet(design.T @ precision @ design)[1]
            likelihood[r] = -(logs + (20 - 4) * np.log(residual @ precision @ residual)) / 2
        weight = np.exp(likelihood - likelihood.max())
        np.testing.assert_allclose(noise.weight[:, k], weight / weight.sum(), rtol=1e-5, atol=2e-4)
    assert noise.correlation[2] < noise.correlation[0] < noise.correlation[1]
    assert noise.correlation[1] == pytest.approx(rho @ noise.weight[:, 1])


def test_few_points_are_taken_as_independent():
    (few,) = fit_curves([COMPUTE[::3]], [noisy(8)[::3]])  # seven points, three degrees of freedom
    assert few.correlation == 0.0
    (enough,) = fit_curves([COMPUTE[:8]], [noisy(8)[:8]])
    assert enough.correlation != 0.0


def profile_ends(reward: np.ndarray, which: int) -> tuple[float, float]:
    """Ends of a 95% profile interval of one of (low, high, ln C_mid, ln B), every refit by SciPy."""
    x = np.log(COMPUTE)
    lower, upper = np.array([0, 0, x[0] - np.log(100), np.log(0.1)]), np.array([1, 1, x[-1] + np.log(100), np.log(10)])
    free = [i for i in range(4) if i != which]

    def residuals(p: np.ndarray) -> np.ndarray:
        return p[0] + (p[1] - p[0]) / (1 + np.exp(np.exp(p[3]) * (p[2] - x))) - reward

    tight: dict[str, Any] = {"xtol": 1e-14, "ftol": 1e-14, "gtol": 1e-14}
    start = np.array([0.1, 0.7, np.log(5e4), np.log(1.2)])
    best = scipy.optimize.least_squares(residuals, start, bounds=(lower, upper), **tight)
    variance, level = 2 * best.cost / 16, scipy.stats.t.ppf(0.975, 16)

    def excess(value: float) -> float:
        def held(p: np.ndarray) -> np.ndarray:
            return residuals(np.insert(p, which, value))

        costs = [
            scipy.optimize.least_squares(held, at[free], bounds=(lower[free], upper[free]), **tight).cost
            for at in (best.x, start)
        ]
        return np.sqrt(max(2 * (min(costs) - best.cost), 0) / variance) - level

    ends = []
    for bound in (lower[which], upper[which]):
        at, step = best.x[which], (bound - best.x[which]) / 512
        while excess(at) < 0 and abs(at - best.x[which]) < abs(bound - best.x[which]):
            at, step = best.x[which] + step, 2 * step
        ends.append(scipy.optimize.brentq(excess, best.x[which], at, xtol=1e-9) if excess(at) > 0 else bound)
    return ends[0], ends[1]


@pytest.mark.parametrize(("which", "name"), list(enumerate(NAMES)))
def test_profile_intervals_are_those_of_brute_force(independent, which, name):
    reward = noisy(9)
    (fit,) = fit_curves([COMPUTE], [reward])
    expected = profile_ends(reward, which)
    found = np.log(fit.interval95[name]) if which >= 2 else fit.interval95[name]
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    assert found[0] < (np.log(fit.params[name]) if which >= 2 else fit.params[name]) < found[1]


def test_an_interval_mixes_the_correlations(monkeypatch):
    reward = noisy(10, rho=0.5)
    (mixed,) = fit_curves([COMPUTE], [reward])
    noise, _ = noise_of([reward])
    for end, tail in zip(mixed.interval95["asymptote"], (0.975, 0.025), strict=True):
        rows = np.arange(len(noise.weight))
        index, value = np.ones(len(rows), int), np.full(len(rows), end)
        pinned = uncertainty.pin(noise.problem, rows, index, value)
        _, held, _ = uncertainty.fit_rising(pinned, form=HILL, starts=noise.at[:, None, 2:])
        score = np.sign(end - noise.at[:, 1]) * np.sqrt((held - noise.sse) / noise.scale)
        assert noise.weight[:, 0] @ scipy.stats.t.cdf(score, 16) == pytest.approx(1 - tail, rel=5e-3)
    monkeypatch.setattr(uncertainty, "CORRELATIONS", np.zeros(1))
    (alone,) = fit_curves([COMPUTE], [reward])
    width = [np.ptp(fit.interval95["asymptote"]) for fit in (mixed, alone)]
    assert width[0] > width[1]  # noise with memory says less


def test_noise_free_data_have_narrow_intervals_around_the_truth():
    (fit,) = fit_curves([COMPUTE], [hill(COMPUTE, *TRUTH)])
    for name, truth in zip(NAMES, TRUTH, strict=True):
        low, high = fit.interval95[name]
        assert low <= truth * (1 + 1e-7) and high >= truth * (1 - 1e-7)
        assert high - low < 1e-6 * truth


def test_without_intervals_nothing_is_said():
    (fit,) = fit_curves([COMPUTE], [noisy(12)], options=FitOptions(intervals=False))
    assert fit.interval95 == {} and fit.stderr == {} and fit.identified == {}
    assert np.isnan(fit.correlation) and fit.noise > 0
