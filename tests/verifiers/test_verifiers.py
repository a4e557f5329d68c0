"""Environments of the verifiers library, played by its own package in an environment that has it."""

import contextlib
import os
import pathlib
import random
import subprocess
import sys

import pytest

from isocompute_jax.environments.config import EnvironmentConfig
from isocompute_jax.environments.episodes import Play
from isocompute_jax.environments.protocol import Step
from isocompute_jax.environments.registry import get_kind
from isocompute_jax.environments.runner import Runner
from isocompute_jax.records.errors import InputError
from isocompute_jax.tasks import read_problems
from isocompute_jax.tasks.graders.protocol import Failure

ROOT = pathlib.Path(__file__).parents[2]
TASKSETS = pathlib.Path(__file__).parent / "tasksets"

pytestmark = pytest.mark.verifiers


@pytest.fixture(autouse=True)
def tasksets(monkeypatch):
    monkeypatch.syspath_prepend(TASKSETS)


@contextlib.contextmanager
def running(taskset: str, **options):
    config = EnvironmentConfig(f"verifiers:{taskset}", options, deadline_s=60.0)
    with contextlib.closing(Runner(config)) as runner:
        yield runner


def test_one_answer_is_rewarded_by_its_task(tmp_path):
    command = [sys.executable, "-m", "isocompute_jax.environment", "--environment=verifiers:word_lengths"]
    done = subprocess.run(
        [*command, "--problems=3", f"--out={tmp_path / 'words.jsonl'}"],
        env={**os.environ, "PYTHONPATH": f"{TASKSETS}:{ROOT}"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    problems = read_problems(tmp_path / "words.jsonl", grader_name=None)
    assert problems[1].prompt == (
        {"role": "user", "content": 'How many letters has the word "bread"? Answer with the number only.'},
    )
    with running("word_lengths") as runner:
        runner.check(problems[0])
        for text, reward in (("5", 1.0), ("It has 6.", 0.0)):
            name = f"rollout {text}"
            assert runner.play(Play(name, problems[1], 0)).result(60) == Step()
            found = runner.play(Play(name, problems[1], 0, (text,))).result(60)
            assert found == Step(None, reward, True, {"numbers": 1.0})


def test_a_game_of_several_turns_many_at_a_time():
    with running("guess_game", largest=99, deterministic=True) as runner:
        assert runner.kind.deterministic
        problems = runner.kind.problems(8, 0)
        numbers = [random.Random(i).randint(0, 99) for i in range(8)]

        def played(*turns):
            asked = [
                runner.play(Play(str(i), problem, 0, tuple(turn(n) for turn in turns)))
                for i, (problem, n) in enumerate(zip(problems, numbers, strict=True))
            ]
            return [answer.result(60) for answer in asked]

        def below(number):
            return f"I say {number - 1}"

        played()
        assert all(answer == Step("It is higher.") for answer in played(below))
        assert all(answer == Step("It is lower.") for answer in played(below, lambda n: str(n + 1)))
        done = played(below, lambda n: str(n + 1), str)
        assert all(isinstance(answer, Step) and answer.done and answer.reward == 1.0 for answer in done)
        open_files = []
        for round_ in range(4):
            more = [runner.play(Play(f"{round_}/{i}", problem, 0)) for i, problem in enumerate(problems)]
            assert all(isinstance(answer.result(60), Step) for answer in more)
            open_files.append(len(os.listdir("/proc/self/fd")))
            for i in range(len(problems)):
                runner.end(f"{round_}/{i}")
        # Connections and clients are those of rollouts that go on, however many there were.
        assert open_files[-1] < open_files[0] + 2 * len(problems)
        # Played again from the start, as where the rollout was lost.
        again = runner.play(Play("again", problems[0], 0, (below(numbers[0]), "raise the stakes"))).result(60)
        assert isinstance(again, Failure) and "no such move" in again.line


def test_a_run_plays_it_after_its_trial(caplog):
    """One runner after another in a process; a rollout that is cut off is no error of the endpoint."""
    for _ in range(2):
        with running("guess_game") as runner:
            [problem] = runner.kind.problems(1, 0)
            runner.check(problem)
            assert runner.play(Play("one", problem, 0, ("10",))).result(60) == Step("It is lower.")
    assert [record for record in caplog.records if record.name.startswith("aiohttp")] == []


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("no_such_taskset", {}, "no_such_taskset"),
        ("guess_game", {"smallest": 1}, "smallest"),
        ("guess_game", {"role": "dealer"}, r"role 'dealer' is none of \['player'\]"),
    ],
)
def test_what_there_is_not_is_refused(name, options, message):
    with pytest.raises(InputError, match=message):
        get_kind(f"verifiers:{name}", options)
