"""The levels of rising curves in closed form, under AR(1) noise (variable projection: Golub and Pereyra 1973)."""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from isocompute_jax.fit.curves.share import Array

TINY = 1e-300


class CurveBatch(NamedTuple):
    """K curves to fit, P points each.

    Attributes:
      x: [K, P] argument of the share.
      y: [K, P].
      root_weight: [K, P] square root of each point's weight; 0 on padding, which comes last.
      rho: [K] correlation of neighbouring residuals: the fit is by generalised least squares under AR(1) noise.
      levels: [K, 4] bounds of low (0, 1) and of high (2, 3); equal bounds fix a level, infinite ones leave it free.
      lower: [K, Q] bounds of theta.
      upper: [K, Q]; equal bounds fix a parameter.
    """

    x: Array
    y: Array
    root_weight: Array
    rho: Array
    levels: Array
    lower: Array
    upper: Array


def decorrelate(values: Array, rho: Array) -> Array:
    """[..., P] without the AR(1) correlation `rho` of neighbours: r_1 sqrt(1 - rho^2), then r_t - rho r_{t-1}.

    NumPy arrays give NumPy's, JAX's give JAX's.
    """
    numpy = np if isinstance(values, np.ndarray) else jnp
    first = numpy.sqrt(1.0 - rho**2) * values[..., :1]
    return numpy.concatenate([first, values[..., 1:] - rho * values[..., :-1]], axis=-1)


def whiten(values: jax.Array, root_weight: jax.Array, rho: jax.Array) -> jax.Array:
    """Scales residual-like `values` [P] by their weight and removes the AR(1) correlation of neighbours.

    (w r)_1 sqrt(1 - rho^2), then (w r)_t - rho (w r)_{t-1}: independent with equal variance when w r is AR(1).
    """
    return jnp.where(root_weight > 0, decorrelate(root_weight * values, rho), 0.0)


def project(
    problem: CurveBatch, share: jax.Array, *, ordered: bool | jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The `low` and `high` that minimise the sum of squares for one curve's share [P], and the residuals [P].

    They keep the bounds `problem.levels` and, when `ordered`, low <= high. The objective is convex, so when the free
    minimum breaks a bound the answer lies on an edge of the feasible region, each a one-dimensional problem.
    """
    white = functools.partial(whiten, root_weight=problem.root_weight, rho=problem.rho)
    share = jnp.where(problem.root_weight > 0, share, 0.0)
    y, ones, climbed = white(problem.y), white(jnp.ones_like(share)), white(share)
    rest = ones - climbed
    total = _positive(ones @ ones)
    spread = climbed - ones * (ones @ climbed / total)
    rise = spread @ y / _positive(spread @ spread)
    low = ones @ y / total - rise * (ones @ climbed / total)
    l0, l1, h0, h1 = problem.levels

    def best_high(given: jax.Array) -> jax.Array:
        free = (climbed @ y - given * (climbed @ rest)) / _positive(climbed @ climbed)
        return jnp.clip(free, jnp.where(ordered, jnp.maximum(h0, given), h0), h1)

    def best_low(given: jax.Array) -> jax.Array:
        free = (rest @ y - given * (climbed @ rest)) / _positive(rest @ rest)
        return jnp.clip(free, l0, jnp.where(ordered, jnp.minimum(l1, given), l1))

    level = jnp.clip(ones @ y / total, jnp.maximum(l0, h0), jnp.minimum(l1, h1))
    lows = jnp.stack([low, l0, l1, best_low(h0), best_low(h1), level])
    highs = jnp.stack([low + rise, best_high(l0), best_high(l1), h0, h1, level])
    inside = (lows >= l0) & (lows <= l1) & (highs >= h0) & (highs <= h1) & ((lows <= highs) | jnp.logical_not(ordered))
    errors = (
        lows**2 * (rest @ rest) + highs**2 * (climbed @ climbed) + 2 * lows * highs * (rest @ climbed)
        - 2 * lows * (rest @ y) - 2 * highs * (climbed @ y)
    )  # fmt: skip
    edge = 1 + jnp.argmin(jnp.where(inside & jnp.isfinite(errors), errors, jnp.inf)[1:])
    best = jnp.where(inside[0], 0, edge)
    low, high = lows[best], highs[best]
    return low, high, y - low * rest - high * climbed


def _positive(value: jax.Array) -> jax.Array:
    """`value`, or 1 where it is 0 (its numerator then is 0 too)."""
    return jnp.where(value > TINY, value, 1.0)
