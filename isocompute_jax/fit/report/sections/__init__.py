"""The report's sections: what each picture shows, how to read it, what the data say, and the table behind it.

Prose that explains stands here; prose that claims comes from `findings`, computed from the summary.
"""

from __future__ import annotations

from isocompute_jax.fit.report.sections import curve_sections, frontier_sections, training_sections
from isocompute_jax.fit.report.sections.section import Figures, Html, ReportTable, Section, cell
from isocompute_jax.fit.report.wording import Summary

__all__ = ["Figures", "Html", "ReportTable", "Section", "Summary", "analysis_sections", "cell"]


def analysis_sections(summary: Summary, figures: Figures) -> list[Section]:
    """The analysis as sections, for its own report or as part of a larger one.

    Args:
      summary: content of summary.json.
      figures: name -> picture, as `draw_figures` returns them; an optional section whose picture is missing is left
        out.
    """
    several = len(summary["curves"]) > 1
    optional = {
        "batches": frontier_sections.batches,
        "slices_by_problems": frontier_sections.slices_by_problems,
        "slices_by_rollouts": frontier_sections.slices_by_rollouts,
        "targets": frontier_sections.targets,
        "entropy": training_sections.entropy,
        "solve_rates": training_sections.solve_rates,
        "profiles": curve_sections.profiles,
        "residuals": curve_sections.residuals,
        "forms": curve_sections.forms,
        "holdout": curve_sections.holdout,
        "comparison": curve_sections.comparison,
    }
    first = [curve_sections.learning_curves(summary, figures)]
    if "optimal_group_size" in figures:
        first.append(frontier_sections.optimal_group_size(summary, figures))
    if several:
        first += [
            frontier_sections.switches(summary, figures),
            frontier_sections.choices(summary),
            frontier_sections.ties(summary),
        ]
    return first + [section(summary, figures) for name, section in optional.items() if name in figures]
