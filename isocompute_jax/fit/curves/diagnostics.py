"""What fitted curves are asked beyond their parameters.

How the first part of a curve predicts the rest; how the fit worsens as the asymptote is moved; and two comparisons in
the manner of ScaleRL (arXiv 2510.13786), steepness under a common asymptote and its own grid fit.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np

from isocompute_jax.fit.curves import uncertainty
from isocompute_jax.fit.curves.fit_options import FitOptions, prepare
from isocompute_jax.fit.curves.fitting import fit_curves, solve
from isocompute_jax.fit.curves.forms import FORMS, HILL, FormName
from isocompute_jax.fit.curves.solver import fit_rising
from isocompute_jax.fit.results import CurveFit
from isocompute_jax.records.errors import InputError

LEAST_FITTED = 6
"""Evaluations before a cut: two more than the most parameters, so that there is an interval."""


@dataclasses.dataclass(frozen=True)
class CurveHoldout:
    """How well the first part of a curve predicts the rest."""

    form: FormName  # the form that was fitted
    cut: float  # largest compute that was fitted
    num_points: int  # evaluations after it, on which the rest is measured
    mean_abs_error: float  # mean absolute difference between prediction and reward
    bias: float  # mean of prediction - reward
    coverage: float  # share of those rewards inside the 95% interval predicted for an evaluation
    predicted: np.ndarray  # [num_points] reward
    half_width: np.ndarray  # [num_points] of the predicted interval
    compute: np.ndarray  # [num_points]


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


VALUES = 41
REACH = 2.5
"""Profiles are drawn over so many half intervals on either side of the estimate, inside the bounds of A."""

_ASYMPTOTE = 1  # its place among the coordinates (low, high, *theta)


@dataclasses.dataclass(frozen=True, eq=False)
class Profile:
    """`asymptote` [V] and Student's `t` [V] of holding A there; its 95% interval is where |t| is below `critical`."""

    asymptote: np.ndarray
    t: np.ndarray
    critical: float

    @property
    def scaled(self) -> np.ndarray:
        """[V] t in units of its 95% limit."""
        return self.t / self.critical


def profile_asymptotes(
    compute: Sequence[np.ndarray],
    reward: Sequence[np.ndarray],
    fits: Sequence[CurveFit],
    *,
    use: Sequence[np.ndarray],
    errors: Sequence[np.ndarray] | None,
    options: FitOptions,
) -> list[Profile | None]:
    """One profile for each fit; None where A is fixed or has no interval.

    Args:
      compute: per curve [P_i].
      reward: per curve [P_i].
      fits: of these curves, with intervals.
      use: per curve [P_i] bool, the points that were fitted.
      errors: per curve [P_i] standard errors that weighed them; None for equal weights.
      options: of the fits.
    """
    found: list[Profile | None] = [None] * len(fits)
    wanted = [i for i, fit in enumerate(fits) if fit.search is not None and _width(fit) > 0]
    if not wanted:
        return found
    weights = [use[i] / (1.0 if errors is None else errors[i] ** 2) for i in wanted]
    prepared = prepare([compute[i] for i in wanted], [reward[i] for i in wanted], weights, options=options)
    problem, solved = solve(prepared, options)
    share = FORMS[options.form].share
    noise = uncertainty.noise(problem, solved, share=share, width=options.width)
    lower, upper = (bounds[:, _ASYMPTOTE] for bounds in uncertainty.box(problem))
    low, high = np.array([fits[i].interval95["asymptote"] for i in wanted]).T
    at = solved.high
    values = np.linspace(
        np.maximum(at - REACH * (at - low), np.maximum(lower, solved.low)), np.minimum(at + REACH * (high - at), upper),
        VALUES, axis=1,
    )  # fmt: skip
    index = np.stack([np.repeat(np.arange(len(wanted)), VALUES), np.full(values.size, _ASYMPTOTE)], axis=1)
    score = uncertainty.profile(noise, index, values.ravel(), share=share).reshape(values.shape)
    for row, i in enumerate(wanted):
        found[i] = Profile(values[row], score[row], float(uncertainty.critical(noise.freedom[row])))
    return found


def _width(fit: CurveFit) -> float:
    low, high = fit.interval95.get("asymptote", (0.0, 0.0))
    return high - low


GRID_STEP = 0.05
"""Spacing of the grid procedure's midpoints in ln C (the paper does not print its own)."""


@dataclasses.dataclass(frozen=True)
class Grid:
    """Asymptotes of ScaleRL's grid procedure: `start` to `stop` by `step`, ends included (0.450..0.800 by 0.005)."""

    start: float
    stop: float
    step: float

    def __post_init__(self) -> None:
        if not (self.step > 0 and self.start <= self.stop and math.isfinite(self.stop - self.start)):
            raise InputError(f"--grid={self.start:g}:{self.stop:g}:{self.step:g} must be start:stop:step, step above 0")
        if (self.stop - self.start) / self.step > 10_000:
            raise InputError(f"--grid={self.start:g}:{self.stop:g}:{self.step:g} has more than 10,000 asymptotes")

    def values(self) -> np.ndarray:
        """The asymptotes."""
        return self.start + self.step * np.arange(math.floor((self.stop - self.start) / self.step + 1e-9) + 1)


@dataclasses.dataclass(frozen=True, eq=False)
class Comparison:
    """Hill curves under one asymptote."""

    asymptote: float  # the common A, the mean over curves (of those whose A is identified, when there are any)
    fits: tuple[CurveFit, ...]  # [K] curves fitted with it
    log_compute: tuple[np.ndarray, ...]  # per curve, ln C of the points that have a log F
    # per curve, ln F with F = C_mid^B / ((A - R0) / (R - R0) - 1): a line of slope B where the law holds
    log_f: tuple[np.ndarray, ...]


def compare_steepness(
    compute: Sequence[np.ndarray],
    reward: Sequence[np.ndarray],
    fits: Sequence[CurveFit],
    *,
    use: Sequence[np.ndarray],
    options: FitOptions,
) -> Comparison | None:
    """Fixes A to its average over the curves, refits, and gives each curve's B with its interval.

    None unless at least two Hill curves were fitted, with A free.
    """
    known = [fit for fit in fits if fit.status != "failed" and fit.form == "hill"]
    sure = [fit.asymptote for fit in known if fit.identified.get("asymptote")]
    if len(known) < 2 or {"A", "asymptote"} & set(options.fix):
        return None
    common = float(np.mean(sure or [fit.asymptote for fit in known]))
    fixed = {name: value for name, value in options.fix.items() if name not in ("A", "asymptote")}
    bounds = {name: ends for name, ends in options.bounds.items() if name not in ("A", "asymptote")}
    own = dataclasses.replace(options, fix={**fixed, "A": common}, bounds=bounds)
    again = fit_curves(compute, reward, use=use, options=own)
    lines = [_log_f(fit, c[u], r[u]) for fit, c, r, u in zip(again, compute, reward, use, strict=True)]
    return Comparison(common, tuple(again), *map(tuple, zip(*lines, strict=True)))


def _log_f(fit: CurveFit, compute: np.ndarray, reward: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """ln C and ln F of the points between floor and asymptote."""
    if fit.status == "failed":
        return np.empty(0), np.empty(0)
    floor, asymptote, midpoint, steepness = fit.params.values()
    inside = (compute > 0) & (reward > floor) & (reward < asymptote)
    odds = (reward[inside] - floor) / (asymptote - reward[inside])
    return np.log(compute[inside]), steepness * math.log(midpoint) + np.log(odds)


@dataclasses.dataclass(frozen=True)
class GridFit:
    """The best cell of the grid procedure; `at_edge` when A or C_mid is the first or last of its axis."""

    asymptote: float
    midpoint: float
    steepness: float
    floor: float
    sse: float
    at_edge: bool


def grid_fit(
    compute: Sequence[np.ndarray],
    reward: Sequence[np.ndarray],
    *,
    use: Sequence[np.ndarray],
    grid: Grid,
    options: FitOptions,
) -> list[GridFit]:
    """ScaleRL's published procedure: A and C_mid on a grid, B (and R0) fitted in every cell, the least squares kept.

    Midpoints go from a quarter of the curve's range (in log C) before its first evaluation to half of it after its end.
    """
    own = dataclasses.replace(options, form="hill", loss="squares", fix={}, bounds={}, intervals=False)
    prepared = prepare(compute, reward, [np.asarray(u, float) for u in use], options=own)
    asymptotes = grid.values()
    results = []
    for k in range(len(compute)):
        reach = math.log(prepared.windows[k][1] / prepared.windows[k][0]) or 1.0
        midpoints = np.arange(-0.25 * reach, 1.5 * reach, GRID_STEP)
        cells = np.array(np.meshgrid(asymptotes, midpoints, indexing="ij")).reshape(2, -1)
        many = uncertainty.pin(prepared.problem, np.full(cells.shape[1], k), np.ones(cells.shape[1], int), cells[0])
        many = uncertainty.pin(many, np.arange(cells.shape[1]), np.full(cells.shape[1], 2), cells[1])
        start = np.stack([cells[1], np.zeros(cells.shape[1])], axis=-1)[:, None]
        found = fit_rising(many, share=HILL.share, starts=start)
        best = int(np.argmin(found.sse))
        i, j = divmod(best, len(midpoints))
        params = HILL.values(found.low[best], found.high[best], found.theta[best], prepared.reference[k])
        edge = (i in (0, len(asymptotes) - 1) and len(asymptotes) > 1) or j in (0, len(midpoints) - 1)
        results.append(GridFit(**params, sse=float(found.sse[best]), at_edge=edge))
    return results
