"""What a fitted curve says about compute it has not seen, and how well that holds up."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from isocompute_jax.fit.curves import uncertainty
from isocompute_jax.fit.curves.fit_options import FitOptions
from isocompute_jax.fit.curves.fitting import fit_curves
from isocompute_jax.fit.curves.forms import FORMS, FormName
from isocompute_jax.fit.results import CurveFit
from isocompute_jax.records.errors import InputError

LEAST_FITTED = 6
"""Evaluations before a cut: two more than the most parameters, so that there is an interval."""


@dataclasses.dataclass(frozen=True)
class CurveHoldout:
    """How well the first part of a curve predicts the rest.

    Attributes:
      form: the form that was fitted.
      cut: largest compute that was fitted.
      num_points: evaluations after it, on which the rest is measured.
      mean_abs_error: mean absolute difference between prediction and reward.
      bias: mean of prediction - reward.
      coverage: share of those rewards inside the 95% interval predicted for an evaluation.
      predicted: [num_points] reward.
      half_width: [num_points] of the predicted interval.
      compute: [num_points].
    """

    form: FormName
    cut: float
    num_points: int
    mean_abs_error: float
    bias: float
    coverage: float
    predicted: np.ndarray
    half_width: np.ndarray
    compute: np.ndarray


def predict(fit: CurveFit, compute: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Reward and its standard error at `compute` [E] > 0, by the delta method from the fit's covariance.

    The error is that of the curve, without the noise of an evaluation (`fit.noise`). Outside the data it supposes that
    the form holds there.
    """
    if fit.search is None:
        raise ValueError("a failed fit, or a curve that was given, has no covariance to predict with")
    search, share = fit.search, FORMS[fit.form].share
    low, high, *theta = search.at
    climbed, slopes = share.with_slopes(np.array(theta), np.log(np.asarray(compute, np.float64) / search.reference))
    slope = np.column_stack([1.0 - climbed, climbed, (high - low) * slopes])
    variance = np.einsum("ei,ij,ej->e", slope, search.covariance, slope)
    return fit.reward(np.asarray(compute)), np.sqrt(np.maximum(variance, 0.0))


def half_width(fit: CurveFit, compute: np.ndarray) -> np.ndarray:
    """Half of the 95% interval for one more evaluation at `compute` [E]: the curve's error and the noise together."""
    _, error = predict(fit, compute)
    freedom = fit.num_points - int(np.count_nonzero(np.diagonal(fit.search.covariance))) if fit.search else 0
    return uncertainty.critical(freedom) * np.hypot(error, fit.noise)


def hold_out(
    compute: Sequence[np.ndarray],
    reward: Sequence[np.ndarray],
    *,
    use: Sequence[np.ndarray],
    cut: float,
    options: FitOptions,
) -> list[dict[FormName, CurveHoldout]]:
    """Fits every form to the first part of each curve and scores it on the rest.

    Args:
      compute: per curve [P_i].
      reward: per curve [P_i].
      use: per curve [P_i] bool, the points that count in a fit; all points after the cut are scored.
      cut: below 1 a share of the way from each curve's first to its last compute, on a logarithmic scale, as curves
        are seen (half of the compute would leave one seventh of two decades to predict), with `LEAST_FITTED`
        evaluations before it if all but one are so many; from 1 on a compute.
      options: of the fits; parameters that another form does not have are left free there.

    Returns:
      Per curve: form -> result; without forms that could not be fitted and curves with nothing after the cut.
    """
    cuts = [_along(c[c > 0], cut) if cut < 1 else cut for c in compute]
    early = [u & (c <= end) for c, u, end in zip(compute, use, cuts, strict=True)]
    results: list[dict[FormName, CurveHoldout]] = [{} for _ in compute]
    for name in FORMS:
        fits = fit_curves(compute, reward, use=early, options=for_form(options, name), profiles=False)
        for found, fit, c, r, end in zip(results, fits, compute, reward, cuts, strict=True):
            late = c > end
            if fit.status == "failed" or not late.any() or not np.isfinite(fit.noise):
                continue
            found[name] = _score(fit, c[late], r[late], float(end))
    return results


def _along(compute: np.ndarray, share: float) -> float:
    """The compute at a share of the way from the first to the last one, but not too early; NaN without any."""
    if len(compute) < 2:
        return float("nan")
    least = np.sort(compute)[min(LEAST_FITTED, len(compute) - 1) - 1]
    return float(max(compute.min() ** (1 - share) * compute.max() ** share, least))


def _score(fit: CurveFit, compute: np.ndarray, reward: np.ndarray, cut: float) -> CurveHoldout:
    error = fit.reward(compute) - reward
    width = half_width(fit, compute)
    return CurveHoldout(
        form=fit.form,
        cut=cut,
        num_points=len(compute),
        mean_abs_error=float(np.mean(np.abs(error))),
        bias=float(np.mean(error)),
        coverage=float(np.mean(np.abs(error) <= width)),
        predicted=fit.reward(compute),
        half_width=width,
        compute=compute,
    )


def for_form(options: FitOptions, form: FormName) -> FitOptions:
    """The same options for another form, without what holds parameters that it does not have."""
    changed: Mapping[str, object] = {"form": form, "r0": options.r0 if FORMS[form].at_zero else "free"}
    try:
        return dataclasses.replace(options, **changed)
    except InputError:
        return dataclasses.replace(options, **changed, fix={}, bounds={})
