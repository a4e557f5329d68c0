"""Who leads by the evaluations alone, without a fit, and who cannot be told from the leader within seed noise."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import scipy.special

from isocompute_jax.fit.curves.seeds import SAME_COMPUTE, Curve, merge_close, read_off
from isocompute_jax.fit.curves.uncertainty import CONFIDENCE

NEAR = 1.25
"""Evaluations within this factor of a compute say something about it."""


@dataclasses.dataclass(frozen=True, eq=False)
class Budget:
    """How the configurations compare at one compute, from the evaluations themselves (no fit).

    Attributes:
      compute: rollouts.
      mean: [K] mean reward over seeds; NaN where a configuration has no data.
      seed_sd: standard deviation of one seed's reward, pooled over configurations; NaN with one seed each.
      best: number of the configuration with the highest mean.
      tied: those within one standard error of the difference of the best, itself included; only `best` without noise.
      behind: those clearly below the best: beyond the 95% interval of the difference, for all pairs at once
        (Bonferroni: the best of several is picked because it is high); none without noise.
    """

    compute: float
    mean: np.ndarray
    seed_sd: float
    best: int
    tied: tuple[int, ...]
    behind: tuple[int, ...]


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
    tied = {best} | {int(k) for k in np.flatnonzero(below <= error)}
    count = int(np.count_nonzero(~np.isnan(mean)))
    pairs = max(count * (count - 1) // 2, 1)
    least = scipy.special.stdtrit(max(freedom, 1), 1 - (1 - CONFIDENCE) / 2 / pairs) * error
    behind = tuple(int(k) for k in np.flatnonzero(below > least))  # none where the noise, and so the limit, is NaN
    return Budget(compute, mean, seed_sd, best, tuple(sorted(tied)), behind)


def lead(curves: Sequence[Curve], better: int, worse: int, *, compute: np.ndarray) -> tuple[float, float]:
    """How far `better` is ahead of `worse` on average over several budgets: (difference, its standard error).

    A seed's evaluations move together, so each seed is averaged over the budgets first and counts as one observation;
    the variance of these is pooled over configurations. Of budgets that only some seeds of a pooled curve reach none
    counts, unless there are no others: else the seeds that begin late or end early would not.

    Args:
      curves: all configurations.
      better: number of one of them.
      worse: number of another.
      compute: [P] budgets.

    Returns:
      NaN for what the data do not give.
    """
    covered = compute[_reached(curves[better], compute) & _reached(curves[worse], compute)]
    compute = covered if len(covered) else compute
    levels = [_level(curve, compute) for curve in curves]
    one, other = levels[better], levels[worse]
    if one is None or other is None:
        return float("nan"), float("nan")
    error = _pooled_sd(levels)[0] * np.sqrt(1.0 / len(one) + 1.0 / len(other))
    return float(one.mean() - other.mean()), float(error)


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
