"""Runs become configurations: what was trained alike but for the seed stands together, and has a short name.

Two runs are seeds of one configuration when nothing that is known of them differs: n, B_problem, the learning rate and
every other setting (`RunCurve.key`). Each run of a configuration has a seed of its own; one that repeats a seed is left
out, and said.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from isocompute_jax.fit.read.run_curve import RunCurve, is_rate_field

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
