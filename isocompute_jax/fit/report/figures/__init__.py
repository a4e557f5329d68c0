"""The pictures, drawn from results. Matplotlib is imported here alone, and no global state is set."""

from __future__ import annotations

import functools
import pathlib

from isocompute_jax.fit.report.figures import curve_figures, fit_quality_figures, frontier_figures, training_figures
from isocompute_jax.fit.report.figures.comparison_figures import draw_comparison
from isocompute_jax.fit.report.figures.style import draw_all
from isocompute_jax.fit.sweep_results import SweepResult

DRAWINGS = {
    "learning_curves": curve_figures.learning_curves,
    "optimal_group_size": frontier_figures.optimal_group_size,
    "batches": frontier_figures.batches,
    "slices_by_problems": frontier_figures.slices_by_problems,
    "slices_by_rollouts": frontier_figures.slices_by_rollouts,
    "targets": frontier_figures.targets,
    "epochs": frontier_figures.switch_epochs,
    "entropy": training_figures.entropy,
    "solve_rates": training_figures.solve_rates,
    "profiles": fit_quality_figures.profiles,
    "residuals": fit_quality_figures.residuals,
    "forms": fit_quality_figures.forms,
    "holdout": curve_figures.holdout,
    "comparison": fit_quality_figures.comparison,
}
"""name -> drawing from results; None where the data do not have it."""


def draw_figures(result: SweepResult, out_dir: pathlib.Path, *, png: bool = False) -> dict[str, pathlib.Path]:
    """Draws every picture that the data allow, those of comparisons last: see `draw_all`."""
    answers = {
        name: functools.partial(draw_comparison, found=found) for name, found in result.named_comparisons.items()
    }
    return draw_all(DRAWINGS | answers, result, out_dir, png=png)
