"""What the data say, as sentences, each a wording of results, as strong as they are."""

from __future__ import annotations

from isocompute_jax.fit.report.findings.curve_findings import identification
from isocompute_jax.fit.report.findings.frontier_findings import doubt, leaders, saturation, switch_sentences
from isocompute_jax.fit.sweep_results import SweepResult


def headline(result: SweepResult) -> list[str]:
    """The answer in a few sentences, doubts included."""
    return [
        *leaders(result),
        *switch_sentences(result),
        *doubt(result),
        *saturation(result),
        *identification(result)[:1],
    ]
