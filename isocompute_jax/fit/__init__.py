"""From learning curves to the compute-optimal frontier and n*(C); works without the training rooms.

As a library: `fit_curves`, `frontier` and `fit_allocation` on arrays; `outputs.analyse` on run directories, which
writes tables, figures, summary.json and report.html. From a shell: `python -m isocompute_jax.fit --runs=DIR --out=DIR`.
"""

from isocompute_jax.fit.curves.fit_options import FitOptions
from isocompute_jax.fit.curves.fitting import fit_curves
from isocompute_jax.fit.curves.points_to_fit import record_breaking
from isocompute_jax.fit.frontier.allocation import fit_allocation
from isocompute_jax.fit.frontier.envelope import epochs, frontier
from isocompute_jax.fit.frontier.recommendation import LearningRate, allocate
from isocompute_jax.fit.results import AllocationFit, Configuration, CurveFit, Frontier, Recommendation

__all__ = [
    "AllocationFit",
    "Configuration",
    "CurveFit",
    "FitOptions",
    "Frontier",
    "LearningRate",
    "Recommendation",
    "allocate",
    "epochs",
    "fit_allocation",
    "fit_curves",
    "frontier",
    "record_breaking",
]
