"""How well a curve's parameters are known: profile likelihood under noise with memory, never narrower than the seeds.

Neighbouring evaluations of a run are alike, so the residuals of a fit are taken as AR(1) noise with a correlation rho
that the data can only hint at. Every rho of a grid is fitted by generalised least squares and weighted by its
restricted likelihood (REML; Patterson and Thompson 1971), all rho being equally probable beforehand. An interval holds
the values v with sum_rho weight(rho) T_nu(z_rho(v)) between 2.5% and 97.5%, where T_nu is Student's distribution
function with nu = points - parameters degrees of freedom, and z_rho(v) the signed root of the rise of the sum of
squares when the parameter is held at v and all others, the levels of the runs among them, are fitted again (a profile,
so intervals may be lopsided). With rho = 0 alone this is the usual profile interval.

That is what the noise of evaluations leaves open. Further runs would have other levels: of S seeds with levels of
standard deviation s, the ends of floor and asymptote move out, in quadrature, by t_{S-1} s / sqrt(S).

A curve is flat when a constant fits about as well: the F test of its rise, averaged over rho like the intervals, does
not reach `RISES`. Coverage and error rates are measured in benchmarks/coverage.py, beside a sandwich over seeds.

The grid goes below 0 although noise is seldom so. Were it cut off there, independent noise could only be taken for more
correlated than it is, never for less, and its intervals would be too wide: they would hold the truth 99 times in 100.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import scipy.special

from isocompute_jax.fit.curves.forms import Form
from isocompute_jax.fit.curves.solver import CurveBatch, fit_rising, run_basis, whiten

CORRELATIONS = np.arange(-6, 10) / 10
"""Grid of rho; holds 0."""
NEGLIGIBLE = 1e-5
"""A rho of smaller weight is left out."""
LEAST_FREEDOM = 4
"""Fewer degrees of freedom cannot tell correlation from curvature: noise is then taken as independent."""
CONFIDENCE = 0.95
RISES = 0.01
"""Least probability of such a rise by chance; benchmarks/coverage.py counts flat curves below it."""
NO_NOISE = 1e-9
"""Residuals are never taken as smaller than this share of the width of the range of rewards, so that noise-free data
have intervals too."""

_ROOT_STEPS = 60
_ROOT_TOLERANCE = 1e-3  # in units of Student's t
_FARTHEST = 1e3  # the largest t that is told from infinity


def critical(freedom: np.ndarray | int) -> np.ndarray:
    """Student's t of a two-sided 95% interval."""
    return scipy.special.stdtrit(np.maximum(freedom, 1), 0.5 + CONFIDENCE / 2)


class Noise(NamedTuple):
    """K curves fitted under each of R rho; row r K + k belongs to rho r and curve k."""

    problem: CurveBatch  # [R K, ...]
    at: np.ndarray  # [R K, Q + 2] low, high, *theta
    sse: np.ndarray  # [R K]
    weight: np.ndarray  # [R, K], sums to 1 over rho
    freedom: np.ndarray  # [K] points - free parameters - levels
    scale: np.ndarray  # [R K] estimated variance of a whitened residual: that of a point times 1 - rho^2
    # [K, Q + 2, Q + 2] of (low, high, *theta) at the mean of rho; 0 for what is fixed or at its bound
    covariance: np.ndarray
    flat: np.ndarray  # [K] probability of such a rise if the curve were flat; NaN without degrees of freedom

    @property
    def correlation(self) -> np.ndarray:
        """[K] mean of rho."""
        return np.sum(self.problem.rho.reshape(self.weight.shape) * self.weight, axis=0)


def box(problem: CurveBatch) -> tuple[np.ndarray, np.ndarray]:
    """Bounds of (low, high, *theta): [K, Q + 2] each."""
    levels = np.asarray(problem.levels)
    return np.column_stack([levels[:, [0, 2]], problem.lower]), np.column_stack([levels[:, [1, 3]], problem.upper])


def _white(problem: CurveBatch, basis: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """[K, N, P] whitened columns without what the levels of the runs explain."""
    weight, rho, link = (np.asarray(a) for a in (problem.root_weight, problem.rho, problem.link))
    white = whiten(columns, weight[:, None], rho[:, None, None], link[:, None])
    return white - white @ basis @ basis.swapaxes(1, 2)


def _jacobian(problem: CurveBatch, basis: np.ndarray, at: np.ndarray, *, form: Form) -> np.ndarray:
    """[K, Q + 2, P] derivative of the whitened curve; 0 for parameters that are fixed or stand at their bound."""
    lower, upper = box(problem)
    climbed, slopes = form.share(at[:, 2:], np.asarray(problem.x))
    rise = (at[:, 1] - at[:, 0])[:, None, None]
    columns = np.concatenate([(1.0 - climbed)[:, None], climbed[:, None], rise * slopes.swapaxes(1, 2)], axis=1)
    return _white(problem, basis, columns) * ((at > lower) & (at < upper))[:, :, None]


def noise(problem: CurveBatch, at: np.ndarray, *, form: Form, width: float = 1.0) -> Noise:
    """Fits every rho of the grid to K curves, starting from their fit `at` [K, Q + 2] at rho = 0, and weighs them.

    `width` is that of the range of rewards.
    """
    count = len(at)
    lower, upper = box(problem)
    used = np.asarray(problem.root_weight) > 0
    levels = np.count_nonzero(np.any(np.asarray(problem.runs) != 0, axis=1), axis=1)
    freedom = np.count_nonzero(used, axis=1) - np.count_nonzero(lower < upper, axis=1) - levels
    grid = CORRELATIONS if np.any(freedom >= LEAST_FREEDOM) else np.zeros(1)
    size = len(grid)
    many = CurveBatch(*(np.concatenate([np.asarray(a)] * size) for a in problem))
    many = many._replace(rho=np.repeat(grid, count))
    every, sse, _ = fit_rising(many, form=form, starts=np.tile(at[:, 2:], (size, 1))[:, None])
    basis, gram = run_basis(many)
    slopes = _jacobian(many, basis, every, form=form)
    normal = slopes @ slopes.swapaxes(1, 2)
    degrees = np.tile(freedom, size)
    scale = np.maximum(sse / np.maximum(degrees, 1), (NO_NOISE * width) ** 2)
    begun = np.tile(np.count_nonzero(used & (np.asarray(problem.link) == 0), axis=1), size)
    # A direction that the data leave open is still known to its bounds; without them the determinant would be 0.
    wide = scale[:, None] / np.tile(np.where(lower < upper, upper - lower, np.inf) ** 2, (size, 1))
    bounded = normal + np.eye(at.shape[1]) * (wide * (np.diagonal(normal, axis1=1, axis2=2) > 0))[:, None, :]
    likelihood = 0.5 * (begun * np.log(1.0 - many.rho**2) - degrees * np.log(scale) - _log_size(bounded))
    likelihood = (likelihood - 0.5 * _log_size(gram)).reshape(size, count)
    likelihood = np.where((freedom >= LEAST_FREEDOM) | (grid[:, None] == 0), likelihood, -np.inf)
    weight = np.exp(likelihood - likelihood.max(axis=0))
    weight = np.where(weight < NEGLIGIBLE * weight.sum(axis=0), 0.0, weight)
    weight /= weight.sum(axis=0)

    constant = _white(many, basis, np.stack([np.ones_like(many.y), np.asarray(many.y)], axis=1))
    ones, y = constant[:, 0], constant[:, 1]
    left = (y * y).sum(axis=1) - (ones * y).sum(axis=1) ** 2 / (ones * ones).sum(axis=1)
    more = 1 + np.count_nonzero(lower[:, 2:] < upper[:, 2:], axis=1)
    gain = np.maximum(left - sse, 0.0) / scale / np.tile(more, size)
    tail = scipy.special.fdtrc(np.tile(more, size), np.maximum(degrees, 1), gain).reshape(size, count)
    flat = np.where(freedom >= 1, (weight * tail).sum(axis=0), np.nan)

    likely = np.abs(grid[:, None] - grid @ weight).argmin(axis=0) * count + np.arange(count)
    covariance = _inverse(normal[likely]) * scale[likely, None, None]
    free = np.diagonal(normal[likely], axis1=1, axis2=2) > 0
    covariance *= free[:, :, None] & free[:, None, :]  # what the inversion rounded away from 0
    return Noise(many, every, sse, weight, freedom, scale, covariance, flat)


def about_curve(problem: CurveBatch, at: np.ndarray, *, form: Form) -> np.ndarray:
    """[K, P] reward minus curve, levels of runs included."""
    climbed, _ = form.share(at[:, 2:], np.asarray(problem.x))
    return np.asarray(problem.y) - at[:, :1] - (at[:, 1] - at[:, 0])[:, None] * climbed


def run_levels(problem: CurveBatch, left: np.ndarray) -> list[np.ndarray]:
    """Per curve [S] levels of its S runs by residuals about the curve [K, P]; their sum is 0."""
    found = []
    for columns, residual, root in zip(problem.runs, left, np.asarray(problem.root_weight), strict=True):
        own = columns[:, np.any(columns != 0, axis=0)]
        levels = np.linalg.lstsq(own * root[:, None], residual * root, rcond=None)[0]
        found.append(np.append(levels, -levels.sum()))
    return found


def _log_size(matrix: np.ndarray) -> np.ndarray:
    """[K] logarithm of the determinant of [K, Q, Q], rows of zeros left out."""
    zero = np.diagonal(matrix, axis1=1, axis2=2) <= 0
    found = np.linalg.slogdet(matrix + np.eye(matrix.shape[1]) * zero[:, :, None])[1]
    return np.where(np.isfinite(found), found, 0.0)


def _inverse(normal: np.ndarray) -> np.ndarray:
    """[K, Q, Q] pseudo-inverse. Scaled first: what counts as singular must not depend on the unit of the rewards."""
    size = np.sqrt(np.diagonal(normal, axis1=1, axis2=2))
    size = np.where(size > 0, size, np.inf)
    scaled = normal / size[:, :, None] / size[:, None, :]
    return np.linalg.pinv(scaled, hermitian=True) / size[:, :, None] / size[:, None, :]


def profile(noise: Noise, index: np.ndarray, value: np.ndarray, *, form: Form) -> np.ndarray:
    """[L] Student's t of holding one parameter at a value [L]: negative below the estimate, positive above.

    `index` [L, 2] is the number of the curve and that of the coordinate (0 low, 1 high, 2.. theta).
    """
    curve, coordinate = index.T
    rho, which = np.nonzero(noise.weight[:, curve])
    rows, weight = rho * len(noise.freedom) + curve[which], noise.weight[rho, curve[which]]
    pinned, start = pin(noise.problem, rows, coordinate[which], value[which]), noise.at[rows, 2:]
    _, sse, _ = fit_rising(pinned, form=form, starts=start[:, None])
    rise = np.maximum(sse - noise.sse[rows], 0.0) / noise.scale[rows]
    score = np.sign(value[which] - noise.at[rows, coordinate[which]]) * np.sqrt(rise)
    freedom = np.maximum(noise.freedom[curve], 1)
    below, above = (
        np.bincount(which, weight * scipy.special.stdtr(freedom[which], side * score), len(value)) for side in (1, -1)
    )
    t = np.where(below < above, 1.0, -1.0) * scipy.special.stdtrit(freedom, np.minimum(below, above))
    return np.clip(t, -_FARTHEST, _FARTHEST)


def pin(problem: CurveBatch, rows: np.ndarray, coordinate: np.ndarray, value: np.ndarray) -> CurveBatch:
    """The problems `rows` [L], each with one coordinate [L] held at a value [L]."""
    problem = CurveBatch(*(np.array(np.asarray(a)[rows]) for a in problem))
    every = np.arange(len(rows))
    level = coordinate < 2
    for end in (0, 1):
        problem.levels[every[level], 2 * coordinate[level] + end] = value[level]
    for bound in (problem.lower, problem.upper):
        bound[every[~level], coordinate[~level] - 2] = value[~level]
    return problem


def intervals(noise: Noise, at: np.ndarray, levels: list[np.ndarray], *, form: Form) -> tuple[np.ndarray, np.ndarray]:
    """Ends of the 95% intervals of (low, high, *theta), [K, Q + 2] each; of what is fixed both are its value.

    All ends of all curves are sought side by side. They are about the fit at rho = 0, `at` [K, Q + 2], with the levels
    of each curve's runs, [S] each.
    """
    count = len(at)
    lower, upper = (bound[:count] for bound in box(noise.problem))
    free = (lower < upper) & (noise.freedom[:, None] >= 1)
    ends = np.stack([np.where(lower < upper, np.nan, at)] * 2)
    index = np.argwhere(free)
    if not len(index):
        return ends[0], ends[1]
    curve, coordinate = index.T
    both = np.concatenate([index, index])
    side = np.repeat([-1.0, 1.0], len(index))
    level = critical(noise.freedom[both[:, 0]])
    reach = level * np.tile(np.sqrt(noise.covariance[curve, coordinate, coordinate]), 2)

    def excess(value: np.ndarray, which: np.ndarray) -> np.ndarray:
        return side[which] * profile(noise, both[which], value, form=form) - level[which]

    limit = np.concatenate([lower[free], upper[free]])
    begin = side * np.tile(profile(noise, index, at[free], form=form), 2) - level
    found = _roots(excess, np.tile(at[free], 2), begin, limit, reach)
    for end, part in enumerate(np.split(found, 2)):
        ends[end][curve, coordinate] = part
    between = np.array([_between(own) for own in levels])[:, None]
    moved = free & (between > 0) & (np.arange(at.shape[1]) < 2)
    for end, sign in zip(ends, (-1.0, 1.0), strict=True):
        end[moved] = np.clip(at + sign * np.hypot(end - at, between), lower, upper)[moved]
    return ends[0], ends[1]


def _between(levels: np.ndarray) -> float:
    """Half of the 95% interval of the mean level of many runs, of which `levels` [S] were seen; 0 with one run."""
    count = len(levels)
    return float(critical(count - 1) * levels.std(ddof=1) / np.sqrt(count)) if count > 1 else 0.0


def _roots(
    excess: Callable[..., np.ndarray], inner: np.ndarray, at_inner: np.ndarray, limit: np.ndarray, reach: np.ndarray
) -> np.ndarray:
    """Where `excess` turns positive on the way from `inner` [N] to `limit` [N], all at once.

    First `reach` [N] (or the limit, where that is 0) is tried, and distances of twice the last until the root is
    bracketed; then the Illinois method closes in. Only what is still open is evaluated.

    Args:
      excess: (values [M], their numbers among the N [M]) -> [M].
      inner: where the search begins; it is its own root where `excess` is positive already.
      at_inner: `excess` there.
      limit: the farthest value allowed.
      reach: a guess of the root's distance.

    Returns:
      [N] the roots; `limit` where `excess` is still negative there.
    """
    near, far, root = inner.copy(), inner.copy(), inner.copy()
    at_near, at_far = at_inner.copy(), np.full(len(inner), -np.inf)
    last = np.zeros(len(inner))  # +1: the last step replaced far, -1: near
    distance = np.where(reach > 0, reach, np.abs(limit - inner))
    is_open = at_near < 0  # the estimate under rho = 0 may lie outside of an interval over all rho
    for _ in range(_ROOT_STEPS):
        (i,) = np.nonzero(is_open)
        if not len(i):
            break
        bracketed = at_far[i] > 0
        outward = np.clip(
            inner[i] + np.sign(limit - inner)[i] * distance[i],
            np.minimum(inner[i], limit[i]),
            np.maximum(inner[i], limit[i]),
        )
        share = at_near[i] / np.where(bracketed, at_near[i] - at_far[i], 1.0)
        guess = np.where(bracketed, near[i] + share * (far[i] - near[i]), outward)
        distance[i] *= 2.0
        value = excess(guess, i)
        root[i], beyond = guess, value > 0
        # The end that stays put twice running has its value halved: that is the whole of the Illinois method.
        at_near[i] = np.where(beyond, np.where(last[i] > 0, 0.5, 1.0) * at_near[i], value)
        at_far[i] = np.where(beyond, value, np.where(last[i] < 0, 0.5, 1.0) * at_far[i])
        near[i], far[i] = np.where(beyond, near[i], guess), np.where(beyond, guess, far[i])
        last[i] = np.where(bracketed, np.where(beyond, 1.0, -1.0), 0.0)
        reached = ~beyond & (guess == limit[i])
        narrow = (at_far[i] > 0) & (np.abs(far[i] - near[i]) <= 1e-12 * np.abs(guess))
        is_open[i] = ~(reached | narrow | (np.abs(value) < _ROOT_TOLERANCE))
    return root
