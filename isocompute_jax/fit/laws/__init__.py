"""Laws over several models: the model-size law of RL post-training, and the pre-training law to compare it with."""

from isocompute_jax.fit.laws.chinchilla import compute_optimal, fit_chinchilla
from isocompute_jax.fit.laws.chinchilla_results import ChinchillaFit, ConvergenceFit
from isocompute_jax.fit.laws.convergence import fit_convergence
from isocompute_jax.fit.laws.crossover import crossover, crossovers
from isocompute_jax.fit.laws.extrapolation import inter_model, intra_model
from isocompute_jax.fit.laws.model_size import fit_model_size
from isocompute_jax.fit.laws.model_size_results import Crossover, Holdout, ModelSizeFit, ReuseFit
from isocompute_jax.fit.laws.results import Estimate
from isocompute_jax.fit.laws.reuse import at_equal_data, reuse

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
