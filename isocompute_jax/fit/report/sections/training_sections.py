"""Sections about what went on in training."""

from __future__ import annotations

from isocompute_jax.fit.report.findings import training_findings
from isocompute_jax.fit.report.sections.section import Figures, Section
from isocompute_jax.fit.sweep_results import SweepResult


def entropy(result: SweepResult, figures: Figures) -> Section:
    """How undecided the policy is."""
    return Section(
        title="Entropy over training",
        paragraphs=("Entropy is how undecided the policy is about its next token. Near zero it no longer explores.",),
        figure=figures["entropy"],
        alt="Entropy against compute for each configuration",
        how_to_read="One line per configuration, the mean of its seeds.",
        findings=tuple(training_findings.entropy(result)),
    )


def solve_rates(result: SweepResult, figures: Figures) -> Section:
    """Which problems improve."""
    return Section(
        title="Which problems improve",
        paragraphs=(
            "Evaluation problems, divided by how many of their samples are right. When all bands move together, "
            "problems improve alike; when the top band grows and the bottom one stays, the rich get richer.",
        ),
        figure=figures["solve_rates"],
        alt="Shares of evaluation problems by solve rate over training",
        how_to_read="One panel per configuration; the height of a band is the share of problems with that solve rate.",
        findings=tuple(training_findings.solve_rates(result)),
    )
