"""Data reuse: does going through the same problems again and again show in the loss?

tau = D_total / D_unique, the number of times that each problem has been used, is the number of epochs C / (n D). arXiv
2509.25300 sees no significant degradation up to about tau = 25 (docs/method.md, Data reuse).
"""

from __future__ import annotations

import numpy as np
import scipy.special

from isocompute_jax.fit.laws.model_size import CONFIDENCE, autocorrelation
from isocompute_jax.fit.laws.model_size_results import EqualData, ReuseFit

MOST_REUSE = 25.0
"""Reuse up to which the paper sees no significant degradation."""


def reuse(
    model_params: np.ndarray,
    x: np.ndarray,
    reward: np.ndarray,
    tau: np.ndarray,
    *,
    run: np.ndarray,
    threshold: float,
) -> ReuseFit:
    """Compares ln L at tau above `threshold` with the models' own lines.

    Each model has a free line in ln X; the shift is the coefficient of an indicator of tau > threshold fitted beside
    the lines. Within one run tau grows with X, so a curve that merely levels off looks like degradation: a shift is
    evidence only where runs with different D overlap, which the caller should say.

    Args:
      model_params: [P].
      x: [P].
      reward: [P].
      tau: [P] epochs; NaN where unknown.
      run: [P].
      threshold: tau above which problems count as much reused.
    """
    keep = np.isfinite(tau) & np.isfinite(x) & np.isfinite(reward) & (x > 0) & (reward < 1)
    model_params, x, reward, tau, run = (a[keep] for a in (model_params, x, reward, tau, run))
    above = tau > threshold
    counts = int(np.count_nonzero(~above)), int(np.count_nonzero(above))
    if not all(counts):
        return _nothing(threshold, counts, tau)
    log_x, log_loss = np.log(x), np.log(1.0 - reward)
    loss_left, above_left, groups = np.zeros_like(x), np.zeros_like(x), []
    for size in np.unique(model_params):
        mask = model_params == size
        line = np.stack([np.ones(mask.sum()), log_x[mask] - log_x[mask].mean()], axis=1)
        for values, left in ((log_loss, loss_left), (above.astype(float), above_left)):
            left[mask] = values[mask] - line @ np.linalg.lstsq(line, values[mask], rcond=None)[0]
        groups.append((run[mask], log_x[mask], loss_left[mask]))
    rho = autocorrelation(groups)
    scale = (1.0 + rho) / (1.0 - rho)
    means = [(float(loss_left[m].mean()), _error(loss_left[m], scale)) for m in (~above, above)]
    shift, error, degraded, message = _shift(loss_left, above_left, scale, 2 * len(groups) + 1)
    return ReuseFit(threshold, *counts, *means[0], *means[1], shift, error, degraded, "ok", message)


def _error(values: np.ndarray, scale: float) -> float:
    return float(np.sqrt(np.var(values, ddof=1) / len(values) * scale)) if len(values) > 1 else float("nan")


def _shift(left: np.ndarray, indicator: np.ndarray, scale: float, parameters: int):
    """(shift, standard error, whether it is degradation, in words) from residuals about the lines."""
    weight, freedom = float(indicator @ indicator), len(left) - parameters
    if weight < 1e-9 or freedom < 1:
        message = "reuse and X rise together in every model, so a shift cannot be told from the line"
        return float("nan"), float("nan"), None, message
    shift = float(indicator @ left) / weight
    rest = left - shift * indicator
    error = float(np.sqrt(rest @ rest / freedom * scale / weight))
    bound = error * float(scipy.special.stdtrit(max(freedom / scale, 1.0), CONFIDENCE))
    degraded = shift > bound
    message = "the loss is higher than the lines say" if degraded else "no degradation is visible"
    return shift, error, degraded, message


def _nothing(threshold: float, counts: tuple[int, int], tau: np.ndarray) -> ReuseFit:
    nan = float("nan")
    if not len(tau):
        message = "the number of epochs is not known: it needs compute in rollouts, group_size and problem_set_size"
    elif not counts[1]:
        message = f"no evaluation lies above tau = {threshold:g} (the largest is {tau.max():.3g})"
    else:
        message = f"every evaluation lies above tau = {threshold:g}, so there is nothing to compare with"
    return ReuseFit(threshold, *counts, nan, nan, nan, nan, nan, nan, None, "failed", message)


def at_equal_data(
    model_params: np.ndarray,
    x: np.ndarray,
    reward: np.ndarray,
    tau: np.ndarray,
    problem_set_size: np.ndarray,
    *,
    run: np.ndarray,
) -> tuple[EqualData, ...]:
    """For each model with several problem set sizes D: its loss at the largest X that all of its runs reach.

    Args:
      model_params: [P].
      x: [P].
      reward: [P].
      tau: [P] epochs.
      problem_set_size: [P] D; points with D = 0 (unknown) are left out.
      run: [P].
    """
    keep = np.isfinite(tau) & np.isfinite(reward) & (x > 0) & (problem_set_size > 0)
    found = []
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
            error = chosen[:, 0].std(ddof=1) / np.sqrt(len(chosen)) if len(chosen) > 1 else np.nan
            loss, epochs = chosen.mean(axis=0)
            numbers = (float(v) for v in (size, at, problems, epochs, loss, error))
            found.append(EqualData(*numbers, num_runs=len(chosen)))
    return tuple(found)


def _read_off(x: np.ndarray, values: np.ndarray, at: float) -> float:
    order = np.argsort(x)
    return float(np.interp(np.log(at), np.log(x[order]), values[order]))
