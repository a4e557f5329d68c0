"""Does the model-size law hold? For later evaluations, for larger models, and where problems are used again and again.

tau = D_total / D_unique, the number of times that each problem has been used, is the number of epochs C / (n D). arXiv
2509.25300 sees no significant degradation up to about tau = 25 (docs/method.md, Data reuse).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

import numpy as np

from isocompute_jax.fit.results import Estimate, Status
from isocompute_jax.laws.model_size import (
    CONFIDENCE,
    ModelSizeFit,
    autocorrelation,
    fit_model_size,
    quantile,
    widening,
)

MOST_REUSE = 25.0
"""Reuse up to which the paper sees no significant degradation."""


@dataclasses.dataclass(frozen=True, eq=False)
class Holdout:
    """How well points of one model that were not fitted are predicted; errors are means of absolute ones."""

    model_params: float  # parameters N
    num_fitted: int  # points behind the prediction (the anchor's, when the model itself was held out)
    num_scored: int  # points that were predicted
    log_loss_error: float  # in ln L
    reward_error: float  # in reward
    unchanged_error: float  # in reward, of the prediction that the last known reward stays: a yardstick
    predicted_k: Estimate  # slope that the prediction used
    measured_k: float  # slope of the model's own line through all of its points
    points: Mapping[str, np.ndarray]  # those that were predicted, in order of X: x, reward and predicted reward [P]


@dataclasses.dataclass(frozen=True)
class ReuseFit:
    """Whether reusing problems more than `threshold` times goes with a higher loss than the lines say."""

    threshold: float  # tau above which problems count as much reused
    num_below: int  # points at or below it
    num_above: int
    mean_below: float = math.nan  # mean residual of ln L about lines through all points, at or below the threshold
    error_below: float = math.nan  # its standard error
    mean_above: float = math.nan
    error_above: float = math.nan
    shift: float = math.nan  # jump of ln L above the threshold, fitted beside the lines (so that they do not absorb it)
    shift_error: float = math.nan  # its standard error
    degraded: bool | None = None  # whether the shift exceeds 0 by more than its 95% bound; None when it cannot be told
    status: Status = "failed"  # `ok`, or `failed`: there is nothing to compare
    message: str = ""  # the finding or the reason in words


def intra_model(
    model_params: np.ndarray,
    x: np.ndarray,
    reward: np.ndarray,
    *,
    weight: np.ndarray | None,
    run: np.ndarray,
    share: float,
) -> tuple[Holdout, ...]:
    """Fits the law to the first part of every run and scores the rest; one entry per model that has a rest.

    Args are those of `fit_model_size`, and `share` in (0, 1) of each run's evaluations, which is fitted.
    """
    usable, first = _usable(x, reward), np.zeros(len(x), bool)
    for name in np.unique(run):  # the first ceil(share n) of each run's n evaluations with X > 0
        rows = _in_order(x, (run == name) & (x > 0))
        first[rows[: math.ceil(share * len(rows))]] = True
    fit = _fit_to(first, (model_params, x, reward), weight, run)
    scores = []
    for index, size in enumerate(fit.model_params):
        own = usable & (model_params == size)
        if (own & ~first).any():
            scores.append(_score(fit, size, fit.intercept[index], fit.k[index], (x, reward), own & first, own & ~first))
    return tuple(scores)


def inter_model(
    model_params: np.ndarray,
    x: np.ndarray,
    reward: np.ndarray,
    *,
    weight: np.ndarray | None,
    run: np.ndarray,
    held_out: int,
    anchors: int,
) -> tuple[Holdout, ...]:
    """Fits the law without the `held_out` largest models and predicts those; empty with fewer than two lines left.

    The slope of a held-out model is k(N) of the law, from the smaller models alone. Its level E cannot come from them
    (the law has none): it is the mean of ln L + k(N) ln X over the model's own first `anchors` evaluations, and nothing
    else of that model is used. The rest of its evaluations is scored. The other args are those of `fit_model_size`.
    """
    usable = _usable(x, reward)
    sizes = np.unique(model_params[usable])
    if held_out < 1 or len(sizes) - held_out < 2:
        return ()
    fit = _fit_to(model_params < sizes[-held_out], (model_params, x, reward), weight, run)
    if len(fit.model_params) < 2:
        return ()
    scores = []
    for size in sizes[-held_out:]:
        rows = _in_order(x, usable & (model_params == size))
        known, rest = np.zeros(len(x), bool), np.zeros(len(x), bool)
        known[rows[:anchors]], rest[rows[anchors:]] = True, True
        if rest.any() and np.ptp(x[rows]) > 0:
            k = fit.slope(size).value
            level = float(np.mean(np.log(1.0 - reward[known]) + k * np.log(x[known])))
            scores.append(_score(fit, size, level, k, (x, reward), known, rest))
    return tuple(scores)


def _in_order(x: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """Numbers of the chosen points, in order of X."""
    return np.flatnonzero(chosen)[np.argsort(x[chosen], kind="stable")]


def _usable(x: np.ndarray, reward: np.ndarray) -> np.ndarray:
    return np.isfinite(x) & np.isfinite(reward) & (x > 0) & (reward < 1)


def _fit_to(
    chosen: np.ndarray, columns: tuple[np.ndarray, ...], weight: np.ndarray | None, run: np.ndarray
) -> ModelSizeFit:
    """The law of the chosen points [P] of (model_params, x, reward)."""
    weight = None if weight is None else weight[chosen]
    return fit_model_size(*(column[chosen] for column in columns), weight=weight, run=run[chosen])


def _score(
    fit: ModelSizeFit,
    size: float,
    level: float,
    k: float,
    data: tuple[np.ndarray, np.ndarray],
    known: np.ndarray,
    rest: np.ndarray,
) -> Holdout:
    """Of a line at the points `rest` [P] of (x, reward); those that it comes from are `known` [P]."""
    x, reward = data
    rows = _in_order(x, rest)
    log_loss = level - k * np.log(x[rows])
    last = reward[known][np.argmax(x[known])]
    own = known | rest
    predicted = 1.0 - np.exp(log_loss)
    return Holdout(
        model_params=float(size),
        num_fitted=int(np.count_nonzero(known)),
        num_scored=len(rows),
        log_loss_error=float(np.mean(np.abs(log_loss - np.log(1.0 - reward[rows])))),
        reward_error=float(np.mean(np.abs(predicted - reward[rows]))),
        unchanged_error=float(np.mean(np.abs(last - reward[rows]))),
        predicted_k=fit.slope(float(size)),
        measured_k=-float(np.polyfit(np.log(x[own]), np.log(1.0 - reward[own]), 1)[0]),
        points={"x": x[rows], "reward": reward[rows], "predicted": predicted},
    )


def reuse(
    model_params: np.ndarray, x: np.ndarray, reward: np.ndarray, tau: np.ndarray, *, run: np.ndarray, threshold: float
) -> ReuseFit:
    """Compares ln L at tau above `threshold` with the models' own lines.

    Each model has a free line in ln X; the shift is the coefficient of an indicator of tau > threshold fitted beside
    the lines. Within one run tau grows with X, so a curve that merely levels off looks like degradation: a shift is
    evidence only where runs with different D overlap, which the caller should say.

    Args are those of `fit_model_size`, and `tau` [P], epochs; NaN where unknown.
    """
    keep = np.isfinite(tau) & _usable(x, reward)
    model_params, x, reward, tau, run = (a[keep] for a in (model_params, x, reward, tau, run))
    above = tau > threshold
    counts = int(np.count_nonzero(~above)), int(np.count_nonzero(above))
    if not all(counts):
        return ReuseFit(threshold, *counts, message=_nothing(threshold, counts, tau))
    log_x, log_loss = np.log(x), np.log(1.0 - reward)
    loss_left, above_left, groups = np.zeros_like(x), np.zeros_like(x), []
    for size in np.unique(model_params):
        mask = model_params == size
        line = np.stack([np.ones(mask.sum()), log_x[mask] - log_x[mask].mean()], axis=1)
        for values, left in ((log_loss, loss_left), (above.astype(float), above_left)):
            left[mask] = values[mask] - line @ np.linalg.lstsq(line, values[mask], rcond=None)[0]
        groups.append((run[mask], log_x[mask], loss_left[mask]))
    scale = widening(autocorrelation(groups))
    means = [(float(loss_left[m].mean()), _error(loss_left[m], scale)) for m in (~above, above)]
    shift, error, degraded, message = _shift(loss_left, above_left, scale, 2 * len(groups) + 1)
    return ReuseFit(threshold, *counts, *means[0], *means[1], shift, error, degraded, "ok", message)


def _error(values: np.ndarray, scale: float) -> float:
    return float(np.sqrt(np.var(values, ddof=1) / len(values) * scale)) if len(values) > 1 else math.nan


def _shift(
    left: np.ndarray, indicator: np.ndarray, scale: float, parameters: int
) -> tuple[float, float, bool | None, str]:
    """(shift, standard error, whether it is degradation, in words) from residuals about the lines."""
    weight, freedom = float(indicator @ indicator), len(left) - parameters
    if weight < 1e-9 or freedom < 1:
        message = "reuse and X rise together in every model, so a shift cannot be told from the line"
        return math.nan, math.nan, None, message
    shift = float(indicator @ left) / weight
    rest = left - shift * indicator
    error = float(np.sqrt(rest @ rest / freedom * scale / weight))
    degraded = shift > error * quantile(max(freedom / scale, 1.0), CONFIDENCE)
    return shift, error, degraded, "the loss is higher than the lines say" if degraded else "no degradation is visible"


def _nothing(threshold: float, counts: tuple[int, int], tau: np.ndarray) -> str:
    """Why nothing can be compared."""
    if not len(tau):
        return "the number of epochs is not known: it needs compute in rollouts, group_size and problem_set_size"
    if not counts[1]:
        return f"no evaluation lies above tau = {threshold:g} (the largest is {tau.max():.3g})"
    return f"every evaluation lies above tau = {threshold:g}, so there is nothing to compare with"


def at_equal_data(
    model_params: np.ndarray,
    x: np.ndarray,
    reward: np.ndarray,
    tau: np.ndarray,
    problem_set_size: np.ndarray,
    *,
    run: np.ndarray,
) -> tuple[dict[str, float], ...]:
    """For each model with several problem set sizes D: its loss at the largest X that all of its runs reach.

    A row for each model and D: `model_params`, that `x`, `problem_set_size`; `tau` (epochs there) and `loss`, means
    over runs of an interpolation in ln X; `error`, the standard error of the loss over runs, NaN with one; `num_runs`.
    Args are those of `reuse`, and `problem_set_size` [P], D; points with D = 0 (unknown) are left out.
    """
    keep = np.isfinite(tau) & np.isfinite(reward) & (x > 0) & (problem_set_size > 0)
    rows = []
    for size in np.unique(model_params[keep]):
        own = keep & (model_params == size)
        if len(np.unique(problem_set_size[own])) < 2:
            continue
        runs = {name: own & (run == name) for name in np.unique(run[own])}
        at = min(x[mask].max() for mask in runs.values())
        if at < max(x[mask].min() for mask in runs.values()):
            continue
        read = {name: [_read_off(x[m], v[m], at) for v in (1.0 - reward, tau)] for name, m in runs.items()}
        for problems in np.unique(problem_set_size[own]):
            chosen = np.array([read[n] for n, m in runs.items() if problem_set_size[m][0] == problems])
            error = chosen[:, 0].std(ddof=1) / np.sqrt(len(chosen)) if len(chosen) > 1 else math.nan
            loss, epochs = chosen.mean(axis=0)
            row = {
                "model_params": size,
                "x": at,
                "problem_set_size": problems,
                "tau": epochs,
                "loss": loss,
                "error": error,
            }
            rows.append({name: float(value) for name, value in row.items()} | {"num_runs": len(chosen)})
    return tuple(rows)


def _read_off(x: np.ndarray, values: np.ndarray, at: float) -> float:
    order = np.argsort(x)
    return float(np.interp(np.log(at), np.log(x[order]), values[order]))
