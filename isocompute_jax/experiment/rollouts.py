"""From problems to requests, and from completions to groups with their rewards."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import hashlib
import itertools
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from isocompute_jax.distributed import Team
from isocompute_jax.experiment.config import SamplingConfig
from isocompute_jax.records.errors import RunError
from isocompute_jax.records.requests import SampleRequest
from isocompute_jax.records.rollout import Problem, RolloutGroup
from isocompute_jax.sampling import Sampler, SamplingParams
from isocompute_jax.sampling.protocol import Source
from isocompute_jax.tasks import Grades, Prompts
from isocompute_jax.tasks.grading.engine import OnFailure

EVALUATION = "evaluation"
"""Lane of the rollouts of evaluations."""


def make_requests(
    problems: Sequence[Problem], prompts: Prompts, config: SamplingConfig, *, group_size: int, seed: int, step: int
) -> list[SampleRequest]:
    """One request per problem."""
    params = SamplingParams(config.temperature, config.top_p, config.max_tokens, config.top_k)
    stop = prompts.tokenizer.eos_ids
    return [
        SampleRequest(problem.id, prompt, group_size, seed, step, stop, params)
        for problem, prompt in zip(problems, prompts.encode(problems), strict=True)
    ]


def seed_of(use: str) -> int:
    """A seed for one use of random numbers, which a text names, so that no two uses share them."""
    return int.from_bytes(hashlib.blake2b(use.encode(), digest_size=4).digest(), "little")


def evaluation_seed(seed: int, name: str) -> int:
    """A seed of its own for each run and set, so that evaluation never replays training's random numbers."""
    return seed_of(f"evaluation/{seed}/{name}")


def sample(
    sampler: Sampler,
    requests: Sequence[SampleRequest],
    *,
    lane: str,
    version: int,
    grade: Callable[[Iterable[RolloutGroup]], Iterable[RolloutGroup]] = iter,
) -> list[RolloutGroup]:
    """Samples in a lane of its own and waits; groups in the order of the requests, however they arrive.

    Args:
      sampler: draws them.
      requests: what is asked for.
      lane: nobody else reads it.
      version: of the weights that draw.
      grade: from the groups as they arrive to what is kept of them; by default they stay ungraded.

    Raises:
      RunError: the sampler has failed, or used other weights than `version`.
    """
    sampler.submit(requests, lane=lane)
    groups = {group.problem_id: group for group in grade(sampler.completed(lane=lane))}
    lost = [request.problem_id for request in requests if request.problem_id not in groups]
    if lost:
        raise RunError(f"the sampler lost {len(lost)} groups, that of problem {lost[0]!r} first")
    ordered = [groups[request.problem_id] for request in requests]
    check_versions(ordered, oldest=version, newest=version)
    return ordered


def check_versions(groups: Iterable[RolloutGroup], *, oldest: int, newest: int) -> None:
    """Raises RunError unless every token was drawn under weights between `oldest` and `newest`."""
    for group in groups:
        for completion in group.completions:
            first, last = int(completion.policy_versions.min()), int(completion.policy_versions.max())
            if first < oldest or last > newest:
                raise RunError(
                    f"problem {group.problem_id!r} was sampled under weights {first} to {last}, where {oldest} to "
                    f"{newest} were asked for: does another run push its weights to the same servers?"
                )


def by_id(problems: Iterable[Problem]) -> dict[str, Problem]:
    """Problems as `tasks.graded` takes them."""
    return {problem.id: problem for problem in problems}


WAKE_S = 1.0
CLOSE_S = 15.0

LOST = "the sampler lost groups: it says that all are done, and some never came"


Submit = Callable[[RolloutGroup], concurrent.futures.Future[RolloutGroup]]
"""Begins to grade a group and returns at once; the future has the group with its rewards, or raises."""


class GradedStream:
    """Training rollouts, graded beside sampling, group by group as they finish.

    A sampler that draws by itself (`Sampler.concurrent`, a service) is read in a thread: what arrives while the learner
    updates is graded meanwhile. One that draws while it is read is read by who asks for groups: a group is graded
    while the next unit is drawn. What a group is does not depend on it.

    Args:
      sampler: its lane of training rollouts belongs to this stream alone.
      grade: begins to grade a group.
    """

    def __init__(self, sampler: Source, grade: Submit):
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

    def __init__(self, sampler: Source, begin: Callable[[RolloutGroup], None], fail: Callable[[BaseException], None]):
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


class SharedGrading:
    """Graders of several processes behind those of process 0: groups go round them.

    Args:
      team: of the processes.
      grading: of this one.
    """

    def __init__(self, team: Team, grading: Grades):
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
