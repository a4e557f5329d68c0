"""n*(C): the group size on the frontier, smoothed, and its sigmoid law."""

from __future__ import annotations

import dataclasses
import math
from typing import Literal

import numpy as np

from isocompute_jax.fit.curves.fit_options import padded_points
from isocompute_jax.fit.curves.forms import Share
from isocompute_jax.fit.curves.solver import CurveBatch, RisingFit, fit_rising
from isocompute_jax.fit.intervals import percentile_interval
from isocompute_jax.fit.results import AllocationFit

SLOPE_RANGE = (0.1, 100.0)
"""Bounds of the slope k, per decade of compute (per range of the data in steps)."""

MIDPOINT_MARGIN = 1.0
"""The midpoint is searched from one decade (one range of the data) before the data to one after."""

SATURATION_MARGIN = 0.25
"""Octaves by which the saturation value may exceed the largest n* seen before it counts as an extrapolation."""

FLOOR_MARGIN = 1.0
"""Octaves by which the floor may leave the n* seen before it counts as one: group sizes are swept in octaves."""

NUM_PARAMETERS = 4
MAX_OCTAVES = 1000.0  # 2^1024 overflows
LEAST_SHARE = 0.5
"""Intervals are given when at least this share of the replicates has a rising n*."""


def running_average(values: np.ndarray, *, window: int) -> np.ndarray:
    """[..., P] centred mean over `window` (odd) neighbours; near the ends the window shrinks on both sides alike.

    A one-sided window would pull the ends towards the middle and move the saturation value.
    """
    if window < 1 or window % 2 == 0:
        raise ValueError(f"window = {window} must be odd and at least 1")
    values = np.asarray(values, dtype=np.float64)
    count = values.shape[-1]
    reach = [min(window // 2, i, count - 1 - i) for i in range(count)]
    means = [values[..., i - r : i + r + 1].mean(axis=-1) for i, r in enumerate(reach)]
    return np.stack(means, axis=-1) if means else values


def fit_allocation(
    compute: np.ndarray,
    group_size: np.ndarray,
    *,
    window: int = 1,
    axis: Literal["compute", "steps"] = "compute",
    replicates: np.ndarray | None = None,
    largest: float = math.inf,
) -> AllocationFit:
    """Fits log2 n* = L / (1 + exp(-k (log10 C - log10 C0))) + b (arXiv 2603.12151).

    Args:
      compute: [P] rollouts (or steps), > 0, increasing.
      group_size: [P] n* at those computes, before smoothing.
      window: length of the running average of log2 n* that is fitted; 1 for none. Odd.
      axis: `compute`, or `steps` for the same form in linear M, as in the study at fixed rollouts per step.
      replicates: [R, P] n* of bootstrap replicates at the same computes, NaN where one has none; for the intervals.
      largest: the largest n that was run: where n* reaches it, nothing larger could have led.

    Returns:
      The law with n* saturating at 2^(L + b). Its status is `extrapolated`, with the reason, when its midpoint lies
      outside of the data, its floor more than `FLOOR_MARGIN` outside of the n* seen, or its saturation value more than
      `SATURATION_MARGIN` above them. It is `warning` when the data cannot carry four parameters: one level, a single
      step between two levels, few points, a bound hit, or an n* that ends at the largest n that was run.
    """
    compute = np.asarray(compute, dtype=np.float64)
    group_size = np.asarray(group_size, dtype=np.float64)
    smoothed = 2.0 ** running_average(np.log2(group_size), window=window)
    if len(np.unique(group_size)) < 2:
        return _constant(compute, group_size, smoothed, axis)
    unit, found, (lower, upper) = _fit_laws(compute, smoothed[None], axis)
    values = _laws(unit, found)[0]
    fit = AllocationFit(
        axis=axis,
        **dict(zip(PARAMETERS, map(float, values), strict=True)),
        compute=compute,
        group_size=group_size,
        smoothed=smoothed,
        status="ok",
        message="",
        interval95={} if replicates is None else _intervals(values, compute, replicates, window=window, axis=axis),
    )
    doubts = _doubts(fit, at_bound=((found.theta <= lower) | (found.theta >= upper))[0], largest=largest)
    unseen = _unseen(fit)
    if not (doubts or unseen):
        return fit
    status = "extrapolated" if unseen else "warning"
    return dataclasses.replace(fit, status=status, message="; ".join(doubts + unseen))


PARAMETERS = ("span", "slope", "midpoint", "floor", "saturation")


def _fit_laws(
    compute: np.ndarray, group_size: np.ndarray, axis: str
) -> tuple[float, RisingFit, tuple[np.ndarray, np.ndarray]]:
    """One law for each row of `group_size` [R, P]: the unit of x, the fits in that unit, and the bounds of theta."""
    x = np.log10(compute) if axis == "compute" else compute
    unit = 1.0 if axis == "compute" else float(np.ptp(x)) or 1.0
    x = np.tile(x / unit, (len(group_size), 1))
    pad = ((0, 0), (0, padded_points(x.shape[1]) - x.shape[1]))
    rows = np.ones((len(x), 1))
    lower = rows * [x.min() - MIDPOINT_MARGIN, math.log(SLOPE_RANGE[0])]
    upper = rows * [x.max() + MIDPOINT_MARGIN, math.log(SLOPE_RANGE[1])]
    problem = CurveBatch(
        x=np.pad(x, pad),
        y=np.pad(np.log2(group_size), pad),
        root_weight=np.pad(np.ones_like(x), pad),
        rho=np.zeros(len(x)),
        levels=rows * [-np.inf, np.inf, -np.inf, np.inf],
        lower=lower,
        upper=upper,
    )
    first, last = rows * [x.min(), 0.0], rows * [x.max(), math.log(30.0)]
    return unit, fit_rising(problem, share=Share(), first=first, last=last, ordered=False), (lower, upper)


def _laws(unit: float, found: RisingFit) -> np.ndarray:
    """[R, 5]: `PARAMETERS` of each law."""
    midpoint, slope = found.theta[:, 0] * unit, np.exp(found.theta[:, 1]) / unit
    saturation = 2.0 ** np.minimum(found.high, MAX_OCTAVES)
    return np.stack([found.high - found.low, slope, midpoint, found.low, saturation], axis=1)


def _intervals(
    values: np.ndarray, compute: np.ndarray, replicates: np.ndarray, *, window: int, axis: str
) -> dict[str, tuple[float, float]]:
    """95% percentile intervals over the replicates that have at least two levels; none when too few have.

    A parameter has none where it would not hold its value, or would end where no replicate shows anything: at a bound
    of the search, or at an n beyond those seen.
    """
    whole = replicates[np.isfinite(replicates).all(axis=1)]
    rising = whole[np.ptp(whole, axis=1) > 0] if len(whole) else whole
    if len(rising) < max(2, LEAST_SHARE * len(replicates)):
        return {}
    octaves = np.log2(rising)
    unit, found, bounds = _fit_laws(compute, 2.0 ** running_average(octaves, window=window), axis)
    ends = {
        name: percentile_interval(draws, value)
        for name, draws, value in zip(PARAMETERS, _laws(unit, found).T, values, strict=True)
    }
    least, most = octaves.min() - FLOOR_MARGIN, octaves.max() + SATURATION_MARGIN
    limits = {
        "midpoint": tuple(unit * end[0, 0] for end in bounds),
        "slope": tuple(math.exp(end[0, 1]) / unit for end in bounds),
        "floor": (least, math.inf),
        "saturation": (0.0, 2.0**most),
        "span": (-math.inf, most - least),
    }
    return {name: (low, high) for name, (low, high) in ends.items() if limits[name][0] < low and high < limits[name][1]}


def _constant(
    compute: np.ndarray, group_size: np.ndarray, smoothed: np.ndarray, axis: Literal["compute", "steps"]
) -> AllocationFit:
    nan = math.nan
    if len(group_size) == 0:
        message = "no compute at which a configuration is on the frontier"
        return AllocationFit(axis, nan, nan, nan, nan, nan, compute, group_size, smoothed, "failed", message)
    level = float(group_size[0])
    message = f"n* is {level:g} at every budget: one level, to which no sigmoid can be fitted"
    floor = math.log2(level)
    return AllocationFit(axis, 0.0, nan, nan, floor, level, compute, group_size, smoothed, "warning", message)


def _doubts(fit: AllocationFit, *, at_bound: np.ndarray, largest: float) -> list[str]:
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
    if fit.group_size[-1] >= largest and fit.span > 0:
        reasons.append(f"n* ends at {largest:g}, the largest n that was run, so a larger one might lead")
    if fit.span <= 0:
        reasons.append(f"n* does not rise with {fit.axis}")
    return reasons


def _unseen(fit: AllocationFit) -> list[str]:
    """What the law says of budgets and n that the data do not show; a law of which that is much describes no data."""
    ends = fit.compute[[0, -1]] if fit.axis == "steps" else np.log10(fit.compute[[0, -1]])
    least, most = np.log2(fit.group_size.min()), np.log2(fit.group_size.max())
    reasons = []
    if fit.midpoint > ends[1]:
        reasons.append("the data end before the midpoint of the rise: the saturation value is an extrapolation")
    elif fit.midpoint < ends[0]:
        reasons.append("the data begin after the midpoint of the rise: the floor is an extrapolation")
    if not least - FLOOR_MARGIN <= fit.floor <= most + FLOOR_MARGIN:
        seen, floor = f"{2**least:g} to {2**most:g}", 2.0 ** min(fit.floor, MAX_OCTAVES)
        reasons.append(f"the floor, n = {floor:.3g}, lies far outside of the n* seen ({seen}): an extrapolation")
    if fit.span > 0 and fit.midpoint <= ends[1] and fit.saturation > 2 ** (most + SATURATION_MARGIN):
        reasons.append(
            f"the fitted value, n = {fit.saturation:.3g}, lies beyond the largest n* seen ({2**most:g}): "
            "an extrapolation"
        )
    return reasons
