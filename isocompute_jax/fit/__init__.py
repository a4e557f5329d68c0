"""From learning curves to the compute-optimal frontier and n*(C); works without the training rooms.

As a library: `analyze` from a table or from runs to frozen results, in one call; `fit_curves`, `frontier` and
`fit_allocation` on arrays; `outputs.analyse`, which writes tables, figures, summary.json and report.html.
From a shell: `python -m isocompute_jax.fit --runs=DIR --out=DIR`.
"""

from isocompute_jax.fit.analysis_options import AnalysisOptions
from isocompute_jax.fit.comparisons.held_out import HeldOut, held_out_quarter
from isocompute_jax.fit.comparisons.problems import (
    SolveTrajectories,
    solve_trajectories,
    uniformity,
    uniformity_curve,
    uniformity_trend,
)
from isocompute_jax.fit.curves.fit_options import FitOptions
from isocompute_jax.fit.curves.fitting import fit_curves
from isocompute_jax.fit.curves.screening import record_breaking
from isocompute_jax.fit.frontier.allocation import fit_allocation
from isocompute_jax.fit.frontier.envelope import epochs, frontier
from isocompute_jax.fit.frontier.recommendation import Contest, LearningRate, allocate
from isocompute_jax.fit.one_call import analyze
from isocompute_jax.fit.read import ReadOptions
from isocompute_jax.fit.results import AllocationFit, Configuration, CurveFit, Frontier, Recommendation
from isocompute_jax.fit.sweep_results import SweepResult

__all__ = [
    "AllocationFit",
    "AnalysisOptions",
    "Configuration",
    "Contest",
    "CurveFit",
    "FitOptions",
    "Frontier",
    "HeldOut",
    "LearningRate",
    "ReadOptions",
    "Recommendation",
    "SolveTrajectories",
    "SweepResult",
    "allocate",
    "analyze",
    "epochs",
    "fit_allocation",
    "fit_curves",
    "frontier",
    "held_out_quarter",
    "record_breaking",
    "solve_trajectories",
    "uniformity",
    "uniformity_curve",
    "uniformity_trend",
]
