"""Who leads by the evaluations alone, without a fit, and who cannot be told from the leader within seed noise."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import scipy.special

from isocompute_jax.fit.curves.seeds import SAME_COMPUTE, Curve, merge_close, read_off
from isocompute_jax.fit.curves.uncertainty import CONFIDENCE
from isocompute_jax.fit.results import Configuration

NEAR = 1.25
"""Evaluations within this factor of a compute say something about it."""


@dataclasses.dataclass(frozen=True, eq=False)
class Budget:
    """How K configurations compare at one compute, from the evaluations themselves (no fit)."""

    compute: float
    mean: np.ndarray  # [K] mean reward over seeds; NaN where a configuration has no data
    seed_sd: float  # standard deviation of one seed's reward, pooled over configurations; NaN with one seed each
    best: Configuration  # the highest mean
    tied: tuple[Configuration, ...]  # within one standard error of the difference of the best, itself included
    behind: tuple[Configuration, ...]  # clearly below the best: beyond the 95% interval of the difference, for all
    # pairs at once (Bonferroni: the best of several is picked because it is high); none without noise

    DUMPED: ClassVar[tuple[str, ...]] = (
        "compute", "best_run", "best_group_size", "tied_runs", "tied_group_sizes", "compared", "reward", "seed_sd",
    )  # fmt: skip

    @property
    def best_run(self) -> str:
        """Name of the best."""
        return self.best.name

    @property
    def best_group_size(self) -> int:
        """Its n."""
        return self.best.group_size

    @property
    def reward(self) -> float:
        """Its mean."""
        return float(np.nanmax(self.mean))

    @property
    def tied_runs(self) -> tuple[str, ...]:
        """Names of the best and of those tied with it."""
        return tuple(each.name for each in self.tied)

    @property
    def rivals(self) -> list[str]:
        """Names of those tied with the best."""
        return [run for run in self.tied_runs if run != self.best_run]

    @property
    def tied_group_sizes(self) -> tuple[int, ...]:
        """Every n of those that tie."""
        return tuple(sorted({each.group_size for each in self.tied}))

    @property
    def compared(self) -> int:
        """How many configurations have data there."""
        return int(np.count_nonzero(~np.isnan(self.mean)))

    def wants_larger_n(self, other: Budget) -> bool | None:
        """Whether it asks for a larger n than another one; None where the same n serves both within noise."""
        if set(self.tied_group_sizes) & set(other.tied_group_sizes):
            return None
        return self.best_group_size >= other.best_group_size


def nearest(budgets: Sequence[Budget], compute: float) -> Budget | None:
    """The evaluated budget nearest to a compute, inside the data or at their end; None where none is near (`NEAR`)."""
    at = min(compute, max((budget.compute for budget in budgets), default=math.nan))
    near = min(budgets, key=lambda budget: abs(math.log(budget.compute / at)), default=None)
    return near if near and max(near.compute / at, at / near.compute) <= NEAR else None


def compare(curves: Sequence[Curve]) -> list[Budget]:
    """Compares the configurations at every evaluated compute > 0, with ties inside seed noise."""
    trained = [curve.compute[curve.compute > 0] for curve in curves]
    if not any(len(compute) for compute in trained):
        return []
    return [_compare_at(float(c), curves) for c in merge_close(np.concatenate(trained))]


def _compare_at(compute: float, curves: Sequence[Curve]) -> Budget:
    levels = [_level(curve, np.array([compute])) for curve in curves]
    mean = np.array([np.nan if level is None else level.mean() for level in levels])
    seeds = np.array([1 if level is None else len(level) for level in levels])
    seed_sd, freedom = _pooled_sd(levels)
    best = int(np.nanargmax(mean))
    error = seed_sd * np.sqrt(1.0 / seeds + 1.0 / seeds[best])
    below = mean[best] - mean
    count = int(np.count_nonzero(~np.isnan(mean)))
    pairs = max(count * (count - 1) // 2, 1)
    least = scipy.special.stdtrit(max(freedom, 1), 1 - (1 - CONFIDENCE) / 2 / pairs) * error
    tied = (below <= error) | (np.arange(len(curves)) == best)
    behind = below > least  # none where the noise, and so the limit, is NaN

    def of(chosen: np.ndarray) -> tuple[Configuration, ...]:
        return tuple(curve.configuration for curve, is_one in zip(curves, chosen, strict=True) if is_one)

    return Budget(compute, mean, seed_sd, curves[best].configuration, of(tied), of(behind))


def lead(
    curves: Sequence[Curve], better: Configuration, worse: Configuration, *, compute: np.ndarray
) -> tuple[float, float]:
    """How far `better` is ahead of `worse` on average over several budgets: (difference, its standard error).

    A seed's evaluations move together, so each seed is averaged over the budgets first and counts as one observation;
    the variance of these is pooled over configurations. Of budgets that only some seeds of a pooled curve reach none
    counts, unless there are no others: else the seeds that begin late or end early would not.

    Args:
      curves: all configurations.
      better: one of them.
      worse: another.
      compute: [P] budgets.

    Returns:
      NaN for what the data do not give.
    """
    names = [curve.configuration for curve in curves]
    one, other = names.index(better), names.index(worse)
    covered = compute[_reached(curves[one], compute) & _reached(curves[other], compute)]
    compute = covered if len(covered) else compute
    levels = [_level(curve, compute) for curve in curves]
    ahead, below = levels[one], levels[other]
    if ahead is None or below is None:
        return math.nan, math.nan
    error = _pooled_sd(levels)[0] * np.sqrt(1.0 / len(ahead) + 1.0 / len(below))
    return float(ahead.mean() - below.mean()), float(error)


def _reached(curve: Curve, compute: np.ndarray) -> np.ndarray:
    """[P] bool: budgets that every seed of a pooled curve reaches over; all of them for a mean."""
    found = np.ones(len(compute), bool)
    if curve.pooled:
        for number in range(len(curve.seeds)):
            own = curve.of_seed(number)[0]
            own = own[own > 0]
            if len(own):
                found &= (compute >= own[0] * (1 - SAME_COMPUTE)) & (compute <= own[-1] * (1 + SAME_COMPUTE))
    return found


def _level(curve: Curve, compute: np.ndarray) -> np.ndarray | None:
    """[S] mean reward over budgets `compute` of each seed that reaches over all of them; None when none does."""
    if not len(compute):
        return None
    found = []
    for own, reward in map(curve.of_seed, range(len(curve.seeds))):
        trained = own[own > 0]
        if not len(trained) or compute.min() < trained[0] * (1 - SAME_COMPUTE):
            continue
        if compute.max() <= trained[-1] * (1 + SAME_COMPUTE):
            found.append(read_off(own, reward, compute).mean())
    return np.array(found) if found else None


def _pooled_sd(levels: Sequence[np.ndarray | None]) -> tuple[float, int]:
    """Standard deviation of one seed, pooled over configurations, and its freedom; NaN when none has two seeds."""
    known = [level for level in levels if level is not None]
    freedom = sum(len(level) - 1 for level in known)
    squares = sum(float(np.sum((level - level.mean()) ** 2)) for level in known)
    return (float(np.sqrt(squares / freedom)) if freedom else float("nan")), freedom
