"""Runs whose rollouts an environment answers: what is booked and logged, kills, credit of turns."""

import dataclasses
import json

import numpy as np
import pytest

from isocompute_jax.environments.config import EnvironmentConfig
from isocompute_jax.environments.number_hunt import NumberHunt
from isocompute_jax.experiment import loop, samplers
from isocompute_jax.experiment.config import EvaluationConfig, RunConfig, SamplingConfig, check_trusted, override
from isocompute_jax.experiment.inputs import read_inputs
from isocompute_jax.experiment.noise import credit_of
from isocompute_jax.learner import LossConfig
from isocompute_jax.records import run_files
from isocompute_jax.records.errors import InputError
from isocompute_jax.records.rollout import Completion, Episode, RolloutGroup
from isocompute_jax.tasks import RewardConfig, write_problems
from tests.experiment import builders

HUNT = EnvironmentConfig(
    "number_hunt", {"largest": 3, "guesses": 2}, turns=2, turn_tokens=2, observation_tokens=1, stop=(",",)
)
GAMES = "tests.environments.games"
STEPS = 4


@pytest.fixture(scope="module")
def config(base_run, tmp_path_factory) -> RunConfig:
    """`base_run` plays the game: four steps of 64 rollouts, and two evaluations."""
    problems = tmp_path_factory.mktemp("games") / "games.jsonl"
    write_problems(problems, NumberHunt(3, 2).problems(40, 0))
    return dataclasses.replace(
        base_run,
        train_set=str(problems),
        problem_set_size=0,
        environment=HUNT,
        sampling=SamplingConfig(max_prompt_tokens=6, max_tokens=6),
        evaluation=EvaluationConfig({"validation": str(problems)}, samples=4, k=2, points=1, max_problems=8),
        max_compute=64 * STEPS,
        loss=LossConfig(),
    )


@pytest.fixture(scope="module")
def undisturbed(config, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("environments") / "undisturbed"
    loop.train(config, workdir)
    return workdir


def test_a_run_that_an_environment_answers(undisturbed):
    lines = builders.log_lines(undisturbed, run_files.METRICS)
    assert len(lines) == STEPS
    for line in lines:
        assert 1 <= line["metric/turns"] <= 2 and 0 <= line["metric/found"] <= 1 and line["reward_failures"] == 0
        assert line["reward"] == pytest.approx(line["metric/found"])
        assert line["logprob_difference_max"] < 1e-5  # of what was drawn, in turns, and what is trained
        assert line["completion_length"] <= 4 and line["trained_tokens"] <= 64 * 4
    for line in builders.log_lines(undisturbed, run_files.EVAL):
        assert line["avg@2"] == pytest.approx(line["metric/found"]) and 1 <= line["metric/turns"] <= 2


@pytest.mark.parametrize("step", [1, 3])
def test_a_run_that_is_interrupted_ends_the_same(config, undisturbed, tmp_path, step):
    with builders.interrupted_in_step(step), pytest.raises(KeyboardInterrupt):
        loop.train(config, tmp_path / "run")
    loop.train(config, tmp_path / "run")
    builders.assert_same_run(tmp_path / "run", undisturbed)


@pytest.mark.slow
def test_where_it_is_played_changes_nothing(config, undisturbed, tmp_path):
    """In worker processes: the same words in the same order, the same bits."""
    played = dataclasses.replace(HUNT, name="isocompute_jax.environments.number_hunt:NumberHunt")
    loop.train(dataclasses.replace(config, environment=played), tmp_path / "run")
    for log in (run_files.METRICS, run_files.EVAL):
        assert builders.log_lines(tmp_path / "run", log) == builders.log_lines(undisturbed, log)


@pytest.mark.slow
def test_turns_are_credited_each_by_itself_in_every_layout(config, tmp_path):
    """The same gradient, and noise of it, in trees, packed rows and padded ones; others than of whole rollouts."""
    counting = EnvironmentConfig(f"{GAMES}:Counting", turns=3, turn_tokens=1)
    played = override(dataclasses.replace(config, environment=counting), "max_compute", 64)
    played = override(played, "schedule.noise_every", 1)

    def gradient(credit, **layout):
        changed = override(played, "environment.turn_credit", credit)
        for field, value in layout.items():
            changed = override(changed, f"packing.{field}", value)
        workdir = tmp_path / f"{credit}-{layout}"
        loop.train(override(changed, "evaluation.sets", {}), workdir)
        [line] = builders.log_lines(workdir, run_files.METRICS)
        assert 0 < line["reward"] < 3 and line["trained_tokens"] <= 3 * 64
        return np.array([line["gradient_norm"], line["noise/within"]])

    found = [gradient("turn", trees="off"), gradient("turn", row_tokens=16), gradient("turn", trees="on")]
    np.testing.assert_allclose(found, [found[0]] * 3, rtol=1e-5)
    assert np.all(abs(gradient("rollout", trees="off") / found[0] - 1) > 1e-3)


def test_noise_is_that_of_the_gradient_that_is_trained_on(config):
    """Halves are credited turn by turn where groups are: rewards that are equal in sum are a signal then."""

    def completion(*rewards):
        arrays = np.zeros(2, np.int32), np.zeros(2, np.float32), np.ones(2, bool), np.zeros(2, np.int32)
        return Completion(*arrays, "stop", episode=Episode((0, 1), (1, 2), rewards))

    halves = [
        RolloutGroup("p", 0, np.zeros(1, np.int32), (completion(3, 0), completion(1, 2)), rewards=np.full(2, 3.0))
    ] * 2
    for credit, expected in (("rollout", [[0, 0]]), ("turn", [[[0, -2], [0, 2]]])):
        changed = override(config, "environment.turn_credit", credit)
        changed = override(changed, "recipe.advantage_scale", "none")
        assert credit_of(changed, halves).advantages.tolist() == expected * 2


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("raises", "the environment raised"),
        pytest.param("no observation", "the environment gave no answer", marks=pytest.mark.slow),
    ],
)
def test_failures_of_an_environment_are_counted(config, tmp_path, how, reason, caplog):
    wrong = dataclasses.replace(HUNT, name=f"{GAMES}:Wrong", options={"how": how})
    short = override(dataclasses.replace(config, environment=wrong), "max_compute", 64)
    loop.train(override(short, "evaluation.sets", {}), tmp_path / "run")
    [line] = builders.log_lines(tmp_path / "run", run_files.METRICS)
    assert line["reward_failures"] > 32 and line["reward"] == 0 and reason in caplog.text
    with pytest.raises(Exception, match=f"{reason}.*on_failure"):
        loop.train(override(short, "reward.on_failure", "stop"), tmp_path / "stopped")


# --- bad input


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"environment": EnvironmentConfig(turns=3)}, "environment.turns means nothing without"),
        ({"reward": RewardConfig("exact")}, "reward.function and config.environment.name are both given"),
        ({"environment": dataclasses.replace(HUNT, name="number_hint")}, "number_hunt"),
        ({"environment": dataclasses.replace(HUNT, options={"smallest": 1})}, "does not take its options"),
        (
            {"environment": dataclasses.replace(HUNT, turn_credit="turn"), "loss": LossConfig(policy_loss="gspo")},
            "turn_credit = 'turn' with config.loss.policy_loss = 'gspo'",
        ),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_made(config, changes, message):
    changed = dataclasses.replace(config, **changes)
    if "loss" in changes:
        changed = override(changed, "recipe.aggregation", "sequence_mean")
    with pytest.raises(InputError, match=message):
        read_inputs(changed.resolved())


def test_an_environment_that_fails_at_once_ends_the_run_before_it_begins(config, tmp_path):
    wrong = dataclasses.replace(HUNT, name=f"{GAMES}:Wrong", options={"how": "always raises"})
    with pytest.raises(InputError, match=r"was tried on problem 'hunt-0-0'.*no such move"):
        loop.train(dataclasses.replace(config, environment=wrong), tmp_path / "run")
    assert not (tmp_path / "run" / run_files.METRICS).exists()


def test_a_config_from_a_file_names_no_code(config, tmp_path):
    changed = dataclasses.replace(config, environment=dataclasses.replace(HUNT, name=f"{GAMES}:Adder"))
    with pytest.raises(InputError, match=r"environment\.name"):
        check_trusted(changed, tmp_path / "config.json")
    check_trusted(changed, tmp_path / "config.json", given=["environment.name"])
    check_trusted(config, tmp_path / "config.json")


def test_problems_need_no_answer(config, tmp_path):
    path = tmp_path / "games.jsonl"
    path.write_text(json.dumps({"prompt": "0-3,"}) + "\n" + json.dumps({"prompt": "0-3,", "answer": "2"}) + "\n")
    changed = dataclasses.replace(config, train_set=str(path), problems_per_batch=2)
    assert [problem.answer for problem in read_inputs(changed.resolved()).problems] == ["", "2"]


def test_only_training_is_answered(config):
    with pytest.raises(InputError, match="only training runs are answered"):
        samplers.make_sampler(config, builders.MODEL, {}, workdir="run", tokenizer=None, mesh=None)  # pyright: ignore
