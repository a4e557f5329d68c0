"""A batched Levenberg-Marquardt for rising curves, in float64, in one compiled program for any number of curves.

A rising curve is y = low + (high - low) share(theta, x) with a share that climbs. Given the shape theta, the best
`low` and `high` follow in closed form (variable projection: Golub and Pereyra 1973), so the search runs over theta
alone; the Jacobian is taken by differentiating through that closed form. A coarse grid gives the starts. A fixed number
of searches run side by side in one compiled program; one that has converged makes room for the next.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

MAX_STEPS = 200
STEP_TOLERANCE = 1e-10
"""A search ends when an accepted step moves no parameter by more than this (theta holds logarithms: a share)."""
DECREASE_TOLERANCE = 1e-13
"""... or lowers the sum of squares by a smaller share than this."""

GRID_CELLS = {1: (64,), 2: (20, 10)}
"""Cells of the coarse grid by the number of shape parameters."""
STARTS = 3
"""Lowest local minima of the grid that a search starts from."""

LANES = 256
"""Searches that run side by side."""

_SLICE = 5  # steps between two looks at which searches have ended
_TINY = 1e-300

Share = Callable[[jax.Array, jax.Array], jax.Array]
"""(theta [Q], x [P]) -> share [P], at most 1."""


Array = Any
"""NumPy outside of the compiled functions, JAX inside."""


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


class RisingFit(NamedTuple):
    """Per curve: `low` [K], `high` [K], shape `theta` [K, Q], sum of squares `sse` [K], and `converged` [K] bool."""

    low: np.ndarray
    high: np.ndarray
    theta: np.ndarray
    sse: np.ndarray
    converged: np.ndarray


class _Search(NamedTuple):
    """Searches, L of them: the best theta so far with its sum of squares and its slopes, and the next one to try."""

    theta: Array  # [L, Q]
    sse: Array  # [L], infinite before the first try
    gradient: Array  # [L, Q] J^T r
    normal: Array  # [L, Q, Q] J^T J
    candidate: Array  # [L, Q]
    damping: Array  # [L]
    done: Array  # [L] bool


def whiten(values: jax.Array, root_weight: jax.Array, rho: jax.Array) -> jax.Array:
    """Scales residual-like `values` [P] by their weight and removes the AR(1) correlation of neighbours.

    (w r)_1 sqrt(1 - rho^2), then (w r)_t - rho (w r)_{t-1}: independent with equal variance when w r is AR(1).
    """
    scaled = root_weight * values
    before = jnp.concatenate([jnp.zeros(1), scaled[:-1]])
    first = jnp.sqrt(1.0 - rho**2) * scaled[0]
    return jnp.where(root_weight > 0, (scaled - rho * before).at[0].set(first), 0.0)


def project(problem: CurveBatch, share: jax.Array, *, ordered: bool) -> tuple[jax.Array, jax.Array, jax.Array]:
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
        return jnp.clip(free, jnp.maximum(h0, given) if ordered else h0, h1)

    def best_low(given: jax.Array) -> jax.Array:
        free = (rest @ y - given * (climbed @ rest)) / _positive(rest @ rest)
        return jnp.clip(free, l0, jnp.minimum(l1, given) if ordered else l1)

    level = jnp.clip(ones @ y / total, jnp.maximum(l0, h0), jnp.minimum(l1, h1))
    lows = jnp.stack([low, l0, l1, best_low(h0), best_low(h1), level])
    highs = jnp.stack([low + rise, best_high(l0), best_high(l1), h0, h1, level])
    inside = (lows >= l0) & (lows <= l1) & (highs >= h0) & (highs <= h1) & ((lows <= highs) | (not ordered))
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
    return jnp.where(value > _TINY, value, 1.0)


def _evaluate(problem: CurveBatch, theta: jax.Array, *, share: Share, ordered: bool) -> tuple[jax.Array, jax.Array]:
    """Residuals [P] and their Jacobian [P, Q] in theta, levels eliminated."""

    def residuals(theta: jax.Array) -> tuple[jax.Array, jax.Array]:
        values = project(problem, share(theta, problem.x), ordered=ordered)[2]
        return values, values

    jacobian, values = jax.jacfwd(residuals, has_aux=True)(theta)
    return values, jacobian


def _solve(matrix: jax.Array, vector: jax.Array) -> jax.Array:
    """matrix^-1 vector for one or two unknowns; LAPACK's batched call costs more than the whole step."""
    if vector.shape == (1,):
        return vector / matrix[0, 0]
    (a, b), (c, d) = matrix
    return jnp.stack([d * vector[0] - b * vector[1], a * vector[1] - c * vector[0]]) / (a * d - b * c)


def _step(search: _Search, problem: CurveBatch, *, share: Share, ordered: bool) -> _Search:
    """Tries one candidate, and proposes the next by Marquardt's scaled damping, cut to the box.

    A parameter that the gradient presses against its bound is held for the proposal. A search is done when a step is
    small, or gains little, or when no damping yields a descent (the minimum up to rounding).
    """
    residuals, jacobian = _evaluate(problem, search.candidate, share=share, ordered=ordered)
    sse = residuals @ residuals
    better, fresh = sse < search.sse, jnp.isinf(search.sse)
    small = jnp.max(jnp.abs(search.candidate - search.theta)) <= STEP_TOLERANCE
    settled = better & (search.sse - sse <= DECREASE_TOLERANCE * search.sse)
    damping = jnp.where(better, jnp.maximum(search.damping * 0.1, 1e-14), search.damping * 6.0)
    theta = jnp.where(better, search.candidate, search.theta)
    gradient = jnp.where(better, jacobian.T @ residuals, search.gradient)
    normal = jnp.where(better, jacobian.T @ jacobian, search.normal)

    held = ((theta <= problem.lower) & (gradient >= 0)) | ((theta >= problem.upper) & (gradient <= 0))
    diagonal = jnp.diag(normal)
    scale = jnp.where(held | (diagonal <= _TINY), 1.0, diagonal)
    active = jnp.where(held[:, None] | held[None, :], 0.0, normal)
    move = _solve(active + damping * jnp.diag(scale), jnp.where(held, 0.0, -gradient))
    candidate = jnp.clip(theta + move, problem.lower, problem.upper)
    done = ~fresh & (small | settled | (damping > 1e12))
    moved = _Search(theta, jnp.where(better, sse, search.sse), gradient, normal, candidate, damping, done)
    return jax.tree.map(lambda new, old: jnp.where(search.done, old, new), moved, search)


@functools.partial(jax.jit, static_argnames=("share", "ordered"))
def _advance(search: _Search, problem: CurveBatch, *, share: Share, ordered: bool) -> _Search:
    """`_SLICE` steps of every search that is not done."""
    step = jax.vmap(functools.partial(_step, share=share, ordered=ordered))
    return jax.lax.fori_loop(0, _SLICE, lambda _, s: step(s, problem), search)


def _begin(theta: np.ndarray, problem: CurveBatch) -> _Search:
    """Searches that have not tried anything yet; where all of theta is fixed there is nothing to try."""
    count, width = theta.shape
    theta = np.clip(theta, problem.lower, problem.upper)
    return _Search(
        theta=theta,
        sse=np.full(count, np.inf),
        gradient=np.zeros((count, width)),
        normal=np.zeros((count, width, width)),
        candidate=theta,
        damping=np.full(count, 1e-1),  # the first try is accepted, which divides it by ten
        done=np.all(np.asarray(problem.lower) == np.asarray(problem.upper), axis=1),
    )


@functools.partial(jax.jit, static_argnames=("share", "ordered"))
def _end(problem: CurveBatch, theta: jax.Array, *, share: Share, ordered: bool) -> tuple[jax.Array, ...]:
    """low [L], high [L] and the sum of squares [L] at theta."""

    def one(problem: CurveBatch, theta: jax.Array) -> tuple[jax.Array, ...]:
        low, high, residuals = project(problem, share(theta, problem.x), ordered=ordered)
        return low, high, residuals @ residuals

    return jax.vmap(one)(problem, theta)


@functools.partial(jax.jit, static_argnames=("share", "ordered", "cells"))
def _grid_starts(
    problem: CurveBatch, first: jax.Array, last: jax.Array, *, share: Share, ordered: bool, cells: tuple[int, ...]
) -> jax.Array:
    """[K, STARTS, Q]: the lowest local minima of the sum of squares on a grid from `first` to `last` [K, Q]."""
    axes = jnp.meshgrid(*(jnp.linspace(0.0, 1.0, n) for n in cells), indexing="ij")
    units = jnp.stack([axis.ravel() for axis in axes], axis=-1)

    def error(unit: jax.Array) -> jax.Array:
        return _end(problem, first + unit * (last - first), share=share, ordered=ordered)[2]

    errors = jax.lax.map(error, units).T.reshape(-1, *cells)  # [K, *cells]
    window = (1, *(3 for _ in cells))
    lowest_around = jax.lax.reduce_window(errors, jnp.inf, jax.lax.min, window, (1,) * errors.ndim, "SAME")
    flat = errors.reshape(len(errors), -1)
    minima = jnp.where((errors <= lowest_around).reshape(flat.shape), flat, jnp.inf)
    _, order = jax.lax.top_k(-minima, STARTS)
    best = jnp.argmin(flat, axis=1)[:, None]
    order = jnp.where(jnp.isfinite(jnp.take_along_axis(minima, order, axis=1)), order, best)
    return first[:, None] + units[order] * (last - first)[:, None]


def _take(tree, rows):
    """Rows of every array, copied."""
    return jax.tree.map(lambda a: np.asarray(a)[rows], tree)


def _run(problem: CurveBatch, theta: np.ndarray, *, share: Share, ordered: bool) -> tuple[np.ndarray, np.ndarray]:
    """All searches to their end: theta [N, Q] and whether each converged [N].

    `LANES` of them run at a time, in one compiled program; one that is done makes room for the next.
    """
    count = len(theta)
    found, converged = np.array(theta), np.zeros(count, bool)
    rows = np.minimum(np.arange(LANES), count - 1)  # a lane without a search of its own stands still
    current = _take(problem, rows)
    search = _begin(theta[rows], current)
    search.done[count:] = True
    looks, waiting = np.zeros(LANES, int), min(LANES, count)
    busy = np.arange(LANES) < count
    while busy.any():
        search = _Search(*map(np.array, _advance(search, current, share=share, ordered=ordered)))
        looks += 1
        ended = np.flatnonzero(busy & (search.done | (looks * _SLICE >= MAX_STEPS)))
        found[rows[ended]], converged[rows[ended]] = search.theta[ended], search.done[ended]
        busy[ended] = False
        free = ended[: count - waiting]
        if len(free):
            rows[free] = np.arange(waiting, waiting + len(free))
            waiting += len(free)
            fresh = _take(problem, rows[free])
            for old, new in zip((*current, *search), (*fresh, *_begin(theta[rows[free]], fresh)), strict=True):
                old[free] = new
            busy[free], looks[free] = True, 0
        search.done[~busy] = True
    return found, converged


def repeat(problem: CurveBatch, times: int) -> CurveBatch:
    """All curves once, then all curves again, and so on."""
    return CurveBatch(*(np.concatenate([np.asarray(a)] * times) for a in problem))


def fit_rising(
    problem: CurveBatch,
    *,
    share: Share,
    first: np.ndarray | None = None,
    last: np.ndarray | None = None,
    starts: np.ndarray | None = None,
    ordered: bool = True,
) -> RisingFit:
    """Fits K rising curves by weighted least squares, keeping the best of several starts each.

    Float64 is switched on for these calls alone: the caller's global JAX settings are left as they are. Curves are
    worked through in batches of bounded memory; the cost is linear in K.

    Args:
      problem: the curves and their bounds.
      share: the shape, a module-level function (it is a static argument of the compiled program).
      first: [K, Q] where the grid of starts begins; inside the box or not.
      last: [K, Q] where it ends.
      starts: [K, S, Q] starts, in place of a grid.
      ordered: whether low <= high is imposed.
    """
    with jax.enable_x64(True):
        problem = CurveBatch(*(np.asarray(a, np.float64) for a in problem))
        if starts is None:
            starts = grid_starts(problem, np.asarray(first), np.asarray(last), share=share, ordered=ordered)
        count, tries, width = np.shape(starts)
        theta, converged, low, high, sse = (np.empty((tries, count, width)), *np.empty((4, tries, count)))
        for k in range(tries):
            theta[k], converged[k] = _run(problem, starts[:, k], share=share, ordered=ordered)
            low[k], high[k], sse[k] = in_lanes(functools.partial(_end, share=share, ordered=ordered), problem, theta[k])
    best = (np.argmin(np.where(np.isfinite(sse), sse, np.inf), axis=0), np.arange(count))
    return RisingFit(low[best], high[best], theta[best], sse[best], converged[best] > 0)


def grid_starts(problem: CurveBatch, first: np.ndarray, last: np.ndarray, *, share: Share, ordered: bool) -> np.ndarray:
    """[K, STARTS, Q] from a grid between `first` and `last` [K, Q], cut to the box."""
    cells = GRID_CELLS[first.shape[1]]
    search = functools.partial(_grid_starts, share=share, ordered=ordered, cells=cells)
    with jax.enable_x64(True):
        return in_lanes(search, problem, *(np.clip(a, problem.lower, problem.upper) for a in (first, last)))[0]


def in_lanes(function: Callable[..., Any], problem: CurveBatch, *arrays: np.ndarray) -> list[np.ndarray]:
    """Applies a compiled function to `LANES` curves at a time: one compiled program, bounded memory."""
    count, done = len(problem.x), []
    for start in range(0, count, LANES):
        rows = np.minimum(np.arange(start, start + LANES), count - 1)  # the last batch repeats its last curve
        results = function(_take(problem, rows), *(array[rows] for array in arrays))
        results = results if isinstance(results, tuple) else (results,)
        done.append([np.asarray(array)[: count - start] for array in results])
    return [np.concatenate(parts) for parts in zip(*done, strict=True)]
