"""The report's sections: what each picture shows, how to read it, what the data say, and the table behind it.

Prose that explains stands here; prose that claims comes from `findings`, computed from the summary.
"""

from __future__ import annotations

from isocompute_jax.fit.sections import fits, frontier, training
from isocompute_jax.fit.sections.section import Figures, Html, Section, Table, cell
from isocompute_jax.fit.wording import Summary

__all__ = ["Figures", "Html", "Section", "Summary", "Table", "analysis_sections", "cell"]


def analysis_sections(summary: Summary, figures: Figures) -> list[Section]:
    """The analysis as sections, for its own report or as part of a larger one.

    Args:
      summary: content of summary.json.
      figures: name -> picture, as `draw_figures` returns them; an optional section whose picture is missing is left
        out.
    """
    several = len(summary["curves"]) > 1
    optional = {
        "batches": frontier.batches,
        "slices_by_problems": frontier.slices_by_problems,
        "slices_by_rollouts": frontier.slices_by_rollouts,
        "targets": frontier.targets,
        "entropy": training.entropy,
        "solve_rates": training.solve_rates,
        "profiles": fits.profiles,
        "residuals": fits.residuals,
        "forms": fits.forms,
        "holdout": fits.holdout,
        "comparison": fits.comparison,
    }
    first = [fits.learning_curves(summary, figures)]
    if "optimal_group_size" in figures:
        first.append(frontier.optimal_group_size(summary, figures))
    if several:
        first += [frontier.switches(summary, figures), frontier.choices(summary), frontier.ties(summary)]
    return first + [section(summary, figures) for name, section in optional.items() if name in figures]
