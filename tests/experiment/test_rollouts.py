"""Grading beside sampling and in several processes: what overlaps, whose errors reach the loop, who disagrees."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import queue
import threading
import time
from typing import Any

import numpy as np
import pytest

from isocompute_jax import learner
from isocompute_jax.allocation.schedule import BatchSize
from isocompute_jax.experiment.loop_state import ReadyBatch
from isocompute_jax.experiment.pipeline import Sampled
from isocompute_jax.experiment.rollouts import GradedStream, SharedGrading
from isocompute_jax.experiment.updates import shared_of
from isocompute_jax.experiment.workdir import RECORDS
from isocompute_jax.records.errors import Interrupted, RunError
from isocompute_jax.records.requests import SampleRequest, SamplingParams
from isocompute_jax.records.rollout import Problem, RolloutGroup
from isocompute_jax.tasks import Grading, RewardConfig
from tests.distributed.company import SOON, Company
from tests.experiment.samplers import ScriptedSampler
from tests.learner.builders import make_groups, pack


def requests(count, start=0):
    params = SamplingParams(1.0, 1.0, 3)
    return [SampleRequest(f"p{start + i}", np.array([1], np.int32), 2, 0, 0, (), params) for i in range(count)]


class Served:
    """Draws by itself, as a service does: groups arrive whenever `finish` is called."""

    concurrent = True

    def __init__(self):
        self.waiting = 0
        self.arrived: queue.SimpleQueue = queue.SimpleQueue()
        self.closed = False

    def submit(self, asked, *, lane="train"):
        self.waiting += len(asked)

    def finish(self, *names, error=None):
        for name in names:
            self.arrived.put(RolloutGroup(name, 0, np.array([1], np.int32), ()))
        if error is not None:
            self.arrived.put(error)

    def completed(self, *, lane="train"):
        while self.waiting:
            if self.closed:
                raise RunError("the sampler was closed")
            with contextlib.suppress(queue.Empty):
                item = self.arrived.get(timeout=0.05)
                if isinstance(item, BaseException):
                    raise item
                self.waiting -= 1
                yield item

    def close(self):
        self.closed = True


class Graders:
    """Each group is done so many seconds after it was given, or when it is told."""

    def __init__(self, seconds=0.0):
        self.seconds = seconds
        self.begun: list[str] = []
        self.threads: set[str] = set()

    def __call__(self, group):
        self.begun.append(group.problem_id)
        self.threads.add(threading.current_thread().name)
        done: concurrent.futures.Future[RolloutGroup] = concurrent.futures.Future()
        timer = threading.Timer(self.seconds, done.set_result, [group])
        timer.start()
        return done


@contextlib.contextmanager
def streaming(sampler, graders):
    stream = GradedStream(sampler, graders)
    try:
        yield stream
    finally:
        sampler.close()
        stream.close()


def until(condition):
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < 10
        time.sleep(0.005)


def test_groups_of_a_service_are_graded_while_the_learner_does_something_else():
    sampler, graders = Served(), Graders(0.01)
    with streaming(sampler, graders) as stream:
        stream.submit(requests(3))
        sampler.finish("p0", "p2")
        until(lambda: graders.begun == ["p0", "p2"])  # nobody has asked for a group
        assert graders.threads == {"rollouts"}
        time.sleep(0.05)
        sampler.finish("p1")
        assert {stream.take().problem_id for _ in range(3)} == {"p0", "p1", "p2"}
        # The stream ends when nothing is out, and is opened again.
        stream.submit(requests(1, 3))
        sampler.finish("p3")
        assert stream.take().problem_id == "p3"
        assert 0 < stream.grading_s() < 1 and stream.grading_s() == 0


def test_a_slow_grader_holds_up_nobody_but_its_group():
    sampler = Served()
    seconds = {"p0": 0.3, "p1": 0.0}

    def grade(group):
        done = concurrent.futures.Future()
        threading.Timer(seconds[group.problem_id], done.set_result, [group]).start()
        return done

    with streaming(sampler, grade) as stream:
        stream.submit(requests(2))
        sampler.finish("p0", "p1")
        assert [stream.take().problem_id for _ in range(2)] == ["p1", "p0"]
        assert 0.1 < stream.grading_s() < 1


@pytest.mark.parametrize("error", [RunError("no endpoint has answered"), Interrupted(), KeyError("p9")])
def test_what_ends_the_sampler_reaches_who_asks_for_groups(error):
    sampler = Served()
    with streaming(sampler, Graders()) as stream:
        stream.submit(requests(2))
        sampler.finish("p0", error=error)
        with pytest.raises(type(error)) as first:
            for _ in range(2):
                stream.take()
        with pytest.raises(type(error)) as again:
            stream.take()
        assert first.value is again.value is error


def test_groups_that_a_service_loses_are_missed():
    sampler = Served()
    with streaming(sampler, Graders()) as stream:
        stream.submit(requests(2))
        sampler.waiting = 1
        sampler.finish("p0")
        stream.take()
        with pytest.raises(RunError, match="lost groups"):
            stream.take()


def test_a_reward_that_ends_the_run_does_so_where_groups_are_asked_for():
    def grade(group):
        done = concurrent.futures.Future()
        done.set_exception(RunError("reward f raised on problem 'p0'"))
        return done

    with streaming(Served(), grade) as stream:
        stream.submit(requests(1))
        stream._sampler.finish("p0")  # pyright: ignore[reportAttributeAccessIssue]
        with pytest.raises(RunError, match="'p0'"):
            stream.take()


def test_a_sampler_in_this_process_draws_on_while_groups_are_graded():
    """Four groups of 0.05 s each to draw, 0.1 s to grade: on-policy, a step is as long as sampling and one grader."""
    drawn = []

    class Slow(ScriptedSampler):
        def completed(self, *, lane="train"):
            for group in super().completed(lane=lane):
                time.sleep(0.05)
                drawn.append(group.problem_id)
                yield group

    sampler, graders = Slow(lambda out: 0), Graders(0.1)
    sampler.update_weights(None, version=0)
    with streaming(sampler, graders) as stream:
        stream.submit(requests(4))
        assert drawn == []
        start = time.perf_counter()
        taken = [stream.take().problem_id for _ in range(4)]
        wall = time.perf_counter() - start
    assert sorted(taken) == ["p0", "p1", "p2", "p3"] and graders.threads == {"MainThread"}
    assert wall < 4 * 0.05 + 2 * 0.1  # one after the other would take 0.6 s
    assert 0.03 < stream.grading_s() < 0.2


GROUPS = [dataclasses.replace(group, rewards=None) for group in make_groups()]
PROBLEMS = [Problem(group.problem_id, "1+1=", str(i), "numeric") for i, group in enumerate(GROUPS)]


@pytest.fixture
def three():
    """Three processes that send each other groups and problems."""
    company = Company(3, records=RECORDS)
    yield company
    company.close()


class Noting(Grading):
    """Remembers what it was given."""

    def __init__(self):
        super().__init__(RewardConfig(), lambda many: [str(len(tokens)) for tokens in many])
        self.given: list[str] = []

    def submit(self, group, problem, **options):
        self.given.append(problem.id)
        return super().submit(group, problem, **options)


def test_grading_goes_round_the_processes_and_finds_what_one_finds(three):
    gradings = [Noting() for _ in range(3)]
    shared = [SharedGrading(team, grading) for team, grading in zip(three.teams, gradings, strict=True)]
    futures = [shared[0].submit(group, problem) for group, problem in zip(GROUPS, PROBLEMS, strict=True)]
    names = [problem.id for problem in PROBLEMS]
    rewards = set()
    for future, group, problem in zip(futures, GROUPS, PROBLEMS, strict=True):
        found, alone = future.result(SOON), Noting().submit(group, problem).result()
        assert found.rewards is not None and alone.rewards is not None
        assert found.rewards.tobytes() == alone.rewards.tobytes()
        rewards |= set(found.rewards.tolist())
        assert found.completions is group.completions and found.task == alone.task
    assert [grading.given for grading in gradings] == [names[0::3], names[1::3], names[2::3]]
    assert rewards == {0.0, 1.0}


def test_a_reward_that_fails_in_another_process_fails_with_its_name(three):
    shared = [SharedGrading(team, Noting()) for team in three.teams]
    broken = dataclasses.replace(PROBLEMS[0], answer=None)  # which reads as no number: the grader raises
    shared[0].submit(GROUPS[0], PROBLEMS[0])
    with pytest.raises(RunError, match="process 1: reward numeric raised on problem"):
        shared[0].submit(GROUPS[0], broken, on_failure="stop").result(SOON)


def ready() -> ReadyBatch:
    groups = make_groups()
    return ReadyBatch(Sampled(groups, BatchSize(len(groups), 2)), [pack(groups)], {}, groups, 0.0)


def other_advantages(batch: ReadyBatch) -> None:
    """The next number that a float can be, of one rollout."""
    advantages = np.asarray(batch.updates[0][1].advantages)
    advantages[0, 0] = np.nextafter(advantages[0, 0], np.float32(9))


def other_rows(batch: ReadyBatch) -> None:
    """Two rows, change places: shapes and sums stay as they are."""
    rollout = np.asarray(batch.updates[0][0].rollout)
    rollout[0, [0, 1]] = rollout[0, [1, 0]]


def other_rewards(batch: ReadyBatch) -> None:
    rewards = batch.sampled.groups[0].rewards
    assert rewards is not None
    rewards += np.float32(1)


def other_tokens(batch: ReadyBatch) -> None:
    batch.sampled.groups[0].completions[0].tokens[0] += 1


@pytest.mark.parametrize("packed", [False, True])
def test_processes_that_write_rows_of_their_own_agree(packed):
    """Each writes the tokens of its rows alone, and notes of the others whose they are."""
    groups = make_groups()
    longest = max(len(group.prompt_tokens) + len(c.tokens) for group in groups for c in group.completions)
    sizes: dict[str, Any] = {
        "problems_per_batch": len(groups),
        "group_size": max(len(group.completions) for group in groups),
        "max_prompt_tokens": longest,
        "max_tokens": longest,
        "microbatch_tokens": 4 * longest,
        "batch_shards": 2,
    }
    shape = learner.pack_shape(**sizes, row_tokens=2 * longest) if packed else learner.batch_shape(**sizes)
    half = np.arange(shape.rows) < shape.rows // 2
    laid_out = [shape.lay_out(groups, own=own) for own in (half, ~half)]
    assert not np.array_equal(laid_out[0].tokens, laid_out[1].tokens)
    batch = ready()
    shared = [shared_of([dataclasses.replace(batch, updates=[(each, batch.updates[0][1])])]) for each in laid_out]
    assert shared[0] == shared[1]


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (other_tokens, "tokens (checksum)"),
        (other_advantages, "advantages and weights (checksum)"),
        (other_rows, "rows (checksum)"),
        (other_rewards, "rewards (checksum)"),
    ],
)
def test_who_would_compute_on_other_numbers_ends_all_with_its_name(three, change, name):
    batches = [ready() for _ in three.teams]
    assert three.all(lambda team: team.agree("step 1", shared_of([batches[team.index]]))) == [None] * 3
    change(batches[2])
    found = three.all(lambda team: team.agree("step 2", shared_of([batches[team.index]])))
    for error in found:
        assert isinstance(error, RunError)
        assert f"process 2 disagrees with process 0 about step 2: {{'{name}': " in str(error)
    assert "shapes" not in str(found[0])
