"""summary.json of a law: a dump of its results, field by field."""

from __future__ import annotations

import dataclasses
from typing import Any

from isocompute_jax.fit.laws.analysis import LawAnalysis
from isocompute_jax.fit.plain_data import fields_of, plain
from isocompute_jax.fit.report.provenance import SCHEMA_VERSION, input_row, versions


def law_summary(analysis: LawAnalysis) -> dict[str, Any]:
    """The content of summary.json: dicts, lists, strings, numbers and None only."""
    options = analysis.options
    return plain({
        "schema_version": SCHEMA_VERSION,
        "analysis": options.analysis,
        "inputs": [input_row(run) for run in analysis.runs],
        "flags": dataclasses.asdict(options),
        "versions": versions(),
        "seed": options.seed if options.analysis == "chinchilla" else None,  # the model-size law draws no numbers
        "warnings": analysis.warnings,
        **fields_of(analysis.result),
    })  # fmt: skip
