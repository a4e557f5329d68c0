"""The window: batches on their way from the problem stream, through sampler and graders, to the learner.

Batch u is what the update from weights u to weights u + 1 trains on, and batches are used in the order of the stream.
On-policy, one batch is out at a time. Asynchronous training keeps `window` of them out: before update u the batches up
to u + window - 1 have been submitted, none of them before weights u - window + 1 served, so that no token in batch u
is more than window - 1 updates old when it is used. With as many batches out as the bound allows, deadlines leave no
choice of what to use next: update u waits for all of batch u, however long its slowest rollout takes, and nothing is
dropped or preferred for being short.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from isocompute_jax.experiment.data import ProblemStream
from isocompute_jax.experiment.graded_stream import GradedStream
from isocompute_jax.experiment.rollouts import check_versions
from isocompute_jax.records.errors import RunError
from isocompute_jax.records.requests import SampleRequest
from isocompute_jax.records.rollout import Problem, RolloutGroup

MakeRequests = Callable[[Sequence[Problem], int], list[SampleRequest]]
Key = tuple[int, str]
"""Batch and problem id: the name of a group. A batch has no problem twice."""


class Pipeline:
    """Submits batches ahead of their use and hands them out, whole and in order.

    Args:
      stream: where problems come from.
      rollouts: where they are sampled and graded.
      make_requests: (problems, batch) -> requests; their `step` is the batch, which keys their random numbers.
      num_steps: M; no batch is submitted that no update would use.
      window: batches that may be out at once, the next update's included.
      at_once: batches that are handed out together: 1, or those of a sampling phase.
    """

    def __init__(
        self,
        stream: ProblemStream,
        rollouts: GradedStream,
        make_requests: MakeRequests,
        *,
        num_steps: int,
        window: int,
        at_once: int,
    ):
        self._stream = stream
        self._rollouts = rollouts
        self._make_requests = make_requests
        self._num_steps = num_steps
        self._window = window
        self._at_once = at_once
        self._next = 0  # the first batch that is not submitted
        self._positions: dict[int, dict[str, Any]] = {}  # of the stream, before each batch that is out
        self._orders: dict[int, list[Key]] = {}  # the groups of each batch that is out, as submitted
        self._out: set[Key] = set()
        self._arrived: dict[Key, RolloutGroup] = {}

    def position(self, step: int) -> dict[str, Any]:
        """Where the stream has to stand to give batch `step` next: what a checkpoint before update `step` keeps.

        Batches that are out are not lost by it: they are drawn from the stream, and sampled, again.
        """
        return self._positions.get(step) or self._stream.get_state()

    def restart(self, step: int, position: dict[str, Any]) -> None:
        """Continues from a `position`; nothing may have been submitted yet."""
        self._stream.set_state(position)
        self._next = step

    def submit(self, step: int) -> None:
        """Fills the window of update `step`; returns at once."""
        for batch in range(self._next, min(step + self._window, self._num_steps)):
            self._positions[batch] = self._stream.get_state()
            requests = self._make_requests(next(self._stream), batch)
            self._orders[batch] = [(batch, request.problem_id) for request in requests]
            self._out.update(self._orders[batch])
            self._rollouts.submit(requests)
            self._next = batch + 1

    def receive(self, step: int) -> list[list[RolloutGroup]]:
        """Waits for batch `step`, or for the phase that begins with it; graded groups, in the order of submission.

        Raises:
          RunError: the sampler has failed, or has broken its word: a group twice, or of weights that are too old.
        """
        batches = [self._receive(batch) for batch in range(step, min(step + self._at_once, self._num_steps))]
        for number, groups in enumerate(batches):
            check_versions(groups, oldest=step + number - self._window + 1, newest=step)
        self._positions = {batch: position for batch, position in self._positions.items() if batch >= step}
        return batches

    def _receive(self, batch: int) -> list[RolloutGroup]:
        keys = self._orders.pop(batch)
        missing = {key for key in keys if key not in self._arrived}
        while missing:
            group = self._rollouts.take()
            key = (group.step, group.problem_id)
            if key not in self._out:
                raise RunError(f"the sampler returned problem {key[1]!r} of step {key[0]} twice, or unasked")
            self._out.remove(key)
            self._arrived[key] = group
            missing.discard(key)
        return [self._arrived.pop(key) for key in keys]
