"""The pictures, drawn from summary.json's content. Matplotlib is imported here alone, and no global state is set."""

from __future__ import annotations

import pathlib
from typing import Any

from isocompute_jax.fit.figures import curves, diagnostics, frontier, training
from isocompute_jax.fit.figures.style import draw_all

DRAWINGS = {
    "learning_curves": curves.learning_curves,
    "optimal_group_size": frontier.optimal_group_size,
    "batches": frontier.batches,
    "slices_by_problems": frontier.slices_by_problems,
    "slices_by_rollouts": frontier.slices_by_rollouts,
    "targets": frontier.targets,
    "epochs": frontier.switch_epochs,
    "entropy": training.entropy,
    "solve_rates": training.solve_rates,
    "profiles": diagnostics.profiles,
    "residuals": diagnostics.residuals,
    "forms": diagnostics.forms,
    "holdout": curves.holdout,
    "comparison": diagnostics.comparison,
}
"""name -> drawing from a summary; None where the data do not have it."""


def draw_figures(summary: dict[str, Any], out_dir: pathlib.Path) -> dict[str, pathlib.Path]:
    """Draws every picture that the data allow, as NAME.svg and NAME.png in `out_dir`; returns name -> SVG path."""
    return draw_all(DRAWINGS, summary, out_dir)
