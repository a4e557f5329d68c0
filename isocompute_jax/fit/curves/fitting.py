"""One form fitted to all curves at once, and what each fit is worth: `fit_curves`."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from isocompute_jax.fit.curves import uncertainty
from isocompute_jax.fit.curves.fit_options import FitOptions, prepare
from isocompute_jax.fit.curves.forms import FORMS, Form, FormName
from isocompute_jax.fit.curves.solver import CurveBatch, fit_rising

EDGE_TOLERANCE = 1e-8
"""A reward this share of a bin below a bin's edge belongs above it: 0.3 / 0.1 floors to 2 in binary."""

Status = Literal["ok", "warning", "failed"]
Doubt = Literal[
    "no evaluations",  # none after the base model's inside the window
    "few points",  # no more than parameters: an interpolation, not a measurement
    "flat",  # a constant describes them about as well
    "at a bound",  # a shape parameter stands at its bound (`at_bound`)
    "not converged",
    "ends early",  # the data end before twice the midpoint: where the curve levels off was not seen
    "asymptote at a bound",  # its interval reaches one
    "asymptote wide",  # its interval is wider than the tolerance
]

NOTHING: Doubt = "no evaluations"
FLAT = 1e-12
"""A curve that rises by less than this share of the width of the range of rewards is flat."""
REACH = 2.0
"""Data that end before so many midpoints do not show the asymptote."""

_HUBER_ROUNDS = 60
_HUBER_TOLERANCE = 1e-9  # of the levels a share of the range's width


@dataclasses.dataclass(frozen=True, eq=False)
class CurveFit:
    """A monotone learning curve. The mappings have the form's own parameters as keys (see `forms`).

    `fit_curves` makes them from data. A published curve is made from `form`, `params` and `window` alone; the mappings
    about uncertainty are empty where none was computed.
    """

    form: FormName
    params: Mapping[str, float]  # the estimates; do not quote one that is not `identified`
    window: tuple[float, float]  # first and last compute > 0 that it is used at
    stderr: Mapping[str, float] = dataclasses.field(default_factory=dict)  # 0 for a fixed one, NaN when unknown
    interval95: Mapping[str, tuple[float, float]] = dataclasses.field(default_factory=dict)  # see `uncertainty`
    identified: Mapping[str, bool] = dataclasses.field(default_factory=dict)  # see `fit_options.FitOptions.tolerance`
    at_bound: tuple[str, ...] = ()  # parameters that stand at their bound
    num_points: int = 0  # that it was fitted to
    sse: float = math.nan  # sum of squared residuals over them, weighted when weights were given (mean weight 1)
    r2: float = math.nan  # 1 - sse / (weighted sum of squares about their mean); NaN when they are all equal
    aicc: float = math.nan  # corrected Akaike criterion, comparable between forms on the same points
    noise: float = math.nan  # standard deviation of a residual
    correlation: float = math.nan  # of neighbouring residuals, in -0.6..0.9
    levels: Mapping[Any, float] = dataclasses.field(default_factory=dict)  # seed -> its reward above the curve
    status: Status = "ok"  # `warning`: see `doubts`; `failed`: the numbers are NaN
    doubts: tuple[Doubt, ...] = ()

    def reward(self, compute: np.ndarray | float) -> np.ndarray:
        """Fitted reward at `compute` (> 0), inside the window or not."""
        return FORMS[self.form].curve(compute, **self.params)

    @property
    def asymptote(self) -> float:
        """A, reward of unlimited compute."""
        return self.params["asymptote"]

    @property
    def midpoint(self) -> float:
        """Compute at half the gain; NaN for `power`."""
        return FORMS[self.form].midpoint(self.params)


def fit_curves(
    compute: Sequence[np.ndarray],
    reward: Sequence[np.ndarray],
    *,
    seeds: Sequence[np.ndarray] | None = None,
    use: Sequence[np.ndarray] | None = None,
    standard_error: Sequence[np.ndarray] | None = None,
    options: FitOptions | None = None,
) -> list[CurveFit]:
    """Fits one form of monotone curve to every configuration, all in one batch.

    Hill by default: R_C = R0 + (A - R0) / (1 + (C_mid / C)^B) (ScaleRL, arXiv 2510.13786); `forms` lists the others.
    Least squares (or Huber's loss) with R0 <= A inside the range of rewards, B in 0.1..10, and C_mid within a factor
    100 of the data. A point at compute 0 (the base model) is a measurement of R0, which is what the law gives there;
    the power law leaves it out. Fewer points than parameters still give a curve to interpolate with, and a warning.

    Args:
      compute: per curve [P_i] rollouts, >= 0, increasing (within each seed).
      reward: per curve [P_i].
      seeds: per curve [P_i] labels of the runs that the points are of. Each run has a level of its own, and the curve
        is that of their mean level: where one stops early, the curve does not bend. Intervals then hold the curve of
        many such runs. None: all points are of one run, or of a mean.
      use: per curve [P_i] bool, the points to fit (e.g. record-breaking ones). None: all.
      standard_error: per curve [P_i] standard errors of the rewards, > 0; only their ratios matter. None: all equal.
      options: form, loss, bounds, tolerance; None for the defaults.
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
    labels = None if seeds is None else [np.asarray(seeds[i]) for i in usable]
    problem, windows, names = prepare(*chosen, options=options, seeds=labels)
    problem, at, sse, converged = solve(problem, options)
    form = FORMS[options.form]
    levels = uncertainty.run_levels(problem, uncertainty.about_curve(problem, at, form=form))
    noise = ends = None
    if options.intervals:
        noise = uncertainty.noise(problem, at, form=form, width=options.width)
        ends = uncertainty.intervals(noise, at, levels, form=form)
    for k, i in enumerate(usable):
        fit = _record(k, problem, windows[k], at[k], float(sse[k]), bool(converged[k]), options)
        if len(levels[k]) > 1:
            fit = dataclasses.replace(fit, levels=dict(zip(names[k], levels[k].tolist(), strict=True)))
        fits[i] = fit if noise is None or ends is None else _with_uncertainty(fit, k, noise, ends, options)
    return fits


def flat_curves(compute: Sequence[np.ndarray], reward: Sequence[np.ndarray], *, options: FitOptions) -> np.ndarray:
    """[K] bool: curves whose evaluations, [P_i] each and all of one run or a mean, a constant describes as well."""
    used = [np.ones(len(c)) for c in compute]
    problem, _, _ = prepare(compute, reward, used, options=options)
    problem, at, _, _ = solve(problem, options)
    found = uncertainty.noise(problem, at, form=FORMS[options.form], width=options.width)
    return found.flat > uncertainty.RISES


def solve(problem: CurveBatch, options: FitOptions) -> tuple[CurveBatch, np.ndarray, np.ndarray, np.ndarray]:
    """Fits the prepared curves; with Huber's loss the problem that comes back has its final weights.

    Huber's loss is minimised by reweighting (Huber 1981, section 7.8): each round weighs a residual beyond delta by
    delta / |residual|, which never raises the loss.

    Returns:
      The problem, [K, Q + 2] (low, high, *theta), [K] sums of squares, and [K] whether the search converged.
    """
    form = FORMS[options.form]
    at, sse, converged = fit_rising(problem, form=form)
    if options.loss == "squares":
        return problem, at, sse, converged
    base = np.asarray(problem.root_weight)
    delta, unit = options.huber_delta * options.width, np.array([options.width] * 2 + [1.0] * (at.shape[1] - 2))
    for _ in range(_HUBER_ROUNDS):
        size = np.abs(residuals(problem, at, form)) * base
        robust = np.minimum(1.0, delta / np.maximum(size, 1e-300))
        problem = problem._replace(root_weight=base * np.sqrt(robust))
        before = at
        at, sse, converged = fit_rising(problem, form=form, starts=at[:, None, 2:])
        if np.max(np.abs(at - before) / unit) < _HUBER_TOLERANCE:
            break
    return problem, at, sse, converged


def residuals(problem: CurveBatch, at: np.ndarray, form: Form) -> np.ndarray:
    """[K, P] reward minus curve and level, unweighted; whatever stands on the padding is to be weighted by 0."""
    left = uncertainty.about_curve(problem, at, form=form)
    levels = uncertainty.run_levels(problem, left)
    columns = np.asarray(problem.runs)
    own = [each[:, : len(level) - 1] @ level[:-1] for each, level in zip(columns, levels, strict=True)]
    return left - np.array(own)


def failed(options: FitOptions) -> CurveFit:
    """The record of a curve with nothing to fit."""
    params = dict.fromkeys(FORMS[options.form].params, math.nan)
    nowhere = (math.nan, math.nan)
    ends, identified = dict.fromkeys(params, nowhere), dict.fromkeys(params, False)
    return CurveFit(options.form, params, nowhere, params, ends, identified, (), status="failed", doubts=(NOTHING,))


def _record(
    k: int, problem: CurveBatch, window: np.ndarray, at: np.ndarray, sse: float, converged: bool, options: FitOptions
) -> CurveFit:
    """The estimates of curve k and how well they fit, without what is uncertain of them."""
    form = FORMS[options.form]
    lower, upper = (bound[k] for bound in uncertainty.box(problem))
    free = lower < upper
    hit = tuple(n for n, bad in zip(form.params, free & ((at <= lower) | (at >= upper)), strict=True) if bad)
    weight, y = np.asarray(problem.root_weight)[k] ** 2, np.asarray(problem.y)[k]
    points = int(np.count_nonzero(weight))
    total = float(np.sum(weight * (y - np.sum(weight * y) / np.sum(weight)) ** 2))
    levels = int(np.count_nonzero(np.any(np.asarray(problem.runs)[k] != 0, axis=0)))
    freedom = points - int(np.count_nonzero(free)) - levels
    # Corrected by Hurvich and Tsai (1989); the noise is a parameter too. In widths of the range, whatever the unit
    size, aicc = points - freedom + 1, math.nan
    if points > size + 1:
        aicc = points * math.log(max(sse / points / options.width**2, uncertainty.NO_NOISE**2))
        aicc += 2.0 * size + 2.0 * size * (size + 1) / (points - size - 1)
    doubts: list[Doubt] = []
    if points <= len(form.params) + levels:
        doubts.append("few points")
    if at[1] - at[0] <= FLAT * options.width:
        doubts.append("flat")
    elif set(hit) - {"floor", "asymptote", "scale"}:
        doubts.append("at a bound")
    if not converged:
        doubts.append("not converged")
    return CurveFit(
        form=form.name,
        params=form.values(at, float(window[0])),
        window=(float(window[0]), float(window[1])),
        at_bound=hit,
        num_points=points,
        sse=sse,
        r2=1.0 - sse / total if total > 0 else math.nan,
        aicc=aicc,
        noise=math.sqrt(sse / freedom) if freedom > 0 else math.nan,
        status="warning" if doubts else "ok",
        doubts=tuple(doubts),
    )


def _with_uncertainty(
    fit: CurveFit, k: int, noise: uncertainty.Noise, ends: tuple[np.ndarray, np.ndarray], options: FitOptions
) -> CurveFit:
    """The fit with standard errors, intervals, and what of it the data identify."""
    form, known = FORMS[fit.form], noise.freedom[k] >= 1
    covariance = noise.covariance[k] if known else np.full_like(noise.covariance[k], math.nan)
    stderr, interval95, reference = {}, {}, fit.window[0]
    for i, (name, value) in enumerate(fit.params.items()):
        error = float(np.sqrt(np.maximum(covariance[i, i], 0.0)))
        low, high = float(ends[0][k, i]), float(ends[1][k, i])
        if i >= 2:
            unit = reference ** form.shape[i - 2][1]
            error, low, high = error * value, math.exp(low) * unit, math.exp(high) * unit
        elif name == "scale":
            error, low, high = _scale(fit, covariance, int(noise.freedom[k]), reference)
        stderr[name], interval95[name] = error, (low, high)
    fit = dataclasses.replace(fit, stderr=stderr, interval95=interval95, correlation=float(noise.correlation[k]))
    lower, upper = (bound[k].copy() for bound in uncertainty.box(noise.problem))
    for i, (_, power) in enumerate(form.shape, start=2):
        lower[i], upper[i] = (math.exp(bound[i]) * reference**power for bound in (lower, upper))
    used = np.asarray(noise.problem.root_weight)[k] > 0
    last = float(reference * np.exp(np.asarray(noise.problem.x)[k][used].max()))  # the window may extend beyond it
    rises = not noise.flat[k] > uncertainty.RISES
    doubts, identified = _identified(fit, lower, upper, options, rises=rises, last=last)
    doubts = (*fit.doubts, *(doubt for doubt in doubts if doubt not in fit.doubts))
    return dataclasses.replace(fit, identified=identified, doubts=doubts, status="warning" if doubts else "ok")


def _scale(fit: CurveFit, covariance: np.ndarray, freedom: int, reference: float) -> tuple[float, float, float]:
    """D = (high - low) C_ref^B mixes coordinates: standard error and interval of ln D by the delta method."""
    rise = fit.params["scale"] * reference ** -fit.params["exponent"]
    if not rise > 0 or np.isnan(covariance).any():
        return math.nan, math.nan, math.nan
    slope = np.array([-1.0 / rise, 1.0 / rise, fit.params["exponent"] * math.log(reference)])
    error = math.sqrt(max(float(slope @ covariance @ slope), 0.0))
    factor = math.exp(min(float(uncertainty.critical(freedom)) * error, 700.0))
    return error * fit.params["scale"], fit.params["scale"] / factor, fit.params["scale"] * factor


def _identified(
    fit: CurveFit, lower: np.ndarray, upper: np.ndarray, options: FitOptions, *, rises: bool, last: float
) -> tuple[list[Doubt], dict[str, bool]]:
    """What speaks against the asymptote, and which parameters the data pin down.

    Those are the ones that are held, and of a curve that rises those whose intervals end inside of their bounds.
    """
    held = {name for name, (least, most) in options.limits().items() if least == most}
    held |= {"floor"} if options.r0 == "first" else set()
    known = math.isfinite(fit.noise)
    identified = {}
    for name, least, most in zip(fit.params, lower, upper, strict=True):
        low, high = fit.interval95[name]
        inside = name == "scale" or (low > least + 1e-9 * abs(least) and high < most - 1e-9 * abs(most))
        zero_floor = name == "floor" and low == least  # a floor of 0 is what a base model without skill has
        identified[name] = name in held or bool(known and low <= high and (inside or zero_floor))
    flat = not rises or "flat" in fit.doubts
    if flat:
        identified = {name: name in held for name in identified}
    if "asymptote" in held:
        return ["flat"] if flat else [], identified
    doubts: list[Doubt] = ["flat"] if flat else [] if known else ["few points"]
    low, high = fit.interval95["asymptote"]
    if known and last < REACH * fit.midpoint:
        doubts.append("ends early")
    if known and (low <= lower[1] or high >= upper[1]):
        doubts.append("asymptote at a bound")
    elif high - low > 2 * options.tolerance * options.width:
        doubts.append("asymptote wide")
    identified["asymptote"] = not doubts
    return doubts, identified


def record_breaking(reward: np.ndarray, *, bin_width: float = 0.0) -> np.ndarray:
    """[P] bool: the points of a run that count (arXiv 2603.12151).

    A point counts when its reward exceeds every earlier one or, with a bin width, when its bin lies above every earlier
    bin.

    Args:
      reward: [P] in order of compute.
      bin_width: width of a bin, in units of reward; 0 for none.
    """
    level = np.asarray(reward, dtype=np.float64)
    if bin_width > 0:
        level = np.floor(level / bin_width + EDGE_TOLERANCE)
    highest_before = np.concatenate([[-np.inf], np.maximum.accumulate(level)[:-1]])
    return level > highest_before[: len(level)]
