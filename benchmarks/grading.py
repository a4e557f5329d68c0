"""`python -m benchmarks.grading`: what graders that take their time cost a step, beside rewards that cost nothing.

    python -m benchmarks.grading                        # 5 s of sampling a step, graders that wait 50 ms: four minutes
    python -m benchmarks.grading --sampling_s=1 --steps=6

The pipeline, the stream and the graders are those of training; the sampler is simulated (its groups finish one after
the other, evenly over `--sampling_s`), and the update is a sleep. Three rewards: `exact`, within the loop's thread; an
`async def` that waits `--wait_ms`, 64 calls at a time; a `def` that does, in `--workers` processes. On-policy (k = 0)
the learner waits for all groups of a step and their graders, at k = 1 the next batch is drawn and graded meanwhile.
"slower" is the step's time over that with `exact`, both medians; "latency" is what it adds, in waits of one grader.
"""

from __future__ import annotations

import contextlib
import queue
import statistics
import threading
import time
from collections.abc import Iterator, Sequence

import numpy as np
from absl import flags

from benchmarks.shared import print_head, print_row
from isocompute_jax import app
from isocompute_jax.allocation.schedule import BatchSize
from isocompute_jax.experiment.config import CurriculumConfig
from isocompute_jax.experiment.pipeline import Pipeline
from isocompute_jax.experiment.problem_history import History
from isocompute_jax.experiment.problem_stream import ProblemStream, TrainSets
from isocompute_jax.experiment.rollouts import GradedStream
from isocompute_jax.records.requests import SampleRequest, SamplingParams
from isocompute_jax.records.rollout import Completion, Problem, RolloutGroup
from isocompute_jax.sampling import NO_DEVICES
from isocompute_jax.tasks import Grading, RewardConfig

_SAMPLING_S = flags.DEFINE_float("sampling_s", 5.0, "Seconds in which a step's groups are drawn.")
_UPDATE_S = flags.DEFINE_float("update_s", 1.0, "Seconds of an update.")
_WAIT_MS = flags.DEFINE_float("wait_ms", 50.0, "How long a grader waits, in milliseconds.")
_PROBLEMS = flags.DEFINE_integer("problems", 64, "Groups of a step.", 1)
_GROUP_SIZE = flags.DEFINE_integer("group_size", 4, "Rollouts of each, all different.", 1)
_WORKERS = flags.DEFINE_integer("workers", 8, "Processes of the reward that is no coroutine.", 1)
_STEPS = flags.DEFINE_integer("steps", 5, "Timed steps of each run, behind two that are not.", 1)

WARM_UP = 2


class SimulatedSampler:
    """Draws one group after the other, whether it is read or not, as a service does."""

    concurrent = True
    redrawn_rollouts = 0
    device_seconds = NO_DEVICES

    def __init__(self, group_s: float):
        self._group_s = group_s
        self._asked: queue.SimpleQueue[SampleRequest | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[RolloutGroup] = queue.SimpleQueue()
        self._out = self._version = 0
        self._thread = threading.Thread(target=self._draw, daemon=True)
        self._thread.start()

    def submit(self, requests: Sequence[SampleRequest], *, lane: str = "train") -> None:
        """Queues groups."""
        self._out += len(requests)
        for request in requests:
            self._asked.put(request)

    def completed(self, *, lane: str = "train") -> Iterator[RolloutGroup]:
        """Groups as they finish."""
        while self._out:
            group = self._done.get()
            self._out -= 1
            yield group

    def update_weights(self, params: object, *, version: int) -> None:
        """Marks what is drawn from now on."""
        self._version = version

    def close(self) -> None:
        """Ends the thread."""
        self._asked.put(None)
        self._thread.join()

    def _draw(self) -> None:
        while (request := self._asked.get()) is not None:
            time.sleep(self._group_s)
            version = np.array([self._version], np.int32)
            completions = tuple(
                Completion.drawn(np.array([i], np.int32), np.zeros(1, np.float32), version, "stop")
                for i in range(request.group_size)
            )
            self._done.put(RolloutGroup(request.problem_id, request.step, request.prompt_tokens, completions))


def make_requests(problems: Sequence[Problem], step: int, group_size: int) -> list[SampleRequest]:
    """A group for each problem."""
    params, prompt = SamplingParams(1.0, 1.0, 1), np.array([1], np.int32)
    return [SampleRequest(problem.id, prompt, group_size, 0, step, (), params) for problem in problems]


def step_seconds(reward: str, *, staleness: int) -> tuple[float, float]:
    """Medians over the timed steps: seconds of a step, and of these those that were spent on graders."""
    problems = [Problem(f"p{i}", "", str(_WAIT_MS.value / 1e3), "exact") for i in range(2 * _PROBLEMS.value)]
    by_id = {problem.id: problem for problem in problems}
    config = RewardConfig(function=reward, workers=_WORKERS.value)
    sampler = SimulatedSampler(_SAMPLING_S.value / _PROBLEMS.value)
    with contextlib.closing(Grading(config, lambda batch: [str(ids[0]) for ids in batch])) as grading:
        grading.check(problems)
        rollouts = GradedStream(sampler, lambda group: grading.submit(group, by_id[group.problem_id]))
        pipeline = Pipeline(
            ProblemStream(TrainSets.of(problems), CurriculumConfig(), problems_per_batch=_PROBLEMS.value, seed=0),
            rollouts,
            make_requests,
            size_at=lambda compute, n: BatchSize(_PROBLEMS.value, _GROUP_SIZE.value),
            max_compute=10**12,
            refill_up_to=None,
            window=staleness + 1,
            at_once=1,
        )
        history = History.empty(len(problems))
        seconds, grading_s = [], []
        for step in range(WARM_UP + _STEPS.value):
            start = time.perf_counter()
            sampler.update_weights(None, version=step)
            pipeline.submit(step, history)
            pipeline.receive(step)
            grading_s.append(rollouts.grading_s())
            time.sleep(_UPDATE_S.value)
            seconds.append(time.perf_counter() - start)
        sampler.close()
        rollouts.close()
    return statistics.median(seconds[WARM_UP:]), statistics.median(grading_s[WARM_UP:])


def main() -> None:
    """Flags -> table."""
    print_head(("reward", "k", "s/step", "waited for graders, s", "slower", "latency"))
    for staleness in (0, 1):
        least = None
        for name, reward in (
            ("exact", "exact"),
            ("async", "benchmarks.rewards:waits"),
            (f"{_WORKERS.value} processes", "benchmarks.rewards:waits_in_a_process"),
        ):
            seconds, waited = step_seconds(reward, staleness=staleness)
            least = seconds if least is None else least
            added = seconds - least
            slower, latency = f"{added / least:+.2%}", f"{added / (_WAIT_MS.value / 1e3):.1f}"
            print_row(name, staleness, f"{seconds:.3f}", f"{waited:.3f}", slower, latency)


if __name__ == "__main__":
    app.run(main)
