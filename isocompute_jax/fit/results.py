"""What the fitter returns: small frozen records, each with a `status` and, where something is off, a `message`."""

from __future__ import annotations

import dataclasses
from typing import Literal

import numpy as np

Status = Literal["ok", "warning", "failed"]


@dataclasses.dataclass(frozen=True)
class Configuration:
    """One cell of a sweep: everything that its runs share but for the random seed.

    Attributes:
      name: what tables and legends call it, e.g. `n = 8` or `n = 8, B = 16`.
      group_size: n, rollouts per problem and step.
      problems_per_batch: B_problem, unique problems per step.
      problem_set_size: D, unique training problems; 0 when unknown.
    """

    name: str
    group_size: int
    problems_per_batch: int
    problem_set_size: int


@dataclasses.dataclass(frozen=True)
class CurveFit:
    """A monotone Hill curve R_C = floor + (asymptote - floor) / (1 + (midpoint / C)^steepness).

    Attributes:
      floor: R0, reward before training.
      asymptote: A, reward of unlimited compute.
      midpoint: C_mid, rollouts at half the gain.
      steepness: B.
      window: compute (rollouts) of the first and last evaluation after the base model's; the curve is used only there.
      num_points: points that the curve was fitted to.
      sse: sum of squared residuals over those points.
      r2: 1 - sse / (sum of squares about their mean); NaN when they are all equal.
      status: `ok`, `warning` (read `message`) or `failed` (the numbers are NaN).
      message: empty, or what is wrong.
    """

    floor: float
    asymptote: float
    midpoint: float
    steepness: float
    window: tuple[float, float]
    num_points: int
    sse: float
    r2: float
    status: Status
    message: str

    def reward(self, compute: np.ndarray | float) -> np.ndarray:
        """Fitted reward at `compute` (rollouts, > 0), inside the window or not."""
        return hill(compute, self.floor, self.asymptote, self.midpoint, self.steepness)


def hill(compute: np.ndarray | float, floor: float, asymptote: float, midpoint: float, steepness: float) -> np.ndarray:
    """R_C = R0 + (A - R0) / (1 + (C_mid / C)^B), the compute-performance law of ScaleRL (arXiv 2510.13786)."""
    return floor + (asymptote - floor) / (1.0 + (midpoint / np.asarray(compute, dtype=np.float64)) ** steepness)


@dataclasses.dataclass(frozen=True)
class Segment:
    """A stretch of compute [start, end] (rollouts) on which curve number `index` is the best one."""

    index: int
    start: float
    end: float


@dataclasses.dataclass(frozen=True)
class Switch:
    """The compute at which the frontier passes from one configuration to another.

    Attributes:
      compute: rollouts.
      from_index: number of the configuration that was best before.
      to_index: number of the configuration that is best after.
      reward: fitted reward of the new configuration there.
      epochs: compute / (n D) of the configuration that is left; NaN when D is unknown.
      span: compute at which the old configuration took the lead, and at which the new one loses it.
      cause: `crossing` of two curves, or `range`: a curve's data begin or end there, which says nothing about n.
    """

    compute: float
    from_index: int
    to_index: int
    reward: float
    epochs: float
    span: tuple[float, float]
    cause: Literal["crossing", "range"]


@dataclasses.dataclass(frozen=True)
class Frontier:
    """The upper envelope over configurations: its segments in order of compute, and the switches between them."""

    segments: tuple[Segment, ...]
    switches: tuple[Switch, ...]

    def index_at(self, compute: float) -> int | None:
        """The best configuration's number at `compute`; at a switch the new one; None outside every window."""
        for segment in reversed(self.segments):
            if segment.start <= compute <= segment.end:
                return segment.index
        return None


@dataclasses.dataclass(frozen=True)
class AllocationFit:
    """The law log2 n* = span / (1 + exp(-slope (log10 C - midpoint))) + floor, and n* as it was fitted.

    Attributes:
      span: L, octaves that n* rises by.
      slope: k, per decade of compute.
      midpoint: log10 C0, decades.
      floor: b, log2 of n* at small compute.
      saturation: 2^(span + floor), the n* of unlimited compute.
      compute: [P] rollouts.
      group_size: [P] n* read off the frontier.
      smoothed: [P] n* after the running average (of log2 n*).
      status: `warning` when the law is degenerate and `failed` when there is nothing to fit.
      message: empty, or the reason.
    """

    span: float
    slope: float
    midpoint: float
    floor: float
    saturation: float
    compute: np.ndarray
    group_size: np.ndarray
    smoothed: np.ndarray
    status: Status
    message: str

    def optimal_group_size(self, compute: np.ndarray | float) -> np.ndarray:
        """n* of the law at `compute` (rollouts, > 0)."""
        exponent = -self.slope * (np.log10(compute) - self.midpoint)
        return 2.0 ** (self.span / (1.0 + np.exp(exponent)) + self.floor)
