"""Laws over several models: the model-size law of RL post-training, and the pre-training law to compare it with."""

from isocompute_jax.fit.results import Estimate
from isocompute_jax.laws.checks import Holdout, ReuseFit, at_equal_data, inter_model, intra_model, reuse
from isocompute_jax.laws.chinchilla import ChinchillaFit, compute_optimal, fit_chinchilla
from isocompute_jax.laws.convergence import ConvergenceFit, fit_convergence
from isocompute_jax.laws.model_size import Crossover, ModelSizeFit, crossover, crossovers, fit_model_size

__all__ = [
    "ChinchillaFit",
    "ConvergenceFit",
    "Crossover",
    "Estimate",
    "Holdout",
    "ModelSizeFit",
    "ReuseFit",
    "at_equal_data",
    "compute_optimal",
    "crossover",
    "crossovers",
    "fit_chinchilla",
    "fit_convergence",
    "fit_model_size",
    "inter_model",
    "intra_model",
    "reuse",
]
