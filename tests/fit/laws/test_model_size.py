"""The model-size law: known answers, intervals that cover, honesty where nothing is pinned down."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.optimize

from isocompute_jax.fit.laws.model_size import (
    ModelSizeLaw,
    crossover,
    crossovers,
    fit_model_size,
    holdouts,
    part,
)

SIZES = np.array([0.5, 1.5, 3.0, 7.0, 14.0, 32.0]) * 1e9
LEVELS = np.array([1.75, 1.9, 2.1, 2.2, 2.4, 2.45])
K_MAX, N0 = 0.12, 4e9


def lines(*, noise=0.0, rho=0.0, seed=0, sizes=SIZES, levels=LEVELS, n0=N0, points=30):
    """Points of the law with AR(1) noise in ln L, each model in one run."""
    rng = np.random.default_rng(seed)
    n = np.repeat(sizes, points)
    x = np.concatenate([np.geomspace(1e17, 1e20, points) * size / 1e9 for size in sizes])
    shocks = rng.normal(size=(len(sizes), points))
    errors = shocks.copy()
    for t in range(1, points):
        errors[:, t] = rho * errors[:, t - 1] + math.sqrt(1 - rho**2) * shocks[:, t]
    log_loss = -K_MAX / (1 + n0 / n) * np.log(x) + np.repeat(levels, points) + noise * errors.ravel()
    return {"model_params": n, "x": x, "loss": np.exp(log_loss), "run": n}


def fitted(points, resamples=200) -> ModelSizeLaw:
    law = fit_model_size(points, resamples=resamples, seed=0)
    assert law is not None
    return law


def test_noise_free_parameters_are_recovered():
    law = fitted(lines())
    assert law.k_max.identified and law.n0.identified
    np.testing.assert_allclose([law.k_max.value, law.n0.value], [K_MAX, N0], rtol=1e-6)
    np.testing.assert_allclose(law.level, LEVELS, rtol=1e-6)
    np.testing.assert_allclose(law.k, K_MAX / (1 + N0 / SIZES), rtol=1e-6)
    np.testing.assert_allclose(law.lines.slope, law.k, rtol=1e-6)
    assert law.sse / law.lines.variation < 1e-12


def test_parity_with_scipy_in_all_parameters():
    points = lines(noise=0.05, seed=3)
    n, log_x, log_loss = points["model_params"], np.log(points["x"]), np.log(points["loss"])
    member = np.unique(n, return_inverse=True)[1]

    def residuals(p):
        return p[2:][member] - p[0] / (1 + np.exp(p[1]) / n) * (log_x - 40) - log_loss

    start = np.concatenate([[0.1, np.log(1e9)], np.full(6, -2.0)])
    found = scipy.optimize.least_squares(residuals, start, x_scale="jac", xtol=1e-15, ftol=1e-15, gtol=1e-15)
    law = fitted(points, 4000)
    assert law.sse == pytest.approx(2 * found.cost, rel=1e-9)
    assert law.k_max.value == pytest.approx(found.x[0], rel=1e-5)
    assert math.log(law.n0.value) == pytest.approx(found.x[1], rel=1e-5)
    # The draws spread as the curvature's covariance, by SciPy's own Jacobian in all eight parameters.
    covariance = np.linalg.inv(found.jac.T @ found.jac) * 2 * found.cost / (len(n) - 8) * law.lines.scale
    spread = np.std([law.draws[:, 0], np.log(law.draws[:, 1])], axis=1)
    np.testing.assert_allclose(spread, np.sqrt(np.diag(covariance)[:2]), rtol=0.15)


@pytest.mark.parametrize("rho", [pytest.param(0.0, marks=pytest.mark.slow), 0.6])
def test_intervals_cover_the_truth(rho):
    laws = [fitted(lines(noise=0.03, rho=rho, seed=seed), 100) for seed in range(100)]
    for name, truth in (("k_max", K_MAX), ("n0", N0)):
        assert 0.88 <= np.mean([getattr(law, name).low <= truth <= getattr(law, name).high for law in laws]) <= 0.99


def test_a_slope_that_does_not_level_off_has_no_n0():
    law = fitted(lines(noise=0.002, n0=1e12))
    assert not law.n0.identified and not law.k_max.identified and "does not level off" in law.n0.note
    assert law.n0.high == math.inf and law.k_max.high == math.inf and law.n0.low > SIZES[-1]


@pytest.mark.parametrize(("n0", "k_known"), [(SIZES[0] / 40, True), (SIZES[-1] * 40, False)])
def test_an_n0_far_outside_of_the_models_is_never_identified(n0, k_known):
    """However exact the data are: what lies between was not seen."""
    law = fitted(lines(n0=n0))
    assert law.n0.value == pytest.approx(n0, rel=1e-3)
    assert not law.n0.identified and law.k_max.identified == k_known


def test_pure_noise_says_nothing_about_n0():
    points = lines()
    noise = 0.5 + 0.02 * np.random.default_rng(0).normal(size=len(points["x"]))
    law = fitted(points | {"loss": noise})
    assert not law.n0.identified and (law.n0.low, law.n0.high) == (0, math.inf) and "any N0 fits" in law.n0.note


def test_a_slope_that_does_not_change_bounds_n0_from_above_only():
    law = fitted(lines(noise=0.05, n0=1e5))
    assert not law.n0.identified and law.n0.low == 0 and law.n0.high < 1e9
    assert law.k_max.identified and law.k_max.low < K_MAX < law.k_max.high
    assert all((row["x"].low, row["x"].high) == (0, math.inf) for row in crossovers(law))


def test_two_sizes_identify_nothing_and_one_has_no_law():
    law = fitted(lines(noise=0.01, sizes=SIZES[:2], levels=LEVELS[:2]))
    assert "two model sizes" in law.n0.note and not law.k_max.identified and not law.slope(1e9).identified
    assert np.all(np.isfinite(law.k))
    assert fit_model_size(lines(sizes=SIZES[:1], levels=LEVELS[:1]), resamples=0, seed=0) is None


def test_models_with_one_x_have_no_line():
    points = lines()
    law = fitted(part(points, np.delete(np.arange(180), np.arange(1, 30))))
    assert law.lines.model_params.tolist() == SIZES[1:].tolist() and law.lines.points.sum() == 150
    assert law.k_max.value == pytest.approx(K_MAX, rel=1e-6)


def test_a_law_of_another_form_is_noticed():
    points = lines(noise=0.01, seed=2)
    assert fitted(points).misfit > 0.01
    bent = points["loss"] * np.exp(-0.05 * (points["model_params"] == SIZES[2]) * np.log(points["x"] / 1e17))
    assert fitted(points | {"loss": bent}).misfit < 1e-6


def test_crossover_by_hand():
    # ln L1 = -0.1 ln X + 1 and ln L2 = -0.3 ln X + 5 meet at 0.2 ln X = 4, X = e^20, where ln L = -1.
    x = float(crossover(0.1, 1.0, 0.3, 5.0))
    assert x == pytest.approx(math.exp(20))
    assert -0.1 * math.log(x) + 1 == pytest.approx(-1) and -0.3 * math.log(x) + 5 == pytest.approx(-1)
    assert math.isnan(crossover(0.1, 1.0, 0.1, 2.0))
    assert crossover(0.1, 0.0, 0.1 + 1e-9, 1.0) == math.inf


def test_crossovers_of_a_fit():
    levels = LEVELS.copy()
    k = K_MAX / (1 + N0 / SIZES[:2])
    levels[1] = levels[0] + (k[1] - k[0]) * math.log(3e18)  # the two smallest meet at 3e18, inside both
    found = crossovers(fitted(lines(levels=levels)))
    assert len(found) == 15
    first = found[0]
    assert (first["smaller"], first["larger"]) == (SIZES[0], SIZES[1])
    assert first["x"].value == pytest.approx(3e18, rel=1e-5) and first["inside"] and first["better_after"] == SIZES[1]
    assert not any(row["inside"] for row in found if not 5e16 < row["x"].value < 32e20)


def test_the_interval_of_a_crossing_covers_it():
    k = K_MAX / (1 + N0 / SIZES)
    levels = LEVELS + 0.0
    levels[5] = levels[0] + (k[5] - k[0]) * math.log(2e19)
    covered = 0
    for seed in range(60):
        pair = crossovers(fitted(lines(noise=0.03, seed=seed, levels=levels), 100))[4]
        assert (pair["smaller"], pair["larger"]) == (SIZES[0], SIZES[5]) and pair["x"].identified
        covered += pair["x"].low <= 2e19 <= pair["x"].high
    assert 51 <= covered <= 60  # fewer has probability 0.004 at 95% coverage


def held_out(points):
    rows = holdouts(points, share=0.5, anchors=3, resamples=50, seed=0)
    return [[row for row in rows if row["kind"] == kind] for kind in ("later evaluations", "larger model")]


def test_later_evaluations_are_predicted():
    points = lines()
    for row in held_out(points)[0]:
        assert (row["fitted"], row["scored"]) == (15, 15) and row["loss_error"] < 1e-9 < row["unchanged_error"]
    late = points["loss"].copy()
    late[15:30] *= math.exp(0.1)  # of the smallest model
    first = held_out(points | {"loss": late})[0][0]
    assert first["loss_error"] == pytest.approx(np.mean(points["loss"][15:30]) * (math.exp(0.1) - 1))


def test_a_larger_model_is_predicted_from_smaller_ones_and_its_first_points():
    points = lines()
    (found,) = held_out(points)[1]
    assert (found["model_params"], found["fitted"], found["scored"]) == (SIZES[-1], 3, 27)
    assert found["k"].value == pytest.approx(K_MAX / (1 + N0 / SIZES[-1]), rel=1e-6) and found["loss_error"] < 1e-6
    # Nothing but the slope comes from the smaller models, and nothing but the level from the three anchors.
    moved = points["loss"] * np.where(points["model_params"] == SIZES[-1], 0.5, 1.0)
    (again,) = held_out(points | {"loss": moved})[1]
    assert again["loss_error"] < 1e-6 and again["k"].value == pytest.approx(found["k"].value)
    assert held_out(lines(sizes=SIZES[:2], levels=LEVELS[:2]))[1] == []
