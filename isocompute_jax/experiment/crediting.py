"""What the groups of a step are worth, but for those whose rewards are not known."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from isocompute_jax import learner
from isocompute_jax.experiment.config import RunConfig
from isocompute_jax.learner import Credit
from isocompute_jax.records.rollout import RolloutGroup


def credit_of(groups: Sequence[RolloutGroup], config: RunConfig) -> Credit:
    """Credit [P, G] of graded groups.

    A group that was dropped, because a reward of it failed, has no weight and is in no denominator: the others are
    worth what they were without it.
    """
    counted = np.array([not group.dropped for group in groups])
    credited = learner.credit(
        learner.group_rewards(groups)[counted],
        learner.trained_lengths(groups)[counted],
        config.recipe,
        max_tokens=config.sampling.max_tokens,
    )
    return credited if counted.all() else _spread(credited, counted)


def _spread(credited: Credit, counted: np.ndarray) -> Credit:
    """Credit [C, G] of the counted groups among zeros [P, G]."""

    def among_zeros(values: np.ndarray) -> np.ndarray:
        spread = np.zeros((len(counted), values.shape[1]), values.dtype)
        spread[counted] = values
        return spread

    return Credit(
        among_zeros(np.asarray(credited.advantages)),
        among_zeros(np.asarray(credited.policy_weights)),
        among_zeros(np.asarray(credited.regularizer_weights)),
    )
