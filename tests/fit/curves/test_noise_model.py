"""Drawn noise: stationary, correlated as it was told, and as uncertain of its size as the degrees of freedom say."""

import numpy as np
import pytest

from isocompute_jax.fit.curves.fitting import fit_curves
from isocompute_jax.fit.curves.forms import hill
from isocompute_jax.fit.curves.uncertainty import NoiseModel, alike


def known(rho: float, variance: float = 4.0, freedom: int = 10**9) -> NoiseModel:
    return NoiseModel(np.array([rho]), np.array([1.0]), np.array([variance]), freedom)


@pytest.mark.parametrize("rho", [-0.5, 0.0, 0.5, 0.9])
def test_drawn_noise_is_stationary(rho):
    noise = known(rho).draw(20_000, 12, np.random.default_rng(0))
    assert noise.shape == (20_000, 12)
    np.testing.assert_allclose(noise.var(axis=0), 4.0, rtol=0.05)  # five standard errors of a variance
    lagged = [np.corrcoef(noise[:, t], noise[:, t + 1])[0, 1] for t in range(11)]
    np.testing.assert_allclose(lagged, rho, atol=0.035)
    np.testing.assert_allclose(np.corrcoef(noise[:, 0], noise[:, 2])[0, 1], rho**2, atol=0.035)


def test_few_degrees_of_freedom_give_students_tails():
    noise = known(0.0, 1.0, freedom=5).draw(40_000, 1, np.random.default_rng(1))[:, 0]
    assert np.percentile(noise, 97.5) == pytest.approx(2.571, abs=0.08)  # Student's t with 5 degrees of freedom
    assert np.mean(np.abs(noise) > 1.96) == pytest.approx(0.107, abs=0.008)


def test_correlations_are_drawn_by_their_weight():
    model = NoiseModel(np.array([0.0, 0.8]), np.array([0.25, 0.75]), np.array([1.0, 4.0]), 10**9)
    noise = model.draw(40_000, 2, np.random.default_rng(2))
    assert noise.var() == pytest.approx(0.25 * 1.0 + 0.75 * 4.0, rel=0.04)
    assert np.mean(noise[:, 0] * noise[:, 1]) == pytest.approx(0.75 * 4.0 * 0.8, rel=0.05)


def test_a_fit_carries_its_noise():
    compute, rng = np.geomspace(1e3, 1e6, 30), np.random.default_rng(3)
    (fit,) = fit_curves([compute], [hill(compute, 0.1, 0.7, 5e4, 1.2) + rng.normal(0, 0.01, 30)])
    assert fit.search is not None and fit.search.noise is not None
    model = fit.search.noise
    assert model.freedom == 26 and model.weight.sum() == pytest.approx(1.0)
    assert fit.correlation == pytest.approx(model.correlation @ model.weight)
    assert model.variance[model.correlation == 0.0] == pytest.approx(fit.noise**2)


def test_the_noise_of_a_fit_is_as_large_as_it_was():
    compute, rng = np.geomspace(1e3, 1e6, 60), np.random.default_rng(4)
    noise = NoiseModel(np.array([0.6]), np.ones(1), np.array([1e-4]), 10**9).draw(40, 60, rng)
    fits = fit_curves([compute] * 40, list(hill(compute, 0.1, 0.7, 5e4, 1.2) + noise), profiles=False)
    models = [fit.search.noise for fit in fits if fit.search is not None and fit.search.noise is not None]
    found = np.concatenate([model.variance[np.isclose(model.correlation, 0.6)] for model in models])
    assert len(found) >= 35 and found.mean() == pytest.approx(1e-4, rel=0.1)


def test_curves_that_are_alike_teach_each_other_their_correlation():
    grid, ones = np.arange(-6, 10) / 10, np.ones(16)

    def told(mean: float, error: float) -> NoiseModel:
        weight = np.exp(-0.5 * ((grid - mean) / error) ** 2)
        return NoiseModel(grid, weight / weight.sum(), ones, 26)

    vague, sharp = told(0.0, 0.2), [told(0.3, 0.1) for _ in range(4)]
    few = NoiseModel(grid, (grid == 0.0) * 1.0, ones, 3)
    learnt = alike([vague, few, *sharp])
    assert all(model.weight.sum() == pytest.approx(1.0) for model in learnt)
    assert learnt[1] is few and alike([vague, few]) == [vague, few]
    # Normal throughout: the others' mean is known to 0.15 / 2 and 0.1 / 2, and each lies 0.15 from it.
    precision = 1 / (0.1**2 / 4 + 0.15**2 / 4 + 0.15**2), 1 / 0.2**2
    expected = precision[0] * 0.3 / sum(precision)
    found = learnt[0].weight @ grid
    assert found == pytest.approx(expected, abs=0.02)
    assert learnt[0].weight @ (grid - found) ** 2 == pytest.approx(1 / sum(precision), rel=0.15)
