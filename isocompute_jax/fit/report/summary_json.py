"""summary.json: a dump of the results, field by field. docs/fitter.md documents the keys; null is unknown."""

from __future__ import annotations

from typing import Any

from isocompute_jax.fit.plain_data import fields_of, plain
from isocompute_jax.fit.report.provenance import SCHEMA_VERSION, input_row, versions
from isocompute_jax.fit.sweep_results import SweepResult


def summary_of(result: SweepResult) -> dict[str, Any]:
    """The content of summary.json: dicts, lists, strings, numbers and None only."""
    return plain({
        "schema_version": SCHEMA_VERSION,
        "analysis": "frontier",
        "compute_unit": result.options.read.compute,
        "inputs": [input_row(run) for run in result.runs],
        "flags": result.options.flags(),
        "versions": versions(),
        "seed": result.options.seed,
        "warnings": result.warnings,
        **fields_of(result),
    })  # fmt: skip
