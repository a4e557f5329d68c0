"""What the data say, as sentences, each computed from the content of summary.json and worded as far as it goes."""

from __future__ import annotations

from isocompute_jax.fit.report.findings.curve_findings import identification
from isocompute_jax.fit.report.findings.frontier_findings import doubt, leaders, saturation, switch_sentences
from isocompute_jax.fit.report.wording import Summary


def headline(summary: Summary) -> list[str]:
    """The answer in a few sentences, doubts included."""
    return [
        *leaders(summary),
        *switch_sentences(summary),
        *doubt(summary),
        *saturation(summary),
        *identification(summary)[:1],
    ]
