"""How high reward gets: the level of each configuration, from which n on it no longer rises, and what decides it.

The level of a configuration is the highest mean reward over seeds within its budget: what is left to a run that keeps
its best checkpoint. Where problems are few and learned by heart in the end, it is reached long before the budget is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from isocompute_jax.gallery.curves import Curves, Estimate, Means, curves_of, estimate, estimates, means
from isocompute_jax.gallery.tables import Sweep

LITTLE = 0.25
"""Reward has saturated at an n where larger groups gain less than this share of what was gained up to it."""


def levels(mean: Means) -> dict[int, float]:
    """n -> its level."""
    return {n: float(value[:, 0].max()) for n, (_, value) in mean.items()}


def saturation_size(level: Mapping[int, float]) -> float:
    """log2 of the n at which levels saturate; of the largest n where they do not."""
    return next((float(np.log2(n)) for n in sorted(level)[:-1] if excess(level, n) <= 0), float(np.log2(max(level))))


def excess(level: Mapping[int, float], n: int) -> float:
    """What larger groups have beyond n, a mean over them, less `LITTLE` of what n has beyond the smallest."""
    return float(np.mean([value for m, value in level.items() if m > n])) - level[n] - LITTLE * _gained(level, n)


@dataclasses.dataclass(frozen=True)
class Saturation:
    """Of one sweep.

    Attributes:
      levels: n -> its level.
      log2_size: log2 of the n at which they saturate.
      largest: largest n that was run.
      gained: reward from the smallest n to the one at which the mean curves saturate.
      left: reward that larger groups have beyond that one, a mean over them; 0 where there are none.
    """

    levels: dict[int, Estimate]
    log2_size: Estimate
    largest: int
    gained: Estimate
    left: Estimate

    @property
    def size(self) -> int:
        """n at which the mean curves saturate."""
        return round(2**self.log2_size.value)

    @property
    def sure(self) -> bool:
        """Whether the whole interval of that n is below the largest, and something was gained up to it."""
        return self.log2_size.high < np.log2(self.largest) and self.gained.low > 0

    @property
    def rising(self) -> bool:
        """Whether the whole interval is the largest n: levels still rise there."""
        return self.log2_size.low == np.log2(self.largest)


def saturation(curves: Curves) -> Saturation:
    """Where the levels of a sweep saturate, with intervals over seeds."""
    at = round(2 ** saturation_size(levels(means(curves))))

    def parts(mean: Means) -> list[float]:
        level = levels(mean)
        beyond = [value for n, value in level.items() if n > at] or [level[at]]
        return [*level.values(), saturation_size(level), _gained(level, at), float(np.mean(beyond)) - level[at]]

    *each, size, gained, left = estimates(parts, curves)
    return Saturation(dict(zip(curves, each, strict=True)), size, max(curves), gained, left)


def saturation_shift(of: Curves, beside: Curves) -> Estimate:
    """Octaves by which the n at which one sweep saturates lies above that of another, over the n that both have."""
    sizes = set(of) & set(beside)

    def shift(one: Means, other: Means) -> float:
        first, second = ({n: value for n, value in levels(mean).items() if n in sizes} for mean in (one, other))
        return saturation_size(first) - saturation_size(second)

    return estimate(shift, of, beside)


def _gained(level: Mapping[int, float], n: int) -> float:
    return level[n] - level[min(level)]


@dataclasses.dataclass(frozen=True)
class Point:
    """A configuration: where it is from, n, B_problem, rollouts per step, the learning rate there, and its level."""

    sweep: str
    group_size: int
    problems_per_batch: int
    rollouts_per_step: int
    rate: float
    level: float

    @property
    def noise(self) -> float:
        """Learning rate over rollouts per step: how much of a step's noise stays in the weights."""
        return self.rate / self.rollouts_per_step


def points_of(sweep: Sweep, *, mean: Means | None = None) -> list[Point]:
    """The configurations of a sweep; `mean` in place of its own curves, where seeds were drawn."""
    shared = sweep.facts.shared
    batch = dict(zip(sweep.column("group_size").tolist(), sweep.column("problems_per_batch").tolist(), strict=True))
    found = []
    for n, level in levels(mean or means(curves_of(sweep, "avg@4"))).items():
        rollouts = n * batch[n]
        growth = (rollouts / shared["optimizer.base_batch"]) ** shared["optimizer.lr_scaling_exponent"]
        found.append(Point(sweep.name, n, batch[n], rollouts, shared["optimizer.base_lr"] * growth, level))
    return found


def noise_explains(sweeps: Sequence[Sweep]) -> Estimate:
    """Share of the variance of levels that a parabola in the log of `Point.noise` explains, with its interval."""

    def share(*drawn: Means) -> float:
        points = [point for sweep, mean in zip(sweeps, drawn, strict=True) for point in points_of(sweep, mean=mean)]
        x = np.log([point.noise for point in points])
        y = np.array([point.level for point in points])
        left = y - np.polyval(np.polyfit(x, y, 2), x)
        return float(1 - left.var() / y.var())

    return estimate(share, *(curves_of(sweep, "avg@4") for sweep in sweeps))
