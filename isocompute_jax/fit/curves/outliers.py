"""Evaluations that stand alone, far from the curve through all others: they are named and left out of the fit.

Least squares believes a spike, so a curve is first fitted to running medians, then robustly (Huber's weights, then
Tukey's bisquare, scale by the median of the absolute residuals; Rousseeuw and Leroy 1987, chapter 3), suspects are set
aside, and the curve through the rest gives the noise. A residual is an outlier when it is beyond the point of Student's
t with the degrees of freedom of the rest that one evaluation in `1 / ERROR_RATE` curves passes (Bonferroni), and when
its neighbours do not share it: a bend that the form cannot follow, or a late change of level, is not a spike. At most
`LARGEST_SHARE` of a curve is ever left out; more than that is the form's fault. Rates and the efficiency that this
costs are measured in docs/method.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import scipy.special

from isocompute_jax.fit.curves.fit_options import FitOptions
from isocompute_jax.fit.curves.fitting import residuals
from isocompute_jax.fit.curves.forms import FORMS
from isocompute_jax.fit.curves.levels import CurveBatch
from isocompute_jax.fit.curves.padding import Prepared, prepare
from isocompute_jax.fit.curves.solver import RisingFit, fit_rising

ERROR_RATE = 0.001
"""Nominal probability that a curve with Gaussian noise loses an evaluation; short curves lose one more often."""

LARGEST_SHARE = 0.1
"""Of a curve's evaluations; two are allowed from `ENOUGH_FOR_TWO` on."""

ENOUGH_FOR_TWO = 12
LEAST_FREEDOM = 4
"""Curves with fewer points above the number of parameters are left as they are."""

_SUSPECT = 3.0  # robust standard deviations from a smoothed curve that make it worth a closer look
_LEAST_NOISE = (
    1e-5  # in units of the reward range: nothing is an outlier of noise-free data by less than a few of these
)
_HUBER, _BISQUARE = 1.345, 4.685  # 95% efficient on Gaussian noise
_HUBER_ROUNDS, _BISQUARE_ROUNDS = 4, 8


def find_outliers(
    compute: Sequence[np.ndarray],
    reward: Sequence[np.ndarray],
    *,
    standard_error: Sequence[np.ndarray] | None,
    options: FitOptions,
) -> list[np.ndarray]:
    """[K] of [E] bool: the evaluations of each curve to leave out. The base model's is never one.

    Args:
      compute: per curve [E].
      reward: per curve [E].
      standard_error: per curve [E], of the rewards; None for equal weights.
      options: of the fits; evaluations outside its window are no outliers.
    """
    found = [np.zeros(len(c), bool) for c in compute]
    low, high = options.window or (0.0, np.inf)
    inside = [((c > 0) & (c >= low) & (c <= high)) | ((c == 0) & FORMS[options.form].at_zero) for c in compute]
    least = len(FORMS[options.form].params) + LEAST_FREEDOM
    rows = [k for k, mask in enumerate(inside) if np.count_nonzero(mask) >= least and np.any(compute[k][mask] > 0)]
    if not rows:
        return found
    errors = [np.ones(len(c)) for c in compute] if standard_error is None else standard_error
    computes, rewards, weights = (
        [values[k][inside[k]] for k in rows] for values in (compute, reward, [e**-2.0 for e in errors])
    )
    prepared = prepare(computes, rewards, weights, options=options)
    for k, rejected in zip(rows, _rejected(prepared, options), strict=True):
        found[k][np.flatnonzero(inside[k])[rejected]] = True
        found[k] &= compute[k] > 0
    return found


class _Batch(NamedTuple):
    """Curves to screen: their problem [K, P], where their grids of starts begin and end, and the least noise."""

    problem: CurveBatch
    first: np.ndarray
    last: np.ndarray
    least_noise: float

    def some(self, rows: np.ndarray) -> _Batch:
        """These rows alone."""
        problem = CurveBatch(*(np.asarray(values)[rows] for values in self.problem))
        return self._replace(problem=problem, first=self.first[rows], last=self.last[rows])


def _rejected(prepared: Prepared, options: FitOptions) -> list[np.ndarray]:
    """Numbers of the rejected points of each curve."""
    low, high = options.reward_range
    share, free = FORMS[options.form].share, len(FORMS[options.form].params)
    batch = _Batch(prepared.problem, prepared.first, prepared.last, _LEAST_NOISE * (high - low))
    found = [np.array([], int)] * len(prepared.windows)
    # Least squares may follow the spikes to another valley; a running median of three has none.
    smooth = fit_rising(_smoothed(batch.problem), share=share, first=batch.first, last=batch.last)
    left = _scaled(batch, smooth, options)
    (rows,) = np.nonzero(np.nanmax(np.abs(left), axis=1) > _SUSPECT * _robust_scale(left, batch))
    if not len(rows):
        return found
    suspects = batch.some(rows)
    left = _robust_residuals(suspects, smooth.theta[rows], options)
    points = np.count_nonzero(np.isfinite(left), axis=1)
    aside = np.abs(left) > _BISQUARE * (_robust_scale(left, suspects) * np.sqrt(points / (points - free)))[:, None]
    weight = np.where(aside, 0.0, np.asarray(suspects.problem.root_weight))
    rest = suspects.problem._replace(root_weight=weight)
    left = _scaled(suspects, fit_rising(rest, share=share, first=suspects.first, last=suspects.last), options)
    for row, k in enumerate(rows):
        found[k] = _far(left[row][: points[row]], aside[row][: points[row]], free, suspects.least_noise)
    return found


def _far(left: np.ndarray, aside: np.ndarray, free: int, least_noise: float) -> np.ndarray:
    """Numbers of the outliers among the residuals [P] about the curve through those that are not set aside."""
    freedom = np.count_nonzero(~aside) - free
    if freedom < 1:
        return np.array([], int)
    noise = max(float(np.sqrt(np.sum(left[~aside] ** 2) / freedom)), least_noise)
    limit = noise * float(scipy.special.stdtrit(freedom, 1 - ERROR_RATE / (2 * len(left))))
    found = np.array([i for i in np.flatnonzero(np.abs(left) > limit) if _alone(left, int(i))], int)
    return found if len(found) <= most_outliers(len(left)) else np.array([], int)


def most_outliers(points: int) -> int:
    """How many evaluations of a curve with so many may be left out."""
    return max(int(LARGEST_SHARE * points), 2 if points >= ENOUGH_FOR_TWO else 1)


def _alone(left: np.ndarray, i: int) -> bool:
    """Whether the neighbours do not lie off on the same side: at most one of four, none at the ends of a curve."""
    near = [j for j in range(i - 2, i + 3) if j != i and 0 <= j < len(left)]
    alike = sum(left[j] * np.sign(left[i]) > abs(left[i]) / 2 for j in near)
    return alike <= (1 if len(near) == 4 else 0)


def _robust_residuals(batch: _Batch, theta: np.ndarray, options: FitOptions) -> np.ndarray:
    """[K, P] residuals, scaled by the points' weights, about a robust fit that is searched from `theta` [K, Q]."""
    share, base = FORMS[options.form].share, np.asarray(batch.problem.root_weight)
    fit = fit_rising(batch.problem, share=share, starts=theta[:, None])
    for step in range(_HUBER_ROUNDS + _BISQUARE_ROUNDS):
        left = _scaled(batch, fit, options)
        size = np.nan_to_num(np.abs(left) / _robust_scale(left, batch)[:, None])
        if step < _HUBER_ROUNDS:
            robust = np.minimum(1.0, _HUBER / np.maximum(size, _HUBER))
        else:
            robust = np.maximum(1 - (size / _BISQUARE) ** 2, 1e-6) ** 2
        problem = batch.problem._replace(root_weight=base * np.sqrt(robust))
        fit = fit_rising(problem, share=share, starts=fit.theta[:, None])
    return _scaled(batch, fit, options)


def _smoothed(problem: CurveBatch) -> CurveBatch:
    """The problems with running medians of three in place of the rewards; those of the ends are their neighbours'."""
    y = np.array(problem.y)
    for row, weight in zip(y, np.asarray(problem.root_weight), strict=True):
        count = np.count_nonzero(weight)
        middle = np.median(np.stack([row[: count - 2], row[1 : count - 1], row[2:count]]), axis=0)
        row[:count] = np.concatenate([middle[:1], middle, middle[-1:]])
    return problem._replace(y=y)


def _scaled(batch: _Batch, fit: RisingFit, options: FitOptions) -> np.ndarray:
    """[K, P] residuals times the root of the points' weights; NaN on padding."""
    weight = np.asarray(batch.problem.root_weight)
    return np.where(weight > 0, residuals(batch.problem, fit, FORMS[options.form]) * weight, np.nan)


def _robust_scale(left: np.ndarray, batch: _Batch) -> np.ndarray:
    """[K] standard deviation by the median of the absolute residuals."""
    return np.maximum(1.4826 * np.nanmedian(np.abs(left), axis=1), batch.least_noise)
