"""What the processes of a run share: batches that process 0 draws, rewards that all of them give."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import itertools
import logging
import os
from collections.abc import Mapping
from typing import Any

import jax
from jax.sharding import Mesh

from isocompute_jax.distributed import Team
from isocompute_jax.experiment.config import RunConfig
from isocompute_jax.experiment.curriculum import History, Sampled
from isocompute_jax.experiment.graded_stream import GradedStream
from isocompute_jax.experiment.pipeline import Pipeline
from isocompute_jax.experiment.workdir import versions
from isocompute_jax.records.errors import RunError
from isocompute_jax.records.identity import flatten
from isocompute_jax.records.rollout import Completion, Problem, RolloutGroup
from isocompute_jax.tasks import Grading
from isocompute_jax.tasks.grading.reward_config import OnFailure

LOG = logging.getLogger(__name__)

RECORDS = (Problem, Completion, RolloutGroup)
"""What travels between processes."""


class SharedPipeline:
    """A `Pipeline` that process 0 has, as every process uses it.

    Args:
      team: of the processes.
      pipeline: of process 0; None elsewhere.
      rollouts: likewise; where its batches are sampled and graded.
    """

    def __init__(self, team: Team, pipeline: Pipeline | None, rollouts: GradedStream | None):
        self._team = team
        self._pipeline = pipeline
        self._rollouts = rollouts

    def has(self, step: int, history: History) -> bool:
        """As in `Pipeline`."""
        return self._team.broadcast(lambda: self._led.has(step, history))

    def exhausted(self, history: History) -> bool:
        """As in `Pipeline`."""
        return self._team.broadcast(lambda: self._led.exhausted(history))

    def restart(self, step: int, position: dict[str, Any], compute: int) -> None:
        """As in `Pipeline`."""
        if self._pipeline is not None:
            self._pipeline.restart(step, position, compute)

    def next(self, step: int, history: History) -> tuple[list[Sampled], dict[str, Any]]:
        """Fills the window of update `step` and waits for its batch, or the phase that begins with it.

        Returns:
          The batches, and where the stream has to stand behind them.

        Raises:
          RunError: as `Pipeline.receive` does; in every process.
        """

        def make() -> tuple[list[Sampled], dict[str, Any]]:
            self._led.submit(step, history)
            batches = self._led.receive(step)
            return batches, self._led.position(step + len(batches))

        if self._team.count == 1:
            return make()
        batches, position = self._team.broadcast(lambda: _packed(*make()))
        return [_unpacked(*batch) for batch in batches], position

    def grading_s(self) -> float:
        """As in `GradedStream`; 0 in other processes than the first."""
        return 0.0 if self._rollouts is None else self._rollouts.grading_s()

    def close(self) -> None:
        """Ends what reads the sampler, which must be closed before."""
        if self._rollouts is not None:
            self._rollouts.close()

    @property
    def _led(self) -> Pipeline:
        assert self._pipeline is not None  # `broadcast` asks process 0 alone
        return self._pipeline


def _packed(batches: list[Sampled], position: dict[str, Any]) -> tuple[list, dict[str, Any]]:
    """Batches as they travel: no group twice."""
    packed = []
    for batch in batches:
        places = {id(group): place for place, group in enumerate(batch.groups)}
        packed.append((batch.groups, [places[id(group)] for group in batch.kept], batch.rounds))
    return packed, position


def _unpacked(groups: list[RolloutGroup], kept: list[int], rounds: int) -> Sampled:
    return Sampled(groups, [groups[i] for i in kept], rounds)


class SharedGrading:
    """Graders of several processes behind those of process 0: groups go round them.

    Args:
      team: of the processes.
      grading: of this one.
    """

    def __init__(self, team: Team, grading: Grading):
        self._team = team
        self._grading = grading
        self._numbers = itertools.count()
        self._out: dict[int, tuple[RolloutGroup, concurrent.futures.Future[RolloutGroup]]] = {}
        team.on("grade", self._on_asked)
        team.on("graded", self._on_graded)

    @property
    def stops(self) -> bool:
        """As in `Grading`."""
        return self._grading.stops

    def submit(
        self, group: RolloutGroup, problem: Problem, *, on_failure: OnFailure | None = None
    ) -> concurrent.futures.Future[RolloutGroup]:
        """As in `Grading`; of every `count` groups each process grades one."""
        number = next(self._numbers)
        to = number % self._team.count
        if to == 0:
            return self._grading.submit(group, problem, on_failure=on_failure)
        future: concurrent.futures.Future[RolloutGroup] = concurrent.futures.Future()
        self._out[number] = group, future
        self._team.send(to, "grade", (number, group, problem, on_failure))
        return future

    def _on_asked(self, sender: int, value: Any) -> None:
        """Another process has a group graded here."""
        number, group, problem, on_failure = value

        def answer(done: concurrent.futures.Future[RolloutGroup]) -> None:
            error = done.exception()
            found = dataclasses.replace(done.result(), completions=()) if error is None else None
            self._team.send(sender, "graded", (number, found, "" if error is None else f"{self._team.name}: {error}"))

        self._grading.submit(group, problem, on_failure=on_failure).add_done_callback(answer)

    def _on_graded(self, sender: int, value: Any) -> None:
        number, found, error = value
        group, future = self._out.pop(number)
        if error:
            future.set_exception(RunError(error))
        else:
            future.set_result(dataclasses.replace(found, completions=group.completions))


def facts(config: RunConfig, workdir: str) -> dict[str, Mapping[str, Any]]:
    """What must be the same in every process of a run (`distributed.meeting`)."""
    fields = {f"config.{name}": value for name, value in flatten(dataclasses.asdict(config))}
    return {"config": {**fields, "--workdir": os.path.abspath(workdir)}, "version": versions()}


def introduce(team: Team, mesh: Mesh | None) -> None:
    """Says in one line who the processes are and what they compute on, where there are several."""
    if team.count > 1 and mesh is not None:
        axes = " x ".join(f"{name} {size}" for name, size in mesh.shape.items() if size > 1)
        LOG.info(
            "%d processes, found by %s: %s; mesh %s over %d devices (%s), %d of them here",
            *(team.count, team.source, ", ".join(team.names), axes, mesh.devices.size),
            *(mesh.devices.flat[0].device_kind, jax.local_device_count()),
        )
