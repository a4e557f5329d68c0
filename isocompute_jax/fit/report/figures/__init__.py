"""The pictures, drawn from results. Matplotlib is imported here alone, and no global state is set."""

from __future__ import annotations

import functools
import pathlib

from isocompute_jax.fit.report.figures import curves, series
from isocompute_jax.fit.report.figures.style import draw_all
from isocompute_jax.fit.sweep_results import SweepResult

DRAWINGS = {
    "learning_curves": curves.learning_curves,
    "optimal_group_size": curves.optimal_group_size,
    "batches": curves.batches,
    "slices_by_problems": functools.partial(series.slices, kind="problems_per_batch"),
    "slices_by_rollouts": functools.partial(series.slices, kind="rollouts_per_step"),
    "targets": series.targets,
    "epochs": curves.switch_epochs,
    "entropy": series.entropy,
    "solve_rates": curves.solve_rates,
    "profiles": series.profiles,
    "residuals": series.residuals,
    "forms": curves.forms,
    "holdout": series.holdout,
    "comparison": curves.steepness,
}
"""name -> drawing from results; None where the data do not have it."""


def draw_figures(result: SweepResult, out_dir: pathlib.Path, *, png: bool = False) -> dict[str, pathlib.Path]:
    """Draws every picture that the data allow, those of comparisons last: see `draw_all`."""
    answers = {
        name: functools.partial(series.draw_comparison, found=found) for name, found in result.named_comparisons.items()
    }
    return draw_all(DRAWINGS | answers, result, out_dir, png=png)
