"""Scheduled runs beside the frontier: what one run that changes n is worth against the best of the fixed n.

A scheduled run is never fitted with those of fixed n, for it has no n. It is compared by evaluations alone: at a budget
each side has its best mean reward so far, the schedule as the frontier.

The best of several means lies too high: of several n, and of several evaluations of one. `difference` leaves that in on
both sides, where the frontier has the larger share of it. `difference_held_out` has none: by turns some seeds are left
out, the others choose the n and the evaluation, and those that were left out say what it is worth.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import scipy.special

from isocompute_jax.fit.curves.seeds import SAME_COMPUTE, ConfigurationRuns, aligned, average_seeds
from isocompute_jax.fit.curves.uncertainty import CONFIDENCE, critical
from isocompute_jax.fit.plain_data import INTERNAL, declared
from isocompute_jax.fit.results import Configuration

WITHIN = 0.005
"""A schedule keeps up with the frontier while it is no further below than this share of the range of rewards."""
DRAWS = 2000
LEAST_SEEDS = 3
"""Of each configuration, for a choice on some seeds that the others judge."""
SETTING = ("model", "train_set")
"""Fields of the identity that a schedule shares with the runs that it is compared with; sizes of both, too."""

Kind = Literal["auto", "n", "rate", "per problem", "fork", ""]
KINDS: tuple[Kind, ...] = ("per problem", "rate", "fork", "n")
Ends = tuple[float, float]


@dataclasses.dataclass(frozen=True)
class ScheduleBudget:
    """A schedule at one budget; what is compared is None where no fixed n has been evaluated up to there."""

    compute: float
    reward: float  # its best mean so far
    frontier: float | None = None  # the highest best mean so far of a fixed n
    frontier_run: str | None = None  # whose
    difference: float | None = None  # of the two
    interval95: Ends | None = None  # of that, over seeds drawn again on both sides; None where one side has one seed
    difference_held_out: float | None = None  # with n and evaluation chosen on other seeds; None with too few
    held_out95: Ends | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class ScheduleResult:
    """The runs of one schedule."""

    configuration: Configuration = dataclasses.field(metadata=INTERNAL)  # its name; no n
    group: ConfigurationRuns = dataclasses.field(metadata=INTERNAL)
    compute: np.ndarray = dataclasses.field(metadata=INTERNAL)  # [E] of its evaluations
    rewards: np.ndarray = dataclasses.field(metadata=INTERNAL)  # [S, E]
    budgets: tuple[ScheduleBudget, ...]  # doublings of compute, and the last evaluation
    margin: float  # by which it may lie below the frontier and still keep up with it (`WITHIN`)
    within: float | None  # up to which budget it does; None where never

    def written(self) -> dict[str, Any]:
        """See `plain_data`."""
        runs = self.group.runs
        return {
            "schedule": self.name,
            "runs": [run.run for run in runs],
            "seeds": [run.facts.seed for run in runs],
            "points": {"compute": self.compute, "reward": self.reward},
            "group_sizes": {run.run: run.group_sizes for run in runs if run.group_sizes is not None},
            **declared(self),
        }

    @property
    def name(self) -> str:
        """What tables and legends call it: the schedule, and what tells it from another of the same."""
        return self.configuration.name

    @property
    def reward(self) -> np.ndarray:
        """[E] mean over the seeds."""
        return self.rewards.mean(axis=0)

    @property
    def seeds(self) -> int:
        """How many runs it has."""
        return len(self.rewards)

    @property
    def kind(self) -> Kind:
        """What changes first; empty where that is none of the known things."""
        text = self.group.runs[0].schedule.partition(";")[0].strip()
        found: list[Kind] = [kind for kind in KINDS if text.split(" ")[: len(kind.split())] == kind.split()]
        if text == "n auto":
            return "auto"
        return found[0] if found else ""

    @property
    def last(self) -> ScheduleBudget:
        """Its last evaluation."""
        return self.budgets[-1]

    @property
    def last_compared(self) -> ScheduleBudget | None:
        """The largest budget at which there is a frontier."""
        return next((row for row in reversed(self.budgets) if row.difference is not None), None)


def beside_the_frontier(
    scheduled: Sequence[ConfigurationRuns],
    fixed: Sequence[ConfigurationRuns],
    metric: str,
    *,
    width: float = 1.0,
    seed: int = 0,
) -> tuple[ScheduleResult, ...]:
    """Compares each schedule with the best of the fixed n that share its model and problems.

    Args:
      scheduled: the runs of each schedule (`group_schedules`).
      fixed: those of each fixed configuration.
      metric: column of the rewards.
      width: of their range.
      seed: of the draws behind the intervals.

    Returns:
      One for each schedule with an evaluation after the base model's that all of its seeds reach.
    """
    known = {id(group): _Rewards.of(group, metric) for group in (*scheduled, *fixed)}
    found = []
    for group in scheduled:
        own = known[id(group)]
        if own is None or not (own.compute > 0).any():
            continue
        alike = [each for each in fixed if _setting(each) == _setting(group)]
        rivals = [rewards for each in alike if (rewards := known[id(each)]) is not None]
        budgets = _compared(own, rivals, _grid(own.compute), seed)
        margin = WITHIN * (width if math.isfinite(width) else 1.0)
        within = _within(budgets, margin)
        found.append(ScheduleResult(group.configuration, group, own.compute, own.values, budgets, margin, within))
    return tuple(found)


@dataclasses.dataclass(frozen=True, eq=False)
class _Rewards:
    """One configuration: compute [E], 0 for the base model, and rewards [S, E] of its seeds."""

    name: str
    compute: np.ndarray
    values: np.ndarray

    @classmethod
    def of(cls, group: ConfigurationRuns, metric: str) -> _Rewards | None:
        curve = average_seeds(group, metric)
        compute, values = aligned(curve) if curve is not None else (np.empty(0), np.empty((0, 0)))
        return cls(group.configuration.name, compute, values) if len(compute) else None

    def places(self, budgets: np.ndarray) -> np.ndarray:
        """[P] number of the last evaluation at or before each budget; -1 without one."""
        return np.searchsorted(self.compute, budgets * (1 + SAME_COMPUTE), side="right") - 1

    def best(self, budgets: np.ndarray, means: np.ndarray | None = None) -> np.ndarray:
        """[..., P] best mean so far at budgets, of the `means` [..., E] or its own; -inf without an evaluation."""
        best = np.maximum.accumulate(self.values.mean(axis=0) if means is None else means, axis=-1)
        places = self.places(budgets)
        return np.where(places >= 0, best[..., np.maximum(places, 0)], -np.inf)

    def drawn(self, rng: np.random.Generator) -> np.ndarray:
        """[DRAWS, E] means over seeds drawn again, as far from the mean as means of so few seeds lie."""
        count = len(self.values)
        weights = rng.multinomial(count, np.full(count, 1 / count), size=DRAWS) / count
        mean = self.values.mean(axis=0)
        return mean + math.sqrt(count / max(count - 1, 1)) * (weights @ self.values - mean)

    def held_out(self, fold: int, folds: int, place: int) -> tuple[float, float]:
        """The best mean of the seeds outside of a fold, up to an evaluation, and the mean of those inside there."""
        inside = np.arange(len(self.values)) % folds == fold
        chosen = self.values[~inside, : place + 1].mean(axis=0)
        best = int(np.argmax(chosen))
        return float(chosen[best]), float(self.values[inside, best].mean())


def _setting(group: ConfigurationRuns) -> tuple:
    run = group.runs[0]
    return run.facts.problem_set_size, run.facts.model_params, *(run.identity.get(name) for name in SETTING)


def _grid(compute: np.ndarray) -> np.ndarray:
    """Doublings of compute (whole powers of two) from the first evaluation after the base model's, and the last."""
    first, last = compute[compute > 0][[0, -1]]
    powers = 2.0 ** np.arange(math.ceil(math.log2(first / (1 + SAME_COMPUTE))), math.ceil(math.log2(last)))
    return np.append(powers[powers * (1 + SAME_COMPUTE) < last], last)


def _compared(own: _Rewards, fixed: Sequence[_Rewards], budgets: np.ndarray, seed: int) -> tuple[ScheduleBudget, ...]:
    """The schedule and the frontier at each budget."""
    reward = own.best(budgets)
    if not fixed:
        return tuple(ScheduleBudget(*row) for row in zip(budgets.tolist(), reward.tolist(), strict=True))
    best = np.array([each.best(budgets) for each in fixed])  # [K, P]
    reached = np.any([budgets <= each.compute[-1] * (1 + SAME_COMPUTE) for each in fixed], axis=0)
    begun = np.any([each.compute[np.maximum(each.places(budgets), 0)] > 0 for each in fixed], axis=0)
    leader = np.argmax(best, axis=0)
    rng = np.random.default_rng(seed)
    draws = own.best(budgets, own.drawn(rng))
    draws = draws - np.max([each.best(budgets, each.drawn(rng)) for each in fixed], axis=0)
    rows = []
    for i, compute in enumerate(budgets.tolist()):
        if not (reached[i] and begun[i]):
            rows.append(ScheduleBudget(compute, float(reward[i])))
            continue
        leading = fixed[leader[i]]
        difference = float(reward[i] - best[leader[i], i])
        seeds = len(own.values), len(leading.values)
        ends = _interval(difference, draws[:, i], sum(seeds) - 2) if min(seeds) > 1 else None
        held_out = _held_out(own, fixed, compute)
        rows.append(
            ScheduleBudget(
                compute, float(reward[i]), float(best[leader[i], i]), leading.name, difference, ends, *held_out
            )
        )
    return tuple(rows)


def _interval(value: float, draws: np.ndarray, freedom: int) -> Ends:
    """The middle 95% of the draws about the value, as much wider as Student's t is with so few seeds."""
    outside = (1 - CONFIDENCE) / 2
    wider = critical(freedom) / scipy.special.ndtri(1 - outside)
    low, high = (np.quantile(draws, [outside, 1 - outside]) - draws.mean()) * wider
    return value + float(low), value + float(high)


def _held_out(own: _Rewards, fixed: Sequence[_Rewards], budget: float) -> tuple[float | None, Ends | None]:
    """The difference with n and evaluation chosen on other seeds than those that judge, and its interval."""
    ours, theirs = (_scores(side, budget) for side in ([own], fixed))
    if ours is None or theirs is None:
        return None, None
    difference = float(ours.mean() - theirs.mean())
    parts = np.array([side.var(ddof=1) / len(side) for side in (ours, theirs)])
    if not parts.sum():
        return difference, (difference, difference)
    freedom = parts.sum() ** 2 / np.sum(parts**2 / [len(ours) - 1, len(theirs) - 1])
    half = float(critical(freedom)) * math.sqrt(parts.sum())  # Welch: the sides may differ in their noise
    return difference, (difference - half, difference + half)


def _scores(side: Sequence[_Rewards], budget: float) -> np.ndarray | None:
    """[F] what the choice of the other seeds is worth in each fold of seeds; None with too few of them."""
    places = [int(each.places(np.array([budget]))[0]) for each in side]
    evaluated = [(each, place) for each, place in zip(side, places, strict=True) if place >= 0]
    folds = min((len(each.values) for each, _ in evaluated), default=0)
    if folds < LEAST_SEEDS:
        return None
    return np.array([max(each.held_out(fold, folds, place) for each, place in evaluated)[1] for fold in range(folds)])


def _within(budgets: Sequence[ScheduleBudget], margin: float) -> float | None:
    """The last budget up to which the schedule is nowhere further than the margin below the frontier."""
    reached = None
    for row in budgets:
        if row.difference is None:
            continue
        if row.difference < -margin:
            break
        reached = row.compute
    return reached
