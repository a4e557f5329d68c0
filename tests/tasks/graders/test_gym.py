"""Tasks of reasoning-gym: the same problems for a seed, and the library's own scores."""

from __future__ import annotations

import importlib.util
import json

import pytest

from isocompute_jax.records.errors import InputError
from isocompute_jax.tasks import get_grader, read_problems

if importlib.util.find_spec("reasoning_gym") is None:
    pytest.skip("reasoning-gym is not installed", allow_module_level=True)


@pytest.mark.slow  # the library imports all its tasks, which takes seconds
def test_problems_by_name_and_their_scores():
    problems = read_problems("gym:leg_counting:5:3")
    assert problems == read_problems("gym:leg_counting:5:3") != read_problems("gym:leg_counting:5:4")
    assert len({problem.id for problem in problems}) == 5
    for problem in problems:
        grader = get_grader(problem.task)
        answer = json.loads(problem.answer)["answer"]
        assert grader.runs == "process" and grader.fault(problem) is None
        for text, reward in ((f"\\boxed{{{answer}}}", 1.0), (f"The answer is {answer}", 1.0), ("\\boxed{none}", 0.0)):
            assert grader.grade(problem, text).reward == pytest.approx(reward, abs=0.05)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        pytest.param("gym:leg_countin:5", "did you mean 'leg_counting'", marks=pytest.mark.slow),
        ("gym:leg_counting", "write gym:NAME:COUNT"),
        ("gym:leg_counting:many", "write gym:NAME:COUNT"),
    ],
)
def test_bad_sources(source, message):
    with pytest.raises(InputError, match=message):
        read_problems(source)


def test_an_answer_that_names_no_draw_is_refused(tmp_path):
    path = tmp_path / "problems.jsonl"
    path.write_text('{"prompt": "How many legs?", "answer": "4", "task": "gym:leg_counting"}\n')
    with pytest.raises(InputError, match=r"problems\.jsonl:1: answer: '4' names no draw"):
        read_problems(path)
