"""From learning curves to how to spend a budget; works without the training rooms.

As a library: `analyze` takes a table or runs and returns frozen results; `fit_curves`, `frontier` and `fit_allocation`
work on arrays; `outputs.analyse` writes tables, figures, summary.json and report.html.
From a shell: `python -m isocompute_jax.fit --runs=DIR --out=DIR`.
"""

from isocompute_jax.fit.analysis import analyse_curves, analyze
from isocompute_jax.fit.configurations import Configuration
from isocompute_jax.fit.curves.fit_options import FitOptions
from isocompute_jax.fit.curves.fitting import CurveFit, fit_curves, record_breaking
from isocompute_jax.fit.engine import SweepModel, fit_sweep
from isocompute_jax.fit.frontier.paper import AllocationFit, Frontier, epochs, fit_allocation, frontier
from isocompute_jax.fit.held_out import HeldOut, held_out_quarter
from isocompute_jax.fit.options import AnalysisOptions
from isocompute_jax.fit.read import ReadOptions
from isocompute_jax.fit.results import BudgetAnswer, Choice, SweepResult

__all__ = [
    "AllocationFit",
    "AnalysisOptions",
    "BudgetAnswer",
    "Choice",
    "Configuration",
    "CurveFit",
    "FitOptions",
    "Frontier",
    "HeldOut",
    "ReadOptions",
    "SweepModel",
    "SweepResult",
    "analyse_curves",
    "analyze",
    "epochs",
    "fit_allocation",
    "fit_curves",
    "fit_sweep",
    "frontier",
    "held_out_quarter",
    "record_breaking",
]
