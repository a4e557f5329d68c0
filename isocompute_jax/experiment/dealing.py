"""n for each problem of a step: how many rollouts it is asked for, round after round, and what they are worth then.

Who gets how many is decided in `allocation.policies`, from what the run's history says of the problems when their batch
is drawn, and under some policies from the rewards of the batch's earlier rounds. The rounds of a problem become one
group, in the order in which they were drawn, which knows their sizes (`RolloutGroup.rounds`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float, Int

from isocompute_jax.allocation import estimator
from isocompute_jax.allocation.policies import LOOKS, Belief, Policy, believe, deal
from isocompute_jax.experiment.problem_history import History
from isocompute_jax.learner import Credit, CreditConfig, rewards_of, zero_variance
from isocompute_jax.learner.credit import KEPT, REWARD_VALUES
from isocompute_jax.records.rollout import RolloutGroup


@dataclasses.dataclass(frozen=True)
class Dealer:
    """A policy, and the blocks that it deals (as in `allocation.policies.deal`)."""

    policy: Policy
    block: int
    most: int

    @property
    def looks(self) -> bool:
        """Whether what it deals depends on rewards of the same step."""
        return self.policy in LOOKS

    def believe(self, history: History, places: Sequence[int]) -> Belief:
        """What the run knows of the problems in these places of its history."""
        return believe(history.recent_attempts, history.recent_solves, np.array(places, int))

    def first(self, belief: Belief, total: int) -> Int[np.ndarray, "P"]:
        """Rollouts of each problem in the first round of a step of `total` rollouts."""
        return deal(self.policy, belief, total=total, block=self.block, most=self.most)

    def further(self, belief: Belief, groups: Sequence[RolloutGroup], total: int) -> Int[np.ndarray, "P"]:
        """Rollouts of each problem in the next round, given the graded groups of those so far; 0 once all are dealt."""
        if sum(len(group.completions) for group in groups) == total:
            return np.zeros(len(groups), int)
        rewards = [rewards_of(group) for group in groups]
        return deal(self.policy, belief, rewards, total=total, block=self.block, most=self.most)


def merged(parts: Sequence[RolloutGroup], rounds: Sequence[int]) -> RolloutGroup:
    """The graded groups of a problem's rounds as one.

    Args:
      parts: in the order of rounds, without those in which it got nothing.
      rounds: how many rollouts it got in each, 0 where nothing.
    """
    first, starts = parts[0], np.cumsum([0, *(len(part.completions) for part in parts)]).tolist()
    names = dict.fromkeys(name for part in parts for name in part.reward_metrics)

    def measured(name: str) -> np.ndarray:
        values = [part.reward_metrics.get(name, np.full(len(part.completions), np.nan)) for part in parts]
        kind = next(part.reward_metrics[name].dtype for part in parts if name in part.reward_metrics)
        return np.concatenate(values).astype(kind)

    return dataclasses.replace(
        first,
        completions=tuple(completion for part in parts for completion in part.completions),
        rewards=None if any(part.rewards is None for part in parts) else np.concatenate(list(map(rewards_of, parts))),
        reward_metrics={name: measured(name) for name in names},
        failures={
            start + index: why
            for start, part in zip(starts, parts, strict=False)
            for index, why in part.failures.items()
        },
        dropped=any(part.dropped for part in parts),
        rounds=tuple(map(int, rounds)),
    )


def credit(
    policy: Policy,
    groups: Sequence[RolloutGroup],
    rewards: Float[np.ndarray, "P G"],
    lengths: Int[np.ndarray, "P G"],
    recipe: CreditConfig,
    *,
    max_tokens: int,
    drawn: Bool[np.ndarray, "P G"],
    penalties: Float[np.ndarray, "P G"] | None = None,
    masked: Bool[np.ndarray, "P G"] | None = None,
    part: Bool[np.ndarray, "P"] | None = None,
) -> Credit:
    """As `learner.credit`, under a policy that looks at rewards: see `allocation.estimator`, which says why.

    A rollout's baseline is the mean of the problem's other rewards in its own round and the earlier ones. What it
    weighs is fixed before its round, over `max_tokens` under `constant` and over its own length under `sequence_mean`.
    Of groups that leave the loss for want of signal the others take the place, each in the same measure; what a masked
    rollout would weigh is lost, since making up for it would look at what was drawn.
    """
    keeps = KEPT[recipe.zero_variance_groups](~zero_variance(rewards, drawn))
    values = REWARD_VALUES[recipe.reward_values](np.asarray(rewards, np.float64))
    values = np.where(drawn, values if penalties is None else values - penalties, 0.0)
    rounds = np.array([group.rounds for group in groups])
    each = estimator.weights(policy, rewards.shape[1], rounds)
    per_token = each / (max_tokens if recipe.aggregation == "constant" else np.maximum(lengths, 1))

    def weights(keep: Bool[np.ndarray, "P"]) -> Float[np.ndarray, "P G"]:
        keep = keep if part is None else keep & part
        there = drawn & keep[:, None] if masked is None else drawn & keep[:, None] & ~masked
        return np.where(there, per_token * (len(keep) / max(int(keep.sum()), 1)), 0.0).astype(np.float32)

    return Credit(estimator.advantages(values, rounds).astype(np.float32), *map(weights, keeps))
