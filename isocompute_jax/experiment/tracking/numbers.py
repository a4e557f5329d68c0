"""The numbers of a log line, by the names that trackers show them under."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from isocompute_jax.records import run_files

PREFIXES = {run_files.METRICS: "train", run_files.EVAL: "eval", run_files.AGREEMENT: "agreement"}
"""Log -> what the names of its numbers begin with; other logs hold no numbers to draw."""


def prefix_of(name: str, line: Mapping[str, Any]) -> str:
    """What names of a line's numbers begin with: the log, and of an evaluation its set; empty for none."""
    prefix = PREFIXES.get(name, "")
    return f"{prefix}/{line['eval_set']}" if name == run_files.EVAL else prefix


def numbers(name: str, line: Mapping[str, Any]) -> dict[str, float]:
    """Name -> number, for every number of a line of the log `name`: `train/phase_s/update`, `eval/validation/avg@4`.

    Histograms, texts and what was not measured are left out, as is `step`: it is where the numbers stand.
    """
    prefix = prefix_of(name, line)
    columns = {key: value for key, value in line.items() if key != "step"}
    return dict(run_files.numbers_in(columns, f"{prefix}/")) if prefix else {}
