"""What the seeds of a configuration say about its curve's noise: within each seed, and between them.

Every seed is given its own curve, linear about the fitted one; its residuals are AR(1) noise as in `uncertainty`, and
S seeds tell its correlation and variance S times as well as their mean does. What is left between the curves of the
seeds is more than that noise when seeds truly differ: one learns earlier, another ends higher. A mean of few seeds
moves with them, and no residual of its fit shows it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import scipy.special

from isocompute_jax.fit.curves.forms import FORMS
from isocompute_jax.fit.curves.seeds import Curve
from isocompute_jax.fit.curves.solver import decorrelate
from isocompute_jax.fit.curves.uncertainty import CORRELATIONS, LEAST_FREEDOM, NEGLIGIBLE, NoiseModel
from isocompute_jax.fit.results import CurveFit

MOVES = (1, 2)
"""Coordinates of the search in which seeds may differ: how high a curve ends, and where (or how fast) it rises."""

ERROR_RATE = 0.05
"""Of the test that takes equal seeds for different ones, and of the one that takes a good form for a bad one."""

_LEAST_VARIANCE = 1e-12  # a share of the fit's own


class Series(NamedTuple):
    """Seeds that have the same points: residuals [P, S] about the fitted curve, and its slopes [P, Q + 2].

    Both are over the points' standard deviations (of a point of weight 1).
    """

    residual: np.ndarray
    slopes: np.ndarray


class SeedNoise(NamedTuple):
    """The noise of one configuration."""

    model: NoiseModel  # of the points that are fitted (of means, where seeds are averaged)
    moves: np.ndarray  # [S, 2] by how much each seed's curve differs from the fit in `MOVES`
    covariance: np.ndarray  # [2, 2] of a row, if the seeds did not differ


class SeedDifferences(NamedTuple):
    """How seeds differ in `MOVES`: by normal numbers times `root` [2, 2], known from so many degrees of `freedom`."""

    root: np.ndarray
    freedom: int

    @property
    def covariance(self) -> np.ndarray:
        """[2, 2] of a seed's moves."""
        return self.root @ self.root.T

    def draw(self, count: int, seeds: int, rng: np.random.Generator) -> np.ndarray:
        """[count, seeds, 2] moves; each row has a covariance of its own, as far as the seeds tell it."""
        share = np.sqrt(self.freedom / rng.chisquare(self.freedom, count))
        return share[:, None, None] * (rng.standard_normal((count, seeds, 2)) @ self.root.T)


def seed_noise(curve: Curve, fit: CurveFit, *, use: np.ndarray, size: np.ndarray) -> SeedNoise | None:
    """The noise of a configuration from all of its seeds; None where they do not tell more than the fit's own.

    Where the mean lies further from its curve than its seeds' noise allows (F test), the form does not fit, and the
    fit's own noise, which has that in it, is to be taken.

    Args:
      curve: a configuration.
      fit: of it, with intervals.
      use: [E] bool, points that were fitted.
      size: [E] standard deviations of the points relative to one of weight 1.
    """
    if fit.search is None or fit.search.noise is None or len(curve.seeds) < 2:
        return None
    series = _series(curve, fit, use=use, size=size)
    parameters = int(np.count_nonzero(np.diagonal(fit.search.covariance)))
    if not parameters or min(len(one.slopes) for one in series) - parameters < LEAST_FREEDOM:
        return None
    freedom = sum((len(one.slopes) - parameters) * one.residual.shape[1] for one in series)
    left = [[_own_curves(one, rho) for one in series] for rho in CORRELATIONS]
    squares = np.array([sum(each.squares for each in row) for row in left])
    squares = np.maximum(squares, _LEAST_VARIANCE * fit.search.noise.variance.min() * freedom)
    likelihood = np.array([sum(each.likelihood for each in row) for row in left]) - 0.5 * freedom * np.log(squares)
    weight = np.exp(likelihood - likelihood.max())
    weight = np.where(weight < NEGLIGIBLE * weight.sum(), 0.0, weight)
    weight /= weight.sum()
    likely = int(np.abs(CORRELATIONS - CORRELATIONS @ weight).argmin())
    if not curve.pooled and _misfit(
        series[0], CORRELATIONS[likely], squares[likely], len(series[0].slopes) - parameters
    ):
        return None
    averaged = 1 if curve.pooled else len(curve.seeds)
    point = squares / freedom / (1 - CORRELATIONS**2)  # whitened residuals are smaller than those of a point
    model = NoiseModel(CORRELATIONS, weight, point / averaged, freedom)
    moves = np.concatenate([_moves(one, CORRELATIONS[likely])[0] for one in series])
    covariance = np.zeros((2, 2))
    for i in np.flatnonzero(weight):
        each = [_moves(one, CORRELATIONS[i])[1] * one.residual.shape[1] for one in series]
        covariance += weight[i] * squares[i] / freedom * sum(each) / len(moves)
    return SeedNoise(model, moves, covariance)


def differences(found: Sequence[SeedNoise]) -> SeedDifferences | None:
    """Whether seeds differ by more than their noise, over all configurations (F test), and how; None if not.

    What they differ by is the covariance of their moves less that of their noise, without its negative part.
    """
    if not found:
        return None
    freedom = sum(len(one.moves) - 1 for one in found)
    unit = np.sqrt(np.mean([np.diagonal(one.covariance) for one in found], axis=0))
    unit = np.where(unit > 0, unit, 1.0)  # of reward and of ln C: neither counts for more
    squares, excess, degrees = 0.0, np.zeros((2, 2)), 0
    for one in found:
        apart, own = (one.moves - one.moves.mean(axis=0)) / unit, len(one.moves) - 1
        noise = one.covariance / np.outer(unit, unit)
        squares += float(np.sum((apart @ np.linalg.pinv(noise, hermitian=True)) * apart))
        degrees += own * int(np.linalg.matrix_rank(noise, hermitian=True))
        excess += (apart.T @ apart - own * noise) / freedom
    rest = sum(one.model.freedom for one in found)
    if not degrees or scipy.special.fdtrc(degrees, rest, squares / degrees) >= ERROR_RATE:
        return None
    value, vector = np.linalg.eigh(excess)
    return SeedDifferences(unit[:, None] * vector * np.sqrt(np.maximum(value, 0.0)), freedom)


def _series(curve: Curve, fit: CurveFit, *, use: np.ndarray, size: np.ndarray) -> list[Series]:
    """The points that were fitted: all seeds of a mean together, pooled ones one by one."""
    assert fit.search is not None
    form, search = FORMS[fit.form], fit.search
    low, high, *theta = search.at
    with np.errstate(divide="ignore"):
        x = np.log(curve.compute / search.reference)
    climbed, slopes = form.share.with_slopes(np.array(theta), x)
    columns = np.column_stack([1 - climbed, climbed, (high - low) * slopes])
    columns[:, np.diagonal(search.covariance) == 0] = 0.0
    residual = (curve.per_seed - low - (high - low) * climbed) / size
    counted = use & (np.isfinite(x) | form.at_zero)
    groups = [[s] for s in range(len(curve.seeds))] if curve.pooled else [list(range(len(curve.seeds)))]
    found = []
    for seeds in groups:
        own = counted & np.isfinite(residual[seeds]).all(axis=0)
        found.append(Series(residual[seeds][:, own].T, columns[own] / size[own, None]))
    return found


def _white(values: np.ndarray, rho: float) -> np.ndarray:
    """[P, ...] without the AR(1) correlation of neighbours."""
    return np.asarray(decorrelate(values.T, rho)).T


class _Left(NamedTuple):
    """What curves of their own leave of the seeds: sum of squares, and the likelihood of rho but for it."""

    squares: float
    likelihood: float


def _own_curves(series: Series, rho: float) -> _Left:
    slopes, residual = _white(series.slopes[:, series.slopes.any(axis=0)], rho), _white(series.residual, rho)
    q, r = np.linalg.qr(slopes)
    size = np.abs(np.diagonal(r))
    determinant = 2 * float(np.sum(np.log(size[size > 0])))
    squares = float(np.sum((residual - q @ (q.T @ residual)) ** 2))
    return _Left(squares, 0.5 * residual.shape[1] * (math.log(1 - rho**2) - determinant))


def _misfit(series: Series, rho: float, squares: float, freedom: int) -> bool:
    """Whether the mean of the seeds lies further from its curve than their noise allows; `freedom` of one curve."""
    count = series.residual.shape[1]
    mean = series._replace(residual=series.residual.mean(axis=1, keepdims=True))
    own = count * _own_curves(mean, rho).squares
    rest = max(squares - own, _LEAST_VARIANCE * squares) / (count - 1)
    return bool(scipy.special.fdtrc(freedom, freedom * (count - 1), own / rest) < ERROR_RATE)


def _moves(series: Series, rho: float) -> tuple[np.ndarray, np.ndarray]:
    """[S, 2] moves by generalised least squares, and [2, 2] the covariance of one for whitened noise of variance 1."""
    slopes = _white(series.slopes[:, MOVES], rho)
    inverse = np.linalg.pinv(slopes.T @ slopes, hermitian=True)
    moves = (inverse @ (slopes.T @ _white(series.residual, rho))).T
    return moves, inverse
