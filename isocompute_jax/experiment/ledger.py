"""The books of a run: what was spent, and on what; C counts what training paid for (see docs/method.md)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from isocompute_jax.records.rollout import RolloutGroup


@dataclasses.dataclass(frozen=True)
class Ledger:
    """What a run has spent so far.

    Attributes:
      step: steps taken: sampled batches that were trained on, those without any signal included.
      compute: C, rollouts sampled for training, groups that were dropped included.
      tokens: completion tokens of those rollouts.
      evaluation_rollouts: rollouts sampled for evaluation; they are no part of C.
      evaluation_tokens: completion tokens of those.
      wall_s: seconds, over all starts of the run.
      device_hours: `wall_s` x devices / 3600.
      redrawn_rollouts: sampled again because a sampler was lost; they are no part of C.
    """

    step: int = 0
    compute: int = 0
    tokens: int = 0
    evaluation_rollouts: int = 0
    evaluation_tokens: int = 0
    wall_s: float = 0.0
    device_hours: float = 0.0
    redrawn_rollouts: int = 0

    def charge_training(self, groups: Sequence[RolloutGroup]) -> Ledger:
        """Books the rollouts of one step."""
        return dataclasses.replace(
            self,
            step=self.step + 1,
            compute=self.compute + sum(len(group.completions) for group in groups),
            tokens=self.tokens + sum(group.num_tokens for group in groups),
        )

    def charge_evaluation(self, rollouts: int, tokens: int) -> Ledger:
        """Books an evaluation."""
        return dataclasses.replace(
            self,
            evaluation_rollouts=self.evaluation_rollouts + rollouts,
            evaluation_tokens=self.evaluation_tokens + tokens,
        )

    def charge_redrawn(self, rollouts: int) -> Ledger:
        """Books rollouts that were sampled again."""
        return dataclasses.replace(self, redrawn_rollouts=self.redrawn_rollouts + rollouts)

    def charge_time(self, seconds: float, devices: int) -> Ledger:
        """Books wall-clock time."""
        return dataclasses.replace(
            self, wall_s=self.wall_s + seconds, device_hours=self.device_hours + seconds * devices / 3600
        )

    def columns(self) -> dict[str, Any]:
        """The columns that every log line starts with."""
        return {
            **dataclasses.asdict(self),
            "wall_s": round(self.wall_s, 3),
            "device_hours": round(self.device_hours, 6),
        }
