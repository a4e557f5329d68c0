"""Noise from all seeds: as large as it is, correlated as it is, and seeds told apart only where they differ."""

import dataclasses

import numpy as np
import pytest

from isocompute_jax.fit.curves.fitting import fit_curves
from isocompute_jax.fit.curves.forms import hill
from isocompute_jax.fit.curves.seed_noise import ERROR_RATE, MOVES, SeedDifferences, differences, seed_noise
from isocompute_jax.fit.curves.seeds import Curve
from isocompute_jax.fit.results import Configuration

COMPUTE = np.geomspace(1e3, 1e6, 30)
TRUTH = (0.1, 0.7, 3e4, 1.0)
EVERY, SIZE = np.ones(30, bool), np.ones(30)


def measured(rng, *, seeds=4, rho=0.0, noise=0.01, places=0.0, tops=0.0, truth=None) -> Curve:
    """A curve whose seeds differ in ln C_mid and A by normal numbers of these standard deviations."""
    errors = noise * rng.standard_normal((seeds, len(COMPUTE)))
    for t in range(1, len(COMPUTE)):
        errors[:, t] = rho * errors[:, t - 1] + np.sqrt(1 - rho**2) * errors[:, t]
    floor, top, middle, rise = TRUTH
    apart = rng.standard_normal((seeds, 2))
    curves = [hill(COMPUTE, floor, top + tops * a, middle * np.exp(places * b), rise) for a, b in apart]
    rewards = (np.array(curves) if truth is None else truth) + errors
    return Curve(Configuration("n = 8", 8, 32, 6000), tuple(range(seeds)), COMPUTE, rewards)


def fitted(curves):
    return fit_curves([c.compute for c in curves], [c.reward for c in curves], profiles=False)


def noise_of(curves):
    pairs = zip(curves, fitted(curves), strict=True)
    return [seed_noise(curve, fit, use=np.ones(len(curve.compute), bool), size=np.ones(len(curve.compute)))
            for curve, fit in pairs]  # fmt: skip


@pytest.mark.parametrize("rho", [0.0, 0.5])
def test_the_noise_of_a_mean_is_that_of_its_seeds(rho):
    rng = np.random.default_rng(0)
    found = [one for one in noise_of([measured(rng, rho=rho) for _ in range(40)]) if one]
    assert len(found) >= 34  # 1 in 20 is taken for a misfit
    assert {one.model.freedom for one in found} == {4 * 26}
    correlation = np.array([one.model.correlation @ one.model.weight for one in found])
    assert correlation.mean() == pytest.approx(rho, abs=0.06)
    assert correlation.std() < 0.15  # of the mean alone twice that
    variance = np.concatenate([one.model.variance[np.isclose(one.model.correlation, rho)] for one in found])
    assert len(variance) >= 30 and variance.mean() == pytest.approx(0.01**2 / 4, rel=0.06)


def test_pooled_seeds_have_the_noise_of_a_point():
    curve = measured(np.random.default_rng(1))
    mask = np.arange(30) % 2 == np.arange(4)[:, None] % 2
    pooled = dataclasses.replace(curve, seeds=(0, 1), per_seed=np.where(mask, curve.per_seed, np.nan)[:2])
    order = pooled.seed_by_seed
    (found,) = noise_of([pooled.only(order)])
    assert found is not None and found.model.freedom == 2 * (15 - 4)
    assert found.model.variance @ found.model.weight == pytest.approx(0.01**2, rel=0.6)
    assert found.moves.shape == (2, 2)


@pytest.mark.slow
def test_equal_seeds_are_told_apart_as_seldom_as_stated():
    rng = np.random.default_rng(2)
    for rho in (0.0, 0.5):
        found = [one for one in noise_of([measured(rng, seeds=3, rho=rho) for _ in range(200)]) if one]
        taken = sum(differences(found[i : i + 2]) is not None for i in range(0, len(found) - 1, 2))
        assert taken <= 14  # of about 95; 15 or more have probability 0.0001 at 5%, and 0.05 at 10%
    assert ERROR_RATE == 0.05


def test_seeds_that_differ_are_told_apart_by_how_much():
    rng, sizes = np.random.default_rng(3), []
    for _ in range(20):
        found = differences([one for one in noise_of([measured(rng, seeds=3, places=0.3) for _ in range(4)]) if one])
        assert found is not None and found.freedom <= 8
        sizes.append(found.covariance)
    assert np.mean(sizes, axis=0)[1, 1] == pytest.approx(0.3**2, rel=0.35)
    assert np.mean(sizes, axis=0)[0, 0] < 0.01**2  # A is the same for all


def test_what_seeds_differ_by_scales_with_the_rewards():
    rng = np.random.default_rng(3)
    found = [one for one in noise_of([measured(rng, seeds=3, places=0.3, tops=0.02) for _ in range(4)]) if one]
    unit = np.array([100.0, 1.0])
    percent = [one._replace(moves=one.moves * unit, covariance=one.covariance * np.outer(unit, unit)) for one in found]
    ones, others = differences(found), differences(percent)
    assert ones is not None and others is not None
    np.testing.assert_allclose(np.abs(others.root), np.abs(unit[:, None] * ones.root), rtol=1e-6, atol=1e-12)
    assert differences([]) is None


def test_moves_are_drawn_with_their_covariance():
    covariance = np.array([[4e-4, 1e-3], [1e-3, 1e-2]])
    drawn = SeedDifferences(np.linalg.cholesky(covariance), 10**9).draw(20_000, 3, np.random.default_rng(4))
    assert drawn.shape == (20_000, 3, 2) and len(MOVES) == 2
    np.testing.assert_allclose(np.cov(drawn.reshape(-1, 2).T), covariance, rtol=0.06)


def test_a_form_that_does_not_fit_has_the_noise_of_its_fit():
    """The mean is off its curve by more than the seeds are from each other."""
    truth = 0.3 + 0.1 * np.sin(np.log(COMPUTE))
    assert noise_of([measured(np.random.default_rng(5), truth=truth)]) == [None]


def test_one_seed_says_no_more_than_its_fit():
    assert noise_of([measured(np.random.default_rng(6), seeds=1)]) == [None]
