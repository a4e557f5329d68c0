"""report.html: one file that opens offline and prints well, for a reader who has not read the papers."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence

from isocompute_jax.fit.report.answers import answer_text, range_cells
from isocompute_jax.fit.report.figures import DRAWINGS
from isocompute_jax.fit.report.interactive import interactive_data
from isocompute_jax.fit.report.provenance import versions
from isocompute_jax.fit.report.sections import Section, comparison_sections
from isocompute_jax.fit.report.templating import Html, render
from isocompute_jax.fit.sweep_results import SweepResult

Figures = Mapping[str, pathlib.Path]

OPTIONAL = (
    "batches", "slices_by_problems", "slices_by_rollouts", "targets", "entropy", "solve_rates", "profiles",
    "residuals", "forms", "holdout", "comparison",
)  # fmt: skip
"""Sections that stand in the report where they have a picture."""


def section_names(result: SweepResult, figures: Figures) -> list[str]:
    """The report's sections, in order; each is a template of that name."""
    first = ["learning_curves", *(["optimal_group_size"] if "optimal_group_size" in figures else [])]
    several = ["switches", "choices", "ties"] if result.several else []
    shown = [name for name in OPTIONAL if name in figures and (name != "targets" or len(result.targets) > 1)]
    return [*first, *several, *shown]


def render_report(
    result: SweepResult, figures: Figures, *, before: Sequence[Section] = (), after: Sequence[Section] = ()
) -> str:
    """The HTML text of an analysis.

    Args:
      result: of the analysis.
      figures: name -> picture, as `draw_figures` returns them.
      before: sections about how the runs were made.
      after: sections about what the analysis does not show.
    """
    options = result.options
    bins = f" (bin width {options.bin_width})" if options.bin_width else ""
    return render(
        "sweep.html.j2",
        title=options.title,
        result=result,
        figures=dict.fromkeys(DRAWINGS) | dict(figures),
        answers=[answer_text(result, found) for found in result.asked],
        range_rows=[range_cells(result, row) for row in result.ranges],
        sections=section_names(result, figures),
        folded=True,
        before=before,
        after=[*comparison_sections(result, figures), *after],
        data=Html(interactive_data(result)),
        runs=len(result.runs),
        choices=f"metric {options.metric} on {options.read.eval_set}; evaluations fitted: {options.records}{bins}; "
        f"seed {options.seed}",
        versions=versions(),
    )
