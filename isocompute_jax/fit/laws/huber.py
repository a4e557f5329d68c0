"""The Huber fit of the pre-training law on ln L, with exact derivatives from JAX in float64."""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize

from isocompute_jax.fit.laws.squares import HIGHEST_EXPONENT, LOWEST_EXPONENT, Found

DELTA = 1e-3
"""Errors of ln L beyond this count linearly (arXiv 2203.15556, section D.2)."""
EXPONENTS = np.geomspace(0.05, 2.0, 6)
SHARES = (0.02, 0.3, 0.6, 0.85, 0.97)
"""Starts: E as a share of the lowest loss; A and B share the rest at the mean of ln N and ln D."""
STARTS = 10
FLAT = 30.0
"""A term may fall to exp(-30) of the losses before it counts as absent."""

MAX_STEPS = 200
_BLOCK = 64


class _Problem(NamedTuple):
    """Logarithms about their means, padded to a multiple of `_BLOCK` with weight 0: few sizes, few compilations."""

    log_n: np.ndarray
    log_d: np.ndarray
    log_loss: np.ndarray
    weight: np.ndarray


def objective(theta: jax.Array, problem: _Problem) -> jax.Array:
    """Sum of w huber(r) / delta^2, r = LSE(a - alpha ln N, b - beta ln D, e) - ln L, theta = (e, a, b, alpha, beta)."""
    e, a, b, alpha, beta = theta
    terms = jnp.stack([jnp.full_like(problem.log_n, e), a - alpha * problem.log_n, b - beta * problem.log_d])
    r = jnp.abs(jax.nn.logsumexp(terms, axis=0) - problem.log_loss) / DELTA
    return jnp.sum(problem.weight * jnp.where(r <= 1.0, 0.5 * r**2, r - 0.5))


_value = jax.jit(objective)
_values = jax.jit(jax.vmap(objective, in_axes=(0, None)))
_gradient = jax.jit(jax.value_and_grad(objective))


@jax.jit
def _derivatives(theta: jax.Array, problem: _Problem) -> tuple[jax.Array, jax.Array]:
    return jax.grad(objective)(theta, problem), jax.hessian(objective)(theta, problem)


def fit(n: np.ndarray, d: np.ndarray, loss: np.ndarray, *, weight: np.ndarray, start: Found | None) -> Found:
    """The best of several searches, or one search from `start`.

    Float64 is switched on for these calls alone: the caller's global JAX settings are left as they are.

    Args:
      n: [P] parameters.
      d: [P] tokens.
      loss: [P].
      weight: [P]; 0 leaves a point out.
      start: where to begin; None for a grid of starts.
    """
    log_n, log_d, log_loss = np.log(n), np.log(d), np.log(loss)
    centre = np.array([0.0, log_n.mean(), log_d.mean()])
    size = -(-len(n) // _BLOCK) * _BLOCK
    columns = (log_n - centre[1], log_d - centre[2], log_loss, weight)
    problem = _Problem(*(np.pad(np.asarray(c, np.float64), (0, size - len(n))) for c in columns))
    low, high = _box(log_loss)
    with jax.enable_x64(True):
        if start is None:
            ends = [_lbfgs(problem, s, low, high) for s in _starts(problem, log_loss)]
            ends.sort(key=lambda end: float(_value(end, problem)))
            ends = ends[:3]
        else:
            e, a, b, alpha, beta = start.parameters
            with np.errstate(divide="ignore"):
                logs = np.log([e, a, b])
            ends = [np.clip(np.array([*(logs - np.array([0, alpha, beta]) * centre), alpha, beta]), low, high)]
        searches = [_newton(problem, end, low, high) for end in ends]
    theta, value, converged = min(searches, key=lambda s: s[1])
    levels = np.where(theta[:3] <= low[:3] + 1e-9, 0.0, np.exp(theta[:3] + np.array([0, *theta[3:]]) * centre))
    return Found(np.concatenate([levels, theta[3:]]), value * DELTA**2, converged)


def _box(log_loss: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    floor, ceiling = log_loss.min() - FLAT, log_loss.max() + FLAT
    low = np.array([floor, floor, floor, LOWEST_EXPONENT, LOWEST_EXPONENT])
    return low, np.array([log_loss.max(), ceiling, ceiling, HIGHEST_EXPONENT, HIGHEST_EXPONENT])


def _starts(problem: _Problem, log_loss: np.ndarray) -> np.ndarray:
    """[S, 5] the best starts of a grid over both exponents and the share of E."""
    share, alpha, beta = (g.ravel() for g in np.meshgrid(SHARES, EXPONENTS, EXPONENTS, indexing="ij"))
    rest = np.log(np.exp(np.median(log_loss)) - share * np.exp(log_loss.min())) - np.log(2.0)
    thetas = np.stack([np.log(share) + log_loss.min(), rest, rest, alpha, beta], axis=1)
    values = np.asarray(_values(thetas, problem))
    return thetas[np.argsort(values)[:STARTS]]


def _lbfgs(problem: _Problem, start: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    def value_and_gradient(theta: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = _gradient(theta, problem)
        return float(value), np.asarray(gradient)

    bounds = list(zip(low, high, strict=True))
    options = {"maxiter": 500, "maxcor": 20, "ftol": 1e-15, "gtol": 1e-9}
    return scipy.optimize.minimize(
        value_and_gradient, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options
    ).x


def _newton(problem: _Problem, theta: np.ndarray, low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, float, bool]:
    """Damped Newton steps to the minimum: (theta, value, whether it is one). Parameters pressed to a bound are held."""
    evaluate = functools.partial(_value, problem=problem)
    value, damping = float(evaluate(theta)), 1e-3
    for _ in range(MAX_STEPS):
        gradient, hessian = (np.asarray(x) for x in _derivatives(theta, problem))
        held = ((theta <= low) & (gradient >= 0)) | ((theta >= high) & (gradient <= 0))
        free = ~held
        if not free.any():
            return theta, value, True
        scale = np.maximum(np.abs(np.diag(hessian)[free]), 1e-12 * np.abs(np.diag(hessian)).max() + 1e-300)
        while True:
            matrix = hessian[np.ix_(free, free)] + damping * np.diag(scale)
            step = np.zeros_like(theta)
            step[free] = -np.linalg.lstsq(matrix, gradient[free], rcond=None)[0]
            moved = np.clip(theta + step, low, high)
            after = float(evaluate(moved))
            if after < value or damping > 1e12:
                break
            damping *= 6.0
        if not after < value:  # no damping yields a descent: the minimum, up to rounding
            return theta, value, True
        small = np.max(np.abs(moved - theta)) <= 1e-13 * (1 + np.max(np.abs(theta)))
        theta, value, damping = moved, after, max(damping / 10.0, 1e-15)
        if small:
            return theta, value, True
    return theta, value, False
