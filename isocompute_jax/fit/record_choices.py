"""The frontier under each rule for the evaluations that count, and whether the rules agree."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence

from isocompute_jax.fit.frontier_results import SwitchRow


@dataclasses.dataclass(frozen=True)
class ChoiceBudget:
    """Who leads at a budget under one choice of evaluations."""

    compute: float
    run: str
    group_size: int


@dataclasses.dataclass(frozen=True)
class RecordChoice:
    """The frontier under one rule for the evaluations that count."""

    num_points: int
    switches: tuple[SwitchRow, ...]
    budgets: tuple[ChoiceBudget, ...]


@dataclasses.dataclass(frozen=True)
class ChoiceRow:
    """Neighbouring budgets with the same leader under each rule."""

    first: float
    last: float
    runs: tuple[str | None, ...]


def choice_rows(choices: Mapping[str, RecordChoice]) -> list[ChoiceRow]:
    """The leaders under each rule, budgets that agree in all of them in one row."""
    leaders = [{row.compute: row.run for row in choice.budgets} for choice in choices.values()]
    budgets = sorted({compute for runs in leaders for compute in runs})
    alike = itertools.groupby(budgets, key=lambda compute: tuple(runs.get(compute) for runs in leaders))
    return [ChoiceRow(some[0], some[-1], runs) for runs, group in alike if (some := list(group))]


@dataclasses.dataclass(frozen=True)
class SwitchesCompared:
    """The crossings under each rule for the evaluations that count.

    Attributes:
      crossings: rule -> its crossings.
      alike: whether all rules have the same switches.
      widest: by which share the computes of the same switch differ at most; 0 without.
    """

    crossings: Mapping[str, Sequence[SwitchRow]]
    alike: bool
    widest: float


def compared_switches(choices: Mapping[str, RecordChoice]) -> SwitchesCompared:
    """Whether the frontier depends on which evaluations count."""
    found = {rule: [s for s in choice.switches if s.cause == "crossing"] for rule, choice in choices.items()}
    courses = [[(s.from_run, s.to_run) for s in switches] for switches in found.values()]
    alike = all(course == courses[0] for course in courses)
    widest = 0.0
    if alike and courses and courses[0]:
        computes = [[s.compute for s in switches] for switches in found.values()]
        widest = max(max(at) / min(at) for at in zip(*computes, strict=True)) - 1
    return SwitchesCompared(found, alike, widest)
