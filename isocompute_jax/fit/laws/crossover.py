"""Where the lines of two models cross: the compute or data from which the larger model is the better choice."""

from __future__ import annotations

import itertools

import numpy as np
import scipy.special

from isocompute_jax.fit.laws.model_size import CONFIDENCE
from isocompute_jax.fit.laws.model_size_results import Crossover, ModelSizeFit


def crossover(k1: float, e1: float, k2: float, e2: float) -> float:
    """X at which two lines ln L = -k ln X + E have the same loss; NaN when they are parallel.

    -k1 ln X + E1 = -k2 ln X + E2, so (k2 - k1) ln X = E2 - E1 and X = exp((E2 - E1) / (k2 - k1)).
    """
    if k1 == k2:
        return float("nan")
    with np.errstate(over="ignore", under="ignore"):
        return float(np.exp(np.float64(e2 - e1) / (k2 - k1)))


def crossovers(fit: ModelSizeFit) -> tuple[Crossover, ...]:
    """The crossing of every pair of models, by the law's slopes, with Fieller's 95% interval of ln X.

    The interval is that of a ratio of two jointly normal estimates; unlike the delta method it says so when the slopes
    are too close to place the crossing at all.
    """
    return tuple(_pair(fit, i, j) for i, j in itertools.combinations(range(len(fit.model_params)), 2))


def _pair(fit: ModelSizeFit, i: int, j: int) -> Crossover:
    count = len(fit.model_params)
    x = crossover(fit.k[i], fit.intercept[i], fit.k[j], fit.intercept[j])
    contrast = np.zeros((2, 2 * count))
    contrast[0, [count + j, count + i]] = 1.0, -1.0  # E2 - E1
    contrast[1, [j, i]] = 1.0, -1.0  # k2 - k1
    low, high = _fieller(
        fit.intercept[j] - fit.intercept[i],
        fit.k[j] - fit.k[i],
        contrast @ fit.covariance @ contrast.T,
        _freedom(fit),
    )
    bounded = low > 0 and np.isfinite(high)
    message = "" if bounded else "the two slopes are not told apart, so the crossing has no bounds"
    if np.isnan(low):
        message = "no noise estimate"
    with np.errstate(all="ignore"):  # a crossing may lie at 0 or beyond every number
        loss = float(fit.loss(i, x))
    first = max(fit.first_x[i], fit.first_x[j])
    last = min(fit.last_x[i], fit.last_x[j])
    return Crossover(
        smaller=float(fit.model_params[i]),
        larger=float(fit.model_params[j]),
        x=x,
        low=low,
        high=high,
        inside=bool(first <= x <= last),
        better_after=float(fit.model_params[j if fit.k[j] > fit.k[i] else i]),
        status="warning" if message else "ok",
        message=message,
        loss=loss,
    )


def _freedom(fit: ModelSizeFit) -> float:
    """Effective degrees of freedom: points less parameters, fewer when neighbouring residuals resemble each other."""
    scale = (1.0 + fit.autocorrelation) / (1.0 - fit.autocorrelation)
    return max((fit.num_points.sum() - len(fit.num_points) - 2) / scale, 1.0)


def _fieller(top: float, bottom: float, covariance: np.ndarray, freedom: float) -> tuple[float, float]:
    """exp of the 95% interval of top / bottom; (0, inf) when it is unbounded, NaN without a covariance."""
    if not np.all(np.isfinite(covariance)):
        return float("nan"), float("nan")
    t2 = float(scipy.special.stdtrit(freedom, (1 + CONFIDENCE) / 2)) ** 2
    a = bottom**2 - t2 * covariance[1, 1]
    b = top * bottom - t2 * covariance[0, 1]
    c = top**2 - t2 * covariance[0, 0]
    if a <= 0:
        return 0.0, float("inf")
    half = np.sqrt(max(b * b - a * c, 0.0)) / a
    with np.errstate(over="ignore", under="ignore"):
        return float(np.exp(b / a - half)), float(np.exp(b / a + half))
