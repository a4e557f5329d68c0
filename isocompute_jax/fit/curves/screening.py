"""What of a mean curve is fitted: record-breaking evaluations, none after a collapse, and none that stands alone.

An outlier is an evaluation far from the curve through all others: it is named and left out. Least squares believes a
spike, so a curve is first fitted to running medians, then robustly (Huber's weights, then Tukey's bisquare, scale by
the median of the absolute residuals; Rousseeuw and Leroy 1987, chapter 3), suspects are set aside, and the curve
through the rest gives the noise. A residual is an outlier when it is beyond the point of Student's t with the degrees
of freedom of the rest that one evaluation in `1 / ERROR_RATE` curves passes (Bonferroni), and when its neighbours do
not share it: a bend that the form cannot follow, or a late change of level, is not a spike. At most `LARGEST_SHARE` of
a curve is ever left out; more than that is the form's fault. Rates and the efficiency that this costs are measured in
docs/method.md.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
import scipy.special

from isocompute_jax.fit.curves.falls import Fall, find_fall, spoken
from isocompute_jax.fit.curves.fit_options import FitOptions, Prepared, prepare
from isocompute_jax.fit.curves.fitting import residuals
from isocompute_jax.fit.curves.forms import FORMS
from isocompute_jax.fit.curves.seeds import Curve
from isocompute_jax.fit.curves.solver import CurveBatch, RisingFit, fit_rising
from isocompute_jax.fit.results import CurveFit

Falls = Literal["end", "keep"]
Outliers = Literal["name", "keep"]
Records = Literal["strict", "bucketed", "off"]

EDGE_TOLERANCE = 1e-8
"""A reward this share of a bin below a bin's edge belongs above it: 0.3 / 0.1 floors to 2 in binary."""

ERROR_RATE = 0.001
"""Nominal probability that a curve with Gaussian noise loses an evaluation; short curves lose one more often."""

LARGEST_SHARE = 0.1
"""Of a curve's evaluations; two are allowed from `ENOUGH_FOR_TWO` on."""

ENOUGH_FOR_TWO = 12
LEAST_FREEDOM = 4
"""Curves with fewer points above the number of parameters are left as they are."""

_SUSPECT = 3.0  # robust standard deviations from a smoothed curve that make it worth a closer look
# In units of the reward range: nothing is an outlier of noise-free data by less than a few of these.
_LEAST_NOISE = 1e-5
_HUBER, _BISQUARE = 1.345, 4.685  # 95% efficient on Gaussian noise
_HUBER_ROUNDS, _BISQUARE_ROUNDS = 4, 8


@dataclasses.dataclass(frozen=True, eq=False)
class Screening:
    """What one mean curve leaves to be fitted."""

    fall: Fall | None  # its collapse; None without
    outlier: np.ndarray  # [E] bool, evaluations that stand alone
    kept: np.ndarray  # [E] bool, the others up to the peak

    def note(self, fit: CurveFit, curve: Curve) -> CurveFit:
        """The fit with what was found, and a warning that names it."""
        reasons = [fit.message, *self.reasons(curve)]
        if len(reasons) == 1 or fit.status == "failed":
            return fit
        outliers = tuple(curve.compute[self.outlier].tolist())
        return dataclasses.replace(
            fit,
            status="warning",
            message="; ".join(filter(None, reasons)),
            window=(min(fit.window[0], *outliers), max(fit.window[1], *outliers)) if outliers else fit.window,
            fall=self.fall,
            outliers=outliers,
        )

    def reasons(self, curve: Curve) -> list[str]:
        """What was found, in words."""
        found = []
        if self.fall is not None:
            found.append(f"{self.fall.text()}, so it ends at its peak")
        if self.outlier.any():
            rows = zip(curve.compute[self.outlier], curve.reward[self.outlier], strict=True)
            each = ", ".join(f"{reward:.3g} at {spoken(compute)}" for compute, reward in rows)
            found.append(f"left out, far from the curve through all others: {each}")
        return found


def screen(
    curves: Sequence[Curve],
    *,
    errors: Sequence[np.ndarray] | None,
    options: FitOptions,
    falls: Falls,
    outliers: Outliers,
) -> tuple[Screening, ...]:
    """Looks for collapses, then for outliers before them.

    Args:
      curves: K mean curves.
      errors: [K] of [E] standard errors of their rewards; None for equal weights.
      options: of the fits.
      falls: `end` a curve at its peak, or `keep` what comes after.
      outliers: `name` them and leave them out, or `keep` them. Huber's loss keeps them too: it is their other remedy.
    """
    found = [_fall(curve, options) if falls == "end" else None for curve in curves]
    rising = [c.compute <= (np.inf if fall is None else fall.compute) for c, fall in zip(curves, found, strict=True)]
    alone = [np.zeros(len(curve.compute), bool) for curve in curves]
    if outliers == "name" and options.loss == "squares":
        compute, reward = ([values[mask] for values, mask in zip(rows, rising, strict=True)]
                           for rows in ([c.compute for c in curves], [c.reward for c in curves]))  # fmt: skip
        weights = None if errors is None else [e[mask] for e, mask in zip(errors, rising, strict=True)]
        marked = find_outliers(compute, reward, standard_error=weights, options=options)
        for row, mask, outlier in zip(alone, rising, marked, strict=True):
            row[mask] = outlier
    rows = zip(found, alone, rising, strict=True)
    return tuple(Screening(fall, outlier, mask & ~outlier) for fall, outlier, mask in rows)


def _fall(curve: Curve, options: FitOptions) -> Fall | None:
    """The collapse of a curve inside the window of the fits."""
    low, high = options.window or (0.0, np.inf)
    inside = curve.only((curve.compute >= low) & (curve.compute <= high))
    per_seed = None if inside.pooled else inside.per_seed
    return find_fall(inside.compute, inside.reward, reward_range=options.reward_range, per_seed=per_seed)


def record_breaking(reward: np.ndarray, *, records: Records, bin_width: float) -> np.ndarray:
    """[P] bool: the points of a run that count (arXiv 2603.12151).

    A point counts when its reward exceeds every earlier one (`strict`), or when its bin of width `bin_width` lies above
    every earlier bin (`bucketed`; width 0 is `strict`); `off` keeps all points.

    Args:
      reward: [P] in order of compute.
      records: which rule.
      bin_width: width of a bin, in units of reward.
    """
    reward = np.asarray(reward, dtype=np.float64)
    if records == "off" or reward.size == 0:
        return np.ones(reward.shape, dtype=bool)
    level = reward
    if records == "bucketed" and bin_width > 0:
        level = np.floor(reward / bin_width + EDGE_TOLERANCE)
    highest_before = np.concatenate([[-np.inf], np.maximum.accumulate(level)[:-1]])
    return level > highest_before


def points_to_fit(compute: np.ndarray, reward: np.ndarray, *, records: Records, bin_width: float) -> np.ndarray:
    """[E] bool: record-breaking points, or every point when fewer than two evaluations after the base model's count.

    The base model's evaluation is the first that later ones must exceed. A single record would make a flat curve at its
    luckiest evaluation.
    """
    keep = record_breaking(reward, records=records, bin_width=bin_width)
    return keep if np.count_nonzero(keep & (compute > 0)) >= 2 else np.ones_like(keep)


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
