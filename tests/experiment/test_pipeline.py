"""The window: whatever finishes when, no rollout is too old, none is lost, doubled, dropped or preferred."""

import concurrent.futures
from typing import cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isocompute_jax.allocation.schedule import BatchSize
from isocompute_jax.experiment.config import CurriculumConfig
from isocompute_jax.experiment.metrics import staleness_metrics
from isocompute_jax.experiment.pipeline import Pipeline
from isocompute_jax.experiment.problem_history import History
from isocompute_jax.experiment.problem_stream import ProblemStream, TrainSets
from isocompute_jax.experiment.rollouts import GradedStream
from isocompute_jax.experiment.workdir import RECORDS
from isocompute_jax.records.errors import RunError
from isocompute_jax.records.requests import SampleRequest, SamplingParams
from isocompute_jax.records.rollout import Problem
from tests.distributed.company import Company
from tests.experiment.samplers import ScriptedSampler

PROBLEMS = [Problem(f"p{i}", "", "", "numeric") for i in range(7)]
NOTHING = History.empty(len(PROBLEMS))


def make_requests(problems, step, group_size):
    params = SamplingParams(1.0, 1.0, 3)
    return [SampleRequest(problem.id, np.array([1], np.int32), group_size, 0, step, (), params) for problem in problems]


def instantly(group):
    """Grades nothing, and does not wait."""
    done = concurrent.futures.Future()
    done.set_result(group)
    return done


def make_stream(problems_per_batch=3):
    return ProblemStream(TrainSets.of(PROBLEMS), CurriculumConfig(), problems_per_batch=problems_per_batch, seed=0)


def make_pipeline(sampler, *, num_steps=9, window=3, at_once=1, problems_per_batch=3, team=None):
    stream = make_stream(problems_per_batch)
    return Pipeline(
        stream,
        GradedStream(sampler, instantly) if sampler else None,
        make_requests,
        size_at=lambda compute, n: BatchSize(problems_per_batch, 2),
        max_compute=num_steps * problems_per_batch * 2,
        window=window,
        at_once=at_once,
        refill_up_to=None,
        team=team,
    )


def names(groups):
    return [group.problem_id for group in groups]


def batches(num_steps, problems_per_batch=3):
    """What the stream holds for each step."""
    stream = make_stream(problems_per_batch)
    return [[problem.id for problem in next(stream)] for _ in range(num_steps)]


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.data(), st.integers(0, 4), st.integers(1, 12), st.integers(1, 3))
def test_any_order_of_completion_keeps_the_bound_and_uses_everything_once(data, k, num_steps, problems_per_batch):
    sampler = ScriptedSampler(lambda out: data.draw(st.integers(0, out - 1)))
    pipeline = make_pipeline(sampler, num_steps=num_steps, window=k + 1, problems_per_batch=problems_per_batch)
    asked = 0
    for step, expected in enumerate(batches(num_steps, problems_per_batch)):
        sampler.update_weights(None, version=step)
        before = len(sampler.out)
        pipeline.submit(step, NOTHING)
        asked += len(sampler.out) - before
        # Submitted as far as the window and the end of the run allow, and no further.
        assert asked == min(step + k + 1, num_steps) * problems_per_batch
        [groups] = [sampled.groups for sampled in pipeline.receive(step)]
        assert names(groups) == expected and {group.step for group in groups} == {step}
        metrics = staleness_metrics(groups, step=step, window=k + 1)
        # The first token is as old as the bound allows: batch u is submitted under weights u - k.
        assert metrics["staleness"] == min(step, k)
        assert len(metrics["staleness_histogram"]) == k + 1
    assert sampler.out == []


def test_a_slow_group_is_waited_for_at_its_deadline_and_holds_back_no_one_before():
    """k = 1. p_slow of batch 1 finishes last of all that is out: update 0 does not wait for it, update 1 does."""
    first, second, third = batches(3)
    slow = second[1]
    order = []

    def choose(out):
        places = [i for i, (request, _) in enumerate(sampler.out) if (request.step, request.problem_id) != (1, slow)]
        place = places[-1] if places else 0  # the newest first, too
        order.append((sampler.out[place][0].step, sampler.out[place][0].problem_id))
        return place

    sampler = ScriptedSampler(choose)
    pipeline = make_pipeline(sampler, window=2, num_steps=3)
    for step, expected in enumerate((first, second, third)):
        sampler.update_weights(None, version=step)
        pipeline.submit(step, NOTHING)
        [groups] = [sampled.groups for sampled in pipeline.receive(step)]
        assert names(groups) == expected
        if step == 0:
            assert (1, slow) not in order
    assert order[-1] == (1, slow) and len(order) == 9  # all of batch 2 was there before it, and waited


def test_every_process_gets_what_the_first_drew():
    company = Company(3, records=RECORDS)

    def run(team):
        """The batches of a run, as problems, and the positions behind them."""
        sampler = ScriptedSampler(lambda out: out - 1) if team.leads else None
        pipeline, found = make_pipeline(sampler, num_steps=3, window=1, team=team), []
        while pipeline.has(len(found), NOTHING):
            if sampler:
                sampler.update_weights(None, version=len(found))
            [sampled], position = pipeline.next(len(found), NOTHING)
            found.append((names(sampled.groups), sampled.rounds, position))
        return found, pipeline.exhausted(NOTHING), pipeline.grading_s() > 0

    first, *others = cast("list[tuple[list, bool, bool]]", company.all(run))
    company.close()
    assert [batch[0] for batch in first[0]] == batches(3)
    assert others == [(first[0], False, False)] * 2


def test_phases_hand_out_their_batches_together_and_submit_nothing_between():
    """k = 3 updates a phase, 7 steps: phases of 3, 3 and 1."""
    sampler = ScriptedSampler(lambda out: out - 1)
    pipeline = make_pipeline(sampler, num_steps=7, window=3, at_once=3)
    expected = batches(7)
    for start, size in ((0, 3), (3, 3), (6, 1)):
        sampler.update_weights(None, version=start)
        pipeline.submit(start, NOTHING)
        assert [names(sampled.groups) for sampled in pipeline.receive(start)] == expected[start : start + size]
        assert sampler.out == []


@pytest.mark.parametrize("window", [1, 3])
def test_a_restart_draws_what_was_out_again(window):
    sampler = ScriptedSampler(lambda out: 0)
    pipeline = make_pipeline(sampler, window=window)
    expected = batches(9)
    for step in range(4):
        sampler.update_weights(None, version=step)
        pipeline.submit(step, NOTHING)
        pipeline.receive(step)
    pipeline.submit(4, NOTHING)  # lost in the crash
    restarted = make_pipeline(sampler, window=window)
    restarted.restart(4, pipeline.position(4), 4 * 6)
    sampler.close()
    for step in range(4, 9):
        sampler.update_weights(None, version=step)
        restarted.submit(step, NOTHING)
        [groups] = [sampled.groups for sampled in restarted.receive(step)]
        assert names(groups) == expected[step]
    assert sampler.out == []


def test_a_position_is_kept_when_submitting_fails():
    sampler = ScriptedSampler(lambda out: 0)
    pipeline = make_pipeline(sampler)
    start = pipeline.position(0)
    with pytest.raises(AssertionError):
        pipeline.submit(0, NOTHING)  # it has no weights yet
    assert start == make_stream().get_state()
    stream = make_stream()
    stream.set_state(pipeline.position(0))
    assert [[problem.id for problem in next(stream)] for _ in range(5)] == batches(5)


# --- samplers that break their word


def test_weights_older_than_the_bound_are_an_error():
    sampler = ScriptedSampler(lambda out: 0)
    pipeline = make_pipeline(sampler, window=2)
    for step in range(3):
        sampler.update_weights(None, version=step)
        pipeline.submit(step, NOTHING)
        if step == 2:
            sampler.out = [(request, start - 1) for request, start in sampler.out]  # an endpoint missed update 1
            with pytest.raises(RunError, match=r"was sampled under weights 0 to 2, where 1 to 2 were asked for"):
                pipeline.receive(step)
        else:
            pipeline.receive(step)


def test_groups_of_the_future_twice_and_lost_are_errors():
    sampler = ScriptedSampler(lambda out: 0)
    pipeline = make_pipeline(sampler, window=1)
    sampler.update_weights(None, version=5)
    pipeline.submit(0, NOTHING)
    with pytest.raises(RunError, match="weights 5 to 5, where 0 to 0"):
        pipeline.receive(0)
    sampler = ScriptedSampler(lambda out: 0)
    pipeline = make_pipeline(sampler, window=1)
    sampler.update_weights(None, version=0)
    pipeline.submit(0, NOTHING)
    sampler.out = [sampler.out[0], *sampler.out]
    with pytest.raises(RunError, match="twice, or unasked"):
        pipeline.receive(0)
    sampler = ScriptedSampler(lambda out: 0)
    pipeline = make_pipeline(sampler, window=1)
    sampler.update_weights(None, version=0)
    pipeline.submit(0, NOTHING)
    sampler.out.pop()
    with pytest.raises(RunError, match="lost groups"):
        pipeline.receive(0)


def test_staleness_by_hand():
    """Four tokens at update 5, one of them context: ages 0, 2 and 3 are trained, the oldest of all is 4."""
    sampler = ScriptedSampler(lambda out: 0)
    sampler.update_weights(None, version=0)
    sampler.submit(make_requests(PROBLEMS[:1], 0, 2))
    [group] = sampler.completed()
    [completion, _] = group.completions
    object.__setattr__(completion, "policy_versions", np.array([1, 2, 3, 5], np.int32))
    object.__setattr__(completion, "mask", np.array([False, True, True, True]))
    object.__setattr__(group, "completions", (completion,))
    metrics = staleness_metrics([group], step=5, window=5)
    assert metrics == {"staleness": 4, "staleness_mean": pytest.approx(5 / 3), "staleness_histogram": [1, 0, 1, 1, 0]}
