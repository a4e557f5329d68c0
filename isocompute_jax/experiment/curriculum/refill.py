"""What a step of dynamic sampling draws anew: problems in place of those whose groups have no signal."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from isocompute_jax.learner import group_rewards, zero_variance
from isocompute_jax.records.rollout import RolloutGroup


@dataclasses.dataclass(frozen=True, eq=False)
class Sampled:
    """What one step sampled."""

    groups: list[RolloutGroup]  # all of it, graded, in the order in which problems were drawn: what C counts
    kept: list[RolloutGroup]  # those that the update is given; all, or with dynamic sampling those whose rewards differ
    rounds: int = 0  # how often further problems were drawn


@dataclasses.dataclass(frozen=True)
class Refill:
    """When a step of dynamic sampling has enough (DAPO, arXiv 2503.14476, equation 11).

    A group counts when its rewards as graded differ; what is subtracted for length does not give it a signal. Each
    round draws what is missing, so that no group with a signal is paid for in vain, and which problems are drawn does
    not depend on the order in which groups arrive.
    """

    wanted: int  # groups that a step is to keep
    most: int  # problems that it may draw

    def missing(self, groups: Sequence[RolloutGroup]) -> int:
        """How many further problems the step draws, all of its groups having arrived."""
        return max(min(self.wanted - len(with_signal(groups)), self.most - len(groups)), 0)


def with_signal(groups: Sequence[RolloutGroup]) -> list[RolloutGroup]:
    """The groups whose rewards differ, all of them known."""
    if not groups:
        return []
    flat = zero_variance(group_rewards(groups))
    return [group for group, is_flat in zip(groups, flat, strict=True) if not (is_flat or group.dropped)]
