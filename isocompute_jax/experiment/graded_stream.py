"""Groups on their way from the sampler to the learner, each with its rewards."""

from __future__ import annotations

import concurrent.futures
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from isocompute_jax.records.errors import RunError
from isocompute_jax.records.requests import SampleRequest
from isocompute_jax.records.rollout import RolloutGroup
from isocompute_jax.sampling import Sampler

WAKE_S = 1.0
CLOSE_S = 15.0

LOST = "the sampler lost groups: it says that all are done, and some never came"


class Submit(Protocol):
    """Begins to grade a group; the future has the group with its rewards, or raises."""

    def __call__(self, group: RolloutGroup, /) -> concurrent.futures.Future[RolloutGroup]:
        """Returns at once."""
        ...


class GradedStream:
    """Training rollouts, graded beside sampling, group by group as they finish.

    A sampler that draws by itself (`Sampler.concurrent`, a service) is read in a thread: what arrives while the learner
    updates is graded meanwhile. One that draws while it is read is read by who asks for groups: a group is graded
    while the next unit is drawn. What a group is does not depend on it.

    Args:
      sampler: its lane of training rollouts belongs to this stream alone.
      grade: begins to grade a group.
    """

    def __init__(self, sampler: Sampler, grade: Submit):
        self._sampler = sampler
        self._grade = grade
        self._done: queue.SimpleQueue[tuple[float, concurrent.futures.Future[RolloutGroup]]] = queue.SimpleQueue()
        self._completed: Iterator[RolloutGroup] = iter(())
        self._reader = _Reader(sampler, self._begin, self._fail) if sampler.concurrent else None
        self._out = 0  # groups that were submitted and not taken
        self._drawn = 0  # of these, those that were drawn in this thread
        self._failure: BaseException | None = None
        self._inline_s = 0.0
        self._asked = self._sampled = self._taken = 0.0  # moments, of what was taken since `grading_s` was asked

    def submit(self, requests: Sequence[SampleRequest]) -> None:
        """Queues groups and returns at once."""
        (self._sampler if self._reader is None else self._reader).submit(requests)
        self._out += len(requests)

    def take(self) -> RolloutGroup:
        """The next group that is graded.

        Raises:
          RunError: the sampler has failed, or says that all is done; or a reward failed, and ends the run.
          Exception: whatever else ended the sampler.
        """
        self._asked = self._asked or time.perf_counter()
        sampled, future = self._next()
        group = future.result()
        self._out -= 1
        self._drawn -= self._reader is None
        self._taken = time.perf_counter()
        self._sampled = max(self._sampled, sampled)
        return group

    def grading_s(self) -> float:
        """Seconds that were spent on graders since this was last asked: in this thread, or waiting for the last."""
        waited = max(0.0, self._taken - max(self._sampled, self._asked)) if self._asked else 0.0
        spent, self._inline_s = self._inline_s + waited, 0.0
        self._asked = self._sampled = self._taken = 0.0
        return spent

    def close(self) -> None:
        """Ends the thread that reads the sampler, which must be closed before."""
        if self._reader is not None:
            self._reader.close()

    def _next(self) -> tuple[float, concurrent.futures.Future[RolloutGroup]]:
        """What was graded next; in this thread, what is drawn meanwhile."""
        while True:
            if self._failure is not None and self._done.empty():
                raise self._failure
            draws = self._reader is None and self._drawn < self._out
            try:
                return self._done.get(block=not draws, timeout=WAKE_S)
            except queue.Empty:
                if draws:
                    self._draw()

    def _draw(self) -> None:
        """Reads one more group. The sampler's stream ends whenever nothing is out; then it is reopened."""
        group = next(self._completed, None)
        if group is None:
            self._completed = self._sampler.completed()
            group = next(self._completed, None)
        if group is None:
            raise RunError(LOST)
        start = time.perf_counter()
        self._begin(group)
        self._drawn += 1
        self._inline_s += time.perf_counter() - start

    def _begin(self, group: RolloutGroup) -> None:
        """Has a group graded; once it is, it is in the queue."""
        future = self._grade(group)
        sampled = time.perf_counter()
        future.add_done_callback(lambda done: self._done.put((sampled, done)))

    def _fail(self, error: BaseException) -> None:
        """Lets whoever takes the next group meet the error."""
        self._failure = error
        future: concurrent.futures.Future[RolloutGroup] = concurrent.futures.Future()
        future.set_exception(error)
        self._done.put((time.perf_counter(), future))


class _Reader:
    """A thread that reads a sampler's stream to its end whenever something was submitted."""

    def __init__(self, sampler: Sampler, begin: Callable[[RolloutGroup], None], fail: Callable[[BaseException], None]):
        self._sampler, self._begin, self._fail = sampler, begin, fail
        self._lock = threading.Lock()  # held while something is submitted, so that `_waited` and `_more` agree
        self._more = threading.Event()
        self._waited = 0
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="rollouts", daemon=True)
        self._thread.start()

    def submit(self, requests: Sequence[SampleRequest]) -> None:
        """Queues groups and returns at once."""
        with self._lock:
            self._sampler.submit(requests)
            self._waited += len(requests)
            self._more.set()

    def close(self) -> None:
        """Ends the thread; the sampler is closed."""
        self._closing = True
        self._more.set()
        self._thread.join(CLOSE_S)

    def _run(self) -> None:
        try:
            while True:
                self._more.wait()
                self._more.clear()
                if self._closing:
                    return
                for group in self._sampler.completed():
                    self._begin(group)
                    with self._lock:
                        self._waited -= 1
                with self._lock:
                    if self._waited and not self._more.is_set():
                        raise RunError(LOST)
        except BaseException as error:
            if not self._closing:
                self._fail(error)
