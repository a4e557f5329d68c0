"""The law log2 n* = L / (1 + exp(-k (log10 C - log10 C0))) + b along compute, or the same form in linear steps."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Literal

import numpy as np

from isocompute_jax.fit.curves.fit_options import padded_points
from isocompute_jax.fit.curves.forms import HILL
from isocompute_jax.fit.curves.solver import CurveBatch, fit_rising

SLOPE_RANGE, MIDPOINT_MARGIN = (0.1, 100.0), 1.0
"""Bounds of the slope k, per decade, and decades that the midpoint may leave the data by (ranges of them in steps)."""
SATURATION_MARGIN = 0.25
"""Octaves by which the saturation value may exceed the largest n* seen before it counts as an extrapolation."""
FLOOR_MARGIN = 1.0
"""Octaves by which the floor may leave the n* seen before it counts as one: group sizes are swept in octaves."""
NUM_PARAMETERS, MAX_OCTAVES = 4, 1000.0  # 2^1024 overflows
LawStatus = Literal["ok", "warning", "extrapolated", "failed"]
LawDoubt = Literal[
    "no budgets",
    "one level",  # n* is the same everywhere: the level is the floor, and there is no sigmoid
    "two levels",  # the smoothing sets the slope
    "few budgets",  # no more than parameters
    "at a bound",  # midpoint or slope
    "ends at the largest n",  # a larger one might lead
    "does not rise",
    "midpoint outside",  # of the data: floor or saturation value is an extrapolation
    "floor outside",  # of the n* seen
    "saturation outside",  # beyond the largest n* seen
]
_EXTRAPOLATED = ("midpoint outside", "floor outside", "saturation outside")


@dataclasses.dataclass(frozen=True, eq=False)
class AllocationFit:
    """The law log2 n* = span / (1 + exp(-slope (x - midpoint))) + floor, and n* as it was fitted."""

    axis: Literal["compute", "steps"]  # x = log10 C, or x = M for sweeps at a fixed number of rollouts per step
    span: float  # L, octaves that n* rises by
    slope: float  # k, per decade of compute, or per step
    midpoint: float  # log10 C0, decades; or M0, steps
    floor: float  # b, log2 of n* at small compute
    saturation: float  # 2^(span + floor), the n* of unlimited compute
    compute: np.ndarray  # [P] rollouts, or steps
    group_size: np.ndarray  # [P] n* read off the frontier
    smoothed: np.ndarray  # [P] n* after the running average (of log2 n*)
    status: LawStatus  # `warning`: the data cannot carry it; `extrapolated`: part of it lies outside of them
    doubts: tuple[LawDoubt, ...]

    def written(self) -> dict[str, Any]:
        """See `plain_data`: the law without the n* that it was fitted to."""
        law = {name: getattr(self, name) for name in ("span", "slope", "midpoint", "floor")}
        return {"law": law} | {name: getattr(self, name) for name in ("axis", "saturation", "status", "doubts")}

    def optimal_group_size(self, compute: np.ndarray | float) -> np.ndarray:
        """n* of the law at `compute` (> 0; rollouts or steps, see `axis`)."""
        x = np.log10(compute) if self.axis == "compute" else np.asarray(compute, np.float64)
        with np.errstate(over="ignore"):
            return 2.0 ** (self.span / (1.0 + np.exp(-self.slope * (x - self.midpoint))) + self.floor)


def running_average(values: np.ndarray, *, window: int) -> np.ndarray:
    """[P] centred mean over `window` (odd) neighbours; near the ends the window shrinks on both sides alike.

    A one-sided window would pull the ends towards the middle and move the saturation value.
    """
    if window < 1 or window % 2 == 0:
        raise ValueError(f"window = {window} must be odd and at least 1")
    values = np.asarray(values, dtype=np.float64)
    reach = [min(window // 2, i, len(values) - 1 - i) for i in range(len(values))]
    return np.array([values[i - r : i + r + 1].mean() for i, r in enumerate(reach)])


def fit_allocation(
    compute: np.ndarray,
    group_size: np.ndarray,
    *,
    window: int = 1,
    axis: Literal["compute", "steps"] = "compute",
    largest: float = math.inf,
) -> AllocationFit:
    """Fits the law by least squares in log2 n* (arXiv 2603.12151).

    Args:
      compute: [P] rollouts (or steps), > 0, increasing.
      group_size: [P] n* at those computes, before smoothing.
      window: length of the running average of log2 n* that is fitted; 1 for none. Odd.
      axis: `compute`, or `steps` for the same form in linear M, as in the study at fixed rollouts per step.
      largest: the largest n that was run: where n* reaches it, nothing larger could have led.
    """
    compute, group_size = np.asarray(compute, np.float64), np.asarray(group_size, np.float64)
    smoothed = 2.0 ** running_average(np.log2(group_size), window=window)
    if len(np.unique(group_size)) < 2:
        level = float(group_size[0]) if len(group_size) else math.nan
        values = (0.0 if len(group_size) else math.nan, math.nan, math.nan, math.log2(level), level)
        doubt: LawDoubt = "one level" if len(group_size) else "no budgets"
        status = "warning" if len(group_size) else "failed"
        return AllocationFit(axis, *values, compute, group_size, smoothed, status, (doubt,))
    x = np.log10(compute) if axis == "compute" else compute
    unit = 1.0 if axis == "compute" else float(np.ptp(x)) or 1.0
    (low, high, midpoint, log_slope), at_bound = _search(x / unit, np.log2(smoothed))
    values = (high - low, math.exp(log_slope) / unit, midpoint * unit, low, 2.0 ** min(high, MAX_OCTAVES))
    fit = AllocationFit(axis, *values, compute, group_size, smoothed, "ok", ())
    doubts = _doubts(fit, at_bound=at_bound, largest=largest)
    status = "extrapolated" if set(doubts) & set(_EXTRAPOLATED) else "warning" if doubts else "ok"
    return dataclasses.replace(fit, status=status, doubts=doubts)


def _search(x: np.ndarray, octaves: np.ndarray) -> tuple[tuple[float, ...], bool]:
    """(low, high, midpoint, ln slope) of the least-squares sigmoid, and whether midpoint or slope stands at a bound."""
    pad = (0, padded_points(len(x)) - len(x))
    lower = np.array([[x.min() - MIDPOINT_MARGIN, math.log(SLOPE_RANGE[0])]])
    upper = np.array([[x.max() + MIDPOINT_MARGIN, math.log(SLOPE_RANGE[1])]])
    problem = CurveBatch(
        x=np.pad(x, pad)[None],
        y=np.pad(octaves, pad)[None],
        root_weight=np.pad(np.ones(len(x)), pad)[None],
        rho=np.zeros(1),
        link=np.ones((1, len(x) + pad[1])),
        runs=np.zeros((1, len(x) + pad[1], 0)),
        levels=np.array([[-np.inf, np.inf, -np.inf, np.inf]]),
        lower=lower,
        upper=upper,
        first=np.array([[x.min(), 0.0]]),
        last=np.array([[x.max(), math.log(30.0)]]),
    )
    at, _, _ = fit_rising(problem, form=HILL, ordered=False)
    return tuple(at[0].tolist()), bool(np.any((at[:, 2:] <= lower) | (at[:, 2:] >= upper)))


def _doubts(fit: AllocationFit, *, at_bound: bool, largest: float) -> tuple[LawDoubt, ...]:
    """What speaks against the law; empty when nothing does."""
    ends = fit.compute[[0, -1]] if fit.axis == "steps" else np.log10(fit.compute[[0, -1]])
    least, most = np.log2(fit.group_size.min()), np.log2(fit.group_size.max())
    beyond = fit.span > 0 and fit.midpoint <= ends[1] and fit.saturation > 2 ** (most + SATURATION_MARGIN)
    found: dict[LawDoubt, bool] = {
        "two levels": len(np.unique(fit.group_size)) == 2,
        "few budgets": len(fit.compute) <= NUM_PARAMETERS,
        "at a bound": at_bound,
        "ends at the largest n": bool(fit.group_size[-1] >= largest and fit.span > 0),
        "does not rise": fit.span <= 0,
        "midpoint outside": not ends[0] <= fit.midpoint <= ends[1],
        "floor outside": not least - FLOOR_MARGIN <= fit.floor <= most + FLOOR_MARGIN,
        "saturation outside": beyond,
    }
    return tuple(doubt for doubt, holds in found.items() if holds)
