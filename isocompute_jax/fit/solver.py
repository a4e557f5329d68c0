"""A batched Levenberg-Marquardt for rising curves, in float64 and in one compiled program.

A rising curve is y = low + (high - low) share(theta, x) with a share that climbs from 0 to 1. Given the shape theta,
the best `low` and `high` follow in closed form (variable projection: Golub and Pereyra 1973), so the search runs over
theta alone; the Jacobian is taken by differentiating through that closed form. All starts of all curves run side by
side.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

MAX_STEPS = 200
STEP_TOLERANCE = 1e-11
_TINY = 1e-300

Share = Callable[[jax.Array, jax.Array], jax.Array]
"""(theta [Q], x [P]) -> share [P] in [0, 1]."""


class RisingFit(NamedTuple):
    """Per curve: `low` [K], `high` [K], shape `theta` [K, Q], sum of squares `sse` [K], and `converged` [K] bool."""

    low: np.ndarray
    high: np.ndarray
    theta: np.ndarray
    sse: np.ndarray
    converged: np.ndarray


class _State(NamedTuple):
    theta: jax.Array
    residuals: jax.Array
    jacobian: jax.Array
    damping: jax.Array
    steps: jax.Array
    converged: jax.Array


def levenberg_marquardt(
    residuals: Callable[[jax.Array], jax.Array], start: jax.Array, *, lower: jax.Array, upper: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Minimises sum(residuals(theta)^2) over the box lower <= theta <= upper.

    Marquardt's scaled damping; a step is cut to the box, and a parameter that the gradient presses against its bound is
    held there for that step. Stops when an accepted step is below `STEP_TOLERANCE`, when no damping yields a descent
    (the minimum up to rounding), or after `MAX_STEPS`.

    Args:
      residuals: [Q] -> [P].
      start: [Q].
      lower: [Q].
      upper: [Q].

    Returns:
      theta [Q], and whether it converged (scalar bool).
    """

    def evaluate(theta: jax.Array) -> tuple[jax.Array, jax.Array]:
        return residuals(theta), jax.jacfwd(residuals)(theta)

    def step(state: _State) -> _State:
        gradient = state.jacobian.T @ state.residuals
        held = ((state.theta <= lower) & (gradient > 0)) | ((state.theta >= upper) & (gradient < 0))
        jacobian = jnp.where(held, 0.0, state.jacobian)
        normal = jacobian.T @ jacobian
        scale = jnp.where(jnp.diag(normal) > _TINY, jnp.diag(normal), 1.0)
        move = jnp.linalg.solve(normal + state.damping * jnp.diag(scale), -jacobian.T @ state.residuals)
        theta = jnp.clip(state.theta + move, lower, upper)
        candidate, slope = evaluate(theta)
        better = jnp.sum(candidate**2) < jnp.sum(state.residuals**2)
        small = jnp.max(jnp.abs(theta - state.theta)) <= STEP_TOLERANCE
        damping = jnp.where(better, jnp.maximum(state.damping * 0.2, 1e-14), state.damping * 5.0)
        return _State(
            theta=jnp.where(better, theta, state.theta),
            residuals=jnp.where(better, candidate, state.residuals),
            jacobian=jnp.where(better, slope, state.jacobian),
            damping=damping,
            steps=state.steps + 1,
            converged=small | (damping > 1e14),
        )

    first = _State(start, *evaluate(start), jnp.asarray(1e-2, start.dtype), jnp.asarray(0), jnp.asarray(False))
    last = jax.lax.while_loop(lambda s: ~s.converged & (s.steps < MAX_STEPS), step, first)
    return last.theta, last.converged


def _divide(numerator: jax.Array, denominator: jax.Array) -> jax.Array:
    return numerator / jnp.where(denominator > _TINY, denominator, 1.0)


def best_levels(
    share: jax.Array, y: jax.Array, weight: jax.Array, limits: tuple[float, float] | None
) -> tuple[jax.Array, jax.Array]:
    """The `low` and `high` that minimise sum(weight (y - low - (high - low) share)^2), exactly.

    With `limits` (a, b) they also obey a <= low <= high <= b. The objective is convex, so when the free minimum breaks
    a limit the answer lies on an edge of that triangle, each of which is a one-dimensional problem.

    Args:
      share: [P].
      y: [P].
      weight: [P], 0 on padding.
      limits: the range of y, or None for no constraint.
    """
    total = jnp.sum(weight)
    mean_y = _divide(jnp.sum(weight * y), total)
    mean_share = _divide(jnp.sum(weight * share), total)
    spread = share - mean_share
    rise = _divide(jnp.sum(weight * spread * (y - mean_y)), jnp.sum(weight * spread**2))
    low = mean_y - rise * mean_share
    if limits is None:
        return low, low + rise
    floor, ceiling = limits
    bounded = functools.partial(jnp.clip, min=floor, max=ceiling)
    rest = 1.0 - share
    high_at_floor = bounded(_divide(jnp.sum(weight * share * (y - floor * rest)), jnp.sum(weight * share**2)))
    low_at_ceiling = bounded(_divide(jnp.sum(weight * rest * (y - ceiling * share)), jnp.sum(weight * rest**2)))
    lows = jnp.stack([low, jnp.asarray(floor, y.dtype), low_at_ceiling, bounded(mean_y)])
    highs = jnp.stack([low + rise, high_at_floor, jnp.asarray(ceiling, y.dtype), bounded(mean_y)])
    errors = jnp.sum(weight * (y - lows[:, None] * rest - highs[:, None] * share) ** 2, axis=1)
    feasible = (rise >= 0) & (low >= floor) & (low + rise <= ceiling)
    best = jnp.where(feasible, 0, 1 + jnp.argmin(errors[1:]))
    return lows[best], highs[best]


@functools.partial(jax.jit, static_argnames=("share", "limits"))
def _fit_batch(
    x: jax.Array,
    y: jax.Array,
    weight: jax.Array,
    starts: jax.Array,
    lower: jax.Array,
    upper: jax.Array,
    *,
    share: Share,
    limits: tuple[float, float] | None,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array]:
    def fit_one(x, y, weight, starts, lower, upper):
        def residuals(theta: jax.Array) -> jax.Array:
            climbed = share(theta, x)
            low, high = best_levels(climbed, y, weight, limits)
            return jnp.sqrt(weight) * (y - low - (high - low) * climbed)

        search = functools.partial(levenberg_marquardt, residuals, lower=lower, upper=upper)
        thetas, converged = jax.vmap(search)(starts)
        errors = jax.vmap(lambda theta: jnp.sum(residuals(theta) ** 2))(thetas)
        best = jnp.argmin(jnp.where(jnp.isfinite(errors), errors, jnp.inf))
        low, high = best_levels(share(thetas[best], x), y, weight, limits)
        return low, high, thetas[best], errors[best], converged[best]

    return jax.vmap(fit_one)(x, y, weight, starts, lower, upper)


def fit_rising(
    x: np.ndarray,
    y: np.ndarray,
    weight: np.ndarray,
    *,
    share: Share,
    starts: np.ndarray,
    lower: np.ndarray,
    upper: np.ndarray,
    limits: tuple[float, float] | None,
) -> RisingFit:
    """Fits K rising curves at once by weighted least squares, from S starts each, keeping the best.

    Float64 is switched on for these calls alone: the caller's global JAX settings are left as they are.

    Args:
      x: [K, P].
      y: [K, P].
      weight: [K, P], >= 0; 0 on padding.
      share: the shape, a module-level function (it is a static argument of the compiled program).
      starts: [K, S, Q].
      lower: [K, Q].
      upper: [K, Q].
      limits: range that low and high are kept in, with low <= high; None leaves them free.
    """
    with jax.enable_x64(True):
        arrays = [jnp.asarray(a, jnp.float64) for a in (x, y, weight, starts, lower, upper)]
        found = _fit_batch(*arrays, share=share, limits=limits)
        return RisingFit(*(np.asarray(a) for a in found))
