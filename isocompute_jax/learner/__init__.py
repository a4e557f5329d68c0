"""The GRPO learner: layout and credit of a batch, losses, the optimizer state, and the jitted, sharded step."""

from isocompute_jax.learner import losses
from isocompute_jax.learner.batches import Batch, place_batch
from isocompute_jax.learner.credit import (
    Credit,
    CreditConfig,
    credit,
    drawn_of,
    group_advantages,
    group_rewards,
    mean_reward,
    overlong_penalty,
    rewards_of,
    signal_of,
    zero_variance,
)
from isocompute_jax.learner.layout import BatchShape, TokenBatch, batch_shape, single_batch, trained_lengths
from isocompute_jax.learner.objective import LossConfig, Score, Scores
from isocompute_jax.learner.packing import PackedBatch, PackShape, pack_shape, unpack
from isocompute_jax.learner.scoring import completion_logprobs, make_score, make_scorer
from isocompute_jax.learner.state import (
    OptimizerConfig,
    TrainState,
    adapted_entropy_coef,
    init_state,
    make_optimizer,
    make_schedule,
    state_shardings,
)
from isocompute_jax.learner.step import TrainStep, make_train_step
from isocompute_jax.learner.trees import TreeBatch, TreeShape, tree_shape

__all__ = [
    "Batch",
    "BatchShape",
    "Credit",
    "CreditConfig",
    "LossConfig",
    "OptimizerConfig",
    "PackShape",
    "PackedBatch",
    "Score",
    "Scores",
    "TokenBatch",
    "TrainState",
    "TrainStep",
    "TreeBatch",
    "TreeShape",
    "adapted_entropy_coef",
    "batch_shape",
    "completion_logprobs",
    "credit",
    "drawn_of",
    "group_advantages",
    "group_rewards",
    "init_state",
    "losses",
    "make_optimizer",
    "make_schedule",
    "make_score",
    "make_scorer",
    "make_train_step",
    "mean_reward",
    "overlong_penalty",
    "pack_shape",
    "place_batch",
    "rewards_of",
    "signal_of",
    "single_batch",
    "state_shardings",
    "trained_lengths",
    "tree_shape",
    "unpack",
    "zero_variance",
]
