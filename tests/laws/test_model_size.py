"""The model-size law: known answers, intervals that cover, honesty where nothing is pinned down."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.optimize

from isocompute_jax.laws import at_equal_data, crossover, crossovers, fit_model_size, inter_model, intra_model, reuse

SIZES = np.array([0.5, 1.5, 3.0, 7.0, 14.0, 32.0]) * 1e9
LEVELS = np.array([1.75, 1.9, 2.1, 2.2, 2.4, 2.45])
K_MAX, N0 = 0.12, 4e9


def lines(*, noise=0.0, rho=0.0, seed=0, sizes=SIZES, levels=LEVELS, n0=N0, points=30):
    """(model_params, x, reward) of the law with AR(1) noise in ln L."""
    rng = np.random.default_rng(seed)
    n = np.repeat(sizes, points)
    x = np.concatenate([np.geomspace(1e17, 1e20, points) * size / 1e9 for size in sizes])
    shocks = rng.normal(size=(len(sizes), points))
    errors = shocks.copy()
    for t in range(1, points):
        errors[:, t] = rho * errors[:, t - 1] + math.sqrt(1 - rho**2) * shocks[:, t]
    log_loss = -K_MAX / (1 + n0 / n) * np.log(x) + np.repeat(levels, points) + noise * errors.ravel()
    return n, x, 1 - np.exp(log_loss)


def fitted(data, weight=None, run=None):
    return fit_model_size(*data, weight=weight, run=run)


def test_noise_free_parameters_are_recovered():
    fit = fitted(lines())
    assert fit.status == "ok" and fit.k_max.identified and fit.n0.identified
    np.testing.assert_allclose([fit.k_max.value, fit.n0.value], [K_MAX, N0], rtol=1e-6)
    np.testing.assert_allclose(fit.intercept, LEVELS, rtol=1e-6)
    np.testing.assert_allclose(fit.k, K_MAX / (1 + N0 / SIZES), rtol=1e-6)
    np.testing.assert_allclose(fit.free_k, fit.k, rtol=1e-6)
    assert fit.r2 == pytest.approx(1.0)


def test_parity_with_scipy_on_noisy_data():
    n, x, reward = lines(noise=0.05, seed=3)
    weight = np.random.default_rng(0).uniform(0.5, 2.0, len(n))
    member = np.unique(n, return_inverse=True)[1]

    def residuals(p):
        k = p[0] / (1 + np.exp(p[1]) / n)
        return np.sqrt(weight) * (p[2:][member] - k * (np.log(x) - 40) - np.log(1 - reward))

    start = np.concatenate([[0.1, np.log(1e9)], np.full(6, -2.0)])
    found = scipy.optimize.least_squares(residuals, start, x_scale="jac", xtol=1e-15, ftol=1e-15, gtol=1e-15)
    fit = fitted((n, x, reward), weight=weight)
    assert fit.sse == pytest.approx(2 * found.cost, rel=1e-9)
    assert fit.k_max.value == pytest.approx(found.x[0], rel=1e-5)
    assert math.log(fit.n0.value) == pytest.approx(found.x[1], rel=1e-5)
    # The curvature's covariance, by SciPy's own Jacobian in all eight parameters.
    covariance = np.linalg.inv(found.jac.T @ found.jac) * 2 * found.cost / (len(n) - 8)
    widening = (1 + fit.autocorrelation) / (1 - fit.autocorrelation)
    errors = np.sqrt(np.diag(covariance)[:2] * widening)
    np.testing.assert_allclose([fit.k_max_error, fit.log_n0_error], errors, rtol=1e-3)


def test_the_interval_ends_where_the_profile_meets_the_f_threshold():
    n, x, reward = lines(noise=0.04, seed=1)
    fit = fitted((n, x, reward))
    y, log_x = np.log(1 - reward), np.log(x)

    def sse(n0):
        columns = np.column_stack([n[:, None] == SIZES, -log_x / (1 + n0 / n)])
        return float(np.sum((y - columns @ np.linalg.lstsq(columns, y, rcond=None)[0]) ** 2))

    freedom = len(n) - 8
    widening = (1 + fit.autocorrelation) / (1 - fit.autocorrelation)
    limit = scipy.stats.f.ppf(0.95, 1, freedom / widening)
    for end in (fit.n0.low, fit.n0.high):
        assert (sse(end) - fit.sse) / (fit.sse / freedom * widening) == pytest.approx(limit, rel=1e-4)


@pytest.mark.parametrize("rho", [pytest.param(0.0, marks=pytest.mark.slow), 0.6])
def test_intervals_cover_the_truth(rho):
    fits = [fitted(lines(noise=0.03, rho=rho, seed=seed)) for seed in range(150)]
    for name, truth in (("k_max", K_MAX), ("n0", N0)):
        covered = sum(getattr(f, name).low <= truth <= getattr(f, name).high for f in fits)
        assert 0.88 <= covered / len(fits) <= 0.99


def test_a_slope_that_does_not_level_off_has_no_n0():
    fit = fitted(lines(noise=0.002, n0=1e12))
    assert fit.status == "warning" and "does not level off" in fit.message
    assert not fit.n0.identified and not fit.k_max.identified
    assert fit.n0.high == math.inf and fit.k_max.high == math.inf and fit.n0.low > SIZES[-1]


@pytest.mark.parametrize(("n0", "k_known"), [(SIZES[0] / 40, True), (SIZES[-1] * 40, False)])
def test_an_n0_far_outside_of_the_models_is_never_ok(n0, k_known):
    """However exact the data are: what lies between was not seen."""
    fit = fitted(lines(n0=n0))
    assert fit.n0.value == pytest.approx(n0, rel=1e-3)
    assert fit.status == "warning" and not fit.n0.identified and fit.k_max.identified == k_known


def test_pure_noise_says_nothing_about_n0():
    n, x, _ = lines()
    fit = fitted((n, x, 0.5 + 0.02 * np.random.default_rng(0).normal(size=len(n))))
    assert not fit.n0.identified and (fit.n0.low, fit.n0.high) == (0, math.inf) and "any N0 fits" in fit.message


def test_a_slope_that_does_not_change_bounds_n0_from_above_only():
    fit = fitted(lines(noise=0.05, n0=1e5))
    assert not fit.n0.identified and fit.n0.low == 0 and fit.n0.high < 1e9
    assert fit.k_max.identified and fit.k_max.low < K_MAX < fit.k_max.high


@pytest.mark.parametrize(("count", "words"), [(1, "one model size"), (2, "2 model sizes")])
def test_fewer_than_three_sizes_identify_nothing(count, words):
    fit = fitted(lines(noise=0.01, sizes=SIZES[:count], levels=LEVELS[:count]))
    assert fit.status == "warning" and words in fit.message
    assert not fit.n0.identified and not fit.k_max.identified
    assert np.all(np.isfinite(fit.k)) and np.all(fit.free_k_error > 0)


def test_points_without_a_logarithm_are_left_out_and_said():
    n, x, reward = lines()
    x[0], reward[1], reward[2] = 0.0, 1.0, np.nan
    fit = fitted((n, x, reward))
    assert fit.num_points == len(n) - 3
    assert [text.split()[0] for text in fit.left_out] == ["1", "1", "1"]
    assert any("reward 1" in text for text in fit.left_out) and any("X = 0" in text for text in fit.left_out)
    assert fit.k_max.value == pytest.approx(K_MAX, rel=1e-6)
    assert fitted((n[:1], x[:1], reward[:1])).status == "failed"


def test_a_law_of_another_form_is_noticed():
    n, x, reward = lines(noise=0.01, seed=2)
    bent = 1 - (1 - reward) * np.exp(-0.05 * (n == SIZES[2]) * np.log(x / 1e17))
    fit = fitted((n, x, bent))
    assert fit.misfit < 1e-6 and "depart from k(N)" in fit.message
    assert fitted((n, x, reward)).misfit > 0.01


def test_rewards_that_fall_are_said():
    n, x, reward = lines(noise=0.01)
    assert "not positive" in fitted((n, 1e40 / x, reward)).message


def test_crossover_by_hand():
    # ln L1 = -0.1 ln X + 1 and ln L2 = -0.3 ln X + 5 meet at 0.2 ln X = 4, X = e^20, where ln L = -1.
    x = crossover(0.1, 1.0, 0.3, 5.0)
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
    assert (first.smaller, first.larger) == (SIZES[0], SIZES[1])
    assert first.x == pytest.approx(3e18, rel=1e-5) and first.inside and first.better_after == SIZES[1]
    assert not any(c.inside for c in found if c.x < 5e16 or c.x > 32e20)


def test_the_interval_of_a_crossing_covers_it():
    k = K_MAX / (1 + N0 / SIZES)
    levels = LEVELS + 0.0
    levels[5] = levels[0] + (k[5] - k[0]) * math.log(2e19)
    covered = 0
    for seed in range(100):
        pair = crossovers(fitted(lines(noise=0.03, seed=seed, levels=levels)))[4]
        assert (pair.smaller, pair.larger) == (SIZES[0], SIZES[5]) and pair.status == "ok"
        covered += pair.low <= 2e19 <= pair.high
    assert 88 <= covered <= 100


def test_slopes_that_are_not_told_apart_place_no_crossing():
    found = crossovers(fitted(lines(noise=0.05, n0=1e5)))
    assert all(c.status == "warning" and c.low == 0 and c.high == math.inf for c in found)


def test_later_evaluations_are_predicted():
    n, x, reward = lines()
    run = np.repeat(np.arange(6), 30)
    for found in intra_model(n, x, reward, weight=None, run=run, share=0.5):
        assert (found.num_fitted, found.num_scored) == (15, 15)
        assert found.log_loss_error < 1e-9 and found.reward_error < 1e-9 < found.unchanged_error
    late = reward.copy()
    late[run == 0] = np.where(np.arange(30) < 15, reward[run == 0], 1 - (1 - reward[run == 0]) * math.exp(0.1))
    first = intra_model(n, x, late, weight=None, run=run, share=0.5)[0]
    assert first.log_loss_error == pytest.approx(0.1)  # the last half lies 0.1 above the line in ln L
    assert first.reward_error == pytest.approx(np.mean((1 - reward[:30][15:]) * (math.exp(0.1) - 1)))


def test_a_larger_model_is_predicted_from_smaller_ones_and_its_first_points():
    n, x, reward = lines()
    run = np.repeat(np.arange(6), 30)
    (found,) = inter_model(n, x, reward, weight=None, run=run, held_out=1, anchors=3)
    assert (found.model_params, found.num_fitted, found.num_scored) == (SIZES[-1], 3, 27)
    assert found.predicted_k.value == pytest.approx(K_MAX / (1 + N0 / SIZES[-1]), rel=1e-6)
    assert found.log_loss_error < 1e-6
    # Nothing but the slope comes from the smaller models, and nothing but the level from the three anchors.
    moved = 1 - (1 - reward) * np.where(n == SIZES[-1], 0.5, 1.0)
    (again,) = inter_model(n, x, moved, weight=None, run=run, held_out=1, anchors=3)
    assert again.log_loss_error < 1e-6 and again.predicted_k.value == pytest.approx(found.predicted_k.value)
    assert inter_model(n, x, reward, weight=None, run=run, held_out=5, anchors=3) == ()
    assert inter_model(n, x, reward, weight=None, run=run, held_out=0, anchors=3) == ()


def reused(*, penalty, noise=0.01, seed=0):
    """One model, four runs on problem sets of 100 to 100,000; `penalty` in ln L above tau = 25."""
    rng = np.random.default_rng(seed)
    x = np.tile(np.geomspace(1e4, 1e6, 20), 4)
    problems = np.repeat([100.0, 1e3, 1e4, 1e5], 20)
    tau = x / (8 * problems)
    log_loss = -0.05 * np.log(x) + penalty * (tau > 25) + noise * rng.normal(size=80)
    return np.full(80, 1e9), x, 1 - np.exp(log_loss), tau, problems, np.repeat(np.arange(4), 20)


def test_reuse_finds_a_penalty_and_no_penalty():
    n, x, reward, tau, _, run = reused(penalty=0.05)
    bad = reuse(n, x, reward, tau, run=run, threshold=25.0)
    assert bad.degraded and bad.shift == pytest.approx(0.05, abs=4 * bad.shift_error) and bad.shift_error < 0.01
    assert bad.mean_above > 0 > bad.mean_below and bad.num_above == int(np.sum(tau > 25))
    # The shift is the coefficient of a plain regression on (1, ln X, tau > 25).
    design = np.column_stack([np.ones(80), np.log(x), tau > 25])
    assert bad.shift == pytest.approx(np.linalg.lstsq(design, np.log(1 - reward), rcond=None)[0][2])
    n, x, reward, tau, _, run = reused(penalty=0.0)
    fine = reuse(n, x, reward, tau, run=run, threshold=25.0)
    assert fine.degraded is False and fine.message == "no degradation is visible"


def test_reuse_says_when_there_is_nothing_to_compare():
    n, x, reward, tau, _, run = reused(penalty=0.0)
    for values, words in (
        (tau / 1e6, "no evaluation lies above"),
        (tau * 1e6, "every evaluation"),
        (tau * np.nan, "not known"),
    ):
        found = reuse(n, x, reward, values, run=run, threshold=25.0)
        assert found.status == "failed" and words in found.message and found.degraded is None


def test_losses_at_equal_data():
    n, x, _, tau, problems, run = reused(penalty=0.0)
    loss = np.exp(-0.05 * np.log(x)) * (1 + 0.001 * run)
    keep = ~((run == 2) & (x > 1e5))  # the third run ends early, so all are compared there
    rows = at_equal_data(n[keep], x[keep], 1 - loss[keep], tau[keep], problems[keep], run=run[keep])
    at = x[keep & (run == 2)].max()
    assert [row["problem_set_size"] for row in rows] == [100, 1e3, 1e4, 1e5]
    for number, row in enumerate(rows):
        assert row["x"] == at and row["num_runs"] == 1 and math.isnan(row["error"])
        assert row["loss"] == pytest.approx(at**-0.05 * (1 + 0.001 * number))
        assert row["tau"] == pytest.approx(at / (8 * row["problem_set_size"]))
    assert at_equal_data(n[:20], x[:20], 1 - loss[:20], tau[:20], problems[:20], run=run[:20]) == ()
