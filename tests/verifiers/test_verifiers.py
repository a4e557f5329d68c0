"""Environments of the verifiers library, played by its own package in an environment of its own."""

import contextlib
import os
import pathlib
import random
import subprocess

import pytest

from isocompute_jax.environments.config import EnvironmentConfig
from isocompute_jax.environments.episodes import Play
from isocompute_jax.environments.protocol import Step
from isocompute_jax.environments.runner import Runner
from isocompute_jax.tasks import read_problems
from isocompute_jax.tasks.graders.protocol import Failure

ROOT = pathlib.Path(__file__).parents[2]
PYTHON = ROOT / ".venv-verifiers" / "bin" / "python"
TASKSETS = pathlib.Path(__file__).parent / "tasksets"

pytestmark = pytest.mark.verifiers


def command(*flags: str) -> list[str]:
    if not PYTHON.exists():
        pytest.fail("these tests need the environment that `make verifiers-env` makes")
    return [str(PYTHON), "-m", "isocompute_jax.environment", *flags]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": f"{TASKSETS}:{ROOT}"}


def problems_of(taskset: str, path: pathlib.Path, count: int, *flags: str):
    asked = command(f"--environment=verifiers:{taskset}", f"--problems={count}", f"--out={path}", *flags)
    done = subprocess.run(asked, env=environment(), capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return read_problems(path, grader_name=None)


@contextlib.contextmanager
def served(taskset: str, *flags: str):
    asked = command(f"--environment=verifiers:{taskset}", "--serve", "--port=0", *flags)
    server = subprocess.Popen(asked, env=environment(), stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        line = server.stdout.readline()
        assert "is served at" in line
        yield line.split()[-1]
        # Connections and clients are those of rollouts that go on, however many there were.
        assert len(os.listdir(f"/proc/{server.pid}/fd")) < 150
    finally:
        server.terminate()
        server.wait(60)
        server.stdout.close()


def test_one_answer_is_rewarded_by_its_task(tmp_path):
    problems = problems_of("word_lengths", tmp_path / "words.jsonl", 3)
    assert problems[1].prompt == (
        {"role": "user", "content": 'How many letters has the word "bread"? Answer with the number only.'},
    )
    with (
        served("word_lengths") as url,
        contextlib.closing(Runner(EnvironmentConfig(url, deadline_s=60.0))) as runner,
    ):
        runner.check(problems[0])
        for text, reward in (("5", 1.0), ("It has 6.", 0.0)):
            name = f"rollout {text}"
            assert runner.play(Play(name, problems[1], 0)).result(60) == Step()
            found = runner.play(Play(name, problems[1], 0, (text,))).result(60)
            assert found == Step(None, reward, True, {"numbers": 1.0})


def test_a_game_of_several_turns_many_at_a_time(tmp_path):
    problems = problems_of("guess_game", tmp_path / "games.jsonl", 8, "--environment_options=largest=99")
    with (
        served("guess_game", "--environment_options=largest=99,deterministic=true") as url,
        contextlib.closing(Runner(EnvironmentConfig(url, deadline_s=60.0))) as runner,
    ):
        assert runner.kind.deterministic
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
        for round_ in range(4):
            more = [runner.play(Play(f"{round_}/{i}", problem, 0)) for i, problem in enumerate(problems)]
            assert all(isinstance(answer.result(60), Step) for answer in more)
            for i in range(len(problems)):
                runner.end(f"{round_}/{i}")
        # Played again from the start, as after a service that was lost.
        again = runner.play(Play("again", problems[0], 0, (below(numbers[0]), "raise the stakes"))).result(60)
        assert isinstance(again, Failure) and "no such move" in again.line


@pytest.mark.parametrize(
    ("name", "flags", "message"),
    [
        ("no_such_taskset", [], "no_such_taskset"),
        ("guess_game", ["--environment_options=smallest=1"], "smallest"),
        ("guess_game", ["--environment_options=role=dealer"], "role 'dealer' is none of ['player']"),
    ],
)
def test_what_there_is_not_is_refused(name, flags, message, tmp_path):
    asked = command(f"--environment=verifiers:{name}", "--problems=1", f"--out={tmp_path / 'p.jsonl'}", *flags)
    done = subprocess.run(asked, env=environment(), capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 2 and message in done.stderr and "Traceback" not in done.stderr
