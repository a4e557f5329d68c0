"""Tasks of reasoning-gym: the same problems for a seed, and the library's own scores."""

from __future__ import annotations

import importlib.util
import json

import pytest
import sympy
from sympy.parsing.sympy_parser import parse_expr

from isocompute_jax.records.errors import InputError
from isocompute_jax.records.rollout import Problem
from isocompute_jax.tasks import get_grader, read_problems
from isocompute_jax.tasks.graders import gym

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


EVALUATED = (
    *("string_insertion", "spiral_matrix", "binary_matrix", "n_queens"),
    *("simple_integration", "intermediate_integration", "polynomial_multiplication", "puzzle24", "countdown"),
)
"""Tasks that hand an answer to `eval`, or to SymPy's `parse_expr`, in reasoning-gym 0.1.25."""


def code_that_touches(path):
    return f"__import__('os').system('touch {path}')"


def test_an_expression_is_read_and_code_is_not_run(tmp_path):
    code = code_that_touches(tmp_path / "ran")
    x = sympy.Symbol("x")
    with gym._only_values():
        assert parse_expr("2*x**2 + sin(x)/3 - sqrt(2)*Abs(x)*pi", local_dict={"x": x}) == (
            2 * x**2 + sympy.sin(x) / 3 - sympy.sqrt(2) * sympy.Abs(x) * sympy.pi
        )
        for text in (code, f"sin({code!r})", "lambda: 1", "x.__class__", "[y for y in (1,)]", "open('f')", "S('1')"):
            with pytest.raises((ValueError, SyntaxError, sympy.SympifyError)):
                parse_expr(text, local_dict={"x": x})
    assert gym._value(" [[1, -2], (3 + 4) * 2, 'a']") == [[1, -2], 14, "a"]
    for text in (code, "abs(1)", "[].append(1)", "f'{1}'", "(a := 1)"):
        with pytest.raises((ValueError, NameError)):
            gym._value(text)
    assert not (tmp_path / "ran").exists()
    assert parse_expr("abs(-2)") == 2  # everybody else's is as it was


@pytest.mark.slow
@pytest.mark.parametrize("task", EVALUATED)
def test_an_answer_that_is_code_is_wrong_and_not_run(task, tmp_path):
    draw = json.dumps({"count": 1, "seed": 0, "index": 0, "options": {}})
    problem = Problem("p", "", draw, f"gym:{task}")
    text = f"\\boxed{{{code_that_touches(tmp_path / 'ran')}}}"
    assert gym.Gym(problem.task).grade(problem, text).reward < 0.1
    assert not (tmp_path / "ran").exists()


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
