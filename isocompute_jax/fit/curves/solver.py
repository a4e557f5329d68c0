"""A batched Levenberg-Marquardt for rising curves, in float64, in two compiled programs for any number of curves.

A rising curve is y = low + (high - low) share(theta, x) with a share that climbs. Given the shape theta, the best
`low` and `high` follow in closed form (variable projection: Golub and Pereyra 1973), so the search runs over theta
alone; the Jacobian is taken by differentiating through that closed form. A coarse grid gives the starts. A fixed number
of searches run side by side in one compiled program; one that has converged makes room for the next. What tells the
forms apart is data to these programs (see `Share`), so all forms use the same two.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from isocompute_jax.fit.curves.levels import TINY, CurveBatch, project
from isocompute_jax.fit.curves.share import Array, Share, ShareKind, share_at

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
"""Searches that one call of a compiled program takes."""

_BLOCK = 32  # lanes that step together: their arrays stay in the processor's cache, and a few searches cost little
_MOST_CELLS = 200
_CPU_OPTIONS = {"xla_backend_optimization_level": 1}
_SLICE = 5  # steps between two looks at which searches have ended, while others wait for their lanes


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
    steps: Array  # [L] int, tries so far
    converged: Array  # [L] bool
    done: Array  # [L] bool: converged, or out of steps


def _evaluate(problem: CurveBatch, kind: ShareKind, theta: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Residuals [P] and their Jacobian [P, 2] in theta, levels eliminated."""

    def residuals(theta: jax.Array) -> tuple[jax.Array, jax.Array]:
        values = project(problem, share_at(theta, problem.x, kind), ordered=kind.ordered)[2]
        return values, values

    jacobian, values = jax.jacfwd(residuals, has_aux=True)(theta)
    return values, jacobian


def _program(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` compiled: on CPUs at LLVM's level 1, as levels 2 and 3 make these short loops slower by a third.

    It holds where XLA_FLAGS ask for level 0 too, which saves the time of compilation: these programs run for longer.
    """

    @functools.cache
    def compiled(backend: str) -> Callable[..., Any]:
        return jax.jit(function, compiler_options=_CPU_OPTIONS if backend == "cpu" else None)

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        return compiled(jax.default_backend())(*args)

    return call


def _solve(matrix: jax.Array, vector: jax.Array) -> jax.Array:
    """matrix^-1 vector for two unknowns; LAPACK's batched call costs more than the whole step."""
    (a, b), (c, d) = matrix
    return jnp.stack([d * vector[0] - b * vector[1], a * vector[1] - c * vector[0]]) / (a * d - b * c)


def _step(search: _Search, problem: CurveBatch, kind: ShareKind) -> _Search:
    """Tries one candidate, and proposes the next by Marquardt's scaled damping, cut to the box.

    A parameter that the gradient presses against its bound is held for the proposal. A search is done when a step is
    small, or gains little, or when no damping yields a descent (the minimum up to rounding).
    """
    residuals, jacobian = _evaluate(problem, kind, search.candidate)
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
    scale = jnp.where(held | (diagonal <= TINY), 1.0, diagonal)
    active = jnp.where(held[:, None] | held[None, :], 0.0, normal)
    move = _solve(active + damping * jnp.diag(scale), jnp.where(held, 0.0, -gradient))
    candidate = jnp.clip(theta + move, problem.lower, problem.upper)
    converged, steps = ~fresh & (small | settled | (damping > 1e12)), search.steps + 1
    sse, done = jnp.where(better, sse, search.sse), converged | (steps >= MAX_STEPS)
    moved = _Search(theta, sse, gradient, normal, candidate, damping, steps, converged, done)
    return jax.tree.map(lambda new, old: jnp.where(search.done, old, new), moved, search)


@_program
def _advance(search: _Search, problem: CurveBatch, kind: ShareKind, steps: int, blocks: int) -> _Search:
    """`steps` steps of each search that is not done, in the first `blocks` blocks of lanes; a block may end earlier."""

    def block(i: jax.Array, search: _Search) -> _Search:
        part, data = _blocks_of(search, i), _blocks_of((problem, kind), i)

        def step(state: tuple[jax.Array, _Search]) -> tuple[jax.Array, _Search]:
            return state[0] + 1, jax.vmap(_step)(state[1], *data)

        part = jax.lax.while_loop(lambda s: (s[0] < steps) & ~jnp.all(s[1].done), step, (jnp.asarray(0), part))[1]
        return jax.tree.map(lambda a, b: jax.lax.dynamic_update_slice_in_dim(a, b, i * _BLOCK, 0), search, part)

    return jax.lax.fori_loop(0, blocks, block, search)


def _blocks_of(tree: Any, i: jax.Array) -> Any:
    """Block i of lanes."""
    return jax.tree.map(lambda a: jax.lax.dynamic_slice_in_dim(a, i * _BLOCK, _BLOCK, 0), tree)


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
        steps=np.zeros(count, int),
        converged=np.all(np.asarray(problem.lower) == np.asarray(problem.upper), axis=1),
        done=np.all(np.asarray(problem.lower) == np.asarray(problem.upper), axis=1),
    )


@_program
def _levels(
    problem: CurveBatch, kind: ShareKind, first: jax.Array, last: jax.Array, units: jax.Array, count: int, blocks: int
) -> jax.Array:
    """[U, 3, L] low, high and the sum of squares at first + unit (last - first), for `units` [U, 2].

    `first` and `last` are [L, 2]. Only the first `count` units and the first `blocks` blocks of lanes are done: grids
    and single points, few curves and many share one program.
    """

    def one(problem: CurveBatch, kind: ShareKind, theta: jax.Array) -> jax.Array:
        low, high, residuals = project(problem, share_at(theta, problem.x, kind), ordered=kind.ordered)
        return jnp.stack([low, high, residuals @ residuals])

    def block(j: jax.Array, found: jax.Array) -> jax.Array:
        part, sort, start, end = _blocks_of((problem, kind, first, last), j)

        def unit(i: jax.Array, found: jax.Array) -> jax.Array:
            values = jax.vmap(one, out_axes=1)(part, sort, start + units[i] * (end - start))
            return jax.lax.dynamic_update_slice(found, values[None], (i, 0, j * _BLOCK))

        return jax.lax.fori_loop(0, count, unit, found)

    return jax.lax.fori_loop(0, blocks, block, jnp.full((len(units), 3, len(first)), jnp.inf))


def _levels_at(problem: CurveBatch, kind: ShareKind, first: Array, last: Array, units: np.ndarray) -> np.ndarray:
    """[K, U, 3] low, high and the sum of squares of all curves, `LANES` of them at a time: see `_levels`."""
    count = len(problem.x)
    padded, found = np.zeros((_MOST_CELLS, 2)), np.empty((count, len(units), 3))
    padded[: len(units)] = units
    for start in range(0, count, LANES):
        rows = np.minimum(np.arange(start, start + LANES), count - 1)  # the last batch repeats its last curve
        blocks = -(-min(count - start, LANES) // _BLOCK)
        part = _take((problem, kind, first, last), rows)
        values = np.asarray(_levels(*part, padded, len(units), blocks))[: len(units)]
        found[start : start + LANES] = values.transpose(2, 0, 1)[: count - start]
    return found


def _lowest_minima(errors: np.ndarray) -> np.ndarray:
    """[K, STARTS] cells of the lowest local minima of `errors` [K, *cells], the lowest cell where there are fewer."""
    padded = np.pad(errors, ((0, 0), *((1, 1) for _ in errors.shape[1:])), constant_values=np.inf)
    around = padded
    for axis in range(1, errors.ndim):  # a minimum over each axis in turn is that over the window
        before, here, after = (np.moveaxis(around, axis, 0)[i:][: errors.shape[axis]] for i in range(3))
        around = np.moveaxis(np.minimum(np.minimum(before, here), after), 0, axis)
    flat = errors.reshape(len(errors), -1)
    minima = np.where((errors <= around).reshape(flat.shape), flat, np.inf)
    rows, lowest = np.arange(len(flat)), flat.argmin(axis=1)
    found = np.empty((len(flat), STARTS), int)
    for i in range(STARTS):
        cell = minima.argmin(axis=1)
        found[:, i] = np.where(np.isfinite(minima[rows, cell]), cell, lowest)
        minima[rows, cell] = np.inf
    return found


def _take(tree, rows):
    """Rows of every array, copied."""
    return jax.tree.map(lambda a: np.asarray(a)[rows], tree)


def _run(problem: CurveBatch, kind: ShareKind, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """All searches to their end: theta [N, 2] and whether each converged [N].

    N is a multiple of the number of curves K; search i belongs to curve i mod K. `LANES` of them run at a time, in one
    compiled program; one that is done makes room for the next.
    """
    count, curves = len(theta), len(problem.x)
    found, converged = np.array(theta), np.zeros(count, bool)
    rows = np.minimum(np.arange(LANES), count - 1)  # a lane without a search of its own stands still
    current = _take((problem, kind), rows % curves)
    search = _begin(theta[rows], current[0])
    search.done[count:] = True
    waiting, busy = min(LANES, count), np.arange(LANES) < count
    while busy.any():
        blocks = int(np.flatnonzero(busy)[-1]) // _BLOCK + 1
        search = _Search(*map(np.array, _advance(search, *current, _SLICE if waiting < count else MAX_STEPS, blocks)))
        ended = np.flatnonzero(busy & search.done)
        found[rows[ended]], converged[rows[ended]] = search.theta[ended], search.converged[ended]
        busy[ended] = False
        free = ended[: count - waiting]
        if len(free):
            rows[free] = np.arange(waiting, waiting + len(free))
            waiting += len(free)
            fresh = _take((problem, kind), rows[free] % curves)
            entering = (*fresh, _begin(theta[rows[free]], fresh[0]))
            for old, new in zip(jax.tree.leaves((*current, search)), jax.tree.leaves(entering), strict=True):
                old[free] = new
            busy[free] = True
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
      share: the shape.
      first: [K, Q] where the grid of starts begins; inside the box or not.
      last: [K, Q] where it ends.
      starts: [K, S, Q] starts, in place of a grid.
      ordered: whether low <= high is imposed.
    """
    if starts is None:
        starts = grid_starts(problem, np.asarray(first), np.asarray(last), share=share, ordered=ordered)
    count, tries, width = np.shape(starts)
    flat = np.asarray(starts, np.float64).swapaxes(0, 1).reshape(tries * count, width)
    with jax.enable_x64(True):
        general, kind = _general(problem, share, ordered)
        theta, converged = _run(general, kind, _with_place(flat, share))
        theta, converged = theta.reshape(tries, count, 2), converged.reshape(tries, count)
        found = np.stack([_levels_at(general, kind, t, t, np.zeros((1, 2)))[:, 0] for t in theta])
    low, high, sse = np.moveaxis(found, -1, 0)
    best = (np.argmin(np.where(np.isfinite(sse), sse, np.inf), axis=0), np.arange(count))
    return RisingFit(low[best], high[best], theta[best][:, 2 - width :], sse[best], converged[best])


def grid_starts(problem: CurveBatch, first: np.ndarray, last: np.ndarray, *, share: Share, ordered: bool) -> np.ndarray:
    """[K, STARTS, Q] from a grid between `first` and `last` [K, Q], cut to the box."""
    width = first.shape[1]
    cells = GRID_CELLS[width]
    axes = np.meshgrid(*(np.linspace(0.0, 1.0, n) for n in cells), indexing="ij")
    units = np.stack([axis.ravel() for axis in axes], axis=-1)
    ends = [_with_place(np.clip(end, problem.lower, problem.upper), share) for end in (first, last)]
    with jax.enable_x64(True):
        general, kind = _general(problem, share, ordered)
        found = _levels_at(general, kind, ends[0], ends[1], _with_place(units, share))
    chosen = _lowest_minima(found[..., 2].reshape(-1, *cells))
    first, last = (end[:, None, 2 - width :] for end in ends)
    return first + units[chosen] * (last - first)


def _general(problem: CurveBatch, share: Share, ordered: bool) -> tuple[CurveBatch, ShareKind]:
    """The problem as the compiled programs see it: u in place of x, and a theta of two with the place held at 0."""
    arrays = CurveBatch(*(np.asarray(a, np.float64) for a in problem))
    x = np.exp(arrays.x) if share.of_compute else arrays.x
    flags = (share.of_compute and share.has_place, share.saturates, ordered)
    kind = ShareKind(*(np.full(len(x), flag) for flag in flags))
    lower, upper = _with_place(arrays.lower, share), _with_place(arrays.upper, share)
    return arrays._replace(x=x, lower=lower, upper=upper), kind


def _with_place(theta: np.ndarray, share: Share) -> np.ndarray:
    """[N, 2] theta [N, Q] with a place of 0 where the share has none."""
    return theta if share.has_place else np.pad(theta, ((0, 0), (1, 0)))
