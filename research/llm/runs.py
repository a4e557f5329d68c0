"""What docs/llm.md is computed from: runs of fixed n, and runs that set n themselves, on a published language model."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from isocompute_jax.records.identity import SCHEDULE
from isocompute_jax.sweeps.record import Seeds, Sweep, read_sweep
from research.findings.statistics import Curves
from research.one_run.comparison import Setting, read_setting

AUTO = "auto"
COLUMNS = ("avg@4", "worst@4", "best@4")


@dataclasses.dataclass(frozen=True, eq=False)
class LlmRuns:
    """The recorded sweep."""

    sweep: Sweep
    configurations: Mapping[int | str, Seeds]  # n, or `AUTO` -> its seeds, in `COLUMNS`; those of n first, rising
    base: np.ndarray  # [3] `COLUMNS` of the base model: a mean over runs, which all measure it before their first step
    setting: Setting  # the same runs, to be compared at equal compute

    @property
    def fixed(self) -> Curves:
        """n -> its seeds."""
        return {n: seeds for n, seeds in self.configurations.items() if isinstance(n, int)}

    def shared(self, field: str) -> Any:
        """A config field, which all runs have alike."""
        return self.sweep.facts.shared[field]


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
    base = [[first[name] for name in COLUMNS] for first, *_ in rows.values()]
    return LlmRuns(
        sweep,
        {label: _seeds([run for (of, _), run in sorted(rows.items(), key=str) if of == label]) for label in labels},
        np.mean(base, axis=0),
        read_setting(path.parent, path.stem),
    )


def _seeds(runs: list[list[dict]]) -> Seeds:
    """Of one configuration, after the base model's evaluation; runs that set n themselves meet a budget nearly."""
    compute = np.mean([[row["compute"] for row in run[1:]] for run in runs], axis=0)
    return Seeds(compute, np.array([[[row[name] for name in COLUMNS] for row in run[1:]] for run in runs]))
