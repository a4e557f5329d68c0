"""The posterior of one curve under one form: its evidence, and draws of its parameters.

Every form is y = low + (high - low) share(theta, x) (see `forms`). Given theta the likelihood is Gaussian in the two
levels, so `low` is integrated in closed form and `high` by quadrature, each over its whole range, and theta, which has
one or two dimensions, over a grid that closes in on where the posterior is. Where the data have not seen the curve
rise, the draws spread over everything that the priors allow.

Priors: (low, high) uniform on low <= high inside the range of rewards; the position of the rise (log compute) uniform
over the box of the search; the logarithm of the steepness normal (`STEEPNESS`).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from scipy.special import log_ndtr, ndtr, ndtri

from isocompute_jax.fit.curves.forms import FORMS, Form, FormName
from isocompute_jax.fit.curves.solver import decorrelate

STEEPNESS: dict[FormName, tuple[float, float]] = {
    "hill": (0.0, 0.6),
    "logistic": (math.log(4.0), 1.0),
    "power": (math.log(0.4), 0.8),
}
"""Mean and standard deviation of ln B (hill, power) and of ln k C_mid (logistic)."""

CELLS = {1: (160,), 2: (26, 22)}
"""Cells of the grid of theta by its dimension."""
ROUNDS = 4
NEGLIGIBLE = 12.0
"""The next grid covers what lies within so many nats of the highest cell; twice that after the first."""

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(12)
_REACH = 5.0  # standard deviations that the quadrature covers
_TAIL = 30.0  # nats that it covers of a Gaussian whose middle lies outside the range
_TINY = 1e-9


class Draws(NamedTuple):
    """Draws of a curve's parameters: `low` [S], `high` [S] in shares of the range, `theta` [S, Q]."""

    low: np.ndarray
    high: np.ndarray
    theta: np.ndarray


class Posterior(NamedTuple):
    """The posterior of a curve on a grid of N cells with H values of `high` each."""

    form: FormName  # of the curve
    evidence: float  # log marginal likelihood of the points
    theta: np.ndarray  # [N, Q] middles of the cells
    cell: np.ndarray  # [Q] their widths
    log_weight: np.ndarray  # [N] log posterior, up to a constant
    high: np.ndarray  # [N, H] nodes
    log_high: np.ndarray  # [N, H] their log weights within a cell, up to a constant
    low: np.ndarray  # [N, H] mean of `low` before it is cut off at the range and at `high`
    low_error: np.ndarray  # [N] its standard deviation

    def draw(self, count: int, rng: np.random.Generator) -> Draws:
        """Equally probable draws, spread evenly over the cells."""
        share = np.exp(self.log_weight - log_sum(self.log_weight))
        levels = (rng.permutation(count) + rng.random(count)) / count
        i = np.minimum(np.searchsorted(np.cumsum(share), levels), len(share) - 1)
        theta = self.theta[i] + (rng.random((count, self.theta.shape[1])) - 0.5) * self.cell
        within = np.exp(self.log_high[i] - log_sum(self.log_high[i], axis=1)[:, None]).cumsum(axis=1)
        j = np.minimum(np.count_nonzero(within < rng.random((count, 1)), axis=1), within.shape[1] - 1)
        high, mean, error = self.high[i, j], self.low[i, j], self.low_error[i]
        ends = ndtr(-mean / error), ndtr((high - mean) / error)
        quantile = ends[0] + rng.random(count) * (ends[1] - ends[0])
        low = mean + error * ndtri(np.clip(quantile, 1e-300, 1 - 1e-16))
        return Draws(np.clip(low, 0.0, high), high, theta)


def posterior(
    name: FormName, x: np.ndarray, y: np.ndarray, *, noise: float, correlation: float, box: tuple[float, float]
) -> Posterior:
    """The posterior of one curve under one form.

    Args:
      name: the form; the power law, which has no value at C = 0, leaves out points there.
      x: [P] ln(C / C_ref), -inf for the base model, increasing.
      y: [P] rewards as shares of their range.
      noise: standard deviation of a point.
      correlation: of neighbouring points.
      box: log compute, in units of x, of the first and the last point that any curve of the sweep has: the grid's
        limits follow from it, and with them the prior, which all curves share.
    """
    form = FORMS[name]
    kept = np.isfinite(x) | form.at_zero
    x, y = x[kept], y[kept]
    least, most = form.box(box[1] - box[0])
    lower, upper = least, most
    theta, cell = _cells(lower, upper)
    prior = log_sum(log_prior(name, theta)) + np.log(np.prod(cell))
    for step in range(ROUNDS):
        theta, cell = _cells(lower, upper)
        levels = _levels(form, theta, x, y, noise, correlation)
        log_weight = levels[0] + log_prior(name, theta) - prior + np.log(np.prod(cell))
        near = theta[log_weight > log_weight.max() - NEGLIGIBLE * (2.0 if step == 0 else 1.0)]
        lower = np.maximum(least, near.min(axis=0) - 1.5 * cell)
        upper = np.minimum(most, near.max(axis=0) + 1.5 * cell)
    return Posterior(name, float(log_sum(log_weight)), theta, cell, log_weight, *levels[1:])


def position(name: FormName, theta: np.ndarray) -> np.ndarray | None:
    """[N] ln of the compute around which the curve rises, in units of x; None for the power law, which has none."""
    if name == "power":
        return None
    return -theta[:, 0] if name == "expsat" else theta[:, 0]


def steepness(name: FormName, theta: np.ndarray) -> np.ndarray | None:
    """[N] logarithm of how steeply it rises, free of units; None for a form that has one steepness only."""
    if name == "expsat":
        return None
    return theta[:, 0] + theta[:, 1] if name == "logistic" else theta[:, -1]


def moved(name: FormName, theta: np.ndarray, by: np.ndarray, steeper: np.ndarray) -> np.ndarray:
    """[N, Q] theta with its position moved `by` [N] and its steepness by `steeper` [N], as far as the form has them."""
    found = theta.copy()
    if name == "expsat":
        found[:, 0] -= by
    elif name == "power":
        found[:, -1] += steeper
    elif name == "logistic":
        found += np.stack([by, steeper - by], axis=1)
    else:
        found += np.stack([by, steeper], axis=1)
    return found


def log_prior(name: FormName, theta: np.ndarray) -> np.ndarray:
    """[N] log prior density of theta, up to a constant."""
    value = steepness(name, theta)
    return np.zeros(len(theta)) if value is None else log_normal(value, *STEEPNESS[name])


def log_normal(x: np.ndarray, mean: np.ndarray | float, error: np.ndarray | float) -> np.ndarray:
    """Log density of the normal distribution."""
    density = np.asarray((x - mean) / error)
    np.multiply(density, density, out=density)  # in place: of a square of draws each new array costs as much as a sum
    np.multiply(density, -0.5, out=density)
    return np.subtract(density, np.log(error) + 0.5 * math.log(2 * math.pi), out=density)


def log_sum(values: np.ndarray, axis: int = 0) -> np.ndarray:
    """Logarithm of the sum of exponentials along an axis; SciPy's general one costs several times as much here."""
    most = values.max(axis=axis, keepdims=True)
    share = values - most
    np.exp(share, out=share)
    return np.squeeze(most, axis) + np.log(np.sum(share, axis=axis))


def _cells(lower: np.ndarray, upper: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Middles [N, Q] and widths [Q] of the cells between two corners."""
    counts = CELLS[len(lower)]
    axes = [low + (np.arange(n) + 0.5) / n * (high - low) for low, high, n in zip(lower, upper, counts, strict=True)]
    middles = np.stack([axis.ravel() for axis in np.meshgrid(*axes, indexing="ij")], axis=-1)
    return middles, (upper - lower) / np.array(counts)


def _levels(
    form: Form, theta: np.ndarray, x: np.ndarray, y: np.ndarray, noise: float, correlation: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """log marginal likelihood over the levels [N]; high, its log weights and the mean of low [N, H]; low's error [N].

    Given high, low is Gaussian and cut off at 0 and at high; with low integrated, high is Gaussian times a smooth
    factor, so twelve nodes over what the range leaves of it are enough.
    """
    climbed = form.share(theta, x)
    a, b, v = (decorrelate(z, correlation) for z in (1.0 - climbed, climbed, y[None]))
    aa = np.maximum(np.sum(a * a, axis=1), _TINY)
    ab, bb, ay, by, yy = (np.sum(p * q, axis=1) for p, q in ((a, b), (b, b), (a, v), (b, v), (v, v)))
    curvature = np.maximum(bb - ab**2 / aa, _TINY**2)
    middle, error = (by - ay * ab / aa) / curvature, noise / np.sqrt(curvature)
    first, last = _support(middle, error)
    half = np.maximum(last - first, 1e-12) / 2
    high = (first + last)[:, None] / 2 + half[:, None] * _NODES
    low_error = noise / np.sqrt(aa)
    low = (ay[:, None] - high * ab[:, None]) / aa[:, None]
    squares = yy[:, None] - 2 * high * by[:, None] + high**2 * bb[:, None] - low**2 * aa[:, None]
    inside = _log_between(-low / low_error[:, None], (high - low) / low_error[:, None])
    log_high = inside - squares / (2 * noise**2) + np.log(_WEIGHTS)
    density = math.log(2.0) + 0.5 * math.log(2 * math.pi)  # of the levels; low's Gaussian is not normalised
    normal = 0.5 * math.log(1 - correlation**2) - len(y) * (math.log(noise) + 0.5 * math.log(2 * math.pi))
    logl = log_sum(log_high, axis=1) + np.log(half * low_error) + density + normal
    return logl, high, log_high, low, low_error


def _support(middle: np.ndarray, error: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What the range 0..1 leaves of Gaussians; of one whose middle lies outside, the tail at the end of the range."""
    first, last = (np.clip(middle + sign * _REACH * error, 0.0, 1.0) for sign in (-1, 1))
    above, below = middle - _REACH * error > 1.0, middle + _REACH * error < 0.0
    tail = _TAIL * error**2
    first = np.where(above, np.maximum(0.0, 1.0 - tail / np.maximum(middle - 1.0, _TINY)), first)
    last = np.where(below, np.minimum(1.0, tail / np.maximum(-middle, _TINY)), last)
    return first, last


def _log_between(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """ln(Phi(high) - Phi(low)) without cancellation, low <= high."""
    flip = low > 0
    low, high = np.where(flip, -high, low), np.where(flip, -low, high)
    top = log_ndtr(high)
    return top + np.log1p(-np.exp(np.minimum(log_ndtr(low) - top, -1e-16)))
