"""One probabilistic model of a whole sweep, and its posterior draws; every answer is a reduction of these.

`fit_sweep` fits the model to the runs of all configurations, `SweepModel.curves` draws their reward over compute.
docs/method.md states the model with its priors.
"""

from isocompute_jax.fit.engine.sweep_model import SweepDraws, SweepModel, end_point_draws, fit_sweep

__all__ = ["SweepDraws", "SweepModel", "end_point_draws", "fit_sweep"]
