"""The GRPO learner: layout and credit of a batch, losses, the optimizer state, and the jitted, sharded step."""

from isocompute_jax.learner import losses
from isocompute_jax.learner.batches import (
    Batch,
    PackedBatch,
    TokenBatch,
    TreeBatch,
    batch_shardings,
    place_batch,
    sizes_worth,
)
from isocompute_jax.learner.by_rollout import moved, rollout_sums
from isocompute_jax.learner.credit import (
    Credit,
    CreditConfig,
    aggregation_weights,
    credit,
    group_advantages,
    group_rewards,
    rewards_of,
    zero_variance,
)
from isocompute_jax.learner.layout import (
    BatchShape,
    batch_shape,
    layout,
    padding_metrics,
    single_batch,
    trained_lengths,
)
from isocompute_jax.learner.objective import LossConfig, Score, Scores
from isocompute_jax.learner.packing import (
    CompiledShapes,
    PackShape,
    pack,
    pack_shape,
    packing_metrics,
    unpack,
)
from isocompute_jax.learner.schedules import adapted_entropy_coef, make_schedule
from isocompute_jax.learner.scoring import completion_logprobs, make_score, make_scorer
from isocompute_jax.learner.shaping import completion_lengths, overlong_penalty, truncated
from isocompute_jax.learner.state import OptimizerConfig, TrainState, init_state, make_optimizer, state_shardings
from isocompute_jax.learner.step import TrainStep, make_train_step
from isocompute_jax.learner.trees import TreeShape, grow, no_trees, tree_metrics, tree_shape

__all__ = [
    "Batch",
    "BatchShape",
    "CompiledShapes",
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
    "aggregation_weights",
    "batch_shape",
    "batch_shardings",
    "completion_lengths",
    "completion_logprobs",
    "credit",
    "group_advantages",
    "group_rewards",
    "grow",
    "init_state",
    "layout",
    "losses",
    "make_optimizer",
    "make_schedule",
    "make_score",
    "make_scorer",
    "make_train_step",
    "moved",
    "no_trees",
    "overlong_penalty",
    "pack",
    "pack_shape",
    "packing_metrics",
    "padding_metrics",
    "place_batch",
    "rewards_of",
    "rollout_sums",
    "single_batch",
    "sizes_worth",
    "state_shardings",
    "trained_lengths",
    "tree_metrics",
    "tree_shape",
    "truncated",
    "unpack",
    "zero_variance",
]
