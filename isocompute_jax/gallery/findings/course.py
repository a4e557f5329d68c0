"""n*(C) of a recorded sweep and its switches, by the fitter: as a study makes them.

Record-breaking evaluations, one curve for each n, their envelope.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import pyarrow.compute

from isocompute_jax.fit import AnalysisOptions, SweepResult, analyze
from isocompute_jax.gallery.tables import Sweep


@dataclasses.dataclass(frozen=True)
class Switch:
    """Where the curve of one group size crosses that of the next: C, its 95% interval (None without), and epochs."""

    from_size: int
    to_size: int
    compute: float
    interval95: tuple[float, float] | None
    epochs: float


@dataclasses.dataclass(frozen=True)
class Course:
    """n*(C) of some seeds of a sweep.

    Attributes:
      budgets: (C, n*) at every evaluated budget.
      switches: in order of C.
    """

    budgets: tuple[tuple[float, int], ...]
    switches: tuple[Switch, ...]

    @property
    def octaves(self) -> float:
        """How far n* rises from its first value to its last; a switch beyond the last budget does not count."""
        return float(np.log2(self.budgets[-1][1] / self.budgets[0][1]))


def seeds_of(sweep: Sweep) -> tuple[int, ...]:
    """Of a sweep, rising."""
    return tuple(sorted(set(sweep.table["seed"].to_pylist())))


def analysed(sweep: Sweep, seeds: Sequence[int] = (), *, bootstrap: bool = False) -> SweepResult:
    """The fitter's analysis of some seeds of a sweep; all of them if none is named."""
    chosen = list(seeds or seeds_of(sweep))
    table = sweep.table.filter(pyarrow.compute.field("seed").isin(chosen))
    return analyze(table, AnalysisOptions(records="strict", bootstrap="auto" if bootstrap else "none"))


def course(sweep: Sweep, seeds: Sequence[int] = (), *, bootstrap: bool = False) -> Course:
    """n*(C) up to the last budget, and its switches where curves cross, not where the runs of one end."""
    result = analysed(sweep, seeds, bootstrap=bootstrap)
    budgets = tuple((row.compute, row.group_size) for row in result.frontier.budgets)
    switches = tuple(
        Switch(
            found.row.from_group_size, found.row.to_group_size, found.row.compute, found.interval95, found.row.epochs
        )
        for found in result.frontier.crossings
        if found.row.compute <= budgets[-1][0]
    )
    return Course(budgets, switches)
