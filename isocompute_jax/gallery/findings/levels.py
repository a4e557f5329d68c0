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
      size: n at which they saturate, that of the mean curves.
      gained: reward from the smallest n to that one.
      left: reward that larger groups have beyond it, a mean over them.
      sure: whether the interval excludes that as much as `LITTLE` of the gain is left, and that nothing was gained.
      rising: whether what the largest n gains over the one before it is surely more than `LITTLE`.
    """

    levels: dict[int, Estimate]
    size: int
    gained: Estimate
    left: Estimate
    sure: bool
    rising: bool


def saturation(curves: Curves) -> Saturation:
    """Where the levels of a sweep saturate, with intervals over seeds."""
    sizes = sorted(curves)
    each = estimates(lambda mean: list(levels(mean).values()), curves)
    size = round(2 ** saturation_size({n: one.value for n, one in zip(curves, each, strict=True)}))
    at = min(size, sizes[-2])

    def parts(mean: Means) -> list[float]:
        level = levels(mean)
        left = excess(level, at) + LITTLE * _gained(level, at)
        return [_gained(level, at), left, excess(level, at), excess(level, sizes[-2])]

    gained, left, beyond, last = estimates(parts, curves)
    sure = size < sizes[-1] and beyond.high < 0 < gained.low
    return Saturation(dict(zip(curves, each, strict=True)), size, gained, left, sure, rising=last.low > 0)


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
