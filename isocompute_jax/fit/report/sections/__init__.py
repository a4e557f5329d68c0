"""The report's sections: what each picture shows, how to read it, what the data say, and the table behind it.

Prose that explains stands here; prose that claims comes from `findings`, which words results.
"""

from __future__ import annotations

from isocompute_jax.fit.report.sections import curve_sections, frontier_sections, training_sections
from isocompute_jax.fit.report.sections.section import Figures, Html, ReportTable, Section, cell
from isocompute_jax.fit.sweep_results import SweepResult

__all__ = ["Figures", "Html", "ReportTable", "Section", "analysis_sections", "cell"]


def analysis_sections(result: SweepResult, figures: Figures) -> list[Section]:
    """The analysis as sections, for its own report or as part of a larger one.

    Args:
      result: of the analysis.
      figures: name -> picture, as `draw_figures` returns them; an optional section whose picture is missing is left
        out.
    """
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
    first = [curve_sections.learning_curves(result, figures)]
    if "optimal_group_size" in figures:
        first.append(frontier_sections.optimal_group_size(result, figures))
    if result.several:
        first += [
            frontier_sections.switches(result, figures),
            frontier_sections.choices(result),
            frontier_sections.ties(result),
        ]
    return first + [section(result, figures) for name, section in optional.items() if name in figures]
