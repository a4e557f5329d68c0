"""Dynamic sampling beside a replay that draws one problem after another: whichever group arrives first."""

import concurrent.futures
import dataclasses
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isocompute_jax.allocation.schedule import BatchSize
from isocompute_jax.experiment.metrics import rollout_metrics
from isocompute_jax.experiment.pipeline import Pipeline, groups_with_signal
from isocompute_jax.experiment.problem_history import History
from isocompute_jax.experiment.rollouts import GradedStream
from isocompute_jax.records.errors import RunError
from isocompute_jax.records.requests import SampleRequest, SamplingParams
from isocompute_jax.records.rollout import Episode
from isocompute_jax.sampling import TRAIN
from tests.experiment.curriculum.builders import batches_of_grain, make_stream
from tests.experiment.samplers import ScriptedSampler

PROBLEMS = 11
NOTHING = History.empty(PROBLEMS)


@dataclasses.dataclass(frozen=True)
class Run:
    """B_problem = 3, n = 2."""

    most: int = 9
    budget: int = 10**6
    flat: int = 60  # percent of groups without a signal
    window: int = 1
    at_once: int = 1
    signals: tuple[str, ...] | None = None  # exactly these problems have one
    turns: int = 0  # credited each by itself: then rewards are equal in sum, and a signal is how turns share them

    def has_signal(self, step: int, problem: str) -> bool:
        if self.signals is not None:
            return problem in self.signals
        return zlib.crc32(f"{step} {problem}".encode()) % 100 >= self.flat

    def pipeline(self, sampler) -> Pipeline:
        def grade(group):
            rewards = [1.0, 0.0] if self.has_signal(group.step, group.problem_id) else [0.0, 0.0]
            done = concurrent.futures.Future()
            if self.turns:
                played = [
                    dataclasses.replace(one, episode=Episode((0, 1), (1, 3), (reward, 1 - reward)))
                    for one, reward in zip(group.completions, rewards, strict=True)
                ]
                group, rewards = dataclasses.replace(group, completions=tuple(played)), [1.0, 1.0]
            done.set_result(dataclasses.replace(group, rewards=np.array(rewards, np.float32)))
            return done

        return Pipeline(
            make_stream(PROBLEMS, size=3),
            GradedStream(sampler, grade),
            make_requests,
            size_at=lambda compute, n: BatchSize(3, 2),
            max_compute=self.budget,
            window=self.window,
            at_once=self.at_once,
            refill_up_to=self.most / 3,
            credited_turns=self.turns,
        )


class RecordingSampler(ScriptedSampler):
    """Knows what it was asked for: (step, problem)."""

    def __init__(self, choose):
        super().__init__(choose)
        self.asked: list[tuple[int, str]] = []

    def submit(self, requests, *, lane=TRAIN):
        self.asked += [(request.step, request.problem_id) for request in requests]
        super().submit(requests, lane=lane)


def make_requests(problems, step, group_size):
    params = SamplingParams(1.0, 1.0, 3)
    return [SampleRequest(problem.id, np.array([1], np.int32), group_size, 0, step, (), params) for problem in problems]


def epochs():
    """Every epoch's order as grain gives it, in batches of one."""
    batches = batches_of_grain(PROBLEMS, 1, 0)
    while True:
        yield [f"p{next(batches)[0]}" for _ in range(PROBLEMS)]


ORDERS = [order for order, _ in zip(epochs(), range(12), strict=False)]


def replay(run: Run, steps: int) -> list[tuple[list[str], list[str]]]:
    """(drawn, kept) of each step: one problem after the other until three have a signal, or no more may be drawn."""
    orders = iter(ORDERS)
    left, put_off, spent, found = list(next(orders)), [], 0, []
    for step in range(steps):
        if spent + 3 * 2 > run.budget:
            break
        drawn, kept = [], []
        if len(put_off) < 3 and len(left) < 3 - len(put_off):
            left = list(next(orders))  # the first draw is of one epoch
        while len(kept) < 3 and len(drawn) < min(run.most, PROBLEMS) and spent + 2 <= run.budget:
            ready = [problem for problem in put_off if problem not in drawn]
            if ready:
                put_off.remove(ready[0])
                problem = ready[0]
            else:
                left = left or list(next(orders))
                problem = left.pop(0)
                if problem in drawn:
                    put_off.append(problem)
                    continue
            drawn.append(problem)
            spent += 2
            if run.has_signal(step, problem):
                kept.append(problem)
        found.append((drawn, kept))
    return found


def names(groups) -> list[str]:
    return [group.problem_id for group in groups]


def walk(run: Run, sampler, steps: int):
    """(drawn, kept, rounds) of each step."""
    pipeline, found, step = run.pipeline(sampler), [], 0
    while step < steps and pipeline.has(step, NOTHING):
        sampler.update_weights(None, version=step)
        pipeline.submit(step, NOTHING)
        for sampled in pipeline.receive(step):
            assert {group.step for group in sampled.groups} == {step}
            drawn, kept = names(sampled.groups), names(groups_with_signal(sampled.groups, run.turns))
            silent = rollout_metrics(sampled.groups, run.turns)["zero_variance_share"]
            assert silent == (len(drawn) - len(kept)) / len(drawn)
            found.append((drawn, kept, sampled.rounds))
            step += 1
    return found


@settings(max_examples=40)
@given(data=st.data(), flat=st.sampled_from([0, 30, 60, 90, 100]), most=st.integers(3, 12), budget=st.integers(6, 80))
def test_what_is_drawn_and_kept_is_that_of_a_replay_in_any_order_of_arrival(data, flat, most, budget):
    run = Run(most=most, budget=budget, flat=flat)
    sampler = ScriptedSampler(lambda out: data.draw(st.integers(0, out - 1)))
    found = walk(run, sampler, steps=10)
    assert [(drawn, kept) for drawn, kept, _ in found] == replay(run, 10)
    for drawn, kept, rounds in found:
        assert len(set(drawn)) == len(drawn) <= most and len(kept) <= 3
        assert (rounds > 0) == (len(drawn) > 3)
    assert sampler.out == []


@pytest.mark.parametrize("turns", [0, 2])
def test_by_hand(turns):
    """The second, the sixth and the seventh problem have a signal: rounds of 3, then of the 2 that lack, twice."""
    order = ORDERS[0]
    run = Run(signals=(order[1], order[5], order[6]), turns=turns)
    assert walk(run, ScriptedSampler(lambda out: 0), steps=1) == [(order[:7], [order[1], order[5], order[6]], 2)]


def test_a_bound_ends_a_step_with_what_it_has():
    [(drawn, kept, rounds), *_] = walk(Run(flat=100, most=7), ScriptedSampler(lambda out: 0), steps=2)
    assert len(drawn) == 7 and kept == [] and rounds == 2  # 3, 3, and the 1 that is left


def test_no_step_draws_a_problem_twice_even_where_all_are_flat():
    [(drawn, _, _), *_] = walk(Run(flat=100, most=100), ScriptedSampler(lambda out: 0), steps=2)
    assert sorted(drawn) == sorted(ORDERS[0])


@settings(max_examples=30)
@given(data=st.data(), phase=st.integers(1, 3), flat=st.sampled_from([0, 60, 100]), budget=st.integers(6, 80))
def test_phases_are_drawn_alike_in_any_order_of_arrival(data, phase, flat, budget):
    run = Run(window=phase, at_once=phase, flat=flat, budget=budget)
    first = walk(run, ScriptedSampler(lambda out: 0), steps=7)
    assert walk(run, ScriptedSampler(lambda out: data.draw(st.integers(0, out - 1))), steps=7) == first
    assert 2 * sum(len(drawn) for drawn, _, _ in first) <= budget


@settings(max_examples=40)
@given(data=st.data(), k=st.integers(1, 4), flat=st.sampled_from([0, 60, 90]), budget=st.integers(6, 120))
def test_a_window_keeps_its_bound_and_its_books(data, k, flat, budget):
    """Nothing lost, doubled or too old; never more than the budget; nothing kept that has no signal."""
    run = Run(window=k + 1, flat=flat, budget=budget)
    sampler = RecordingSampler(lambda out: data.draw(st.integers(0, out - 1)))
    pipeline, step, spent, asked = run.pipeline(sampler), 0, 0, sampler.asked
    used: list[tuple[int, str]] = []
    while step < 9 and pipeline.has(step, NOTHING):
        sampler.update_weights(None, version=step)
        pipeline.submit(step, NOTHING)
        [sampled] = pipeline.receive(step)  # which checks ages
        assert len(names(sampled.groups)) == len(set(names(sampled.groups))) <= run.most
        kept = names(groups_with_signal(sampled.groups, run.turns))
        assert kept == [name for name in names(sampled.groups) if run.has_signal(step, name)]
        assert len(kept) == 3 or len(sampled.groups) == 9 or 2 * (len(asked) + 1) > budget
        used += [(step, name) for name in names(sampled.groups)]
        step += 1
        spent += 2 * len(sampled.groups)
    assert spent <= budget and len(set(asked)) == len(asked)
    if step < 9:  # it ended because its compute is spent
        assert sorted(used) == sorted(asked) and sampler.out == [] and budget - spent < 6


def test_a_restart_with_a_window_draws_the_problems_that_were_out_again():
    """All that batches 1 to 3 had drawn, refills and what had arrived included, before anything else."""
    run = Run(window=3, flat=90)
    sampler = RecordingSampler(lambda out: 0)
    pipeline, asked = run.pipeline(sampler), sampler.asked
    sampler.update_weights(None, version=0)
    pipeline.submit(0, NOTHING)
    [sampled] = pipeline.receive(0)
    sampler.update_weights(None, version=1)
    pipeline.submit(1, NOTHING)
    out = [name for number in (1, 2, 3) for step, name in asked if step == number]
    assert len(out) > 9  # there were refills
    restarted = run.pipeline(sampler)
    restarted.restart(1, pipeline.position(1), 2 * len(sampled.groups))
    sampler.close()
    asked.clear()
    restarted.submit(1, NOTHING)
    expected = []
    for number in (1, 2, 3):
        for name in list(dict.fromkeys(out))[:3]:  # no problem twice in a batch
            expected.append((number, name))
            out.remove(name)
    assert asked == expected


def test_a_group_without_a_signal_that_comes_twice_is_an_error():
    sampler = ScriptedSampler(lambda out: 0)
    pipeline = Run(flat=100).pipeline(sampler)
    sampler.update_weights(None, version=0)
    pipeline.submit(0, NOTHING)
    sampler.out.append(sampler.out[0])
    with pytest.raises(RunError, match="twice, or unasked"):
        pipeline.receive(0)
