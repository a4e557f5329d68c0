"""The search behind the pre-training law L(N, D) = E + A / N^alpha + B / D^beta, and that of one variable.

Two objectives: the squared error of L (`squares`), and the Huber loss of the error of ln L (`huber`; Hoffmann et al.
2022, section D.2). Either is minimised over (ln E, ln A, ln B, alpha, beta) with exact derivatives from JAX, by a
damped Newton method in one compiled loop, from the best cells of a grid. `scipy.optimize.minimize` with the same
derivatives took more than twice the time on 25 reference problems of the Huber loss (two laws, 12 to 100 points, noise
of 0 to 3%, outliers, terms that vanish, designs that identify nothing). SLSQP took 12 times as long and missed one
minimum; the trust region with exact Hessians (`trust-exact`, the box by a sine) found the minima of nine of them in 55
times the time; L-BFGS-B, which the paper used, had not ended after 400 times. A call from SciPy into compiled code
costs as much as several Newton steps here, and the long valley of A against alpha takes many calls.
"""

from __future__ import annotations

import functools
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

Method = Literal["squares", "huber"]

LOWEST_EXPONENT, HIGHEST_EXPONENT = 0.01, 4.0

DELTA = 1e-3
"""Errors of ln L beyond this count linearly (arXiv 2203.15556, section D.2)."""
EXPONENTS = np.geomspace(0.05, 2.0, 6)
SHARES = (0.02, 0.3, 0.6, 0.85, 0.97)
"""Starts: E as a share of the lowest loss; the terms share the rest at the mean of ln N and ln D."""
STARTS = 10
FLAT = 30.0
"""A term may fall to exp(-30) of the losses before it counts as absent."""
MAX_STEPS = 400
STEP_TOLERANCE = 1e-13
DECREASE_TOLERANCE = 1e-13
_TINY = 1e-300
_BLOCK = 64
ONE_TERM = [0, 1, 3]
"""E, A and alpha among (E, A, B, alpha, beta)."""


class Minimum(NamedTuple):
    """`parameters` [5] (E, A, B, alpha, beta) or [3] (E, A, alpha), the minimum, and whether the search converged."""

    parameters: np.ndarray
    objective: float
    converged: bool


Points = tuple[Any, Any, Any, Any]
"""ln N and ln D about their means (A and B are then of the size of the loss), ln L, and weights; [P] each."""


def fit_two(
    n: np.ndarray, d: np.ndarray, loss: np.ndarray, *, method: Method, weight: np.ndarray, start: np.ndarray | None
) -> Minimum:
    """The best of several searches, or one search from `start`, for L = E + A N^-alpha + B D^-beta.

    Float64 is switched on for these calls alone: the caller's global JAX settings are left as they are.

    Args:
      n: [P] parameters.
      d: [P] tokens.
      loss: [P].
      method: what is minimised.
      weight: [P]; 0 leaves a point out.
      start: [5] where to begin; None for the grid.
    """
    points, centre, low, high = _prepared(n, d, loss, weight, terms=2)
    if start is None:
        starts = _grid_starts(loss, points, low, high, method)
    else:
        starts = _thetas(start, centre, low, high)[None]
    return _best(starts, points, centre, low, high, method)


def fit_one(x: np.ndarray, loss: np.ndarray) -> Minimum:
    """The best of several searches for one variable, L = E + A x^-alpha: the second term is held where it is absent.

    Args:
      x: [P] above 0.
      loss: [P].
    """
    points, centre, low, high = _prepared(x, np.ones_like(x), loss, np.ones_like(x), terms=1)
    best = _best(_grid_starts(loss, points, low, high, "huber"), points, centre, low, high, "huber")
    return best._replace(parameters=best.parameters[ONE_TERM])


def refit_one(x: np.ndarray, losses: np.ndarray, start: np.ndarray) -> np.ndarray:
    """[R, 3] (E, A, alpha) of R sets of losses [R, P] at the same x [P], all searched at once, from `start` [3]."""
    points, centre, low, high = _prepared(x, np.ones_like(x), losses, np.ones_like(x), terms=1)
    e, a, alpha = start
    thetas = _thetas(np.array([e, a, 1.0, alpha, 0.0]), centre, low, high)
    with jax.enable_x64(True):
        found = np.asarray(_newton_of_each(thetas, points, low, high).theta)
    return _levels(found, low, centre)[:, ONE_TERM]


def _prepared(
    n: np.ndarray, d: np.ndarray, loss: np.ndarray, weight: np.ndarray, *, terms: int
) -> tuple[Points, np.ndarray, np.ndarray, np.ndarray]:
    """Points, what (ln E, ln A, ln B) are centred by [3], and the bounds of theta [..., 5]; losses are [..., P].

    Points are padded to a multiple of `_BLOCK` with weight 0: few sizes, few compilations. With one term the second has
    bounds without width, so that its parameters stay where it is absent.
    """
    log_loss = np.log(loss)
    centre = np.array([0.0, np.log(n).mean(), np.log(d).mean()])
    more = -(-len(n) // _BLOCK) * _BLOCK - len(n)
    columns = (np.log(n) - centre[1], np.log(d) - centre[2], log_loss, np.asarray(weight, np.float64))
    log_n, log_d, log_loss, weight = (np.pad(c, [*[(0, 0)] * (c.ndim - 1), (0, more)]) for c in columns)
    least, largest = np.log(loss).min(axis=-1), np.log(loss).max(axis=-1)
    exponents = np.full_like(least, LOWEST_EXPONENT), np.full_like(least, HIGHEST_EXPONENT)
    low = np.stack([*[least - FLAT] * 3, *[exponents[0]] * 2], axis=-1)
    high = np.stack([largest, *[largest + FLAT] * 2, *[exponents[1]] * 2], axis=-1)
    if terms == 1:
        high = np.where([True, True, False, True, False], high, low)
    return (log_n, log_d, log_loss, weight), centre, low, high


def _thetas(parameters: np.ndarray, centre: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """[..., 5] (E, A, B, alpha, beta) as centred logarithms, in the boxes [..., 5]."""
    with np.errstate(divide="ignore"):
        logs = np.log(parameters[:3])
    exponents = np.array([0.0, *parameters[3:]])
    return np.clip(np.concatenate([logs - exponents * centre, parameters[3:]]), low, high)


def _levels(thetas: np.ndarray, low: np.ndarray, centre: np.ndarray) -> np.ndarray:
    """[R, 5] (E, A, B, alpha, beta) of searches [R, 5]; a term at its lower bound is 0."""
    exponents = np.column_stack([np.zeros(len(thetas)), thetas[:, 3:]])
    levels = np.where(thetas[:, :3] <= low[..., :3] + 1e-9, 0.0, np.exp(thetas[:, :3] + exponents * centre))
    return np.column_stack([levels, thetas[:, 3:]])


def _best(
    starts: np.ndarray, points: Points, centre: np.ndarray, low: np.ndarray, high: np.ndarray, method: Method
) -> Minimum:
    """The best of the searches from `starts` [S, 5]."""
    with jax.enable_x64(True):
        searches = [_newton(start, points, low, high, method=method) for start in starts]
        best = min(searches, key=lambda s: float(s.value))
    parameters = _levels(np.asarray(best.theta)[None], low, centre)[0]
    return Minimum(parameters, float(best.value) * (DELTA**2 if method == "huber" else 1.0), bool(best.done))


def _grid_starts(loss: np.ndarray, points: Points, low: np.ndarray, high: np.ndarray, method: Method) -> np.ndarray:
    """[STARTS, 5] the best cells of a grid: every exponent of each term that is there, and every share of E."""
    log_loss, terms = np.log(loss), 1 + int(high[4] > low[4])
    share, *exponents = (g.ravel() for g in np.meshgrid(SHARES, *[EXPONENTS] * terms, indexing="ij"))
    rest = np.log(np.exp(np.median(log_loss)) - share * np.exp(log_loss.min())) - np.log(terms)
    ones = np.ones_like(share)
    second = (rest, exponents[1]) if terms == 2 else (low[2] * ones, low[4] * ones)
    grid = np.stack([np.log(share) + log_loss.min(), rest, second[0], exponents[0], second[1]], axis=1)
    with jax.enable_x64(True):
        return grid[np.argsort(np.asarray(_values(grid, points, method)))[:STARTS]]


def objective(theta: jax.Array, points: Points, method: Method) -> jax.Array:
    """What is minimised at theta = (e, a, b, alpha, beta), with ln L = LSE(a - alpha ln N, b - beta ln D, e).

    The Huber loss is in units of delta^2.
    """
    e, a, b, alpha, beta = theta
    log_n, log_d, log_loss, weight = points
    fitted = jax.nn.logsumexp(jnp.stack([jnp.full_like(log_n, e), a - alpha * log_n, b - beta * log_d]), axis=0)
    if method == "squares":
        return jnp.sum(weight * (jnp.exp(fitted) - jnp.exp(log_loss)) ** 2)
    r = jnp.abs(fitted - log_loss) / DELTA
    return jnp.sum(weight * jnp.where(r <= 1.0, 0.5 * r**2, r - 0.5))


class _Newton(NamedTuple):
    """Where a search stands."""

    theta: jax.Array
    value: jax.Array
    damping: jax.Array
    steps: jax.Array
    done: jax.Array


@functools.partial(jax.jit, static_argnames="method")
def _newton(theta: jax.Array, points: Points, low: jax.Array, high: jax.Array, *, method: Method) -> _Newton:
    """Damped Newton steps to the minimum, in one compiled loop. Parameters pressed to a bound are held for a step.

    A search is done after a negligible step or gain, or when no damping yields a descent (the minimum up to rounding).
    """

    def value_at(theta: jax.Array) -> jax.Array:
        return objective(theta, points, method)

    def step(search: _Newton) -> _Newton:
        theta = search.theta
        gradient, hessian = jax.grad(value_at)(theta), jax.hessian(value_at)(theta)
        free = ~(((theta <= low) & (gradient >= 0)) | ((theta >= high) & (gradient <= 0)))
        curvature = jnp.abs(jnp.diag(hessian))
        scale = jnp.maximum(curvature, 1e-12 * jnp.max(curvature) + _TINY)
        matrix = jnp.where(free[:, None] & free[None, :], hessian + search.damping * jnp.diag(scale), 0.0)
        move = jnp.linalg.solve(matrix + jnp.diag(jnp.where(free, 0.0, 1.0)), jnp.where(free, -gradient, 0.0))
        moved = jnp.clip(theta + move, low, high)
        value = value_at(moved)
        better = value < search.value
        small = jnp.max(jnp.abs(moved - theta)) <= STEP_TOLERANCE * (1 + jnp.max(jnp.abs(theta)))
        settled = search.value - value <= DECREASE_TOLERANCE * search.value
        damping = jnp.where(better, jnp.maximum(search.damping / 10.0, 1e-15), search.damping * 6.0)
        return _Newton(
            theta=jnp.where(better, moved, theta),
            value=jnp.where(better, value, search.value),
            damping=damping,
            steps=search.steps + 1,
            done=(better & (small | settled)) | (damping > 1e12),
        )

    theta = jnp.clip(theta, low, high)
    start = _Newton(theta, value_at(theta), jnp.asarray(1e-3), jnp.asarray(0), jnp.asarray(False))
    return jax.lax.while_loop(lambda s: ~s.done & (s.steps < MAX_STEPS), step, start)


_newton_of_each = jax.jit(
    jax.vmap(functools.partial(_newton, method="huber"), in_axes=(0, (None, None, 0, None), 0, 0))
)
_values = jax.jit(jax.vmap(objective, in_axes=(0, None, None)), static_argnums=2)
