"""The solver against dense linear algebra and SciPy: whitening, levels in closed form, bounds, batches."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

from isocompute_jax.fit.curves.fit_options import FitOptions
from isocompute_jax.fit.curves.fitting import fit_curves
from isocompute_jax.fit.curves.forms import FORMS, HILL, hill
from isocompute_jax.fit.curves.solver import BATCH, CurveBatch, fit_rising, grid_starts, project, whiten

X = np.linspace(0.0, 6.0, 14)


def correlation_matrix(rho: float, size: int) -> np.ndarray:
    return rho ** np.abs(np.subtract.outer(np.arange(size), np.arange(size))) if rho else np.eye(size)


def one_problem(y: np.ndarray, *, rho=0.0, root_weight=None, levels=(0.0, 1.0, 0.0, 1.0), box=None) -> CurveBatch:
    lower, upper = box if box is not None else HILL.box(X[-1])
    weight = np.ones_like(y) if root_weight is None else root_weight
    link, runs = (np.arange(len(y)) > 0) * 1.0, np.zeros((len(y), 0))
    bounds = (np.array(levels), np.asarray(lower, float), np.asarray(upper, float), *HILL.grid(X[-1]))
    return CurveBatch(*(np.asarray(a)[None] for a in (X, y, weight, np.float64(rho), link, runs, *bounds)))


@pytest.mark.parametrize("rho", [-0.6, 0.0, 0.3, 0.9])
def test_whitening_is_generalised_least_squares(rho):
    rng = np.random.default_rng(3)
    residual, weight = rng.normal(size=14), rng.uniform(0.5, 2.0, 14)
    padded = np.concatenate([weight, np.zeros(3)])
    with jax.enable_x64(True):
        white = np.asarray(whiten(jnp.array([*residual, 7.0, 7.0, 7.0]), jnp.array(padded), rho, jnp.arange(17) > 0))
    scaled = weight * residual
    dense = scaled @ np.linalg.solve(correlation_matrix(rho, 14), scaled) * (1 - rho**2)
    assert np.sum(white**2) == pytest.approx(dense, rel=1e-12)
    assert np.all(white[14:] == 0)


@pytest.mark.parametrize("rho", [-0.4, 0.0, 0.7])
def test_levels_under_correlated_noise_are_those_of_dense_algebra(rho):
    rng = np.random.default_rng(4)
    theta = np.array([2.0, 0.3])
    share = 1 / (1 + np.exp(-np.exp(theta[1]) * (X - theta[0])))
    y, weight = 0.2 + 0.5 * share + rng.normal(0, 0.03, 14), rng.uniform(0.5, 2.0, 14)
    precision = np.linalg.inv(correlation_matrix(rho, 14)) * weight[:, None] * weight
    design = np.column_stack([1 - share, share])
    level = np.linalg.solve(design.T @ precision @ design, design.T @ precision @ y)
    residual = y - design @ level
    problem = one_problem(y, rho=rho, root_weight=weight, box=(theta, theta))
    at, sse, converged = fit_rising(problem, form=HILL, starts=theta[None, None])
    np.testing.assert_allclose(at[0, :2], level, rtol=1e-9)
    assert sse[0] == pytest.approx(residual @ precision @ residual * (1 - rho**2), rel=1e-9)
    assert converged[0]


@pytest.mark.parametrize("rho", [-0.4, 0.5])
def test_the_whole_fit_under_correlated_noise_is_scipys(rho):
    rng = np.random.default_rng(5)
    y = 0.1 + 0.6 / (1 + np.exp(-1.2 * (X - 3))) + rng.normal(0, 0.02, 14)
    factor = np.linalg.cholesky(np.linalg.inv(correlation_matrix(rho, 14)) * (1 - rho**2)).T

    def residuals(p: np.ndarray) -> np.ndarray:
        return factor @ (p[0] + (p[1] - p[0]) / (1 + np.exp(-np.exp(p[3]) * (X - p[2]))) - y)

    theirs = scipy.optimize.least_squares(residuals, [0.1, 0.7, 3.0, 0.2], xtol=1e-15, ftol=1e-15, gtol=1e-15)
    at, sse, _ = fit_rising(one_problem(y, rho=rho), form=HILL)
    assert sse[0] == pytest.approx(2 * theirs.cost, rel=1e-9)
    np.testing.assert_allclose(at[0], theirs.x, rtol=1e-5)


def test_bounded_levels_are_the_minimum_of_a_convex_problem():
    rng = np.random.default_rng(6)
    constraint = [{"type": "ineq", "fun": lambda p: p[1] - p[0]}]
    for _ in range(12):
        share, y = np.sort(rng.uniform(0, 1, 14)), rng.uniform(-0.3, 1.3, 14)
        lows, highs = np.sort(rng.uniform(0, 0.6, 2)), np.sort(rng.uniform(0.6, 1.0, 2))
        problem = one_problem(y, levels=(*lows, *highs))
        with jax.enable_x64(True):
            row = CurveBatch(*(jnp.asarray(a[0]) for a in problem))
            low, high, residual = (np.asarray(a) for a in project(row, jnp.array(share)))
        assert lows[0] <= low <= lows[1] and highs[0] <= high <= highs[1]
        np.testing.assert_allclose(residual, y - low - (high - low) * share, atol=1e-14)
        theirs = scipy.optimize.minimize(
            lambda p, s=share, y=y: np.sum((y - p[0] - (p[1] - p[0]) * s) ** 2),
            [lows.mean(), highs.mean()], bounds=[lows, highs], constraints=constraint, options={"ftol": 1e-14},
        )  # fmt: skip
        assert residual @ residual == pytest.approx(theirs.fun, rel=1e-7)


def test_a_falling_curve_becomes_flat_at_its_mean():
    at, _, _ = fit_rising(one_problem(0.9 - 0.1 * X), form=HILL, starts=np.zeros((1, 1, 2)))
    np.testing.assert_allclose(at[0, :2], 0.6, rtol=1e-12)


def test_theta_stays_in_its_box_and_fixed_parameters_stand_still():
    y = 0.1 + 0.6 / (1 + np.exp(-2.0 * (X - 3)))
    box = (np.array([3.5, 0.1]), np.array([4.0, 0.1]))
    starts = grid_starts(one_problem(y, box=box), form=HILL)
    assert np.all((starts >= box[0]) & (starts <= box[1]))
    at, _, converged = fit_rising(one_problem(y, box=box), form=HILL)
    assert at[0, 2:].tolist() == [3.5, 0.1]  # the truth, 3, lies below the box
    assert converged[0]


def test_curves_share_a_batch_without_touching_each_other():
    rng = np.random.default_rng(7)
    count = 2 * BATCH + 10
    compute = np.exp(X)
    truth = rng.uniform([0, 0.5, 5, 0.5], [0.2, 0.9, 200, 3], (count, 4))
    y = np.array([hill(compute, *p) for p in truth]) + rng.normal(0, 0.02, (count, len(X)))
    rows = [one_problem(values) for values in y]
    together = CurveBatch(*(np.concatenate(arrays) for arrays in zip(*rows, strict=True)))
    at, sse, converged = fit_rising(together, form=HILL)
    assert np.all(converged)
    order = rng.permutation(count)
    shuffled, _, _ = fit_rising(CurveBatch(*(a[order] for a in together)), form=HILL)
    np.testing.assert_allclose(shuffled, at[order], rtol=1e-9)
    for k in (0, BATCH - 1, BATCH, count - 1):
        for ours, batch in zip(fit_rising(rows[k], form=HILL), (at, sse, converged), strict=True):
            np.testing.assert_allclose(ours[0], batch[k], rtol=1e-9)


def test_a_flat_curve_has_one_answer_wherever_it_stands():
    """Any shape fits it as well: what is found hangs on last digits, which must not hang on the other curves."""
    rising = 0.1 + 0.6 / (1 + np.exp(-1.2 * (X - 3)))
    for flat in (np.full(14, 0.3), 0.9 - 0.1 * X):
        answers = []
        for before in (0, 1, BATCH - 1, BATCH + 3):
            rows = [one_problem(y) for y in [rising] * before + [flat] + [rising] * 2]
            together = CurveBatch(*(np.concatenate(arrays) for arrays in zip(*rows, strict=True)))
            answers.append(fit_rising(together, form=HILL)[0][before].tolist())
        assert answers == answers[:1] * 4


def test_all_forms_and_any_number_of_curves_share_the_compiled_programs(caplog):
    compute, reward = np.geomspace(1e3, 1e6, 20), np.linspace(0.1, 0.6, 20)
    fit_curves([compute], [reward])  # compiles, unless a test did so before
    with jax.log_compiles(), caplog.at_level("WARNING"):
        for form in FORMS:
            fit_curves([compute] * 12, [reward] * 12, options=FitOptions(form=form))
    assert not [record for record in caplog.records if "ompil" in record.getMessage()]


def test_levels_of_runs_are_least_squares_of_dense_algebra():
    """Three runs, the second of which stops early; their levels sum to zero."""
    rng = np.random.default_rng(8)
    size = (14, 5, 14)
    x = np.concatenate([X[:count] for count in size])
    owner = np.repeat(np.arange(3), size)
    y = 0.1 + 0.6 / (1 + np.exp(-1.2 * (x - 3))) + np.array([0.03, -0.04, 0.01])[owner] + rng.normal(0, 0.01, len(x))
    runs = (owner[:, None] == [0, 1]) * 1.0 - (owner == 2)[:, None]
    pad = 64 - len(x)
    rows = (np.pad(x, (0, pad)), np.pad(y, (0, pad)), np.pad(np.ones(len(x)), (0, pad)), np.float64(0.0))
    link = np.pad(np.diff(owner, prepend=-1) == 0, (0, pad)) * 1.0
    ends = (np.array([0.0, 1.0, 0.0, 1.0]), *HILL.box(X[-1]), *HILL.grid(X[-1]))
    problem = CurveBatch(*(np.asarray(a)[None] for a in (*rows, link, np.pad(runs, ((0, pad), (0, 0))), *ends)))
    at, sse, _ = fit_rising(problem, form=HILL)

    def residuals(p: np.ndarray) -> np.ndarray:
        return p[0] + (p[1] - p[0]) / (1 + np.exp(-np.exp(p[3]) * (x - p[2]))) + runs @ p[4:] - y

    theirs = scipy.optimize.least_squares(residuals, [0.1, 0.7, 3.0, 0.2, 0, 0], xtol=1e-15, ftol=1e-15, gtol=1e-15)
    assert sse[0] == pytest.approx(2 * theirs.cost, rel=1e-9)
    np.testing.assert_allclose(at[0], theirs.x[:4], rtol=1e-5)
