"""The books of a run: what was spent, and on what; C counts what training paid for (see docs/method.md)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from isocompute_jax.records.rollout import RolloutGroup

UNKNOWN = "unknown"
"""Kind of the devices that runs of earlier releases were charged with."""


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
      learner_device_hours: kind of device -> hours that the learner's were held, at work or not.
      sampler_device_hours: the same of the samplers' servers; nothing where the learner's devices draw.
      lost_device_hours: of all of these, hours of what a killed run had done after its checkpoint, and did again.
      redrawn_rollouts: sampled again because a sampler was lost; they are no part of C.
    """

    step: int = 0
    compute: int = 0
    tokens: int = 0
    evaluation_rollouts: int = 0
    evaluation_tokens: int = 0
    wall_s: float = 0.0
    learner_device_hours: Mapping[str, float] = dataclasses.field(default_factory=dict)
    sampler_device_hours: Mapping[str, float] = dataclasses.field(default_factory=dict)
    lost_device_hours: float = 0.0
    redrawn_rollouts: int = 0

    @property
    def device_hours(self) -> float:
        """Of learners and samplers, of every kind."""
        return sum(self.learner_device_hours.values()) + sum(self.sampler_device_hours.values())

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

    def charge_time(self, seconds: float, learner: Mapping[str, float], sampler: Mapping[str, float]) -> Ledger:
        """Books wall-clock time.

        Args:
          seconds: that passed.
          learner: kind -> seconds x devices that the learner held meanwhile.
          sampler: the same of the samplers' servers.
        """
        return dataclasses.replace(
            self,
            wall_s=self.wall_s + seconds,
            learner_device_hours=_added(self.learner_device_hours, learner, 1 / 3600),
            sampler_device_hours=_added(self.sampler_device_hours, sampler, 1 / 3600),
        )

    def charge_lost(self, line: Mapping[str, Any]) -> Ledger:
        """Books the time of what a killed run did after this, its checkpoint; rollouts of it are no part of C.

        Args:
          line: the last that the killed run logged.
        """
        charged = dataclasses.replace(
            self,
            wall_s=line["wall_s"],
            learner_device_hours={**self.learner_device_hours, **hours_of(line, "learner_device_hours")},
            sampler_device_hours={**self.sampler_device_hours, **hours_of(line, "sampler_device_hours")},
        )
        lost = charged.device_hours - self.device_hours
        return dataclasses.replace(charged, lost_device_hours=self.lost_device_hours + lost)

    def columns(self) -> dict[str, Any]:
        """The columns that every log line starts with."""
        return {
            **dataclasses.asdict(self),
            "wall_s": round(self.wall_s, 3),
            "device_hours": round(self.device_hours, 6),
            "learner_device_hours": _rounded(self.learner_device_hours),
            "sampler_device_hours": _rounded(self.sampler_device_hours),
            "lost_device_hours": round(self.lost_device_hours, 6),
        }


def ledger_of(saved: Mapping[str, Any]) -> Ledger:
    """The ledger of a checkpoint, of an earlier release too."""
    hours = {name: hours_of(saved, name) for name in ("learner_device_hours", "sampler_device_hours")}
    rest = {name: value for name, value in saved.items() if name != "device_hours"}
    return Ledger(**{**rest, **hours})


def hours_of(line: Mapping[str, Any], name: str) -> Mapping[str, float]:
    """Kind -> hours of the column `name` of a log line, or a checkpoint's ledger.

    Earlier releases counted the learner's devices alone, and did not say their kind.
    """
    old = "learner_device_hours" not in line and name == "learner_device_hours"
    return {UNKNOWN: line["device_hours"]} if old else line.get(name, {})


def _added(hours: Mapping[str, float], more: Mapping[str, float], scale: float) -> dict[str, float]:
    return {kind: hours.get(kind, 0.0) + scale * more.get(kind, 0.0) for kind in sorted({*hours, *more})}


def _rounded(hours: Mapping[str, float]) -> dict[str, float]:
    return {kind: round(value, 6) for kind, value in hours.items()}
