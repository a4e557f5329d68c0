"""One form fitted to all configurations at once."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from isocompute_jax.fit.curves import uncertainty
from isocompute_jax.fit.curves.fit_options import FitOptions, Prepared, prepare
from isocompute_jax.fit.curves.forms import FORMS, Form
from isocompute_jax.fit.curves.identification import describe
from isocompute_jax.fit.curves.solver import CurveBatch, RisingFit, fit_rising
from isocompute_jax.fit.results import CurveFit

_HUBER_ROUNDS = 60
_HUBER_TOLERANCE = 1e-9  # of the levels a share of the range's width


def solve(prepared: Prepared, options: FitOptions, *, starts: np.ndarray | None = None) -> tuple[CurveBatch, RisingFit]:
    """Fits the prepared curves, from `starts` [K, S, Q] or a grid; with Huber loss the problem has its final weights.

    Huber's loss is minimised by reweighting (Huber 1981, section 7.8): each round weighs a residual beyond delta by
    delta / |residual|, which never raises the loss.
    """
    share = FORMS[options.form].share
    problem = prepared.problem
    fit = fit_rising(problem, share=share, first=prepared.first, last=prepared.last, starts=starts)
    if options.loss == "squares":
        return problem, fit
    base = np.asarray(prepared.problem.root_weight)
    delta, unit = options.huber_delta * options.width, np.array([options.width] * 2 + [1.0] * fit.theta.shape[1])
    for _ in range(_HUBER_ROUNDS):
        size = np.abs(residuals(prepared.problem, fit, FORMS[options.form])) * base
        robust = np.minimum(1.0, delta / np.maximum(size, 1e-300))
        problem = prepared.problem._replace(root_weight=base * np.sqrt(robust))
        before = uncertainty.coordinates(fit)
        fit = fit_rising(problem, share=share, starts=fit.theta[:, None])
        if np.max(np.abs(uncertainty.coordinates(fit) - before) / unit) < _HUBER_TOLERANCE:
            break
    return problem, fit


def residuals(problem: CurveBatch, fit: RisingFit, form: Form) -> np.ndarray:
    """[K, P] reward minus curve, unweighted; whatever stands on the padding is to be weighted by 0."""
    compute = np.exp(np.asarray(problem.x))
    rows = zip(fit.low, fit.high, fit.theta, compute, strict=True)
    curves = [form.curve(c, **form.values(low, high, theta, 1.0)) for low, high, theta, c in rows]
    return np.asarray(problem.y) - np.array(curves)


def fit_curves(
    compute: Sequence[np.ndarray],
    reward: Sequence[np.ndarray],
    *,
    use: Sequence[np.ndarray] | None = None,
    standard_error: Sequence[np.ndarray] | None = None,
    options: FitOptions | None = None,
    profiles: bool = True,
) -> list[CurveFit]:
    """Fits one form of monotone curve to every configuration, all in one batch.

    Hill by default: R_C = R0 + (A - R0) / (1 + (C_mid / C)^B) (ScaleRL, arXiv 2510.13786); `forms` lists the others.
    Least squares (or Huber's loss) with R0 <= A inside the range of rewards, B in 0.1..10, and C_mid within a factor
    100 of the data. A point at compute 0 (the base model) is a measurement of R0, which is what the law gives there;
    the power law leaves it out. Fewer points than parameters still give a curve to interpolate with, and a warning.

    Args:
      compute: per curve [P_i] rollouts, >= 0, increasing; of several seeds one seed after the other, since the noise of
        neighbours is taken as alike.
      reward: per curve [P_i].
      use: per curve [P_i] bool, the points to fit (e.g. record-breaking ones). None: all.
      standard_error: per curve [P_i] standard errors of the rewards, > 0; only their ratios matter. None: all equal.
      options: form, loss, bounds, tolerance; None for the defaults.
      profiles: whether intervals are sought along the profile likelihood, which is most of the work. Without, and with
        `options.intervals`, there are the covariance and standard errors, NaN for intervals, and no verdict on what is
        identified.
    """
    options = options or FitOptions()
    computes = [np.asarray(c, np.float64) for c in compute]
    rewards = [np.asarray(r, np.float64) for r in reward]
    weights = [np.ones(len(c)) if use is None else np.asarray(use[i], float) for i, c in enumerate(computes)]
    if standard_error is not None:
        weights = [w / np.square(np.asarray(s, float)) for w, s in zip(weights, standard_error, strict=True)]
    fits = [failed(options)] * len(computes)
    low, high = options.window or (0.0, math.inf)
    usable = [i for i, c in enumerate(computes) if np.any((weights[i] > 0) & (c > 0) & (c >= low) & (c <= high))]
    if not usable:
        return fits
    chosen = ([values[i] for i in usable] for values in (computes, rewards, weights))
    prepared = prepare(*chosen, options=options)
    problem, found = solve(prepared, options)
    share = FORMS[options.form].share
    noise = uncertainty.noise(problem, found, share=share, width=options.width) if options.intervals else None
    wanted = None if profiles else np.zeros(found.theta.shape[1] + 2, bool)
    interval = uncertainty.intervals(noise, found, share=share, wanted=wanted) if noise else None
    records = describe(prepared, problem, found, options, noise=noise, interval=interval)
    for i, record in zip(usable, records, strict=True):
        fits[i] = record
    return fits


def failed(options: FitOptions) -> CurveFit:
    """The record of a curve with nothing to fit."""
    nan = math.nan
    params = dict.fromkeys(FORMS[options.form].params, nan)
    where = " inside --window" if options.window else ""
    return CurveFit(
        form=options.form,
        params=params,
        window=(nan, nan),
        stderr=params,
        interval95=dict.fromkeys(params, (nan, nan)),
        identified=dict.fromkeys(params, False),
        status="failed",
        message=f"no evaluation after the base model's{where}",
    )
