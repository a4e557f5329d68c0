"""How well a curve's parameters are known: noise with memory, standard errors, profile-likelihood intervals.

Neighbouring evaluations of a run are alike, so the residuals of a fit are taken as AR(1) noise with a correlation rho
that the data can only hint at. Every rho of a grid is fitted by generalised least squares and weighted by its
restricted likelihood (REML; Patterson and Thompson 1971), all rho being equally probable beforehand. An interval holds
the values v with sum_rho weight(rho) T_nu(z_rho(v)) between 2.5% and 97.5%, where T_nu is Student's distribution
function with nu = points - parameters degrees of freedom, and z_rho(v) the signed root of the rise of the sum of
squares when the parameter is held at v and all others are fitted again (a profile, so intervals may be lopsided). With
rho = 0 alone this is the usual profile interval. The coverage is measured in benchmarks/coverage.py.

The grid goes below 0 although noise is seldom so. Were it cut off there, independent noise could only be taken for more
correlated than it is, never for less, and its intervals would be too wide: they would hold the truth 99 times in 100.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import scipy.special

from isocompute_jax.fit.curves.forms import Share
from isocompute_jax.fit.curves.solver import CurveBatch, RisingFit, decorrelate, fit_rising, repeat

CORRELATIONS = np.arange(-6, 10) / 10
"""Grid of rho; holds 0."""
NEGLIGIBLE = 1e-5
"""A rho of smaller weight is left out."""
LEAST_FREEDOM = 4
"""Fewer degrees of freedom cannot tell correlation from curvature: noise is then taken as independent."""
CONFIDENCE = 0.95
NO_NOISE = 1e-9
"""Residuals are never taken as smaller than this share of the width of the range of rewards, so that noise-free data
have intervals too."""

APART = 0.15
"""Standard deviation of the correlations of a sweep's curves about their mean: evaluated alike, they are alike."""

_ROOT_STEPS = 60
_ROOT_TOLERANCE = 1e-3  # in units of Student's t
_FARTHEST = 1e3  # the largest t that is told from infinity


def critical(freedom: np.ndarray | int) -> np.ndarray:
    """Student's t of a two-sided 95% interval."""
    return scipy.special.stdtrit(np.maximum(freedom, 1), 0.5 + CONFIDENCE / 2)


@dataclasses.dataclass(frozen=True, eq=False)
class NoiseModel:
    """Stationary AR(1) noise whose correlation and variance are known as far as the residuals tell."""

    correlation: np.ndarray  # [N] grid of correlations of neighbouring points
    weight: np.ndarray  # [N] how probable each is by the restricted likelihood (see `uncertainty.noise`); sums to 1
    variance: np.ndarray  # [N] of a point of weight 1, as estimated under each
    freedom: int  # points less parameters, the degrees of freedom of the estimates

    def draw(self, count: int, points: int, rng: np.random.Generator) -> np.ndarray:
        """[count, points] noise of points of weight 1.

        Each row has a correlation drawn by its weight and, given that, a variance freedom s^2 / chi^2: over many rows
        a mean of points then scatters as widely as Student's distribution says that the true one may lie from it.
        """
        which = rng.choice(len(self.weight), size=count, p=self.weight)
        rho = self.correlation[which]
        freedom = max(self.freedom, 1)
        noise = rng.standard_normal((count, points))
        for t in range(1, points):  # the first point has the stationary variance already
            noise[:, t] = rho * noise[:, t - 1] + np.sqrt(1.0 - rho**2) * noise[:, t]
        return noise * np.sqrt(self.variance[which] * freedom / rng.chisquare(freedom, count))[:, None]


class Noise(NamedTuple):
    """Fits under each rho, R of them; row r K + k belongs to rho r and curve k."""

    problem: CurveBatch  # [R K, ...]
    fit: RisingFit  # [R K]
    weight: np.ndarray  # [R, K], sums to 1 over rho
    freedom: np.ndarray  # [K] points - free parameters
    scale: np.ndarray  # [R K] estimated variance of a whitened residual: that of a point times 1 - rho^2
    # [K, Q + 2, Q + 2] of (low, high, *theta) at the mean of rho; 0 for what is fixed or at its bound
    covariance: np.ndarray
    condition: np.ndarray  # [K] condition number of the scaled Jacobian at rho = 0

    @property
    def correlation(self) -> np.ndarray:
        """[K] mean of rho."""
        return np.sum(self.problem.rho.reshape(self.weight.shape) * self.weight, axis=0)

    def of_curve(self, k: int) -> NoiseModel:
        """The noise of curve k, to draw from."""
        rho, scale = (values.reshape(self.weight.shape)[:, k] for values in (self.problem.rho, self.scale))
        return NoiseModel(rho, self.weight[:, k], scale / (1.0 - rho**2), int(self.freedom[k]))


class Interval(NamedTuple):
    """[K, Q + 2] ends of the interval of (low, high, *theta), and whether each end is the parameter's bound."""

    lower: np.ndarray
    upper: np.ndarray
    lower_at_bound: np.ndarray
    upper_at_bound: np.ndarray


def coordinates(fit: RisingFit) -> np.ndarray:
    """[K, Q + 2]: (low, high, *theta)."""
    return np.column_stack([fit.low, fit.high, fit.theta])


def box(problem: CurveBatch) -> tuple[np.ndarray, np.ndarray]:
    """Bounds of (low, high, *theta): [K, Q + 2] each."""
    levels = np.asarray(problem.levels)
    return np.column_stack([levels[:, [0, 2]], problem.lower]), np.column_stack([levels[:, [1, 3]], problem.upper])


def jacobian(problem: CurveBatch, fit: RisingFit, *, share: Share) -> np.ndarray:
    """[K, P, Q + 2] derivative of the whitened curve; 0 for parameters that are fixed or stand at their bound."""
    at, (lower, upper) = coordinates(fit), box(problem)
    climbed, slopes = share.with_slopes(fit.theta, problem.x)
    columns = np.concatenate(
        [(1.0 - climbed)[..., None], climbed[..., None], (fit.high - fit.low)[:, None, None] * slopes], axis=-1
    )
    scaled = np.asarray(problem.root_weight)[..., None] * columns
    white = decorrelate(scaled.swapaxes(1, 2), np.asarray(problem.rho)[:, None, None]).swapaxes(1, 2)
    white *= (np.asarray(problem.root_weight) > 0)[..., None]
    return white * ((at > lower) & (at < upper))[:, None, :]


def noise(problem: CurveBatch, fit: RisingFit, *, share: Share, width: float = 1.0) -> Noise:
    """Fits every rho of the grid, starting from the fit at rho = 0, and weighs them.

    Args:
      problem: the curves; `rho` is set here.
      fit: their fit at rho = 0.
      share: the form's share.
      width: of the range of rewards.
    """
    count = len(fit.low)
    lower, upper = box(problem)
    points = np.count_nonzero(np.asarray(problem.root_weight) > 0, axis=1)
    freedom = points - np.count_nonzero(lower < upper, axis=1)
    grid = CORRELATIONS if np.any(freedom >= LEAST_FREEDOM) else np.zeros(1)
    many = repeat(problem, len(grid))._replace(rho=np.repeat(grid, count))
    fits = fit_rising(many, share=share, starts=np.tile(fit.theta, (len(grid), 1))[:, None])
    slopes = jacobian(many, fits, share=share)
    normal = np.einsum("kpi,kpj->kij", slopes, slopes)
    scale = np.maximum(fits.sse / np.maximum(np.tile(freedom, len(grid)), 1), (NO_NOISE * width) ** 2)
    likelihood = _restricted_likelihood(normal, scale, np.tile(freedom, len(grid)), many.rho).reshape(-1, count)
    likelihood = np.where((freedom >= LEAST_FREEDOM) | (grid[:, None] == 0), likelihood, -np.inf)
    weight = np.exp(likelihood - likelihood.max(axis=0))
    weight = np.where(weight < NEGLIGIBLE * weight.sum(axis=0), 0.0, weight)
    weight /= weight.sum(axis=0)

    likely = np.abs(grid[:, None] - grid @ weight).argmin(axis=0) * count + np.arange(count)
    covariance = _inverse(normal[likely]) * scale[likely, None, None]
    free = np.diagonal(normal[likely], axis1=1, axis2=2) > 0
    covariance *= free[:, :, None] & free[:, None, :]  # what the inversion rounded away from 0
    independent = normal.reshape(len(grid), count, *normal.shape[1:])[int(np.flatnonzero(grid == 0.0)[0])]
    return Noise(many, fits, weight, freedom, scale, covariance, _condition(independent))


def alike(models: Sequence[NoiseModel]) -> list[NoiseModel]:
    """The models of a sweep's curves with correlations that are taken as alike: each learns from all others.

    Each correlation is normal about one that all share (`APART`), which may be any of the grid; a model's weight then
    is its own likelihood times what the others say of its correlation. Models of one correlation alone, which have too
    few points to tell, neither teach nor learn.
    """
    telling = [model for model in models if np.count_nonzero(model.weight) > 1]
    if len(telling) < 2:
        return list(models)
    grid = telling[0].correlation
    near = np.exp(-0.5 * (np.subtract.outer(grid, grid) / APART) ** 2)
    near /= near.sum(axis=1, keepdims=True)  # [shared, own]
    with np.errstate(divide="ignore"):
        each = {id(model): np.log(near @ model.weight) for model in telling}
    total = sum(each.values())
    found = []
    for model in models:
        if id(model) in each:
            others = total - each[id(model)]
            weight = model.weight * (np.exp(others - others.max()) @ near)
            model = dataclasses.replace(model, weight=weight / weight.sum())
        found.append(model)
    return found


def _restricted_likelihood(normal: np.ndarray, scale: np.ndarray, freedom: np.ndarray, rho: np.ndarray) -> np.ndarray:
    """Logarithm, up to a constant, with the variance profiled out and the curve linearised about its fit."""
    diagonal = np.diagonal(normal, axis1=1, axis2=2)
    free = diagonal > 0
    identity = np.eye(normal.shape[1]) * ~free[:, :, None]
    determinant = np.linalg.slogdet(normal + identity)[1]
    determinant = np.where(np.isfinite(determinant), determinant, 0.0)
    return 0.5 * (np.log(1.0 - rho**2) - freedom * np.log(scale) - determinant)


def _scaled(normal: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """[K, Q, Q] J^T J with the columns of J scaled to length 1, and [K, Q] these lengths, infinite for zeros."""
    size = np.sqrt(np.diagonal(normal, axis1=1, axis2=2))
    size = np.where(size > 0, size, np.inf)
    return normal / size[:, :, None] / size[:, None, :], size


def _inverse(normal: np.ndarray) -> np.ndarray:
    """[K, Q, Q] pseudo-inverse. Scaled first: what counts as singular must not depend on the unit of the rewards."""
    scaled, size = _scaled(normal)
    return np.linalg.pinv(scaled, hermitian=True) / size[:, :, None] / size[:, None, :]


def _condition(normal: np.ndarray) -> np.ndarray:
    """[K] of the Jacobian with its columns scaled to length 1; columns of zeros are left out."""
    scaled, size = _scaled(normal)
    values = np.linalg.eigvalsh(scaled)
    free = np.isfinite(size).sum(axis=1)
    least = np.take_along_axis(values, np.minimum(values.shape[1] - free, values.shape[1] - 1)[:, None], axis=1)[:, 0]
    return np.sqrt(values[:, -1] / np.maximum(least, 1e-300))


def profile(noise: Noise, index: np.ndarray, value: np.ndarray, *, share: Share) -> np.ndarray:
    """[L] Student's t of holding one parameter at a value: negative below the estimate, positive above.

    Args:
      noise: of K curves.
      index: [L, 2] curve number and coordinate number (0 low, 1 high, 2.. theta).
      value: [L].
      share: the form's share.
    """
    curve, coordinate = index.T
    rho, which = np.nonzero(noise.weight[:, curve])
    rows, weight = rho * len(noise.freedom) + curve[which], noise.weight[rho, curve[which]]
    pinned, start = pin(noise.problem, rows, coordinate[which], value[which]), noise.fit.theta[rows]
    found = fit_rising(pinned, share=share, starts=start[:, None])
    rise = np.maximum(found.sse - noise.fit.sse[rows], 0.0) / noise.scale[rows]
    score = np.sign(value[which] - coordinates(noise.fit)[rows, coordinate[which]]) * np.sqrt(rise)
    freedom = np.maximum(noise.freedom[curve], 1)
    below, above = (
        np.bincount(which, weight * scipy.special.stdtr(freedom[which], side * score), len(value)) for side in (1, -1)
    )
    t = np.where(below < above, 1.0, -1.0) * scipy.special.stdtrit(freedom, np.minimum(below, above))
    return np.clip(t, -_FARTHEST, _FARTHEST)


def pin(problem: CurveBatch, rows: np.ndarray, coordinate: np.ndarray, value: np.ndarray) -> CurveBatch:
    """The problems `rows` [L], each with one coordinate [L] held at a value [L]."""
    levels, lower, upper = (np.array(np.asarray(a)[rows]) for a in (problem.levels, problem.lower, problem.upper))
    every = np.arange(len(rows))
    level = coordinate < 2
    for end in (0, 1):
        levels[every[level], 2 * coordinate[level] + end] = value[level]
    lower[every[~level], coordinate[~level] - 2] = upper[every[~level], coordinate[~level] - 2] = value[~level]
    x, y, root_weight, rho = (np.asarray(a)[rows] for a in problem[:4])
    return CurveBatch(x, y, root_weight, rho, levels, lower, upper)


def intervals(noise: Noise, fit: RisingFit, *, share: Share, wanted: np.ndarray | None = None) -> Interval:
    """95% intervals of (low, high, *theta) by root finding on the profile, all ends of all curves side by side.

    Args:
      noise: of K curves.
      fit: their fit at rho = 0, whose parameters the intervals are about.
      share: the form's share.
      wanted: [Q + 2] bool, the coordinates to do; the others get NaN. None: all. What is fixed has its value at both
        ends.
    """
    (lower, upper), at = box(CurveBatch(*(np.asarray(a)[: len(fit.low)] for a in noise.problem))), coordinates(fit)
    free = (lower < upper) & (noise.freedom[:, None] >= 1)
    if wanted is not None:
        free &= wanted
    known = np.where(lower < upper, np.nan, at)
    ends, at_bound = np.stack([known, known]), np.zeros((2, *at.shape), bool)
    index = np.argwhere(free)
    curve, coordinate = index.T
    both = np.concatenate([index, index])
    side = np.repeat([-1.0, 1.0], len(index))
    level = critical(noise.freedom[both[:, 0]])
    reach = level * np.tile(np.sqrt(noise.covariance[curve, coordinate, coordinate]), 2)

    def excess(value: np.ndarray, which: np.ndarray) -> np.ndarray:
        return side[which] * profile(noise, both[which], value, share=share) - level[which]

    if len(index):
        limit = np.concatenate([lower[free], upper[free]])
        begin = side * np.tile(profile(noise, index, at[free], share=share), 2) - level
        found, reached = _roots(excess, np.tile(at[free], 2), begin, limit, reach)
        for end in (0, 1):
            part = slice(end * len(index), (end + 1) * len(index))
            ends[end][curve, coordinate], at_bound[end][curve, coordinate] = found[part], reached[part]
    return Interval(*ends, *at_bound)


def _roots(
    excess: Callable[[np.ndarray, np.ndarray], np.ndarray],
    inner: np.ndarray,
    at_inner: np.ndarray,
    limit: np.ndarray,
    reach: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
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
      The roots, and whether `excess` is still negative at `limit` (the root is then `limit`).
    """
    near, far, root = inner.copy(), inner.copy(), inner.copy()
    at_near, at_far = at_inner.copy(), np.full(len(inner), -np.inf)
    reached, last = np.zeros(len(inner), bool), np.zeros(len(inner))  # +1: the last step replaced far, -1: near
    distance = np.where(reach > 0, reach, np.abs(limit - inner))
    is_open = at_near < 0  # the estimate under rho = 0 may lie outside of an interval over all rho
    for _ in range(_ROOT_STEPS):
        (i,) = np.nonzero(is_open)
        if not len(i):
            break
        bracketed = at_far[i] > 0
        outward = np.clip(inner[i] + np.sign(limit - inner)[i] * distance[i], *_ordered(inner[i], limit[i]))
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
        reached[i] = ~beyond & (guess == limit[i])
        narrow = (at_far[i] > 0) & (np.abs(far[i] - near[i]) <= 1e-12 * np.abs(guess))
        is_open[i] = ~(reached[i] | narrow | (np.abs(value) < _ROOT_TOLERANCE))
    return root, reached


def _ordered(one: np.ndarray, other: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return np.minimum(one, other), np.maximum(one, other)
