"""A batched Levenberg-Marquardt for rising curves under AR(1) noise, in float64.

A rising curve is y = low + (high - low) share(theta, x) + levels with a share that climbs; the levels of several runs
of one curve sum to zero. Given the shape theta, the best `low`, `high` and levels follow in closed form (variable
projection: Golub and Pereyra 1973), so the search runs over theta alone; the Jacobian is taken by differentiating
through that closed form. A coarse grid gives the starts.

Two programs are compiled, one for a grid and one for searches, each for `BATCH` of them side by side. What tells the
forms apart is data to these programs (see `forms.Form`), so all forms, and any number of curves, use the same two.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from isocompute_jax.fit.curves.forms import Form

Array = Any
"""NumPy outside of the compiled functions, JAX inside."""

STEP_TOLERANCE, DECREASE_TOLERANCE = 1e-10, 1e-13
"""A search ends when a step moves no parameter by more than the one, or lowers the squares by no larger share."""
GRID_CELLS = {1: (64,), 2: (20, 10)}
"""Cells of the coarse grid by the number of shape parameters."""
STARTS = 3
"""Lowest local minima of the grid that a search starts from."""
MAX_STEPS = 200
ROUNDS = (9, 14, 30, MAX_STEPS)
"""Steps after which searches that go on are gathered into batches anew; three quarters end within 9."""
BATCH = 64
"""Searches, or curves of a grid, of one call; twice as many are hardly faster, and few curves pay for a whole batch."""

_MOST_CELLS = 200
_TINY = 1e-300


class CurveBatch(NamedTuple):
    """K curves to fit, P points each."""

    x: Array  # [K, P] argument of the share
    y: Array  # [K, P]
    root_weight: Array  # [K, P] square root of each point's weight; 0 on padding, which comes last
    rho: Array  # [K] correlation of neighbouring residuals: generalised least squares under AR(1) noise
    link: Array  # [K, P] 1 where the point before is a neighbour, 0 at the first point of a run
    runs: Array  # [K, P, L] a column for each level of a run less that of the last run; zeros pad it, L = 0 for one run
    levels: Array  # [K, 4] bounds of low (0, 1) and of high (2, 3); equal ones fix a level, infinite ones leave it free
    lower: Array  # [K, Q] bounds of theta
    upper: Array  # [K, Q]; equal bounds fix a parameter
    first: Array  # [K, Q] where the grid of starts begins; inside the bounds or not
    last: Array  # [K, Q] where it ends


Kind = tuple[Array, Array]
"""What tells forms apart, bool [K] each: theta[0] is the logarithm of the place; the share saturates."""
Search = dict[str, Array]
"""Where a search stands (see `_begin`)."""


def whiten(values: Array, root_weight: Array, rho: Array, link: Array) -> Array:
    """Scales residual-like `values` [..., P] by their weight and removes the AR(1) correlation of neighbours.

    r_1 sqrt(1 - rho^2), then r_t - rho r_{t-1}, are independent with equal variance when the weighted residuals are
    AR(1); every run begins anew where `link` is 0. NumPy arrays give NumPy's, JAX's give JAX's.
    """
    numpy = np if isinstance(values, np.ndarray) else jnp
    scaled = root_weight * values
    before = numpy.concatenate([numpy.zeros_like(scaled[..., :1]), scaled[..., :-1]], axis=-1)
    white = numpy.where(link > 0, scaled - rho * before, numpy.sqrt(1.0 - rho**2) * scaled)
    return numpy.where(root_weight > 0, white, 0.0)


def run_basis(problem: CurveBatch) -> tuple[np.ndarray, np.ndarray]:
    """[K, P, L] orthonormal columns that span the whitened levels of the runs, and [K, L, L] their Gram matrices."""
    runs = np.asarray(problem.runs, np.float64)
    if not runs.shape[2]:
        return runs, np.zeros((len(runs), 0, 0))
    weight, rho, link = (np.asarray(a, np.float64) for a in (problem.root_weight, problem.rho, problem.link))
    white = whiten(runs.swapaxes(1, 2), weight[:, None], rho[:, None, None], link[:, None])
    gram = white @ white.swapaxes(1, 2)
    unused = np.diagonal(gram, axis1=1, axis2=2) == 0
    gram = gram + np.eye(gram.shape[1]) * unused[:, None, :]
    return np.linalg.solve(np.linalg.cholesky(gram), white).swapaxes(1, 2), gram


def project(problem: CurveBatch, share: jax.Array) -> tuple[jax.Array, ...]:
    """The `low` and `high` that minimise the sum of squares for one curve's share [P], and the residuals [P].

    The span of `problem.runs`, orthonormal here (`run_basis`), is taken out of everything. The levels keep the bounds
    `problem.levels`, and low <= high. The objective is convex, so when the free minimum breaks a bound
    the answer lies on an edge of the feasible region, each a one-dimensional problem.
    """

    def white(values: jax.Array) -> jax.Array:
        found = whiten(values, problem.root_weight, problem.rho, problem.link)
        return found - problem.runs @ (problem.runs.T @ found)

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
        return jnp.clip(free, jnp.maximum(h0, given), h1)

    def best_low(given: jax.Array) -> jax.Array:
        free = (rest @ y - given * (climbed @ rest)) / _positive(rest @ rest)
        return jnp.clip(free, l0, jnp.minimum(l1, given))

    level = jnp.clip(ones @ y / total, jnp.maximum(l0, h0), jnp.minimum(l1, h1))
    lows = jnp.stack([low, l0, l1, best_low(h0), best_low(h1), level])
    highs = jnp.stack([low + rise, best_high(l0), best_high(l1), h0, h1, level])
    inside = (lows >= l0) & (lows <= l1) & (highs >= h0) & (highs <= h1) & (lows <= highs)
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


def _share(theta: jax.Array, u: jax.Array, kind: Kind) -> jax.Array:
    """[P] share of any form, from theta = (place, ln rate); see `forms.Form`."""
    log_place, saturates = kind
    reached = jnp.isfinite(u)
    place = jnp.where(log_place, jnp.exp(jnp.where(log_place, theta[0], 0.0)), theta[0])
    z = jnp.exp(theta[1]) * (jnp.where(reached, u, 0.0) - place)
    tail = jnp.exp(jnp.where((z < 0) & ~saturates, z, -z))  # one exponential for both, which does not overflow
    share = jnp.where(saturates, 1.0 - tail, jnp.where(z < 0, tail, 1.0) / (1.0 + tail))
    return jnp.where(reached, share, 0.0)


def _fitted(problem: CurveBatch, kind: Kind, theta: jax.Array) -> tuple[jax.Array, ...]:
    """The best low and high, and the residuals [P], at theta [2]."""
    return project(problem, _share(theta, problem.x, kind))


def _solve(matrix: jax.Array, vector: jax.Array) -> jax.Array:
    """matrix^-1 vector for two unknowns; LAPACK's batched call costs more than the whole step."""
    (a, b), (c, d) = matrix
    return jnp.stack([d * vector[0] - b * vector[1], a * vector[1] - c * vector[0]]) / (a * d - b * c)


def _step(search: Search, problem: CurveBatch, kind: Kind) -> Search:
    """Tries one candidate, and proposes the next by Marquardt's scaled damping, cut to the box.

    A parameter that the gradient presses against its bound is held for the proposal. A search has converged when a step
    is small, or gains little, or when no damping yields a descent (the minimum up to rounding), or all is fixed.
    """

    def residuals(theta: jax.Array) -> tuple[jax.Array, tuple[jax.Array, ...]]:
        low, high, values = _fitted(problem, kind, theta)
        return values, (low, high, values)

    jacobian, (low, high, values) = jax.jacfwd(residuals, has_aux=True)(search["candidate"])
    sse = values @ values
    better, fresh = sse < search["sse"], jnp.isinf(search["sse"])
    small = jnp.max(jnp.abs(search["candidate"] - search["theta"])) <= STEP_TOLERANCE
    settled = better & (search["sse"] - sse <= DECREASE_TOLERANCE * search["sse"])
    damping = jnp.where(better, jnp.maximum(search["damping"] * 0.1, 1e-14), search["damping"] * 6.0)
    tried = {"theta": search["candidate"], "low": low, "high": high, "sse": sse}
    tried |= {"gradient": jacobian.T @ values, "normal": jacobian.T @ jacobian}
    best = {name: jnp.where(better, value, search[name]) for name, value in tried.items()}

    theta, gradient, normal = best["theta"], best["gradient"], best["normal"]
    held = ((theta <= problem.lower) & (gradient >= 0)) | ((theta >= problem.upper) & (gradient <= 0))
    diagonal = jnp.diag(normal)
    scale = jnp.where(held | (diagonal <= _TINY), 1.0, diagonal)
    active = jnp.where(held[:, None] | held[None, :], 0.0, normal)
    move = _solve(active + damping * jnp.diag(scale), jnp.where(held, 0.0, -gradient))
    candidate = jnp.clip(theta + move, problem.lower, problem.upper)
    converged = jnp.all(problem.lower == problem.upper) | (~fresh & (small | settled | (damping > 1e12)))
    return best | {"candidate": candidate, "damping": damping, "steps": search["steps"] + 1, "converged": converged}


def _begin(theta: np.ndarray) -> Search:
    """N searches that have not tried anything, from `theta` [N, 2]."""
    count = len(theta)
    return {
        "theta": theta,  # the best so far, with its levels, sum of squares and slopes
        "low": np.zeros(count),
        "high": np.zeros(count),
        "sse": np.full(count, np.inf),  # infinite before the first try
        "gradient": np.zeros((count, 2)),  # J^T r
        "normal": np.zeros((count, 2, 2)),  # J^T J
        "candidate": theta.copy(),  # the next to try
        "damping": np.full(count, 1e-1),  # the first try is accepted, which divides it by ten
        "steps": np.zeros(count, int),  # tries so far
        "converged": np.zeros(count, bool),
    }


def _advance(problem: CurveBatch, kind: Kind, search: Search, steps: jax.Array) -> Search:
    """One search until it has converged or has done `steps` steps in all."""
    step = functools.partial(_step, problem=problem, kind=kind)
    return jax.lax.while_loop(lambda search: ~search["converged"] & (search["steps"] < steps), step, search)


def _searched(curves: tuple[CurveBatch, Kind], which: np.ndarray, start: np.ndarray) -> Search:
    """N searches to their end, of the curves `which` [N] from `start` [N, 2]."""
    lower, upper = (values[which] for values in (curves[0].lower, curves[0].upper))
    search = _begin(np.clip(start, lower, upper))
    going = np.arange(len(which))
    for steps in ROUNDS:
        part = _in_batches(_advance, curves, which[going], _take(search, going), shared=(steps,))
        for name, new in part.items():
            search[name][going] = new
        going = going[~part["converged"]]
        if not len(going):
            break
    return search


def _grid(problem: CurveBatch, kind: Kind, first: jax.Array, last: jax.Array, units: jax.Array) -> jax.Array:
    """[U] sums of squares of one curve at first + unit (last - first), for `units` [U, 2]."""

    def error(unit: jax.Array) -> jax.Array:
        residuals = _fitted(problem, kind, first + unit * (last - first))[2]
        return residuals @ residuals

    return jax.lax.map(error, units)


@functools.cache
def _program(function: Callable[..., Any], batched: tuple[int | None, ...], backend: str) -> Callable[..., Any]:
    """`function` compiled for a batch: on CPUs at LLVM's level 1, as higher ones make these short loops slower.

    It holds where XLA_FLAGS ask for level 0 too, which saves the time of compilation: these programs run for longer.
    """
    options: Any = {"xla_backend_optimization_level": 1} if backend == "cpu" else None
    return jax.jit(jax.vmap(function, in_axes=batched), compiler_options=options)


def _take(tree: Any, rows: np.ndarray) -> Any:
    """Rows of every array."""
    return jax.tree.map(lambda values: values[rows], tree)


def _in_batches(
    function: Callable[..., Any], curves: Any, which: np.ndarray, *each: np.ndarray, shared: tuple[Any, ...] = ()
) -> Any:
    """The results of `function` (problem, kind, a row of each of `each`, `shared`) for N rows, `BATCH` in each call.

    `which` [N] is the curve of each row among `curves`, the problem and kind of K.
    """
    program = _program(function, (0,) * (2 + len(each)) + (None,) * len(shared), jax.default_backend())
    count, results = len(which), []
    for start in range(0, count, BATCH):
        rows = np.minimum(np.arange(start, start + BATCH), count - 1)  # the last batch repeats the last row
        results.append(program(*_take(curves, which[rows]), *_take(each, rows), *shared))
    return jax.tree.map(lambda *parts: np.concatenate([np.asarray(part) for part in parts])[:count], *results)


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


def fit_rising(
    problem: CurveBatch, *, form: Form, starts: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Fits K rising curves by weighted least squares, keeping the best of several starts each.

    Float64 is switched on for these calls alone: the caller's global JAX settings are left as they are. Curves are
    worked through in batches of bounded memory; the cost is linear in K. `starts` [K, S, Q] stand in place of the
    problem's grid.

    Returns:
      [K, Q + 2] the best (low, high, *theta), [K] its sum of squares, and [K] whether the search converged.
    """
    general = _general(problem, form)
    if starts is None:
        starts = grid_starts(problem, form=form)
    starts = np.asarray(starts, np.float64)
    count, tries, width = starts.shape
    flat = _with_place(starts.swapaxes(0, 1).reshape(-1, width), form)
    with jax.enable_x64(True):
        search = _searched(general, np.tile(np.arange(count), tries), flat)
    at = np.column_stack([search["low"], search["high"], search["theta"][:, 2 - width :]])
    at, sse, converged = (a.reshape(tries, count, *a.shape[1:]) for a in (at, search["sse"], search["converged"]))
    best = (np.argmin(np.where(np.isfinite(sse), sse, np.inf), axis=0), np.arange(count))
    return at[best], sse[best], converged[best]


def grid_starts(problem: CurveBatch, *, form: Form) -> np.ndarray:
    """[K, STARTS, Q] from the problem's grid, cut to the box."""
    first, last = np.asarray(problem.first), np.asarray(problem.last)
    count, width = first.shape
    cells = GRID_CELLS[width]
    axes = np.meshgrid(*(np.linspace(0.0, 1.0, n) for n in cells), indexing="ij")
    units = np.stack([axis.ravel() for axis in axes], axis=-1)
    ends = [_with_place(np.clip(end, problem.lower, problem.upper), form) for end in (first, last)]
    padded = np.resize(_with_place(units, form), (_MOST_CELLS, 2))
    with jax.enable_x64(True):
        errors = _in_batches(_grid, _general(problem, form), np.arange(count), *ends, shared=(padded,))
    chosen = _lowest_minima(errors[:, : len(units)].reshape(-1, *cells))
    first, last = (end[:, None, 2 - width :] for end in ends)
    return first + units[chosen] * (last - first)


def _general(problem: CurveBatch, form: Form) -> tuple[CurveBatch, Kind]:
    """The problem as the compiled programs see it: u in place of x, and a theta of two with the place held at 0."""
    arrays = CurveBatch(*(np.asarray(a, np.float64) for a in problem))
    x = np.exp(arrays.x) if form.of_compute else arrays.x
    flags = (form.of_compute and form.has_place, form.saturates)
    kind = tuple(np.full(len(x), flag) for flag in flags)
    lower, upper = _with_place(arrays.lower, form), _with_place(arrays.upper, form)
    runs, _ = run_basis(arrays)
    return arrays._replace(x=x, runs=runs, lower=lower, upper=upper, first=None, last=None), (kind[0], kind[1])


def _with_place(theta: np.ndarray, form: Form) -> np.ndarray:
    """[N, 2] theta [N, Q] with a place of 0 where the form has none."""
    return theta if form.has_place else np.pad(theta, ((0, 0), (1, 0)))
