"""The model-size law of RL post-training: ln L = -k(N) ln X + E(N), with a slope k(N) that saturates.

Source: arXiv 2509.25300 (docs/method.md, Model-size law). The paper gives k(N) = k_max / (1 + N0 / N) and no law for
E(N): here, as in its authors' own analysis, every model size has a free intercept E. A model that was not measured
therefore has a predicted slope but no predicted level.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import scipy.optimize
import scipy.special

from isocompute_jax.fit.laws.model_size_results import ModelSizeFit
from isocompute_jax.fit.laws.results import Estimate

MARGIN = 1e3
"""N0 is searched from the smallest model / margin to the largest model x margin."""
FAR = 10.0
"""N0 lies far outside of the models when it is so many times smaller or larger than all of them: the slope of each is
then within a tenth of k_max of one of its limits, 0 and k_max, so that the rise between them was not seen."""
CELLS = 240
CONFIDENCE = 0.95
MISFIT = 0.01
"""The law counts as rejected when free slopes fit better at this level."""
HIGHEST_AUTOCORRELATION = 0.95
NO_ESTIMATE = Estimate(np.nan, np.nan, np.nan, False, "nothing to fit")


class Lines(NamedTuple):
    """Each model's own line through its points, as sums that the law is fitted from. Leading dimension: M models."""

    model_params: np.ndarray
    weight: np.ndarray
    mean_x: np.ndarray
    mean_y: np.ndarray
    spread: np.ndarray  # sum of w (x - mean_x)^2
    slope: np.ndarray
    variation: np.ndarray  # sum of w (y - mean_y)^2
    points: np.ndarray
    first: np.ndarray
    last: np.ndarray
    sse: float
    autocorrelation: float


def fit_model_size(
    model_params: np.ndarray,
    x: np.ndarray,
    reward: np.ndarray,
    *,
    weight: np.ndarray | None,
    run: np.ndarray | None,
) -> ModelSizeFit:
    """Fits k_max, N0 and one E per model by weighted least squares in ln L, L = 1 - reward.

    Given N0 the rest is linear and has a closed form (variable projection), so the search runs over ln N0 alone: a
    grid, then a polish. Intervals follow the profile of the sum of squares over ln N0 (F threshold, 95%). Evaluations
    of one run resemble each other, so variances are multiplied by (1 + rho) / (1 - rho), with rho the correlation of
    neighbouring residuals, and degrees of freedom are divided by it.

    Args:
      model_params: [P] parameters N of each point's model.
      x: [P] compute or data X; points at X = 0 (the base model) have no place in the law and are left out.
      reward: [P]; points with reward 1 (ln 0) are left out.
      weight: [P] relative precision of each point; None for equal ones.
      run: [P] which run a point is of, in any numbers; None when every model is one run.
    """
    model_params, x, reward = (np.asarray(a, np.float64) for a in (model_params, x, reward))
    weight = np.ones_like(x) if weight is None else np.asarray(weight, np.float64)
    run = model_params if run is None else np.asarray(run)
    keep, left_out = _usable(model_params, x, reward)
    log_loss = np.log(1.0 - reward, where=keep, out=np.zeros_like(reward))
    model_params, x, log_loss, weight, run = (a[keep] for a in (model_params, x, log_loss, weight, run))
    lines, more = _lines(model_params, x, log_loss, weight, run)
    left_out += more
    if not len(lines.model_params):
        return _failed(left_out)
    if len(lines.model_params) == 1:
        return _one_line(lines, left_out)
    return _law(lines, left_out)


def _usable(model_params: np.ndarray, x: np.ndarray, reward: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """[P] bool, and why the others are left out."""
    finite = np.isfinite(model_params) & np.isfinite(x) & np.isfinite(reward) & (model_params > 0)
    untrained, solved = finite & (x <= 0), finite & (x > 0) & (reward >= 1)
    reasons = {
        "no finite N, X and reward": ~finite,
        "at X = 0: the base model has no place on a logarithmic axis": untrained,
        "with reward 1: a loss of 0 has no logarithm": solved,
    }
    left_out = [f"{np.count_nonzero(mask)} points left out, {why}" for why, mask in reasons.items() if mask.any()]
    return finite & ~untrained & ~solved, left_out


def _lines(
    model_params: np.ndarray, x: np.ndarray, log_loss: np.ndarray, weight: np.ndarray, run: np.ndarray
) -> tuple[Lines, list[str]]:
    """Each model's own line; models whose points have one X are left out."""
    rows, residuals, left_out = [], [], []
    for size in np.unique(model_params):
        mask = model_params == size
        log_x, y, w = np.log(x[mask]), log_loss[mask], weight[mask]
        if np.ptp(log_x) == 0:
            left_out.append(f"model of {size:g} parameters left out: all of its points have one X")
            continue
        mean_x, mean_y = np.average(log_x, weights=w), np.average(y, weights=w)
        spread = w @ (log_x - mean_x) ** 2
        slope = -(w @ ((log_x - mean_x) * (y - mean_y))) / spread
        left = y - mean_y + slope * (log_x - mean_x)
        residuals.append((run[mask], log_x, np.sqrt(w) * left))
        rows.append((size, w.sum(), mean_x, mean_y, spread, slope, w @ (y - mean_y) ** 2, mask.sum(), *_ends(x[mask])))
    columns = np.array(rows).reshape(-1, 10).T
    sse = float(sum(np.sum(r**2) for _, _, r in residuals))
    return Lines(*columns, sse=sse, autocorrelation=autocorrelation(residuals)), left_out


def _ends(x: np.ndarray) -> tuple[float, float]:
    return x.min(), x.max()


def autocorrelation(residuals: list[tuple[np.ndarray, np.ndarray, np.ndarray]]) -> float:
    """Correlation of neighbouring residuals within runs, in [0, `HIGHEST_AUTOCORRELATION`].

    Args:
      residuals: per model (run [P], log_x [P], residual [P]).
    """
    products, squares = 0.0, 0.0
    for run, log_x, residual in residuals:
        for name in np.unique(run):
            mask = run == name
            ordered = residual[mask][np.argsort(log_x[mask], kind="stable")]
            products += ordered[1:] @ ordered[:-1]
            squares += (ordered[1:] @ ordered[1:] + ordered[:-1] @ ordered[:-1]) / 2
    return float(np.clip(products / squares, 0.0, HIGHEST_AUTOCORRELATION)) if squares > 0 else 0.0


def _excess(lines: Lines, log_n0: float) -> tuple[float, float, float]:
    """At one N0: the sum of squares above that of free slopes, the best k_max, and the curvature in k_max."""
    share = 1.0 / (1.0 + np.exp(log_n0) / lines.model_params)
    curvature = float(lines.spread @ share**2)
    k_max = float(lines.spread @ (share * lines.slope)) / curvature
    return float(lines.spread @ (lines.slope - k_max * share) ** 2), k_max, curvature


def _law(lines: Lines, left_out: list[str]) -> ModelSizeFit:
    """The fit for two or more models."""
    low, high = np.log(lines.model_params[0] / MARGIN), np.log(lines.model_params[-1] * MARGIN)
    grid = np.linspace(low, high, CELLS + 1)
    values = np.array([_excess(lines, g)[0] for g in grid])
    best = int(np.argmin(values))
    bracket = grid[max(best - 1, 0)], grid[min(best + 1, CELLS)]
    polished = typing.cast(float, scipy.optimize.fminbound(lambda g: _excess(lines, g)[0], *bracket, xtol=1e-12))
    log_n0 = float(min(polished, grid[best], key=lambda g: _excess(lines, g)[0]))
    excess, k_max, _ = _excess(lines, log_n0)
    noise, freedom, scale = _noise(lines, excess, num_parameters=len(lines.model_params) + 2)
    region = _region(lines, log_n0, excess + noise * _quantile(freedom) ** 2, grid)
    return _finish(lines, log_n0, k_max, excess, noise, scale, region, left_out)


def _noise(lines: Lines, excess: float, *, num_parameters: int) -> tuple[float, float, float]:
    """(variance of a point of weight 1, widened for autocorrelation; effective degrees of freedom; the widening)."""
    scale = (1.0 + lines.autocorrelation) / (1.0 - lines.autocorrelation)
    freedom = float(lines.points.sum() - num_parameters)
    if freedom <= 0:
        return np.nan, np.nan, scale
    return (lines.sse + excess) / freedom * scale, max(freedom / scale, 1.0), scale


def _quantile(freedom: float) -> float:
    return float(scipy.special.stdtrit(freedom, (1 + CONFIDENCE) / 2)) if freedom > 0 else np.nan


def _region(lines: Lines, log_n0: float, threshold: float, grid: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """ln N0 [R] inside the 95% region and k_max [R, 2] there; empty when there is no noise estimate."""
    if not np.isfinite(threshold):
        return np.empty(0), np.empty((0, 2))

    def over(at: float) -> float:
        return _excess(lines, at)[0] - threshold

    edges = [_edge(over, log_n0, side) for side in (grid[grid < log_n0][::-1], grid[grid > log_n0])]
    inside = np.unique(np.concatenate([np.linspace(edges[0], edges[1], CELLS + 1), [log_n0]]))
    found = [(at, *_excess(lines, at)) for at in inside]
    kept = [
        (at, k - half, k + half)
        for at, excess, k, curvature in found
        if excess <= threshold or at in edges
        for half in [np.sqrt(max(threshold - excess, 0.0) / curvature)]
    ]
    region = np.array(kept).reshape(-1, 3)
    return region[:, 0], region[:, 1:]


def _edge(over: Callable[[float], float], inside: float, side: np.ndarray) -> float:
    """Where the profile leaves the region, walking along `side` from the minimum outwards; its end if it never does."""
    accepted = [at for at in side if over(at) <= 0]
    last = accepted[-1] if accepted else inside  # the outermost, so that a second valley is not cut off
    beyond = [at for at in side if abs(at - inside) > abs(last - inside)]
    if not beyond:
        return float(side[-1]) if len(side) else inside
    if over(last) >= 0:
        return float(last)
    return typing.cast(float, scipy.optimize.brentq(over, last, beyond[0], xtol=1e-12))


def _finish(lines, log_n0, k_max, excess, noise, scale, region, left_out) -> ModelSizeFit:
    """Puts the pieces together and says what they do not show."""
    share = 1.0 / (1.0 + np.exp(log_n0) / lines.model_params)
    k = k_max * share
    # slopes in (k_max, ln N0): d k / d k_max = s, d k / d ln N0 = -k_max s (1 - s)
    jacobian = np.stack([share, -k_max * share * (1.0 - share)], axis=1)
    normal = jacobian.T @ (lines.spread[:, None] * jacobian)
    inverse = np.linalg.pinv(normal, rcond=1e-12, hermitian=True)
    singular = np.linalg.matrix_rank(normal, rtol=1e-12, hermitian=True) < 2
    errors = np.full(2, np.nan) if singular else np.sqrt(np.diag(inverse) * noise)
    slopes = jacobian @ inverse @ jacobian.T * noise
    n0, k_estimate, reason = _estimates(lines, log_n0, k_max, region)
    misfit = _misfit(lines, excess, scale)
    messages = list(filter(None, [reason]))
    if k_max <= 0:
        messages.append("the reward does not rise with X: k_max is not positive")
    if misfit < MISFIT:
        messages.append(
            f"the models' own slopes depart from k(N) by more than noise (p = {misfit:.1g}), so the intervals of "
            "k_max and N0 are too narrow"
        )
    return ModelSizeFit(
        k_max=k_estimate,
        n0=n0,
        k_max_error=float(errors[0]),
        log_n0_error=float(errors[1]),
        k=k,
        covariance=_with_intercepts(lines, slopes, noise),
        region_n0=np.exp(region[0]),
        region_k_max=region[1],
        misfit=misfit,
        **_shared(lines, k, sse=lines.sse + excess, scale=scale, left_out=left_out),
        status="warning" if messages else "ok",
        message="; ".join(messages),
    )


def _estimates(lines: Lines, log_n0: float, k_max: float, region) -> tuple[Estimate, Estimate, str]:
    """N0 and k_max with intervals, and why one of them is not identified (or nothing)."""
    lowest, highest = np.log(lines.model_params[0] / MARGIN), np.log(lines.model_params[-1] * MARGIN)
    log_region, k_region = region
    known = len(log_region) > 0
    low, high = (log_region[0], log_region[-1]) if known else (np.nan, np.nan)
    open_low, open_high = low <= lowest + 1e-9, high >= highest - 1e-9
    count = len(lines.model_params)
    n0_note, k_note = "", ""
    if count < 3:
        n0_note = k_note = f"{count} model sizes: k(N) has two parameters, so nothing is left to test it; 3 are needed"
    elif not known:
        n0_note = k_note = "too few points for an interval"
    elif open_low and open_high:
        n0_note = k_note = "the data say nothing about how k changes with N: any N0 fits as well"
    elif open_high:
        n0_note = k_note = "k(N) does not level off within these model sizes: any larger N0 fits as well"
    elif open_low:
        n0_note = "k(N) does not change with N within these model sizes: any smaller N0 fits as well"
    elif np.exp(log_n0) > lines.model_params[-1] * FAR:
        n0_note = k_note = f"N0 is more than {FAR:g} times larger than these models: k_max is an extrapolation"
    elif np.exp(log_n0) < lines.model_params[0] / FAR:
        n0_note = f"N0 is more than {FAR:g} times smaller than these models: k(N) hardly changes among them"
    interval = (0.0 if open_low else np.exp(low), np.inf if open_high else np.exp(high))
    k_low = float(np.min(k_region[:, 0])) if known else np.nan
    k_high = (np.inf if open_high else float(np.max(k_region[:, 1]))) if known else np.nan
    n0 = Estimate(float(np.exp(log_n0)), float(interval[0]), float(interval[1]), not n0_note, n0_note)
    names = " and ".join(name for name, note in (("N0", n0_note), ("k_max", k_note)) if note)
    reason = f"{names} not identified: {n0_note}" if names else ""
    return n0, Estimate(k_max, k_low, k_high, not k_note, k_note), reason


def _misfit(lines: Lines, excess: float, scale: float) -> float:
    """p-value of the law against one free slope per model (F test, widened for autocorrelation)."""
    models = len(lines.model_params)
    freedom = float(lines.points.sum() - 2 * models)
    if models < 3 or freedom <= 0 or lines.sse <= 1e-24 * lines.variation.sum():
        return np.nan
    ratio = excess / (models - 2) / (lines.sse / freedom * scale)
    return float(scipy.special.fdtrc(models - 2, max(freedom / scale, 1.0), ratio))


def _with_intercepts(lines: Lines, slopes: np.ndarray, noise: float) -> np.ndarray:
    """[2M, 2M] covariance of (k, E) from that of k [M, M]: E = mean_y + k mean_x, and mean_y is independent of k."""
    cross = slopes * lines.mean_x[None, :]
    levels = slopes * np.outer(lines.mean_x, lines.mean_x) + np.diag(noise / lines.weight)
    return np.block([[slopes, cross], [cross.T, levels]])


def _shared(lines: Lines, k: np.ndarray, *, sse: float, scale: float, left_out: list[str]) -> dict:
    """The fields that the law and a single line have in common."""
    freedom = lines.points.sum() - 2 * len(lines.points)
    noise = lines.sse / freedom * scale if freedom > 0 else np.nan
    total = float(lines.variation.sum())
    return {
        "model_params": lines.model_params,
        "intercept": lines.mean_y + k * lines.mean_x,
        "free_k": lines.slope,
        "free_k_error": np.sqrt(noise / lines.spread),
        "free_intercept": lines.mean_y + lines.slope * lines.mean_x,
        "first_x": lines.first,
        "last_x": lines.last,
        "num_points": lines.points.astype(int),
        "autocorrelation": lines.autocorrelation,
        "sse": sse,
        "r2": 1.0 - sse / total if total > 0 else np.nan,
        "left_out": tuple(left_out),
    }


def _one_line(lines: Lines, left_out: list[str]) -> ModelSizeFit:
    """A single model: its own line, and no law."""
    noise, _, scale = _noise(lines, 0.0, num_parameters=2)
    why = "one model size: a line, but no law for k(N)"
    unknown = dataclasses.replace(NO_ESTIMATE, note=why)
    return ModelSizeFit(
        k_max=unknown, n0=unknown, k_max_error=np.nan, log_n0_error=np.nan, k=lines.slope,
        covariance=_with_intercepts(lines, np.diag(noise / lines.spread), noise),
        region_n0=np.empty(0), region_k_max=np.empty((0, 2)), misfit=np.nan,
        **_shared(lines, lines.slope, sse=lines.sse, scale=scale, left_out=left_out),
        status="warning", message=f"k_max and N0 not identified: {why}",
    )  # fmt: skip


def _failed(left_out: list[str]) -> ModelSizeFit:
    none = np.empty(0)
    return ModelSizeFit(
        k_max=NO_ESTIMATE, n0=NO_ESTIMATE, k_max_error=np.nan, log_n0_error=np.nan, model_params=none, k=none,
        intercept=none, free_k=none, free_k_error=none, free_intercept=none, first_x=none, last_x=none,
        num_points=none.astype(int), covariance=np.empty((0, 0)), region_n0=none, region_k_max=np.empty((0, 2)),
        autocorrelation=np.nan, misfit=np.nan, sse=np.nan, r2=np.nan, left_out=tuple(left_out), status="failed",
        message="no model has two points of different X",
    )  # fmt: skip
