"""One completion by any function; what is told of a reward that raised is the user's: their frames, their line."""

import inspect
import json

import pytest

from isocompute_jax.records.rollout import Problem
from isocompute_jax.tasks.graders.protocol import Failure
from isocompute_jax.tasks.graders.registry import Function
from isocompute_jax.tasks.json_service import ServiceError
from tests.tasks import rewards


def failure_of(grade, *arguments) -> Failure:
    with pytest.raises(Exception) as raised:
        grade(*arguments)
    return Failure.raised(raised.value)


def test_frames_above_the_users_are_left_out():
    found = failure_of(Function("as_told", rewards.as_told).grade, Problem("p", "", "", ""), "raise")
    lines = inspect.getsource(rewards).splitlines()
    line = next(i for i, text in enumerate(lines, 1) if 'LookupError("no such thing")' in text)
    # This test calls the grader: its frame is outside of the package, and first.
    assert found.where == f"{rewards.__file__}:{line}" and found.line.endswith(f":{line}: LookupError: no such thing")
    assert "in as_told" in found.message


def test_where_is_the_users_line_also_where_a_library_raises():
    found = failure_of(lambda: json.loads("{"))
    assert found.where.startswith(f"{__file__}:") and "json/decoder.py" in found.message


def test_what_a_grader_raises_on_purpose_is_told_without_frames():
    def refuse():
        raise ServiceError("judge answered 404")

    assert failure_of(refuse) == Failure("raised", "judge answered 404")


@pytest.mark.parametrize("function", [rewards.batch_lengths, rewards.waits, rewards.batch_waits])
def test_one_completion_is_graded_by_a_function_of_any_kind(function):
    assert Function("it", function).grade(Problem("p", "", "", ""), "four").reward == 4.0
