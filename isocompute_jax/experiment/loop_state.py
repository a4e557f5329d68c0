"""What changes from step to step of a run, as one value."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from typing import Any

from isocompute_jax.allocation.auto import Controller
from isocompute_jax.experiment.metrics import AlarmState
from isocompute_jax.experiment.pipeline import Sampled
from isocompute_jax.experiment.problem_history import History
from isocompute_jax.learner import Batch, Credit, TrainState
from isocompute_jax.records.rollout import RolloutGroup

UNKNOWN = "unknown"
"""Kind of the devices that runs of earlier releases were charged with."""


@dataclasses.dataclass(frozen=True)
class Ledger:
    """What a run has spent so far."""

    step: int = 0  # steps taken: sampled batches that were trained on, those without any signal included.
    compute: int = 0  # C, rollouts sampled for training, groups that were dropped included.
    tokens: int = 0  # completion tokens of those rollouts.
    evaluation_rollouts: int = 0  # rollouts sampled for evaluation; they are no part of C.
    evaluation_tokens: int = 0  # completion tokens of those.
    wall_s: float = 0.0  # seconds, over all starts of the run.
    # kind of device -> hours that the learner's were held, at work or not.
    learner_device_hours: Mapping[str, float] = dataclasses.field(default_factory=dict)
    # the same of the samplers' servers; nothing where the learner's devices draw.
    sampler_device_hours: Mapping[str, float] = dataclasses.field(default_factory=dict)
    # of all of these, hours of what a killed run had done after its checkpoint, and did again.
    lost_device_hours: float = 0.0
    redrawn_rollouts: int = 0  # sampled again because a sampler was lost; they are no part of C.

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


@dataclasses.dataclass(frozen=True, eq=False)
class ReadyBatch:
    """A batch that awaits its updates."""

    sampled: Sampled  # every group that it cost.
    updates: list[tuple[Batch, Credit]]  # what each update trains on: tokens laid out, and what they are worth.
    columns: dict[str, float]  # what a line of metrics.jsonl says of how rewards were shaped.
    trained: list[RolloutGroup]  # the groups that updates train on.
    scoring_s: float  # seconds of scores before the updates.


@dataclasses.dataclass(frozen=True, eq=False)
class LoopState:
    """A run between two steps.

    Checkpoints hold the first nine fields: they and the config decide what a run finds. The others belong to the
    process that runs it, or are read from the logs again.
    """

    learner: TrainState  # counter of updates, parameters and optimizer state.
    stream: dict[str, Any]  # position in the problems, before the first batch that no update has used.
    history: History  # what the problems' rollouts have come to.
    ledger: Ledger = dataclasses.field(default_factory=Ledger)  # what was spent.
    evaluated: int = -1  # the last step after which every set was evaluated and logged; -1 for none.
    evaluated_compute: int = -1  # C at that step; -1 for none.
    checked: int = -1  # the last step after which the agreement check was logged; -1 for none.
    entropy_coef: float = 0.0  # weight of the entropy bonus, where it adapts.
    drawn: int = 0  # problems of all batches that were trained on: D of them are an epoch.
    watch: AlarmState = dataclasses.field(default_factory=AlarmState)  # what alarms look back on.
    # batches that were sampled together with the last one used (of a phase) and await their updates.
    ready: tuple[ReadyBatch, ...] = ()
    served: int = -1  # the step whose weights the sampler has; -1 for none yet.
    redrawn: int = 0  # what the sampler had drawn again when the ledger was last charged with it.
    # when the ledger was last charged with time, in monotonic seconds.
    clock: float = dataclasses.field(default_factory=time.monotonic)
    # the sampler's `device_seconds` then.
    sampler_seconds: Mapping[str, float] = dataclasses.field(default_factory=dict)
    # when the last checkpoint was written, in monotonic seconds.
    saved_at: float = dataclasses.field(default_factory=time.monotonic)
    shown: float = 0.0  # of the last step's metrics, by the progress line.
    controller: Controller | None = None  # what chooses n, where the run does; made from its logs again.
    # phase -> seconds, since the last step was logged, that the next one's line says.
    spent: Mapping[str, float] = dataclasses.field(default_factory=dict)

    @property
    def step(self) -> int:
        """Steps made so far: sampled batches that were trained on."""
        return self.ledger.step

    @property
    def group_size(self) -> int:
        """n that the run chose; 0 where a schedule does."""
        return self.controller.group_size if self.controller else 0

    @property
    def logged(self) -> bool:
        """Whether anything has been: an update, an evaluation or a check."""
        return self.step > 0 or self.evaluated >= 0 or self.checked >= 0

    @property
    def between_phases(self) -> bool:
        """Whether a checkpoint can be written: nothing that was sampled under earlier weights awaits its update."""
        return not self.ready

    def to_json(self) -> dict[str, Any]:
        """What a checkpoint holds beside the learner's arrays."""
        return {
            "ledger": dataclasses.asdict(self.ledger),
            "stream": self.stream,
            "history": self.history.to_text(),
            "evaluated": self.evaluated,
            "evaluated_compute": self.evaluated_compute,
            "checked": self.checked,
            "entropy_coef": self.entropy_coef,
            "drawn": self.drawn,
        }


def from_checkpoint(learner: TrainState, loop: Mapping[str, Any], *, problems: int, group_size: int) -> LoopState:
    """The state that `to_json` and the learner's arrays were saved from, in a new process.

    Checkpoints of releases without a history hold runs whose steps all cost the same, and those of releases without
    schedules runs of one `group_size`.

    Raises:
      InputError: it remembers another number of problems than the `problems` of today.
    """
    ledger, evaluated = ledger_of(loop["ledger"]), loop["evaluated"]
    at = evaluated * (ledger.compute // max(ledger.step, 1)) if evaluated >= 0 else -1
    return LoopState(
        learner,
        loop["stream"],
        History.from_text(loop.get("history"), problems),
        ledger,
        evaluated,
        loop.get("evaluated_compute", at),
        loop["checked"],
        loop.get("entropy_coef", 0.0),  # earlier releases had none that adapts
        loop.get("drawn", ledger.compute // group_size),
    )
