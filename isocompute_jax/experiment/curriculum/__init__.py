"""What a run trains on next: its problems' history, their order and mixture, and what a step draws anew."""

from isocompute_jax.experiment.curriculum.history import History
from isocompute_jax.experiment.curriculum.refill import Refill, Sampled
from isocompute_jax.experiment.curriculum.stream import ProblemStream, TrainSets

__all__ = ["History", "ProblemStream", "Refill", "Sampled", "TrainSets"]
