"""n*(C): the frontier's group size as a function of compute, smoothed, and its sigmoid law."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from isocompute_jax.fit.results import AllocationFit
from isocompute_jax.fit.solver import Problem, fit_rising

SLOPE_RANGE = (0.1, 100.0)
"""Bounds of the slope k, per decade of compute."""

MIDPOINT_MARGIN = 1.0
"""The midpoint is searched from one decade before the data to one decade after."""

EXTRAPOLATION = 0.25
"""Octaves by which the saturation value may exceed the largest n* seen before it counts as an extrapolation."""

NUM_PARAMETERS = 4
MAX_OCTAVES = 1000.0  # 2^1024 overflows


def running_average(values: np.ndarray, *, window: int) -> np.ndarray:
    """[P] centred mean over `window` (odd) neighbours; near the ends the window shrinks on both sides alike.

    A one-sided window would pull the ends towards the middle and move the saturation value.
    """
    if window < 1 or window % 2 == 0:
        raise ValueError(f"window = {window} must be odd and at least 1")
    values = np.asarray(values, dtype=np.float64)
    count = len(values)
    reach = [min(window // 2, i, count - 1 - i) for i in range(count)]
    return np.array([values[i - r : i + r + 1].mean() for i, r in enumerate(reach)])


def logistic_share(theta: jax.Array, log_compute: jax.Array) -> jax.Array:
    """1 / (1 + exp(-k (log10 C - log10 C0))) with theta = (log10 C0, ln k) and log_compute [P] = log10 C."""
    return jax.nn.sigmoid(jnp.exp(theta[1]) * (log_compute - theta[0]))


def fit_allocation(compute: np.ndarray, group_size: np.ndarray, *, window: int) -> AllocationFit:
    """Fits log2 n* = L / (1 + exp(-k (log10 C - log10 C0))) + b (REFERENCE section 4, stage 5).

    Args:
      compute: [P] rollouts, > 0, increasing.
      group_size: [P] n* at those computes, before smoothing.
      window: length of the running average of log2 n* that is fitted; 1 for none. Odd.

    Returns:
      The law with n* saturating at 2^(L + b). Its status is `warning`, with the reason, when the data cannot carry four
      parameters: one level, a single step between two levels, few points, a bound hit, or a saturation never reached.
    """
    compute = np.asarray(compute, dtype=np.float64)
    group_size = np.asarray(group_size, dtype=np.float64)
    smoothed = 2.0 ** running_average(np.log2(group_size), window=window)
    levels = np.unique(group_size)
    if len(levels) < 2:
        return _constant(compute, group_size, smoothed)
    x = np.log10(compute)
    lower = np.array([[x.min() - MIDPOINT_MARGIN, np.log(SLOPE_RANGE[0])]])
    upper = np.array([[x.max() + MIDPOINT_MARGIN, np.log(SLOPE_RANGE[1])]])
    found = fit_rising(
        _problem(x[None], np.log2(smoothed)[None], lower, upper),
        share=logistic_share,
        first=np.array([[x.min(), 0.0]]),
        last=np.array([[x.max(), np.log(30.0)]]),
        ordered=False,
    )
    floor, top = float(found.low[0]), float(found.high[0])
    fit = AllocationFit(
        span=top - floor,
        slope=float(np.exp(found.theta[0, 1])),
        midpoint=float(found.theta[0, 0]),
        floor=floor,
        saturation=2.0 ** min(top, MAX_OCTAVES),
        compute=compute,
        group_size=group_size,
        smoothed=smoothed,
        status="ok",
        message="",
    )
    reasons = _doubts(fit, at_bound=((found.theta <= lower) | (found.theta >= upper))[0])
    return dataclasses.replace(fit, status="warning", message="; ".join(reasons)) if reasons else fit


def _problem(x: np.ndarray, y: np.ndarray, lower: np.ndarray, upper: np.ndarray) -> Problem:
    """[K, P] log10 C and log2 n*, padded to a width that compiled programs share."""
    count, points = x.shape
    pad = ((0, 0), (0, -points % 32))
    weight = np.pad(np.ones_like(x), pad)
    free = np.tile([-np.inf, np.inf], (count, 2))
    return Problem(np.pad(x, pad), np.pad(y, pad), weight, np.zeros(count), free, lower, upper)


def _constant(compute: np.ndarray, group_size: np.ndarray, smoothed: np.ndarray) -> AllocationFit:
    nan = float("nan")
    if len(group_size) == 0:
        message = "no compute at which a configuration is on the frontier"
        return AllocationFit(nan, nan, nan, nan, nan, compute, group_size, smoothed, "failed", message)
    level = float(group_size[0])
    message = f"n* is {level:g} at every budget: one level, to which no sigmoid can be fitted"
    return AllocationFit(0.0, nan, nan, float(np.log2(level)), level, compute, group_size, smoothed, "warning", message)


def _doubts(fit: AllocationFit, *, at_bound: np.ndarray) -> list[str]:
    """Why the law should not be believed; empty when nothing speaks against it. `at_bound`: [2] midpoint, slope."""
    levels = np.unique(fit.group_size)
    changes = int(np.count_nonzero(np.diff(fit.group_size)))
    reasons = []
    if len(levels) == 2:
        shape = "a single step" if changes == 1 else f"{changes} changes"
        reasons.append(
            f"n* takes two levels only ({levels[0]:g} and {levels[1]:g}, {shape}): "
            "the slope is set by the smoothing, and the saturation value by the larger level"
        )
    if len(fit.compute) <= NUM_PARAMETERS:
        reasons.append(f"{len(fit.compute)} budgets for {NUM_PARAMETERS} parameters")
    reasons += [f"the {name} is at its bound" for name, hit in zip(("midpoint", "slope"), at_bound, strict=True) if hit]
    if fit.span <= 0:
        reasons.append("n* does not rise with compute")
    elif fit.midpoint > np.log10(fit.compute[-1]):
        reasons.append("the data end before the midpoint of the rise: the saturation value is an extrapolation")
    elif fit.saturation > levels[-1] * 2**EXTRAPOLATION:
        reasons.append(
            f"the fitted value, n = {fit.saturation:.3g}, lies beyond the largest n* seen ({levels[-1]:g}): "
            "an extrapolation"
        )
    return reasons
