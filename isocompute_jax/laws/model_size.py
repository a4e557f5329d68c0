"""The model-size law of RL post-training: ln L = -k(N) ln X + E(N), with a slope k(N) that saturates.

Source: arXiv 2509.25300 (docs/method.md, Model-size law). The paper gives k(N) = k_max / (1 + N0 / N) and no law for
E(N): here, as in its authors' own analysis, every model size has a free intercept E. A model that was not measured
therefore has a predicted slope but no predicted level.
"""

from __future__ import annotations

import dataclasses
import itertools
import typing
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import scipy.optimize
import scipy.special

from isocompute_jax.fit.plain_data import INTERNAL
from isocompute_jax.fit.results import Estimate, Status

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


@dataclasses.dataclass(frozen=True, eq=False)
class ModelSizeFit:
    """ln L(N, X) = -k(N) ln X + E(N) with k(N) = k_max / (1 + N0 / N), for M model sizes in rising order."""

    k_max: Estimate  # slope of an infinitely large model
    n0: Estimate  # N0, the number of parameters at which k is half of k_max
    k_max_error: float  # standard error from the curvature at the minimum; NaN when there is none
    log_n0_error: float  # the same for ln N0
    model_params: np.ndarray  # [M] parameters N
    k: np.ndarray  # [M] the law's slopes; the free ones when there is no law (one model size)
    intercept: np.ndarray  # [M] E, free per model
    free_k: np.ndarray  # [M] slope of each model's own line
    free_k_error: np.ndarray  # [M] its standard error; NaN with two points
    free_intercept: np.ndarray  # [M] intercept of each model's own line
    first_x: np.ndarray  # [M] smallest X fitted
    last_x: np.ndarray  # [M] largest X fitted
    counts: np.ndarray  # [M] points fitted
    covariance: np.ndarray  # [2M, 2M] of (k, intercept), by the curvature at the minimum; NaN without a noise estimate
    region_n0: np.ndarray  # [R] values of N0 inside the 95% region
    region_k_max: np.ndarray  # [R, 2] least and largest k_max inside the region at that N0
    num_points: int  # of all models
    autocorrelation: float  # of neighbouring residuals of a run; intervals are widened for it
    misfit: float  # p-value against free slopes; small: k(N) does not have this form. NaN when untestable
    sse: float  # weighted sum of squared residuals in ln L
    r2: float  # share of the variation of ln L within models that the law explains
    left_out: tuple[str, ...]  # what was not fitted, and why
    status: Status  # `failed`: the numbers are NaN
    message: str  # empty, or what is wrong

    def written(self) -> dict[str, Any]:
        """See `plain_data`: the law of all models together."""
        names = "k_max", "n0", "num_points", "k_max_error", "log_n0_error", "autocorrelation", "misfit", "sse", "r2"
        return {name: getattr(self, name) for name in (*names, "status", "message")}

    @property
    def identified(self) -> bool:
        """Whether both parameters may be quoted."""
        return self.k_max.identified and self.n0.identified

    @property
    def departs(self) -> bool:
        """Whether the models' own slopes reject the law."""
        return self.misfit < MISFIT

    def slope(self, model_params: float) -> Estimate:
        """k(N) of the law at any N, with its 95% interval; not identified without a law."""
        share = 1.0 / (1.0 + self.n0.value / model_params)
        value = self.k_max.value * share
        if not len(self.region_n0):
            return Estimate(value, np.nan, np.nan, False, self.k_max.note)
        shares = 1.0 / (1.0 + self.region_n0 / model_params)
        low, high = np.min(self.region_k_max[:, 0] * shares), np.max(self.region_k_max[:, 1] * shares)
        enough = len(self.model_params) >= 3
        return Estimate(value, float(low), float(high), enough, "" if enough else self.k_max.note)

    def loss(self, index: int, x: np.ndarray | float) -> np.ndarray:
        """L of model number `index` at X > 0, inside its data or not."""
        return np.exp(self.intercept[index] - self.k[index] * np.log(x))


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
    model_params: np.ndarray, x: np.ndarray, reward: np.ndarray, *, weight: np.ndarray | None, run: np.ndarray | None
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
    return _law(lines, left_out) if len(lines.model_params) > 1 else _without_law(lines, left_out)


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
        sums = size, w.sum(), mean_x, mean_y, spread, slope, w @ (y - mean_y) ** 2
        rows.append((*sums, mask.sum(), x[mask].min(), x[mask].max()))
    columns = np.array(rows).reshape(-1, 10).T
    sse = float(sum(np.sum(r**2) for _, _, r in residuals)) if residuals else np.nan
    return Lines(*columns, sse=sse, autocorrelation=autocorrelation(residuals) if residuals else np.nan), left_out


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


def widening(autocorrelation: float) -> float:
    """What autocorrelated residuals multiply a variance by, and divide degrees of freedom by."""
    return (1.0 + autocorrelation) / (1.0 - autocorrelation)


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
    log_region, k_region = _region(lines, log_n0, excess + noise * quantile(freedom) ** 2, grid)
    k, slopes, errors = _slopes(lines, log_n0, k_max, noise)
    n0, k_estimate, reason = _estimates(lines, log_n0, k_max, log_region, k_region)
    misfit = _misfit(lines, excess, scale)
    messages = [reason] if reason else []
    if k_max <= 0:
        messages.append("the reward does not rise with X: k_max is not positive")
    if misfit < MISFIT:
        messages.append(
            f"the models' own slopes depart from k(N) by more than noise (p = {misfit:.1g}), so the intervals of "
            "k_max and N0 are too narrow"
        )
    return ModelSizeFit(
        k_max=k_estimate, n0=n0, k_max_error=float(errors[0]), log_n0_error=float(errors[1]), k=k,
        covariance=_with_intercepts(lines, slopes, noise), region_n0=np.exp(log_region), region_k_max=k_region,
        misfit=misfit, **_shared(lines, k, sse=lines.sse + excess, scale=scale, left_out=left_out),
        status="warning" if messages else "ok", message="; ".join(messages),
    )  # fmt: skip


def _without_law(lines: Lines, left_out: list[str]) -> ModelSizeFit:
    """A single model: its own line, and no law; or not even a line."""
    one = len(lines.model_params) == 1
    why = "one model size: a line, but no law for k(N)" if one else "nothing to fit"
    unknown = Estimate(np.nan, np.nan, np.nan, False, why)
    noise, _, scale = _noise(lines, 0.0, num_parameters=2)
    return ModelSizeFit(
        k_max=unknown, n0=unknown, k_max_error=np.nan, log_n0_error=np.nan, k=lines.slope,
        covariance=_with_intercepts(lines, np.diag(noise / lines.spread), noise),
        region_n0=np.empty(0), region_k_max=np.empty((0, 2)), misfit=np.nan,
        **_shared(lines, lines.slope, sse=lines.sse, scale=scale, left_out=left_out),
        status="warning" if one else "failed",
        message=f"k_max and N0 not identified: {why}" if one else "no model has two points of different X",
    )  # fmt: skip


def _slopes(lines: Lines, log_n0: float, k_max: float, noise: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Slopes k [M], their covariance [M, M], and the standard errors [2] of k_max and ln N0; NaN where singular."""
    share = 1.0 / (1.0 + np.exp(log_n0) / lines.model_params)
    # slopes in (k_max, ln N0): d k / d k_max = s, d k / d ln N0 = -k_max s (1 - s)
    jacobian = np.stack([share, -k_max * share * (1.0 - share)], axis=1)
    normal = jacobian.T @ (lines.spread[:, None] * jacobian)
    inverse = np.linalg.pinv(normal, rcond=1e-12, hermitian=True)
    singular = np.linalg.matrix_rank(normal, rtol=1e-12, hermitian=True) < 2
    errors = np.full(2, np.nan) if singular else np.sqrt(np.diag(inverse) * noise)
    return k_max * share, jacobian @ inverse @ jacobian.T * noise, errors


def _noise(lines: Lines, excess: float, *, num_parameters: int) -> tuple[float, float, float]:
    """(variance of a point of weight 1, widened for autocorrelation; effective degrees of freedom; the widening)."""
    scale = widening(lines.autocorrelation)
    freedom = float(lines.points.sum() - num_parameters)
    if freedom <= 0:
        return np.nan, np.nan, scale
    return (lines.sse + excess) / freedom * scale, max(freedom / scale, 1.0), scale


def quantile(freedom: float, level: float = (1 + CONFIDENCE) / 2) -> float:
    """Of Student's t: as many standard errors are half of a 95% interval; NaN without degrees of freedom."""
    return float(scipy.special.stdtrit(freedom, level)) if freedom > 0 else np.nan


def _region(lines: Lines, log_n0: float, threshold: float, grid: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """ln N0 [R] inside the 95% region and k_max [R, 2] there; empty when there is no noise estimate."""
    if not np.isfinite(threshold):
        return np.empty(0), np.empty((0, 2))

    def over(at: float) -> float:
        return _excess(lines, at)[0] - threshold

    edges = [_edge(over, log_n0, side) for side in (grid[grid < log_n0][::-1], grid[grid > log_n0])]
    inside = np.unique(np.concatenate([np.linspace(edges[0], edges[1], CELLS + 1), [log_n0]]))
    kept = [
        (at, k - half, k + half)
        for at in inside
        for excess, k, curvature in [_excess(lines, at)]
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


def _estimates(
    lines: Lines, log_n0: float, k_max: float, log_region: np.ndarray, k_region: np.ndarray
) -> tuple[Estimate, Estimate, str]:
    """N0 and k_max with intervals, and why one of them is not identified (or nothing)."""
    lowest, highest = np.log(lines.model_params[0] / MARGIN), np.log(lines.model_params[-1] * MARGIN)
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
        "counts": lines.points.astype(int),
        "num_points": int(lines.points.sum()),
        "autocorrelation": lines.autocorrelation,
        "sse": sse,
        "r2": 1.0 - sse / total if total > 0 else np.nan,
        "left_out": tuple(left_out),
    }


@dataclasses.dataclass(frozen=True)
class Crossover:
    """Where the lines of two models have the same loss: from there on the larger model may be the better choice."""

    smaller: float  # parameters of the smaller model
    larger: float
    x: float  # X of the crossing; NaN when the lines are parallel
    low: float  # lower end of its 95% interval (Fieller); 0 when the data set none
    high: float  # upper end; inf when the data set none
    inside: bool  # whether x lies inside the data of both models
    better_after: float  # parameters of the model with the lower loss beyond x
    status: Status  # `warning`: the slopes are not told apart
    message: str  # empty, or what is wrong
    loss: float = dataclasses.field(metadata=INTERNAL)  # of both models at the crossing


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
        max((fit.num_points - count - 2) / widening(fit.autocorrelation), 1.0),
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


def _fieller(top: float, bottom: float, covariance: np.ndarray, freedom: float) -> tuple[float, float]:
    """exp of the 95% interval of top / bottom; (0, inf) when it is unbounded, NaN without a covariance."""
    if not np.all(np.isfinite(covariance)):
        return float("nan"), float("nan")
    t2 = quantile(freedom) ** 2
    a = bottom**2 - t2 * covariance[1, 1]
    b = top * bottom - t2 * covariance[0, 1]
    c = top**2 - t2 * covariance[0, 0]
    if a <= 0:
        return 0.0, float("inf")
    half = np.sqrt(max(b * b - a * c, 0.0)) / a
    with np.errstate(over="ignore", under="ignore"):
        return float(np.exp(b / a - half)), float(np.exp(b / a + half))
