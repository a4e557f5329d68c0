"""What docs/llm.md is computed from: runs of fixed n, and runs that set n themselves, on a published language model."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from isocompute_jax.records.identity import SCHEDULE
from isocompute_jax.records.metrics import halves
from research.findings.statistics import Curves, Estimate, common_budgets
from research.one_run.comparison import chosen_elsewhere, student
from research.record import Seeds, Sweep, read_sweep

AUTO = "auto"
COLUMNS = AVERAGE, WORST, BEST, JUDGED = range(4)
"""avg@4, worst@4, best@4, and avg@4 of the half of the problems on which `auto` does not decide."""
POINTS = 9
"""Budgets at which runs are compared: those of a large n were evaluated at others."""


@dataclasses.dataclass(frozen=True, eq=False)
class LlmRuns:
    """The recorded sweep."""

    sweep: Sweep
    configurations: Mapping[int | str, Seeds]  # n, or `AUTO` -> its seeds, in `COLUMNS`; those of n first, rising
    base: np.ndarray  # [4] `COLUMNS` of the base model: a mean over runs, which all measure it before their first step

    @property
    def fixed(self) -> Curves:
        """n -> its seeds."""
        return {n: seeds for n, seeds in self.configurations.items() if isinstance(n, int)}

    def shared(self, field: str) -> Any:
        """A config field, which all runs have alike."""
        return self.sweep.facts.shared[field]

    def lead_of_auto(self, column: int) -> Estimate:
        """What runs that set n themselves are ahead of the best fixed n: a mean over log C, and Student's interval.

        The n, and the evaluation up to each budget, are chosen on other seeds than the one that is scored (see
        `one_run.comparison`); rewards are taken between evaluations, by log C.
        """
        budgets = np.log(common_budgets(self.configurations, points=POINTS))  # pyright: ignore (keys are not read)

        def at_budgets(one: Seeds) -> np.ndarray:
            return np.stack([np.interp(budgets, np.log(one.compute), run[:, column]) for run in one.values])

        fixed = chosen_elsewhere(np.stack([at_budgets(one) for one in self.fixed.values()]))
        own = chosen_elsewhere(at_budgets(self.configurations[AUTO])[None])
        return student((own - fixed).mean(axis=1))


def read_runs(path: pathlib.Path) -> LlmRuns:
    """Reads the recorded sweep.

    Raises:
      InputError: it is missing.
    """
    sweep = read_sweep(path)
    rows: dict[tuple[int | str, int], list[dict]] = {}
    for row in sweep.table.sort_by("compute").to_pylist():
        label = AUTO if row.get(SCHEDULE) else row["group_size"]
        rows.setdefault((label, row["seed"]), []).append(row)
    labels = sorted({label for label, _ in rows}, key=lambda label: (label == AUTO, label))
    base = [_columns(first) for first, *_ in rows.values()]
    return LlmRuns(
        sweep,
        {label: _seeds([run for (of, _), run in sorted(rows.items(), key=str) if of == label]) for label in labels},
        np.mean(base, axis=0),
    )


def _seeds(runs: list[list[dict]]) -> Seeds:
    """Of one configuration, after the base model's evaluation; runs that set n themselves meet a budget nearly."""
    compute = np.mean([[row["compute"] for row in run[1:]] for run in runs], axis=0)
    return Seeds(compute, np.array([[_columns(row) for row in run[1:]] for run in runs]))


def _columns(row: Mapping[str, Any]) -> list[float]:
    """`COLUMNS` of an evaluation."""
    judged = halves(np.array(row["solve_counts"]), row["samples"])[1]
    return [row["avg@4"], row["worst@4"], row["best@4"], float(judged)]
