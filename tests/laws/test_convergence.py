"""Convergence laws of one variable: known answers, parity with SciPy, what is held out, and doubts in words."""

import numpy as np
import pytest
import scipy.optimize

from isocompute_jax.laws import fit_chinchilla, fit_convergence

E, A, B, ALPHA, BETA = 1.69, 406.4, 410.7, 0.34, 0.28
SIZES, TOKENS = np.geomspace(4e7, 1e10, 7), np.geomspace(1e9, 3e11, 7)


def grid(noise=0.0, seed=0):
    n, d = (g.ravel() for g in np.meshgrid(SIZES, TOKENS))
    loss = E + A / n**ALPHA + B / d**BETA
    return n, d, loss * np.exp(noise * np.random.default_rng(seed).normal(size=n.size))


def fitted(data, variable, *, law=None, resamples=0):
    return fit_convergence(*data, variable=variable, law=law, resamples=resamples, seed=0)


@pytest.mark.parametrize(
    ("variable", "truth"),
    [("N", (E + B / TOKENS[-1] ** BETA, A, ALPHA)), ("D", (E + A / SIZES[-1] ** ALPHA, B, BETA))],
)
def test_sections_of_a_noise_free_surface_are_recovered(variable, truth):
    law = fit_chinchilla(*grid(), method="huber", group=None, resamples=0, seed=0)
    found = fitted(grid(), variable, law=law)
    np.testing.assert_allclose([found.e.value, found.a.value, found.alpha.value], truth, rtol=1e-6)
    assert found.status == "ok" and found.num_points == 7 and found.r2 == pytest.approx(1.0)
    assert found.chinchilla_alpha == pytest.approx(found.alpha.value, rel=1e-5)
    largest = E + A / SIZES[-1] ** ALPHA + B / TOKENS[-1] ** BETA
    assert found.held_out_loss == pytest.approx(largest)
    assert [found.forecast.value, found.chinchilla_forecast] == pytest.approx([largest] * 2, rel=1e-6)
    np.testing.assert_allclose(found.chinchilla_loss, found.loss, rtol=1e-6)


def test_the_envelope_is_what_a_loop_finds_and_follows_the_optimal_exponent():
    n, d, loss = grid()
    expected, lowest = [], np.inf
    for c, y in sorted(zip(6 * n * d, loss, strict=True)):
        if y < lowest:
            expected.append((c, y))
            lowest = y
    found = fitted((n, d, loss), "C")
    np.testing.assert_array_equal(np.column_stack([found.x, found.loss]), expected)
    # On the compute-optimal path itself L = E + k C^-(alpha beta / (alpha + beta)).
    compute = np.geomspace(1e18, 1e23, 9)
    best = (ALPHA * A / (BETA * B)) ** (1 / (ALPHA + BETA)) * (compute / 6) ** (BETA / (ALPHA + BETA))
    rest = compute / 6 / best
    path = fitted((best, rest, E + A / best**ALPHA + B / rest**BETA), "C")
    assert path.alpha.value == pytest.approx(ALPHA * BETA / (ALPHA + BETA), rel=1e-6)
    assert path.e.value == pytest.approx(E, rel=1e-6)


def test_of_runs_at_one_compute_the_envelope_has_the_best():
    n, d = np.array([1e8, 2e8, 1e8, 2e8, 4e8]), np.array([1e9, 0.5001e9, 2e9, 1e9, 0.4999e9])
    found = fitted((n, d, np.array([3.0, 3.2, 2.7, 2.6, 2.8])), "C")
    assert found.loss.tolist() == [3.0, 2.6] and found.status == "failed"


def test_parity_with_scipy_on_noisy_losses():
    found = fitted(grid(noise=0.002, seed=1), "D")

    def error(theta):
        return np.log((np.exp(theta[0]) + np.exp(theta[1]) * found.x ** -theta[2]) / found.loss)

    starts = [(e, a, s) for e in (0.3, 0.6) for a in (3.0, 7.0) for s in (0.15, 0.3)]
    fits = [
        scipy.optimize.least_squares(
            error, start, loss="huber", f_scale=1e-3, xtol=1e-14, ftol=1e-14, gtol=1e-14, x_scale="jac", max_nfev=2000
        )
        for start in starts
    ]
    best = min(fits, key=lambda fit: fit.cost)
    np.testing.assert_allclose(
        [found.e.value, found.a.value, found.alpha.value], [*np.exp(best.x[:2]), best.x[2]], rtol=1e-3
    )


def test_the_forecast_knows_nothing_of_the_largest():
    n, d, loss = grid(noise=0.002)
    spoiled = np.where(n == SIZES[-1], 3 * loss, loss)
    one, other = fitted((n, d, loss), "N", resamples=40), fitted((n, d, spoiled), "N", resamples=40)
    assert one.forecast == other.forecast and one.chinchilla_forecast == other.chinchilla_forecast
    assert one.inside and not other.inside
    assert other.held_out_loss == pytest.approx(3 * one.held_out_loss)


@pytest.mark.parametrize("variable", ["N", "D", "C"])
def test_too_few_values_say_so(variable):
    n, d, loss = grid()
    few = np.isin(n, SIZES[:3]) & np.isin(d, TOKENS[:3]) & ((n == SIZES[2]) | (variable != "C"))
    found = fitted((n[few], d[few], loss[few]), variable)
    assert found.status == "failed" and f"too few values of {variable} (3; 4 are needed)" in found.message
    assert np.isnan(found.alpha.value) and np.isnan(found.forecast.value)


def test_four_values_are_fitted_and_none_is_held_out():
    n, d, loss = grid()
    found = fitted([a[np.isin(n, SIZES[:4])] for a in (n, d, loss)], "N")
    assert found.alpha.value == pytest.approx(ALPHA, rel=1e-4)
    assert np.isnan(found.forecast.value) and "hold the largest out" in found.forecast.note


def test_models_trained_on_different_amounts_are_pointed_out():
    n, d, loss = grid()
    short = (n != SIZES[0]) | (d < TOKENS[3])
    found = fitted([a[short] for a in (n, d, loss)], "N")
    assert found.status == "warning" and "largest D of a model size goes from" in found.message


def test_a_loss_that_has_no_floor_or_no_slope_says_so():
    x = np.geomspace(1e7, 1e11, 9)
    noise = np.exp(0.002 * np.random.default_rng(0).normal(size=9))
    floorless = fitted((x, np.full(9, 1e10), 50 * x**-0.2 * noise), "N", resamples=40)
    assert not floorless.e.identified and "E is not told from 0" in floorless.message and floorless.alpha.identified
    flat = fitted((x, np.full(9, 1e10), 2 * noise), "N", resamples=40)
    assert not flat.alpha.identified


@pytest.mark.slow
@pytest.mark.parametrize("variable", ["N", "D"])
def test_intervals_cover_the_truth(variable):
    truth = {"N": (E + B / TOKENS[-1] ** BETA, ALPHA), "D": (E + A / SIZES[-1] ** ALPHA, BETA)}[variable]
    covered = np.zeros(3)
    for seed in range(20):
        found = fitted(grid(noise=0.003, seed=seed), variable, resamples=60)
        pairs = zip((found.e, found.alpha), truth, strict=True)
        covered += [*(estimate.low <= value <= estimate.high for estimate, value in pairs), found.inside]
    assert np.all(covered >= 16)  # fewer has probability 0.003 at 95% coverage
