"""95% percentile intervals of draws: one that does not hold the number that stands beside it is not given."""

from __future__ import annotations

import dataclasses
import math
from typing import Literal

import numpy as np

PERCENTILES = (2.5, 97.5)

ROUNDING = 1e-9
"""Of an end of an interval: draws that are all alike differ by so much from their mean."""


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A number with its 95% interval, and whether the data pin it down at all."""

    value: float  # NaN when there is none
    low: float  # lower end of the interval; 0 or -inf when the data set none, NaN when it is unknown
    high: float  # upper end; inf when the data set none, NaN when it is unknown
    identified: bool  # whether the value may be quoted; when not, only the interval's reach says something
    note: str  # empty, or why it is not identified


def percentile_interval(
    draws: np.ndarray, estimate: float, *, rounding: float = ROUNDING, method: Literal["linear", "nearest"] = "linear"
) -> tuple[float, float]:
    """The interval of an estimate by draws of it [R], of which NaN ones do not count.

    NaN ends where it does not hold the estimate: draws that lie to one side of it are biased by more than they scatter,
    and an interval of them says nothing of what was estimated. NaN ends too without draws.
    """
    draws = draws[~np.isnan(draws)]
    if not len(draws):
        return math.nan, math.nan
    low, high = np.percentile(draws, PERCENTILES, method=method).tolist()
    return holding(low, high, estimate, rounding=rounding)


def whole_or_none(ends: tuple[int, int] | None, estimate: float) -> tuple[int, int] | None:
    """The interval of a whole number such as n; None where there is none, or it does not hold the estimate."""
    return ends if ends is not None and ends[0] <= estimate <= ends[1] else None


def holding(low: float, high: float, estimate: float, *, rounding: float = ROUNDING) -> tuple[float, float]:
    """The ends of an interval where it holds the estimate, up to the rounding of both, a share of them; else NaN."""
    slack = rounding * max(abs(low), abs(high))
    if not low - slack <= estimate <= high + slack:
        return math.nan, math.nan
    return float(min(low, estimate)), float(max(high, estimate))
