"""Runs in which a policy deals rollouts to problems: exact C, exact resume, counts as dealt, credit of rounds."""

import concurrent.futures
import dataclasses
import functools
import pathlib
import zlib
from typing import Any

import numpy as np
import pytest

from isocompute_jax import learner, tasks
from isocompute_jax.allocation.policies import believe, deal
from isocompute_jax.allocation.schedule import BatchSize, ScheduleConfig
from isocompute_jax.experiment import loop
from isocompute_jax.experiment.config import CurriculumConfig, EvaluationConfig, MeshConfig, RunConfig
from isocompute_jax.experiment.dealing import Dealer, credit, merged
from isocompute_jax.experiment.pipeline import Pipeline
from isocompute_jax.experiment.problem_history import History
from isocompute_jax.experiment.problem_stream import ProblemStream, TrainSets
from isocompute_jax.experiment.rollouts import GradedStream
from isocompute_jax.learner import CreditConfig, rewards_of
from isocompute_jax.records import run_files
from isocompute_jax.records.errors import InputError
from isocompute_jax.records.requests import SampleRequest, SamplingParams
from isocompute_jax.records.rollout import Completion, Problem, RolloutGroup
from isocompute_jax.service.client.service_config import ServiceConfig
from isocompute_jax.service.server.engines.base import JaxSettings
from isocompute_jax.service.server.engines.jax_engine import JaxEngine
from tests.experiment import builders
from tests.experiment.learners import Learners
from tests.experiment.samplers import ScriptedSampler
from tests.service.fleet_builders import live

SLOW = ("variance", "knapsack", "hit")
POLICIES = ["until_signal", *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]
STEPS, B, MOST = 5, 64, 20


def dealt(base_run: RunConfig, policy, **changes) -> RunConfig:
    """Steps of 8 x 8 rollouts in blocks of 2, half the problems each, with a credit that every policy takes."""
    recipe = dataclasses.replace(
        base_run.recipe, advantage_scale="none", baseline="leave_one_out", aggregation="constant"
    )
    return dataclasses.replace(
        base_run,
        group_size=8,
        problems_per_batch=8,
        max_compute=B * STEPS,
        recipe=recipe,
        schedule=ScheduleConfig(per_problem=policy, block=2, most=MOST),
        track=dataclasses.replace(base_run.track, rollouts=8, rollouts_every=1),
        evaluation=EvaluationConfig(),
        **changes,
    )


@pytest.fixture(scope="module", params=POLICIES)
def whole(request, base_run, tmp_path_factory):
    """An undisturbed run, and its config."""
    config, path = dealt(base_run, request.param), tmp_path_factory.mktemp("dealt") / "whole"
    loop.train(config, path)
    return config, path


def test_every_rollout_is_booked_and_every_count_is_the_policys(whole):
    """Replayed from what the run kept: the history before a step, and the rewards of its earlier rounds."""
    config, path = whole
    policy, unequal = config.schedule.per_problem, 0
    lines, kept = (builders.log_lines(path, name) for name in (run_files.METRICS, run_files.ROLLOUTS))
    assert [line["compute"] for line in lines] == [B * step for step in range(1, STEPS + 1)]
    attempts, tried, solved = np.zeros(16, int), np.zeros(16, np.float32), np.zeros(16, np.float32)
    for line, step in zip(lines, kept, strict=True):
        places = np.array([int(group["problem_id"][1:]) for group in step["groups"]])
        belief, rewards = believe(tried, solved, places), [np.array(group["rewards"]) for group in step["groups"]]
        counts = deal(policy, belief, total=B, block=2, most=MOST)
        while counts.sum() < B:
            so_far = [seen[:n] for seen, n in zip(rewards, counts, strict=True)]
            counts = counts + deal(policy, belief, so_far, total=B, block=2, most=MOST)
        assert [len(seen) for seen in rewards] == counts.tolist()
        assert (line["group_size"], line["problems_per_batch"]) == (8, 8)
        assert (line["group_size_min"], line["group_size_max"]) == (counts.min(), counts.max())
        unequal += counts.min() < counts.max()
        attempts[places] += counts
        tried[places] = 0.5 * tried[places] + counts
        solved[places] = 0.5 * solved[places] + [np.sum(seen >= 1) for seen in rewards]
    assert unequal >= 2 and np.sum(solved) > 0
    table = builders.history(path).to_pydict()
    assert dict(zip(table["id"], table["attempts"], strict=True)) == {f"p{i}": n for i, n in enumerate(attempts)}
    assert run_files.read_run(path).config["schedule"] == f"per problem {policy}"


def test_interrupted_in_a_step_it_ends_with_the_same_bits(whole, tmp_path):
    config, path = whole
    for step in (2, 4):
        with builders.interrupted_in_step(step), pytest.raises(KeyboardInterrupt):
            loop.train(config, tmp_path / "run")
    loop.train(config, tmp_path / "run")
    builders.assert_same_run(tmp_path / "run", path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "curriculum"),
    [
        ("knapsack", {"retire_rate": 0.1, "retire_attempts": 8, "retire_for": "epoch"}),
        ("until_signal", {"retire_rate": 0.1, "retire_attempts": 8}),
        ("variance", {"order": "easy_to_hard", "pools": (0.5,), "stages": (0.5, 0.5)}),
        ("hit", {"train_sets": {"a": "train.jsonl", "b": "validation.jsonl"}, "weighting": "adaptive"}),
    ],
    ids=["rests", "retires", "stages", "adaptive mixture"],
)
def test_policies_take_curricula_and_resume(base_run, policy, curriculum, tmp_path):
    """Whatever is drawn, and however few are left: n rollouts of each problem on average, and all of them booked."""
    folder = pathlib.Path(base_run.train_set).parent
    for name in ("train.jsonl", "validation.jsonl"):
        problems = tasks.read_problems(folder / name)
        rated = [dataclasses.replace(problem, measured={"avg@16": i % 5 / 4}) for i, problem in enumerate(problems)]
        tasks.write_problems(tmp_path / name, rated)
    sets = {name: str(tmp_path / file) for name, file in curriculum.get("train_sets", {}).items()}
    config = dealt(base_run, policy, curriculum=CurriculumConfig(**curriculum | ({"train_sets": sets} if sets else {})))
    train_set = "" if sets else str(tmp_path / "train.jsonl")
    config = dataclasses.replace(config, train_set=train_set, problems_per_batch=4, max_compute=32 * 10)
    loop.train(config, tmp_path / "whole")
    with builders.interrupted_in_step(4), pytest.raises(KeyboardInterrupt):
        loop.train(config, tmp_path / "halves")
    loop.train(config, tmp_path / "halves")
    builders.assert_same_run(tmp_path / "halves", tmp_path / "whole")
    lines, kept = (builders.log_lines(tmp_path / "whole", name) for name in (run_files.METRICS, run_files.ROLLOUTS))
    compute, unequal = 0, 0
    for line, step in zip(lines, kept, strict=True):
        counts = [len(group["rewards"]) for group in step["groups"]]
        assert sum(counts) == 8 * len(counts) and min(counts) >= 2
        compute += sum(counts)
        assert line["compute"] == compute
        unequal += len(set(counts)) > 1
    assert unequal and ("retire_rate" not in curriculum or any(line["retired_problems"] for line in lines))


@pytest.mark.slow
def test_phases_deal_their_batches_together_and_resume(base_run, tmp_path):
    config = dealt(base_run, "until_signal", max_staleness=3, asynchrony="phases")
    loop.train(config, tmp_path / "whole")
    with builders.interrupted_in_step(2), pytest.raises(KeyboardInterrupt):
        loop.train(config, tmp_path / "run")
    loop.train(config, tmp_path / "run")
    builders.assert_same_run(tmp_path / "run", tmp_path / "whole")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"advantage_scale": "group_std"}, "set config.recipe.advantage_scale='none'"),
        ({"baseline": "group_mean"}, "is a biased baseline: set config.recipe.baseline='leave_one_out'"),
        ({"aggregation": "token_mean"}, "divides by all tokens that were drawn: set it to 'constant'"),
        ({"minibatches": 2}, "set config.recipe.minibatches=1"),
    ],
)
def test_what_has_no_right_estimator_is_refused(base_run, changes, says):
    config = dealt(base_run, "hit")
    changed = dataclasses.replace(config, recipe=dataclasses.replace(config.recipe, **changes))
    with pytest.raises(InputError, match=says):
        changed.resolved()
    dataclasses.replace(changed, schedule=ScheduleConfig(per_problem="variance")).resolved()


# --- the order of arrival


PROBLEMS = [Problem(f"p{i}", "", "", "numeric") for i in range(7)]


def drawn_in(order: int, policy, *, window: int, at_once: int = 1) -> list[tuple[int, str, tuple[int, ...]]]:
    """(step, problem, rounds) of a run of six steps of 3 x 6, whose groups arrive in the order of a seed."""
    rng = np.random.default_rng(order)
    sampler: Any = ScriptedSampler(lambda out: int(rng.integers(out)))

    def grade(group):
        places = range(group.first_rollout, group.first_rollout + len(group.completions))
        solved = [zlib.crc32(f"{group.step} {group.problem_id} {i}".encode()) % 5 == 0 for i in places]
        done = concurrent.futures.Future()
        done.set_result(dataclasses.replace(group, rewards=np.array(solved, np.float32)))
        return done

    def make_requests(problems, step, group_size):
        params, prompt = SamplingParams(1.0, 1.0, 3), np.array([1], np.int32)
        return [SampleRequest(problem.id, prompt, group_size, 0, step, (), params) for problem in problems]

    pipeline = Pipeline(
        ProblemStream(TrainSets.of(PROBLEMS), CurriculumConfig(), problems_per_batch=3, seed=0),
        GradedStream(sampler, grade),
        make_requests,
        size_at=lambda compute, group_size: BatchSize(3, 6),
        max_compute=6 * 18,
        window=window,
        at_once=at_once,
        refill_up_to=None,
        dealer=Dealer(policy, 2, 0),
    )
    history, found, step = History.empty(len(PROBLEMS)), [], 0
    while pipeline.has(step, history):
        sampler.update_weights(None, version=step)
        batches, _ = pipeline.next(step, history)
        for sampled in batches:
            assert sum(len(group.completions) for group in sampled.groups) == 18
            for group in sampled.groups:
                found.append((group.step, group.problem_id, group.rounds))
                assert sum(group.rounds) == len(group.completions) == len(rewards_of(group))
            history = history.updated(sampled.groups, {problem.id: i for i, problem in enumerate(PROBLEMS)})
        step += len(batches)
    assert step == 6 and not sampler.out
    return found


@pytest.mark.parametrize("policy", ["variance", "knapsack", "hit", "until_signal"])
@pytest.mark.parametrize(("window", "at_once"), [(1, 1), (3, 1), (3, 3)], ids=["on-policy", "window", "phases"])
def test_counts_do_not_depend_on_the_order_of_arrival(policy, window, at_once):
    first, *others = (drawn_in(order, policy, window=window, at_once=at_once) for order in range(4))
    assert all(other == first for other in others)
    assert len({sum(rounds) for _, _, rounds in first}) > 1
    most = max(len(rounds) for _, _, rounds in first)
    assert most > 2 if policy == "until_signal" else most == (2 if policy == "hit" else 1)


# --- what rounds are worth, by hand


PARTS = ((1, 0), (0, 1, 0, 0)), ((0, 0), (1, 0))
"""Rewards of two problems in two rounds."""


def groups_in_rounds():
    def group(problem, rewards, first):
        completion = Completion.drawn(np.zeros(1, np.int32), np.zeros(1, np.float32), np.zeros(1, np.int32), "stop")
        return RolloutGroup(
            problem,
            3,
            np.array([1], np.int32),
            (completion,) * len(rewards),
            np.array(rewards, np.float32),
            first_rollout=first,
            reward_metrics={"exact": np.array(rewards, np.float32)} if first else {},
            failures={1: "late"} if first else {},
            dropped=first == 0 and problem == "q",
        )

    return [
        merged([group(name, one, 0), group(name, two, 2)], (len(one), len(two)))
        for name, (one, two) in zip("pq", PARTS, strict=True)
    ]


def test_rounds_of_a_problem_are_one_group():
    first, second = groups_in_rounds()
    assert first.rounds == (2, 4) and second.rounds == (2, 2) and first.first_rollout == 0
    assert len(first.completions) == 6 and rewards_of(first).tolist() == [1, 0, 0, 1, 0, 0]
    np.testing.assert_array_equal(first.reward_metrics["exact"], [np.nan, np.nan, 0, 1, 0, 0])
    assert first.failures == {3: "late"} and (first.dropped, second.dropped) == (False, True)
    assert first.reward_metrics["exact"].dtype == rewards_of(first).dtype == np.float32


@pytest.mark.parametrize(
    ("policy", "weights"),
    [
        # hit: 4 of 10 rollouts are in the first round, 6 in the second, in which the problems got 4 and 2.
        ("hit", [[0.1, 0.1, *[0.6 / 8] * 4], [0.1, 0.1, 0.15, 0.15, 0, 0]]),
        ("until_signal", [[0.1] * 6, [0.1] * 4 + [0] * 2]),
    ],
)
def test_credit_of_rounds_by_hand(policy, weights):
    """Baselines are of the own and earlier rounds: 2 / 5 and 1 / 5 of the first problem, 0 and 1 / 3 of the second."""
    groups, lengths = groups_in_rounds(), np.array([[1, 2, 3, 4, 1, 2], [2, 2, 2, 2, 0, 0]])
    drawn = np.arange(6) < [[6], [4]]
    rewards = learner.group_rewards(groups)
    recipe = CreditConfig("none", "constant", "keep", baseline="leave_one_out")
    given = functools.partial(credit, policy, groups, rewards, lengths, max_tokens=4, drawn=drawn)
    found = given(recipe)
    expected = [[1, -1, -0.4, 0.8, -0.4, -0.4], [0, 0, 1, -1 / 3, 0, 0]]
    np.testing.assert_allclose(found.advantages, expected, rtol=1e-6)
    np.testing.assert_allclose(found.policy_weights, np.array(weights) / 4, rtol=1e-6)
    np.testing.assert_array_equal(found.regularizer_weights, found.policy_weights)
    of_means = given(dataclasses.replace(recipe, aggregation="sequence_mean"))
    np.testing.assert_allclose(of_means.policy_weights, np.array(weights) / np.maximum(lengths, 1), rtol=1e-6)
    masked = given(recipe, masked=np.arange(6) == [[5], [9]])  # its weight is lost, and no other one moves
    np.testing.assert_array_equal(masked.policy_weights, np.where(np.arange(6) == [[5], [9]], 0, found.policy_weights))
    taken = given(recipe, penalties=np.array([[0, 0, 0, 0, 0, 0.5], [0] * 6]))
    np.testing.assert_allclose(taken.advantages[0, 2:], [-0.3, 0.9, -0.3, -0.9], rtol=1e-6)
    # Of a group without signal the other takes the place.
    flat = np.where([[True], [False]], rewards, 0)
    dropped = credit(
        policy,
        groups,
        flat,
        lengths,
        dataclasses.replace(recipe, zero_variance_groups="drop"),
        max_tokens=4,
        drawn=drawn,
    )
    np.testing.assert_allclose(dropped.policy_weights, 2 * found.policy_weights * [[1], [0]], rtol=1e-6)


# --- over a service, and by two processes


@pytest.mark.slow
def test_a_service_is_asked_for_the_same_rounds(base_run, tmp_path):
    """Rounds over gRPC by the JAX engine: the same rollouts in the first step, before any rounding tells."""
    config = dealt(base_run, "until_signal")
    loop.train(config, tmp_path / "here")
    with live(engine=JaxEngine(JaxSettings(config.model, max_slots=16))) as [server]:
        remote = dataclasses.replace(config, service=ServiceConfig(endpoints=server.address, push="stream"))
        loop.train(remote, tmp_path / "there")
    ours, theirs = (builders.log_lines(tmp_path / name, run_files.ROLLOUTS) for name in ("there", "here"))
    sizes = [[len(group["rewards"]) for group in step["groups"]] for step in ours]
    assert [sum(counts) for counts in sizes] == [B] * STEPS and any(min(counts) < max(counts) for counts in sizes)
    for mine, yours in zip(ours[0]["groups"], theirs[0]["groups"], strict=True):
        assert (mine["problem_id"], mine["rewards"]) == (yours["problem_id"], yours["rewards"])
        assert [c["tokens"] for c in mine["completions"]] == [c["tokens"] for c in yours["completions"]]


@pytest.mark.slow
def test_asynchronous_windows_take_rounds(base_run, tmp_path):
    """Two updates late, over a service: C is exact, and no token is older than the window allows."""
    config = dealt(base_run, "hit", max_staleness=2)
    with live(engine=JaxEngine(JaxSettings(config.model, max_slots=16))) as [server]:
        remote = dataclasses.replace(config, service=ServiceConfig(endpoints=server.address, push="stream"))
        loop.train(remote, tmp_path / "run")
    lines = builders.log_lines(tmp_path / "run", run_files.METRICS)
    assert [line["compute"] for line in lines] == [B * step for step in range(1, STEPS + 1)]
    assert max(line["staleness"] for line in lines) <= 2
    assert any(line["group_size_min"] < line["group_size_max"] for line in lines)


@pytest.mark.slow
def test_two_processes_take_unequal_groups_and_resume_after_a_kill(often, processes, tmp_path):
    config = dataclasses.replace(dealt(often, "until_signal"), mesh=MeshConfig(fsdp=2))
    file = builders.write_config(tmp_path / "config.json", config)
    two = Learners(processes, 2, 1)
    two.finish(file, tmp_path / "whole")
    codes, _ = two.kill(file, tmp_path / "run", victim=1, after=2)
    assert codes == [1]
    two.finish(file, tmp_path / "run")
    builders.assert_same_run(tmp_path / "run", tmp_path / "whole")
    lines = builders.log_lines(tmp_path / "whole", run_files.METRICS)
    assert [line["compute"] for line in lines] == [B * step for step in range(1, STEPS + 1)]
    assert any(line["group_size_min"] < line["group_size_max"] for line in lines)
