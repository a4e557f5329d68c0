"""What changes from step to step of a run, as one value."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from typing import Any

from isocompute_jax.experiment.alarms import Watch
from isocompute_jax.experiment.curriculum import History, Sampled
from isocompute_jax.experiment.ledger import Ledger, ledger_of
from isocompute_jax.learner import Batch, Credit, TrainState
from isocompute_jax.records.rollout import RolloutGroup


@dataclasses.dataclass(frozen=True, eq=False)
class Update:
    """What one update trains on: tokens laid out, and what they are worth."""

    tokens: Batch
    credit: Credit


@dataclasses.dataclass(frozen=True, eq=False)
class ReadyBatch:
    """A batch that awaits its updates.

    Attributes:
      sampled: every group that it cost.
      updates: what each update trains on.
      columns: what a line of metrics.jsonl says of how rewards were shaped.
      trained: the groups that updates train on.
      scoring_s: seconds of scores before the updates.
    """

    sampled: Sampled
    updates: list[Update]
    columns: dict[str, float]
    trained: list[RolloutGroup]
    scoring_s: float


@dataclasses.dataclass(frozen=True, eq=False)
class LoopState:
    """A run between two steps.

    Checkpoints hold the first eight fields: they and the config decide what a run finds. The others belong to the
    process that runs it, or are read from the logs again.

    Attributes:
      learner: counter of updates, parameters and optimizer state.
      stream: position in the problems, before the first batch that no update has used.
      history: what the problems' rollouts have come to.
      ledger: what was spent.
      evaluated: the last step after which every set was evaluated and logged; -1 for none.
      evaluated_compute: C at that step; -1 for none.
      checked: the last step after which the agreement check was logged; -1 for none.
      entropy_coef: weight of the entropy bonus, where it adapts.
      watch: what alarms look back on.
      ready: batches that were sampled together with the last one used (of a phase) and await their updates.
      served: the step whose weights the sampler has; -1 for none yet.
      redrawn: what the sampler had drawn again when the ledger was last charged with it.
      clock: when the ledger was last charged with time, in monotonic seconds.
      held: the sampler's `device_seconds` then.
      saved_at: when the last checkpoint was written, in monotonic seconds.
      reward: mean reward of the last step.
      spent: phase -> seconds, since the last step was logged, that the next one's line says.
    """

    learner: TrainState
    stream: dict[str, Any]
    history: History
    ledger: Ledger = dataclasses.field(default_factory=Ledger)
    evaluated: int = -1
    evaluated_compute: int = -1
    checked: int = -1
    entropy_coef: float = 0.0
    watch: Watch = dataclasses.field(default_factory=Watch)
    ready: tuple[ReadyBatch, ...] = ()
    served: int = -1
    redrawn: int = 0
    clock: float = dataclasses.field(default_factory=time.monotonic)
    held: Mapping[str, float] = dataclasses.field(default_factory=dict)
    saved_at: float = dataclasses.field(default_factory=time.monotonic)
    reward: float = 0.0
    spent: Mapping[str, float] = dataclasses.field(default_factory=dict)

    @property
    def step(self) -> int:
        """Steps made so far: sampled batches that were trained on."""
        return self.ledger.step

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
        }


def from_checkpoint(learner: TrainState, loop: Mapping[str, Any], *, problems: int) -> LoopState:
    """The state that `to_json` and the learner's arrays were saved from, in a new process.

    Checkpoints of releases without a history hold runs whose steps all cost the same.

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
    )
