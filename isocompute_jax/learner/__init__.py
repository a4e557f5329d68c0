"""The GRPO learner: advantages, losses, the batch, the optimizer state and the jitted, sharded step."""

from isocompute_jax.learner.advantages import group_advantages, zero_variance
from isocompute_jax.learner.batch import BatchShape, TrainBatch, batch_shape, pack, rewards_of, single_batch
from isocompute_jax.learner.losses import aggregation_weights
from isocompute_jax.learner.schedules import make_schedule
from isocompute_jax.learner.scoring import make_scorer
from isocompute_jax.learner.state import OptimizerConfig, TrainState, init_state, make_optimizer, state_shardings
from isocompute_jax.learner.step import LossConfig, completion_logprobs, make_train_step, place_batch

__all__ = [
    "BatchShape",
    "LossConfig",
    "OptimizerConfig",
    "TrainBatch",
    "TrainState",
    "aggregation_weights",
    "batch_shape",
    "completion_logprobs",
    "group_advantages",
    "init_state",
    "make_optimizer",
    "make_schedule",
    "make_scorer",
    "make_train_step",
    "pack",
    "place_batch",
    "rewards_of",
    "single_batch",
    "state_shardings",
    "zero_variance",
]
