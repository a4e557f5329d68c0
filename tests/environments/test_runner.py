"""Environments where they are played: processes that die or hang, event loops; what is said of failures."""

import asyncio
import concurrent.futures
import contextlib
import re
import time
from typing import Any

import pytest

from isocompute_jax.environments.config import EnvironmentConfig
from isocompute_jax.environments.episodes import Episodes, LostStateError, Play
from isocompute_jax.environments.protocol import Step
from isocompute_jax.environments.registry import get_kind
from isocompute_jax.environments.runner import Runner
from isocompute_jax.records.errors import InputError
from isocompute_jax.records.rollout import Problem
from isocompute_jax.tasks.graders.protocol import Failure

GAMES = "tests.environments.games"
PROBLEM = Problem("p", "say a number", "4", "environment", extra={"board": [1, 2]})


@contextlib.contextmanager
def running(name: str, **fields):
    options = fields.pop("options", {})
    with contextlib.closing(Runner(EnvironmentConfig(name, options, **fields))) as runner:
        yield runner


def played(runner: Runner, *turns, rollout="r", seed=3) -> Any:
    return runner.play(Play(rollout, PROBLEM, seed, turns)).result(60)


def first(seed=3) -> int:
    """What `Adder` begins with."""
    with running(f"{GAMES}:Adder") as runner:
        return int(played(runner, seed=seed).observation.rstrip(","))


@pytest.mark.parametrize("name", ["Adder", "Forgetful"])
def test_turns_are_answered_one_by_one(name):
    with running(f"{GAMES}:{name}", options={"enough": 20}) as runner:
        begun = played(runner)
        start = int(begun.observation.rstrip(","))
        assert begun == Step(f"{start},") and start == first()
        assert played(runner, "5") == Step(f"{start + 5},", 0.5, False, {"total": start + 5})
        assert played(runner, "5", "hm").reward == 0.5
        last = played(runner, "5", "hm", "15")
        assert last.done and last.metrics == {"total": start + 20}


def test_the_same_question_again_has_the_same_answer():
    async def ask():
        episodes = Episodes(get_kind(f"{GAMES}:Forgetful"))
        await episodes.play(Play("r", PROBLEM, 0))
        answers = [await episodes.play(Play("r", PROBLEM, 0, ("4",))) for _ in range(2)]
        await episodes.end("r")
        with pytest.raises(LostStateError):  # nothing is kept of what has ended
            await episodes.play(Play("r", PROBLEM, 0, ("4", "5")))
        return answers

    one, two = asyncio.run(ask())
    assert one == two


def test_a_process_that_dies_is_made_up_for_where_turns_can_be_played_again(tmp_path):
    """Two rollouts live in one process. One kills it: it has failed; the other does not notice."""
    options = {"note": str(tmp_path / "note")}
    with running(f"{GAMES}:Dying", options=options, workers=1) as runner:
        start = int(played(runner).observation.rstrip(","))
        played(runner, "1")
        played(runner, rollout="other")
        assert played(runner, "7", rollout="other") == Failure("died", "its process ended with exit code 3")
        assert played(runner, "1", "2").metrics == {"total": start + 3}


def test_without_the_promise_its_rollouts_have_failed(tmp_path):
    options = {"note": str(tmp_path / "note")}
    with running(f"{GAMES}:DyingForgetful", options=options, workers=1) as runner:
        played(runner)
        played(runner, "1")
        played(runner, rollout="other")
        played(runner, "7", rollout="other")
        lost = played(runner, "1", "2")
        assert (
            isinstance(lost, Failure) and lost.kind == "died" and "does not say that it is deterministic" in lost.line
        )
        assert played(runner, rollout="new").observation


def test_what_hangs_is_killed_and_holds_up_nobody_for_long():
    with running(f"{GAMES}:Wrong", options={"how": "hangs"}, workers=1, deadline_s=0.5) as runner:
        played(runner)
        began = time.monotonic()
        found = played(runner, "go")
        assert found == Failure("timed out", "no answer within 0.5 s; its process was killed")
        assert isinstance(played(runner, rollout="other"), Step)
        assert time.monotonic() - began < 30


@pytest.mark.parametrize(
    ("how", "kind", "line"),
    [
        ("raises", "raised", "games.py:.*LookupError: no such move"),
        ("nan", "invalid", "the reward of a Step is nan, and must be a finite number"),
        ("nan metric", "invalid", "the metric 'm' of a Step is inf"),
        ("no observation", "invalid", "no observation, and the rollout is not done"),
        ("number", "invalid", "step returned 3, a int and not a Step"),
        ("observation of a number", "invalid", "the observation of step is 3, a int, not text"),
    ],
)
def test_what_an_environment_does_wrong_is_a_failure_with_its_reason(how, kind, line):
    with running(f"{GAMES}:Wrong", options={"how": how}) as runner:
        played(runner)
        found = played(runner, "go")
        assert isinstance(found, Failure) and found.kind == kind
        assert re.search(line, found.line)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("reset raises", "tried on problem 'p': when it began, the environment raised: .*no such board"),
        ("reset returns a number", "when it began, the environment gave no answer: .*is 3, a int, not text"),
        ("always raises", "when it was given an empty turn, the environment raised"),
        ("always no observation", "no observation"),
    ],
)
def test_an_environment_is_tried_before_a_run(how, message):
    with running(f"{GAMES}:Wrong", options={"how": how}) as runner, pytest.raises(InputError, match=message):
        runner.check(PROBLEM)


def test_thousands_in_flight_wait_beside_each_other():
    with running(f"{GAMES}:Waiting", options={"seconds": 0.5}, concurrency=4000) as runner:
        asked = [Play(f"r{i}", PROBLEM, 0) for i in range(2000)]
        concurrent.futures.wait([runner.play(play) for play in asked])
        began = time.monotonic()
        answers = [runner.play(Play(play.rollout, PROBLEM, 0, ("one",))) for play in asked]
        assert all(answer.result(60) == Step("one", 1.0) for answer in answers)
        assert time.monotonic() - began < 100  # one by one they would take 1,000 s
        assert played(runner, "one", "two", rollout="r7").observation == "one two"
        runner.end("r7")


def test_an_asynchronous_one_that_is_late_has_failed():
    with running(f"{GAMES}:Waiting", options={"seconds": 100.0}, deadline_s=0.3) as runner:
        played(runner)
        assert played(runner, "one") == Failure("timed out", "no answer within 0.3 s")


def test_ids_where_they_are_asked_for():
    with running(f"{GAMES}:Tokens") as runner:
        runner.check(PROBLEM)
        played(runner)
        assert played(runner, (5, 6)) == Step("2", metrics={"last": 6.0})


# --- Python


def test_python_runs_what_is_written_and_remembers_it():
    with running("python") as runner:
        played(runner)
        one = "Let me see. <python>\nx = 6 * 7\nprint(x)</python>"
        assert played(runner, one).observation == "\n<output>\n42\n</output>\n"
        two = "<python>print(x + 1); y = 1</python>"
        assert "43" in played(runner, one, two).observation
        three = "<python>raise KeyError(x)</python>"
        assert played(runner, one, two, three).observation.strip() == "<output>\nKeyError: 42\n</output>"
        last = played(runner, one, two, three, "So it is \\boxed{4}.")
        assert last == Step(None, 1.0, True, {"unmarked": 0.0, "programs": 3.0})


def test_python_programs_have_their_time():
    with running("python", options={"seconds": 0.5}) as runner:
        played(runner)
        assert "[it took too long]" in played(runner, "<python>while True: pass</python>").observation


def test_what_is_not_python_takes_no_names_away():
    with running("python") as runner:
        played(runner)
        turns = ["<python>x = 5</python>", "<python>y = (</python>", "<python>z = x + 1\nraise ValueError</python>"]
        assert "5" in played(runner, turns[0], "<python>print(x)</python>").observation
        for k in (1, 2, 3):
            said = played(runner, *turns[:k], rollout="other").observation
            assert ["", "SyntaxError", "ValueError"][k - 1] in said
        assert "[5, 6]" in played(runner, *turns, "<python>print([x, z])</python>", rollout="other").observation


@pytest.mark.slow
def test_each_program_has_its_own_time():
    """Two that take most of it leave a third all of it; one that took too long is not run again."""
    with running("python", options={"seconds": 1.0}) as runner:
        played(runner)
        turns = ["<python>import time; time.sleep(0.7); a = 1</python>", "<python>time.sleep(0.7); b = 2</python>"]
        turns += ["<python>time.sleep(0.7); print(a + b)</python>", "<python>c = 3; time.sleep(9)</python>"]
        said = [played(runner, *turns[:k]).observation for k in (1, 2, 3, 4)]
        assert said[2].strip() == "<output>\n3\n</output>" and "[it took too long]" in said[3]
        assert played(runner, *turns, "<python>print(a)</python>").observation.strip() == "<output>\n1\n</output>"
