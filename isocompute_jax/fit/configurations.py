"""Runs become configurations: what was trained alike but for the seed stands together, and has a short name.

Two runs are seeds of one configuration when nothing that is known of them differs: n, B_problem, the learning rate and
every other setting (`RunCurve.key`). Each run of a configuration has a seed of its own; one that repeats a seed is left
out, and said.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from isocompute_jax.fit.read.run_curve import RunCurve, is_rate_field

SAME_COMPUTE = 0.02
"""Evaluations whose compute differs by less than this share count as one budget (steps round compute differently)."""
EARLY = 0.9
"""A run that ends before this share of what it stands beside ended early (`ended_early`)."""
REACH_ALIKE = 1.1
"""Runs that begin, and end, within this factor of each other are averaged over what all of them cover."""

SIZES = frozenset({"group_size", "problems_per_batch", "problem_set_size"})
"""Fields of a run's identity that a configuration has under their own names."""

MOST_FIELDS = 3
"""Fields besides n, B and the learning rate that stand in a name."""
MOST_NAMED = 5
"""Runs that a note names one by one."""


@dataclasses.dataclass(frozen=True)
class Configuration:
    """What the runs of several seeds have in common; sizes that are unknown are 0."""

    name: str
    group_size: int
    problems_per_batch: int
    problem_set_size: int
    learning_rate: float = 0.0  # 0 where unknown; the highest of a schedule
    settings: tuple[tuple[str, Any], ...] = ()  # name and value of every other field that varies over the sweep

    @property
    def rollouts_per_step(self) -> int:
        """Compute of one step, n B_problem; 0 where unknown."""
        return self.group_size * self.problems_per_batch


@dataclasses.dataclass(frozen=True, eq=False)
class ConfigurationRuns:
    """The runs of one configuration, one per seed."""

    configuration: Configuration
    runs: tuple[RunCurve, ...]


def group_runs(runs: Sequence[RunCurve]) -> tuple[list[ConfigurationRuns], list[str]]:
    """Groups the runs of fixed n into configurations, ordered by n, B_problem and learning rate.

    Scheduled runs have no n of their own: `group_schedules` has them.

    Returns:
      The configurations, and a sentence for each cause of which runs were left out or names were numbered.
    """
    ordered, notes = _by_key([run for run in runs if not run.schedule], lambda run: run.key)
    firsts = [members[0] for members in ordered]
    names, numbered = _names(firsts)
    return _grouped(names, ordered), [*notes, *numbered]


def group_schedules(runs: Sequence[RunCurve]) -> tuple[list[ConfigurationRuns], list[str]]:
    """Groups the scheduled runs, of which those of one schedule that are alike else are seeds of each other.

    Returns:
      Configurations without n and B_problem, named by their schedules, and notes as of `group_runs`.
    """
    ordered, notes = _by_key([run for run in runs if run.schedule], lambda run: (run.schedule, *run.key[2:]))
    firsts = [members[0] for members in ordered]
    names, numbered = _told_apart([run.schedule for run in firsts], firsts)
    groups = [
        ConfigurationRuns(
            dataclasses.replace(group.configuration, group_size=0, problems_per_batch=0, learning_rate=0.0), group.runs
        )
        for group in _grouped(names, ordered)
    ]
    return groups, [*notes, *numbered]


def _grouped(names: Sequence[str], ordered: Sequence[tuple[RunCurve, ...]]) -> list[ConfigurationRuns]:
    firsts = [members[0] for members in ordered]
    varying = _differing(firsts)
    groups = []
    for name, members in zip(names, ordered, strict=True):
        facts, identity = members[0].facts, members[0].identity
        configuration = Configuration(
            name=name,
            group_size=facts.group_size,
            problems_per_batch=facts.problems_per_batch,
            problem_set_size=facts.problem_set_size,
            learning_rate=members[0].learning_rate,
            settings=tuple((field, identity.get(field)) for field in varying),
        )
        groups.append(ConfigurationRuns(configuration, members))
    return groups


def _by_key(runs: Sequence[RunCurve], key: Callable[[RunCurve], tuple]) -> tuple[list[tuple[RunCurve, ...]], list[str]]:
    """The runs of each key in order of their seeds, of one seed the first; a note names the others."""
    cells: dict[tuple, dict[int, RunCurve]] = {}
    repeated = []
    for run in runs:
        first = cells.setdefault(key(run), {}).setdefault(run.facts.seed, run)
        if first is not run:
            repeated.append((run, first))
    ordered = sorted(cells, key=lambda k: (*map(_sortable, k[:3]), str(k)))
    groups = [tuple(cells[k][seed] for seed in sorted(cells[k])) for k in ordered]
    if not repeated:
        return groups, []
    named = ", ".join(
        f"{run.run} of {run.source} repeats {first.run}{'' if first.source == run.source else f' of {first.source}'} "
        f"(seed {run.facts.seed})"
        for run, first in repeated[:MOST_NAMED]
    )
    more = f" and {len(repeated) - MOST_NAMED} more" if len(repeated) > MOST_NAMED else ""
    return groups, [
        f"{len(repeated)} of {len(runs)} runs {'were' if len(repeated) > 1 else 'was'} left out, because another run "
        f"has the same configuration and seed: {named}{more}. If they differ in a setting, name its column."
    ]


def _sortable(value: Any) -> tuple[bool, float, str]:
    """A key's part for sorting: numbers by size, before texts."""
    number = isinstance(value, int | float)
    return not number, value if number else 0.0, "" if number else str(value)


def _differing(members: Sequence[RunCurve]) -> list[str]:
    """The fields in which runs differ, without sizes, and without what the learning rate follows from where known."""
    known = all(run.learning_rate for run in members)
    fields = sorted({field for run in members for field in run.identity})
    return [
        field
        for field in fields
        if field.rsplit(".", 1)[-1] not in SIZES
        and not (known and is_rate_field(field))
        and len({repr(run.identity.get(field)) for run in members}) > 1
    ]


def _names(members: Sequence[RunCurve]) -> tuple[list[str], list[str]]:
    """Short names that tell configurations apart: n, then B_problem, then settings; a note where that takes numbers."""
    sizes = [f"n = {run.facts.group_size}" if run.facts.group_size else run.run for run in members]
    if len(set(sizes)) == len(sizes):
        return sizes, []
    if len({run.facts.problems_per_batch for run in members}) > 1:
        sizes = [f"{size}, B = {run.facts.problems_per_batch}" for size, run in zip(sizes, members, strict=True)]
    return _told_apart(sizes, members)


def _told_apart(names: Sequence[str], members: Sequence[RunCurve]) -> tuple[list[str], list[str]]:
    """The names, with the settings in which those that are alike differ, and with numbers where that does not do."""
    found = []
    for name, run in zip(names, members, strict=True):
        rivals = [other for also, other in zip(names, members, strict=True) if also == name]
        parts = [name]
        if len({other.learning_rate for other in rivals}) > 1:
            parts.append(f"learning rate = {spoken_rate(run.learning_rate)}")
        fields = [field for field in _differing(rivals) if field in run.identity]
        sizes = {other.facts.problem_set_size for other in rivals}
        if len(sizes) > 1 and run.facts.problem_set_size:
            fields.insert(0, "problem_set_size")
        parts += [f"{field.rsplit('.', 1)[-1]} = {run.identity.get(field, '')}" for field in fields[:MOST_FIELDS]]
        found.append(", ".join(parts))
    clashing = [name for name in found if found.count(name) > 1]
    if not clashing:
        return found, []
    numbered, counts = [], dict.fromkeys(clashing, 0)
    for name in found:
        if name in counts:
            counts[name] += 1
            name = f"{name} ({counts[name]})"
        numbered.append(name)
    return numbered, [
        f"{len(clashing)} configurations have numbers in their names, because they differ in settings that their names "
        f"have no room for, such as {', '.join(dict.fromkeys(clashing))}."
    ]


def spoken_rate(rate: float) -> str:
    """A learning rate in digits, as 0.0001, and with an exponent where that is shorter; `unknown` of 0."""
    return f"{rate:g}".replace("e-0", "e-") if rate else "unknown"


def scale(value: float | None) -> str:
    """Writes a count in three figures: `500M`, `1.5B`, `2.1e+19`; a dash where it is unknown."""
    if value is None or not math.isfinite(value):
        return "\N{EN DASH}"
    for factor, letter in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if factor <= value < 1000 * factor:
            return f"{value / factor:.3g}{letter}"
    return f"{value:z.3g}"


@dataclasses.dataclass(frozen=True, eq=False)
class Curve:
    """A configuration's learning curve in one metric."""

    configuration: Configuration
    seeds: tuple[int, ...]  # its S seeds
    compute: np.ndarray  # [E] rollouts, never falling; 0 is the base model
    # [S, E] reward; of seeds that were pooled each point belongs to one seed and is NaN in the others
    per_seed: np.ndarray

    @property
    def reward(self) -> np.ndarray:
        """[E] mean over the seeds that have the point."""
        return np.nanmean(self.per_seed, axis=0) if self.pooled else self.per_seed.mean(axis=0)

    @property
    def pooled(self) -> bool:
        """Whether each point is an evaluation of one seed."""
        return bool(np.isnan(self.per_seed).any())

    @property
    def count(self) -> np.ndarray:
        """[E] seeds that have the point."""
        return np.isfinite(self.per_seed).sum(axis=0)

    @property
    def series(self) -> list[np.ndarray]:
        """[E] bool each: the points of each pooled seed, or all points of a mean; each in order of compute."""
        known = np.isfinite(self.per_seed)
        return list(known) if self.pooled else [np.ones(len(self.compute), bool)]

    def only(self, kept: np.ndarray) -> Curve:
        """The curve at some of its evaluations, `kept` [E] bool or their numbers."""
        return dataclasses.replace(self, compute=self.compute[kept], per_seed=self.per_seed[:, kept])


def average_seeds(group: ConfigurationRuns, metric: str, *, seed: int | None = None) -> Curve | None:
    """The curve of a configuration: the mean of seeds on one grid, or all evaluations of seeds that differ.

    Averaging a changing set of seeds would put steps into the curve, so the mean ends where its shortest seed ends, and
    seeds that do not reach equally far (`REACH_ALIKE`) are pooled, as are those on different grids: nothing is lost.
    The grid of a mean is that of the seed with the most evaluations; others whose computes differ by rounding are read
    off by linear interpolation in log C. Runs without the metric are left out; None when no run has it. A `seed` is
    taken alone.
    """
    series = []
    for run in group.runs:
        values = run.columns.get(metric, np.full_like(run.compute, np.nan))
        known = ~np.isnan(values)
        if known.any() and seed in (None, run.facts.seed):
            series.append((run.facts.seed, run.compute[known], values[known]))
    if not series:
        return None
    trained = [compute[compute > 0] for _, compute, _ in series]
    if not (_on_one_grid(trained) and _reach_alike(trained)):
        return _pooled(group.configuration, series)
    grid = _shared_grid([compute[compute > 0] for _, compute, _ in series])
    values = np.array([read_off(compute, reward, grid) for _, compute, reward in series])
    if all(compute[0] == 0 for _, compute, _ in series):
        base = np.array([[reward[0]] for _, _, reward in series])
        grid, values = np.concatenate([[0.0], grid]), np.concatenate([base, values], axis=1)
    return Curve(group.configuration, tuple(seed for seed, _, _ in series), grid, values)


def _on_one_grid(computes: Sequence[np.ndarray]) -> bool:
    """Whether the series have the same computes, up to `SAME_COMPUTE`, over the range that all of them cover."""
    if not all(len(compute) for compute in computes):
        return True
    low, high = max(c[0] for c in computes), min(c[-1] for c in computes)
    if low > high * (1 + SAME_COMPUTE):
        return False
    for slack in (SAME_COMPUTE, 0.0):  # the ends of the range, too, may differ by rounding
        inside = [c[(c >= low * (1 - slack)) & (c <= high * (1 + slack))] for c in computes]
        first = inside[0]
        if all(len(c) == len(first) and np.all(np.abs(c / first - 1) <= SAME_COMPUTE) for c in inside):
            return True
    return False


def _reach_alike(computes: Sequence[np.ndarray]) -> bool:
    """Whether the series begin and end together, so that next to nothing of them lies outside of what all cover."""
    ends = np.array([(compute[0], compute[-1]) for compute in computes if len(compute)])
    return not len(ends) or bool(np.all(ends.max(axis=0) <= ends.min(axis=0) * REACH_ALIKE))


def _pooled(configuration: Configuration, series: Sequence[tuple[int, np.ndarray, np.ndarray]]) -> Curve:
    """Makes each evaluation of each seed a point; `series` are (seed, compute [E_s], reward [E_s])."""
    owner = np.repeat(np.arange(len(series)), [len(compute) for _, compute, _ in series])
    compute, reward = (np.concatenate([one[i] for one in series]) for i in (1, 2))
    order = np.argsort(compute, kind="stable")
    per_seed = np.full((len(series), len(compute)), np.nan)
    per_seed[owner[order], np.arange(len(compute))] = reward[order]
    return Curve(configuration, tuple(seed for seed, _, _ in series), compute[order], per_seed)


def rollouts_at(group: ConfigurationRuns, compute: float) -> float:
    """Mean rollouts of a configuration's runs at `compute` in another unit, beyond the data in proportion, or NaN."""
    found = []
    for run in group.runs:
        spent = run.columns.get("compute")
        if spent is None or not np.isfinite(spent[-1]) or run.compute[-1] <= 0:
            continue
        known = np.isfinite(spent)
        inside = np.interp(compute, run.compute[known], spent[known])
        found.append(max(inside, spent[-1] * compute / run.compute[-1]) if compute > run.compute[-1] else inside)
    return float(np.mean(found)) if found else float("nan")


def _shared_grid(computes: Sequence[np.ndarray]) -> np.ndarray:
    """The computes of the series with the most points, within the range that every series covers."""
    if not all(len(compute) for compute in computes):
        return np.array([])
    low, high = max(c[0] for c in computes), min(c[-1] for c in computes)
    densest = max(computes, key=len)
    return densest[(densest >= low) & (densest <= high)]


def ended_early(groups: Sequence[ConfigurationRuns]) -> list[str]:
    """One sentence on the runs of tables (which do not say what is finished) that ended before what they stand beside.

    That is the furthest run of their configuration, by compute. Of a configuration with one run, whose length may have
    been meant, it is every other run of the sweep: in compute, and in steps where they are known.
    """
    runs = [run for group in groups for run in group.runs]
    found = []
    for group in groups:
        furthest = max(run.compute[-1] for run in group.runs)
        for run in (run for run in group.runs if run.finished is None):
            end, others = run.compute[-1], [other for other in runs if other is not run]
            if end < EARLY * furthest:
                reach, beside = furthest, f"another run of {group.configuration.name} reaches"
            elif len(group.runs) == 1 and others and _before_all(run, others):
                reach, beside = min(other.compute[-1] for other in others), "every other run reaches at least"
            else:
                continue
            found.append(f"{run.run} at compute {end:g}, {end / reach:.0%} of the {reach:g} that {beside}")
    if not found:
        return []
    more = f"; and {len(found) - MOST_NAMED} more" if len(found) > MOST_NAMED else ""
    return [
        f"{len(found)} of {len(runs)} runs ended early and may have crashed (a table does not say which runs are "
        f"finished): {'; '.join(found[:MOST_NAMED])}{more}."
    ]


def _before_all(run: RunCurve, others: Sequence[RunCurve]) -> bool:
    """Whether a run ended before every other one by compute, and by steps where all have them."""
    steps = [found.columns.get("step", np.array([np.nan]))[-1] for found in (run, *others)]
    measures = [[found.compute[-1] for found in (run, *others)], *([steps] if np.isfinite(steps).all() else [])]
    return all(own < EARLY * min(rest) for own, *rest in measures)


def read_off(compute: np.ndarray, reward: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Reward at computes `at` > 0 by linear interpolation in log C between evaluations with compute > 0."""
    trained = compute > 0
    return np.interp(np.log(at), np.log(compute[trained]), reward[trained]) if trained.any() else np.empty(0)


def clusters(compute: Sequence[float] | np.ndarray) -> list[list[float]]:
    """Sorted distinct computes, those within `SAME_COMPUTE` of the first of them together."""
    found: list[list[float]] = []
    for value in np.unique(compute):
        if found and value <= found[-1][0] * (1 + SAME_COMPUTE):
            found[-1].append(float(value))
        else:
            found.append([float(value)])
    return found
