"""Runs that set n themselves beside the best of the fixed n, at equal compute: chosen on some seeds, scored on others.

The best of several means lies too high: of several n, and of several evaluations of one. So by turns each seed is left
out. The others choose, at each budget, the n and the evaluation up to it; the one that was left out says what that is
worth. A schedule chooses its evaluation alone, in the same way. What a seed then has is the mean over evaluations,
which lie evenly in log C, and the interval is Student's over seeds: they share most of what chooses for them, which
the interval does not know.
"""

from __future__ import annotations

import dataclasses
import math
import pathlib
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pyarrow.compute as pc
import scipy.stats

from isocompute_jax.records.errors import InputError
from isocompute_jax.records.metrics import halves
from research.findings.statistics import Estimate
from research.record import SUFFIX, read_sweep

SETTINGS: Mapping[str, str] = {
    "hard_64": "64 Hard problems",
    "hard_256": "256 Hard problems",
    "hard_all": "all Hard problems",
    "easy_64": "64 Easy problems",
    "mixture_64": "64 problems, half Easy",
    "wide_64": "64 Hard problems, base model twice as wide",
}
"""File below gallery/schedules -> what it is of."""
KINDS: Mapping[str, str] = {"n auto": "auto", "n theory": "theory", "n frontier": "frontier", "n ": "by hand"}
"""Beginning of a run's text `schedule` -> what the page calls it; the first that fits."""
DEALT = "per problem "
"""Beginning of the text of a run that gives each problem an n of its own."""
TRIED = "tried_"
"""Beginning of a file's name: runs of the same setting that the rule was not, by names of their own."""
LEAST_SEEDS = 3
Label = int | str | tuple[str, int]
"""A fixed n, what the page calls a schedule or variant, or a policy and its mean n."""
KEEPS_UP, LOW_END = -0.005, -0.01
"""A schedule keeps up with the frontier from here on: its mean difference, and the lower end of the interval."""


@dataclasses.dataclass(frozen=True, eq=False)
class Runs:
    """Seeds of one configuration: rewards [S, E, 2], of all held-out problems and of those at odd places."""

    seeds: tuple[int, ...]
    compute: np.ndarray  # [E] planned: that of the run that was evaluated first
    rewards: np.ndarray
    group_size: np.ndarray  # [S, E] mean n since the evaluation before

    def best(self, part: int) -> np.ndarray:
        """[E] best mean so far."""
        return np.maximum.accumulate(self.rewards[:, :, part].mean(axis=0))


@dataclasses.dataclass(frozen=True, eq=False)
class Setting:
    """One problem set and base model."""

    name: str
    fixed: Mapping[int, Runs]
    scheduled: Mapping[str, Runs]  # what the page calls a schedule -> its runs
    dealt: Mapping[tuple[str, int], Runs] = dataclasses.field(default_factory=dict)  # policy, mean n -> runs

    @property
    def compute(self) -> np.ndarray:
        """[E] budgets of the evaluations."""
        return np.min([runs.compute for runs in self.fixed.values()], axis=0)

    def frontier(self, part: int) -> dict[int, np.ndarray]:
        """Seed -> [E] what the best fixed n is worth, n and evaluation chosen on the other seeds."""
        return held_out(list(self.fixed.values()), part)

    def difference(self, schedule: str, part: int) -> Estimate:
        """A schedule's reward less the frontier's: mean over log C, over the seeds that both have."""
        return student(np.mean(self._differences(schedule, part), axis=1))

    def dealing(self, policy: str, size: int, part: int) -> Estimate:
        """A policy's reward less that of its mean n for every problem: mean over log C, over the seeds of both."""
        return student(np.mean(paired(held_out([self.dealt[policy, size]], part), self._fixed(size, part)), axis=1))

    def differences(self, schedule: str, part: int) -> list[Estimate]:
        """[E] the same at each budget."""
        return [student(each) for each in np.transpose(self._differences(schedule, part))]

    def change(self, schedule: str, size: int, part: int) -> Estimate:
        """A schedule's reward less that of one fixed n, at the last budget."""
        differences = paired(held_out([self.scheduled[schedule]], part), self._fixed(size, part))
        return student(np.array([each[-1] for each in differences]))

    def _differences(self, schedule: str, part: int) -> list[np.ndarray]:
        return paired(held_out([self.scheduled[schedule]], part), self.frontier(part))

    def _fixed(self, size: int, part: int) -> dict[int, np.ndarray]:
        return held_out([self.fixed[size]], part)

    def saved(self, schedule: str, part: int) -> float:
        """How many times the compute fixed n needs for what the schedule has at the end, or the other way round.

        Above 1: the schedule is there earlier. Best means so far, between evaluations by log C; 1 where it is nowhere
        known which is earlier. Both sides are a best of several, the fixed n of more.
        """
        best = np.max([runs.best(part) for runs in self.fixed.values()], axis=0)
        own, x = self.scheduled[schedule].best(part), np.log(self.compute)
        level = min(best[-1], own[-1])
        return math.exp(_first(x, best, level) - _first(x, own, level))


def held_out(candidates: Sequence[Runs], part: int) -> dict[int, np.ndarray]:
    """Seed -> [E] reward of that seed in the configuration, and at the evaluation, that its other seeds choose.

    Up to each budget. Of seeds that all candidates have.
    """
    seeds = sorted(set.intersection(*(set(each.seeds) for each in candidates)))
    places = [[each.seeds.index(seed) for seed in seeds] for each in candidates]
    values = np.stack([each.rewards[place, :, part] for each, place in zip(candidates, places, strict=True)])
    return dict(zip(seeds, chosen_elsewhere(values), strict=True))


def paired(ours: Mapping[int, np.ndarray], theirs: Mapping[int, np.ndarray]) -> list[np.ndarray]:
    """[E] of ours less theirs, for each seed of both, in order."""
    return [ours[seed] - theirs[seed] for seed in sorted(ours.keys() & theirs.keys())]


def chosen_elsewhere(values: np.ndarray) -> np.ndarray:
    """[S, E] of `values` [K, S, E]: each seed's, in the configuration and at the evaluation that its others choose."""
    found = np.empty(values.shape[1:])
    for seed in range(values.shape[1]):
        others, own = np.delete(values, seed, axis=1).mean(axis=1), values[:, seed]  # [K, E]
        for end in range(1, values.shape[2] + 1):
            chosen = np.unravel_index(np.argmax(others[:, :end]), (len(values), end))
            found[seed, end - 1] = own[:, :end][chosen]
    return found


def student(values: np.ndarray) -> Estimate:
    """The mean of `values` [S], one for each seed, and Student's 95% interval."""
    half = scipy.stats.t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / math.sqrt(len(values))
    return Estimate(float(values.mean()), float(values.mean() - half), float(values.mean() + half), len(values))


def keeps_up(one: Estimate) -> bool:
    """Whether a difference, and its whole interval, lie where a schedule is said to keep up with the frontier."""
    return one.value >= KEEPS_UP and one.low >= LOW_END


def points(one: Estimate) -> str:
    """A difference of rewards in percentage points, with its interval."""
    return f"{100 * one.value:+.1f} ({100 * one.low:+.1f} to {100 * one.high:+.1f})"


def pooled(found: Sequence[Estimate]) -> Estimate:
    """The mean over settings; each has seeds of its own, so that variances add up."""
    halves = np.array([(each.high - each.low) / 2 / scipy.stats.t.ppf(0.975, each.seeds - 1) for each in found])
    freedom = (halves**2).sum() ** 2 / sum(h**4 / (each.seeds - 1) for h, each in zip(halves, found, strict=True))
    value = float(np.mean([each.value for each in found]))
    half = float(scipy.stats.t.ppf(0.975, freedom) * math.sqrt((halves**2).sum()) / len(found))
    return Estimate(value, value - half, value + half, sum(each.seeds for each in found))


def read_setting(gallery: pathlib.Path, name: str) -> Setting:
    """Reads one file of gallery/schedules.

    Raises:
      InputError: runs of it were evaluated unlike each other.
    """
    found = _read(gallery / f"{name}{SUFFIX}", _label)
    return Setting(
        name,
        {n: found[n] for n in sorted(key for key in found if isinstance(key, int))},
        {name: found[name] for name in KINDS.values() if name in found},
        {key: runs for key, runs in found.items() if isinstance(key, tuple)},
    )


def read_tried(gallery: pathlib.Path, setting: Setting) -> Setting:
    """The setting with what was tried beside the rule in place of its schedules: variants, by the names of their runs.

    Raises:
      InputError: runs of them were evaluated unlike each other.
    """
    path = gallery / f"{TRIED}{setting.name}{SUFFIX}"
    found = _read(path, lambda run: run["run"].partition(",seed=")[0]) if path.exists() else {}
    return dataclasses.replace(setting, scheduled={str(name): runs for name, runs in found.items()})


def _label(run: Mapping) -> Label:
    """n of a run of fixed n, policy and mean n of one that deals, and what the page calls any other."""
    text = run.get("schedule") or ""
    if text.startswith(DEALT):
        return text.removeprefix(DEALT), run["group_size"]
    return next((label for start, label in KINDS.items() if text.startswith(start)), text) or run["group_size"]


def _read(path: pathlib.Path, label: Callable[[Mapping], Label]) -> dict[Label, Runs]:
    """The runs of a file, seeds together that have one label."""
    sweep = read_sweep(path)
    rows: dict[str, list[dict]] = {}
    for row in sweep.table.filter(pc.field("compute") > 0).sort_by("compute").to_pylist():
        rows.setdefault(row["run"], []).append(row)
    groups: dict[Label, dict[int, list[dict]]] = {}
    for run in rows.values():
        groups.setdefault(label(run[0]), {})[run[0]["seed"]] = run
    count = max(len(run) for run in rows.values())
    odd = [name for name, run in rows.items() if len(run) != count]
    if odd:
        raise InputError(f"{path.name}: {odd[0]} has {len(rows[odd[0]])} evaluations, others {count}")
    return {key: _runs(runs) for key, runs in groups.items() if len(runs) >= LEAST_SEEDS}


def _runs(runs: Mapping[int, Sequence[Mapping]]) -> Runs:
    seeds = tuple(sorted(runs))
    rewards = [[_rewards(row) for row in runs[seed]] for seed in seeds]
    sizes = [[row.get("train/group_size") or row["group_size"] for row in runs[seed]] for seed in seeds]
    compute = np.min([[row["compute"] for row in runs[seed]] for seed in seeds], axis=0)
    return Runs(seeds, compute, np.array(rewards), np.array(sizes))


def _rewards(row: Mapping) -> tuple[float, float]:
    counts = np.array(row["solve_counts"])
    return float(counts.mean() / row["samples"]), halves(counts, row["samples"])[1]


def _first(x: np.ndarray, rising: np.ndarray, level: float) -> float:
    """Where a curve that never falls first reaches a level, between its points linearly."""
    place = int(np.argmax(rising >= level - 1e-12))
    if place == 0:
        return float(x[0])
    low, high = rising[place - 1], rising[place]
    return float(x[place - 1] + (x[place] - x[place - 1]) * (level - low) / (high - low))
