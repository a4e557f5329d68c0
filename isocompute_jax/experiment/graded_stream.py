"""Groups on their way from the sampler to the learner, each with its rewards."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from isocompute_jax.records.errors import RunError
from isocompute_jax.records.requests import SampleRequest
from isocompute_jax.records.rollout import RolloutGroup
from isocompute_jax.sampling import Sampler

Grade = Callable[[RolloutGroup], RolloutGroup]
"""The group with its rewards."""


class GradedStream:
    """Training rollouts, graded as they arrive.

    Args:
      sampler: its lane of training rollouts belongs to this stream alone.
      grade: gives a group its rewards.
    """

    def __init__(self, sampler: Sampler, grade: Grade):
        self._sampler = sampler
        self._grade = grade
        self._completed: Iterator[RolloutGroup] = iter(())
        self._grading_s = 0.0

    def submit(self, requests: Sequence[SampleRequest]) -> None:
        """Queues groups and returns at once."""
        self._sampler.submit(requests)

    def take(self) -> RolloutGroup:
        """The next group to finish. The sampler's stream ends whenever nothing is out; then it is reopened.

        Raises:
          RunError: the sampler has failed, or says that all is done.
        """
        group = next(self._completed, None)
        if group is None:
            self._completed = self._sampler.completed()
            group = next(self._completed, None)
        if group is None:
            raise RunError("the sampler lost groups: it says that all are done, and some never came")
        start = time.perf_counter()
        graded = self._grade(group)
        self._grading_s += time.perf_counter() - start
        return graded

    def grading_s(self) -> float:
        """Seconds spent on grading since this was last asked."""
        spent, self._grading_s = self._grading_s, 0.0
        return spent
