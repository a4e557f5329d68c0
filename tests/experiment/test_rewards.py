"""Rewards of whole runs: failures are counted, dropped or the end; tasks have columns; kills change nothing."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from isocompute_jax.experiment import loop
from isocompute_jax.experiment.config import from_dict
from isocompute_jax.experiment.metrics import reward_metrics, rollout_metrics
from isocompute_jax.records import run_files
from isocompute_jax.records.errors import InputError, RunError
from isocompute_jax.records.rollout import Completion, Problem, RolloutGroup
from isocompute_jax.tasks import RewardConfig, read_problems, write_problems
from tests.experiment import builders

REWARDS = "tests.experiment.step_rewards"


@pytest.fixture
def short(base_run):
    """Three steps of 4 x 16 rollouts, evaluated before and after."""
    evaluation = dataclasses.replace(base_run.evaluation, points=1)
    return dataclasses.replace(base_run, max_compute=64 * 3, evaluation=evaluation)


def lines(workdir, name):
    return builders.log_lines(workdir, name)


def graded_group(rewards, *, lengths=(1, 2), **fields):
    completions = [
        Completion.drawn(np.ones(n, np.int32), np.full(n, -1.0, np.float32), np.zeros(n, np.int32), "stop")
        for n in lengths
    ]
    return RolloutGroup("p", 0, np.ones(1, np.int32), tuple(completions), np.array(rewards, np.float32), **fields)


def test_columns_of_tasks_metrics_and_failures():
    groups = [
        graded_group([1, 0], task="math", reward_metrics={"format": np.array([1.0, 0.0])}),
        graded_group([0.5, 0.5], task="code", reward_metrics={"tests": np.array([0.25, np.nan])}),
        graded_group([9, 9], task="code", dropped=True, failures={0: "raised", 1: "hung"}),
    ]
    assert reward_metrics(groups) == {
        "reward/code": 0.5,
        "reward/math": 0.5,
        "metric/format": 0.5,
        "metric/tests": 0.25,
    }
    columns = rollout_metrics(groups)
    assert columns["reward"] == 0.5 and columns["reward_failures"] == 2 and columns["zero_variance_share"] == 0.5
    assert reward_metrics(groups[:1]) == {"metric/format": 0.5}


@pytest.mark.slow
def test_a_run_with_a_function_and_two_tasks(short, tmp_path):
    """The function grades one task, the other keeps its grader; both have curves."""
    train, validation = tmp_path / "train.jsonl", tmp_path / "validation.jsonl"
    write_problems(train, [dataclasses.replace(p, task="length") for p in read_problems(short.train_set)])
    held_out = read_problems(short.evaluation.sets["validation"])
    names = ("numeric", "length")
    write_problems(validation, [dataclasses.replace(p, task=names[i % 2]) for i, p in enumerate(held_out)])
    reward = RewardConfig(tasks={"length": f"{REWARDS}:length"}, workers=1)
    evaluation = dataclasses.replace(short.evaluation, sets={"validation": str(validation)}, solved_at=0.2)
    config = dataclasses.replace(short, train_set=str(train), reward=reward, evaluation=evaluation)
    loop.train(config, tmp_path / "run")
    metrics = lines(tmp_path / "run", run_files.METRICS)
    assert all(0 < line["reward"] < 0.2001 and line["metric/long"] == line["metric/long"] for line in metrics)
    assert all(
        line["reward_failures"] == 0 and "grading" in line["phase_s"]
        for line in run_files.read_lines(tmp_path / "run" / run_files.METRICS)
    )
    for line in lines(tmp_path / "run", run_files.EVAL):
        both = line["avg@2/length"] + line["avg@2/numeric"]
        assert line["avg@2"] == pytest.approx(both / 2) and 0 < line["mean_reward"] < 1


@pytest.mark.slow
def test_a_killed_run_with_a_function_repeats_the_undisturbed_one(short, tmp_path):
    config = dataclasses.replace(short, reward=RewardConfig(function=f"{REWARDS}:length", workers=2))
    loop.train(config, tmp_path / "undisturbed")
    with builders.interrupted_in_step(2), pytest.raises(KeyboardInterrupt):
        loop.train(config, tmp_path / "resumed")
    loop.train(config, tmp_path / "resumed")
    builders.assert_same_run(tmp_path / "resumed", tmp_path / "undisturbed")


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["zero", "drop_group"])
def test_failures_are_counted_and_every_rollout_is_in_c(short, tmp_path, policy):
    config = dataclasses.replace(
        short, reward=RewardConfig(function=f"{REWARDS}:fails_on_digits", workers=1, on_failure=policy)
    )
    loop.train(config, tmp_path / "run")
    metrics = lines(tmp_path / "run", run_files.METRICS)
    assert [line["compute"] for line in metrics] == [64, 128, 192]
    assert all(line["reward_failures"] > 0 for line in metrics)
    if policy == "drop_group":
        # Hardly a group of 16 without a failure: nothing is trained on, and nothing breaks.
        assert all(line["trained_tokens"] < 64 for line in metrics)
    else:
        assert max(line["trained_tokens"] for line in metrics) > 64


@pytest.mark.slow
def test_the_policy_stop_ends_the_run_and_names_the_problem(short, tmp_path):
    config = dataclasses.replace(
        short, reward=RewardConfig(function=f"{REWARDS}:fails_on_digits", workers=1, on_failure="stop")
    )
    with pytest.raises(RunError, match=r"(?s)fails_on_digits raised on problem 'p\d+'.*ArithmeticError: a digit"):
        loop.train(config, tmp_path / "run")


def test_bad_rewards_are_refused_before_anything_is_written(short, tmp_path):
    for reward, message in (
        (
            RewardConfig(function="nowhere:f"),
            r"config\.reward\.function: reward 'nowhere:f': there is no module 'nowhere'",
        ),
        (RewardConfig(tasks={"numeric": f"{REWARDS}:text"}), "returned '1.0'"),
    ):
        with pytest.raises(InputError, match=message):
            loop.train(dataclasses.replace(short, reward=reward), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with pytest.raises(InputError, match=r"config\.reward\.deadline_s = 0\.0 must be above 0"):
        from_dict({"reward": {"deadline_s": 0.0}})


def test_a_grader_that_is_not_there_is_named_with_the_line(short, tmp_path):
    path = tmp_path / "problems.jsonl"
    write_problems(path, [Problem("a", "1+1=", "2", "numeric")])
    path.write_text(path.read_text().replace("numeric", "numerik"))
    with pytest.raises(InputError, match=r"problems\.jsonl:1: task = 'numerik': did you mean 'numeric'"):
        loop.train(dataclasses.replace(short, train_set=str(path)), tmp_path / "run")
