"""The pre-training law and its sections: known answers, parity with SciPy, the optimum by search, doubts in words."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.optimize

from isocompute_jax.fit.laws.chinchilla import compute_optimal, fit_power_law, optima, section

TRUTH = np.array([1.69, 406.4, 410.7, 0.34, 0.28])
E, A, B, ALPHA, BETA = TRUTH
SIZES, TOKENS = np.geomspace(4e7, 1e10, 7), np.geomspace(1e9, 3e11, 7)


def surface(p, n, d):
    return p[0] + p[1] / n ** p[3] + p[2] / d ** p[4]


def grid(count=7, noise=0.0, seed=0):
    n, d = (g.ravel() for g in np.meshgrid(np.geomspace(4e7, 1e10, count), np.geomspace(1e9, 3e11, count)))
    return n, d, surface(TRUTH, n, d) * np.exp(noise * np.random.default_rng(seed).normal(size=n.size))


def fitted(data, resamples=0):
    *x, loss = data
    return fit_power_law(*x, loss=loss, resamples=resamples, seed=0)


def huber(residuals):
    size = np.abs(residuals)
    return np.sum(np.where(size <= 1e-3, size**2 / 2, 1e-3 * (size - 5e-4)))


@pytest.mark.parametrize("truth", [TRUTH, np.array([0.3, 5.0, 2000.0, 0.15, 0.45])])
def test_noise_free_parameters_are_recovered(truth):
    n, d, _ = grid()
    law = fitted((n, d, surface(truth, n, d)))
    np.testing.assert_allclose(law.parameters, truth, rtol=1e-6)
    assert not law.notes
    assert law.estimates()["exponent"].value == pytest.approx(truth[4] / (truth[3] + truth[4]))


@pytest.mark.parametrize(("noise", "outlier"), [(0.01, 1.0), (0.002, 1.2)])
def test_no_other_search_finds_a_lower_minimum(noise, outlier):
    n, d, loss = grid(count=5, noise=noise, seed=1)
    loss[3] *= outlier  # which must hardly move the fit
    law = fitted((n, d, loss))

    def objective(t):
        return huber(np.log(surface(np.append(np.exp(t[:3]), t[3:]), n, d) / loss)) * 1e6

    found = np.append(np.log(law.parameters[:3]), law.parameters[3:])
    rng = np.random.default_rng(0)
    for start in (found, found + 0.05 * rng.normal(size=5), np.array([0.4, 5.0, 5.0, 0.3, 0.3])):
        other: Any = scipy.optimize.minimize(objective, start, method="Nelder-Mead", options={"maxiter": 6000})
        assert objective(found) <= other.fun * (1 + 1e-7)
    exponent = law.estimates()["exponent"].value
    assert exponent == pytest.approx(BETA / (ALPHA + BETA), abs=0.04)


def test_the_optimum_is_where_a_search_finds_it():
    for flops in (1e19, 1e21, 1e24):

        def loss(log_n, flops=flops):
            return surface(TRUTH, np.exp(log_n), flops / (6 * np.exp(log_n)))

        found: Any = scipy.optimize.minimize_scalar(loss, bounds=(10, 40), method="bounded", options={"xatol": 1e-10})
        n, d = compute_optimal(TRUTH, flops)
        assert n == pytest.approx(np.exp(found.x), rel=1e-5) and 6 * n * d == pytest.approx(flops)
    one, ten = (compute_optimal(TRUTH, c)[0] for c in (1e20, 1e21))
    assert np.log10(ten / one) == pytest.approx(0.28 / 0.62)


@pytest.mark.slow
def test_intervals_cover_the_truth():
    covered = np.zeros(5)
    for seed in range(20):
        law = fitted(grid(count=6, noise=0.005, seed=seed), 60)
        found = list(law.estimates().values())[:5]
        covered += [e.low <= truth <= e.high for e, truth in zip(found, TRUTH, strict=True)]
    assert np.all(covered >= 16)  # fewer has probability 0.003 at 95% coverage


def test_designs_that_cannot_identify_the_law_say_so():
    n, d, loss = grid(noise=0.002)
    ray = np.geomspace(1e8, 1e10, 12)
    collinear = fitted((ray, 20 * ray, surface(TRUTH, ray, 20 * ray))).estimates()
    assert "collinear" in collinear["A"].note
    assert not any(collinear[name].identified for name in ("A", "B", "alpha", "beta", "exponent"))
    few = np.isin(n, np.unique(n)[[0, 6]])
    law = fitted((n[few], d[few], loss[few]))
    found = law.estimates()
    assert "too few model sizes (2" in found["alpha"].note
    assert not found["E"].identified and found["beta"].identified and not optima(law, [1e21])


def test_terms_that_vanish_are_not_identified():
    n, d, _ = grid()
    noise = np.exp(0.001 * np.random.default_rng(0).normal(size=n.size))
    flat = fitted((n, d, (1.7 + 410.7 / d**0.28) * noise), 60).estimates()
    assert not flat["alpha"].identified and not flat["A"].identified and flat["beta"].identified


def test_a_loss_without_a_floor_has_no_floor():
    n, d, _ = grid(count=6)
    clean = 406.4 / n**0.34 + 410.7 / d**0.28
    said = 0
    for seed in range(6):
        noise = np.exp(0.001 * np.random.default_rng(seed).normal(size=n.size))
        found = fitted((n, d, clean * noise), 60).estimates()
        assert found["alpha"].identified
        said += "E is not told from 0" in found["E"].note
    assert said >= 5  # fewer has probability 0.03 at 95% coverage


@pytest.mark.parametrize(
    ("variable", "truth"), [("N", (E + B / TOKENS[-1] ** BETA, ALPHA)), ("D", (E + A / SIZES[-1] ** ALPHA, BETA))]
)
def test_sections_of_a_noise_free_surface_are_recovered(variable, truth):
    row = section(fitted(grid()), variable, 0, 0)
    assert row
    np.testing.assert_allclose([row["E"].value, row["alpha"].value], truth, rtol=1e-6)
    assert row["points"] == 7 and row["expected"] == pytest.approx(row["alpha"].value, rel=1e-5)


def test_the_lowest_losses_follow_the_optimal_exponent():
    # On the compute-optimal path itself L = E + k C^-(alpha beta / (alpha + beta)).
    compute = np.geomspace(1e18, 1e23, 9)
    best, rest = compute_optimal(TRUTH, compute)
    beside = np.concatenate([best, 2 * best]), np.concatenate([rest, rest / 2])
    row = section(fitted((*beside, surface(TRUTH, *beside))), "C", 0, 0)
    assert row and row["points"] == 9
    assert row["alpha"].value == pytest.approx(ALPHA * BETA / (ALPHA + BETA), rel=1e-6)
    assert row["alpha"].value == pytest.approx(row["expected"], rel=1e-5) and row["E"].value == pytest.approx(E)


@pytest.mark.parametrize("variable", ["N", "D", "C"])
def test_too_few_values_have_no_section(variable):
    n, d, loss = grid()
    few = np.isin(n, SIZES[:3]) & np.isin(d, TOKENS[:3]) & ((n == SIZES[2]) | (variable != "C"))
    assert section(fitted((n[few], d[few], loss[few])), variable, 0, 0) is None


def test_four_values_are_enough():
    n, d, loss = grid()
    row = section(fitted([a[np.isin(n, SIZES[:4])] for a in (n, d, loss)]), "N", 0, 0)
    assert row and row["alpha"].value == pytest.approx(ALPHA, rel=1e-4)


def test_a_section_that_has_no_floor_or_no_slope_says_so():
    x = np.geomspace(1e7, 1e11, 9)
    noise = np.exp(0.002 * np.random.default_rng(0).normal(size=9))
    found = fitted((x, 50 * x**-0.2 * noise), 40).estimates()
    assert "E is not told from 0" in found["E"].note and found["alpha"].identified
    assert not fitted((x, 2 * noise), 40).estimates()["alpha"].identified


@pytest.mark.slow
@pytest.mark.parametrize("variable", ["N", "D"])
def test_intervals_of_sections_cover_the_truth(variable):
    truth = {"N": (E + B / TOKENS[-1] ** BETA, ALPHA), "D": (E + A / SIZES[-1] ** ALPHA, BETA)}[variable]
    covered = np.zeros(2)
    for seed in range(20):
        row = section(fitted(grid(noise=0.003, seed=seed)), variable, 60, seed)
        assert row
        covered += [row[name].low <= value <= row[name].high for name, value in zip(("E", "alpha"), truth, strict=True)]
    assert np.all(covered >= 16)  # fewer has probability 0.003 at 95% coverage
