"""Tasks of reasoning-gym by name: `gym:NAME`, problems and their scores.

Problems are made by the library from a seed. A problem's answer names the draw, so that a worker process makes the same
entry again and gives it to the library's own `score_answer`; what is scored is the final answer of a completion (a box,
or what a marker introduces), else the whole text.

Some of the library's tasks hand an answer to Python's `eval`, and others to SymPy's `parse_expr`, which is one too; an
answer is what a model wrote, so that both read values and expressions here and run nothing (`_only_values`).
"""

from __future__ import annotations

import ast
import contextlib
import functools
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from isocompute_jax.options import unknown_word
from isocompute_jax.records.errors import InputError
from isocompute_jax.records.rollout import Problem
from isocompute_jax.tasks.graders.answers import find_answer
from isocompute_jax.tasks.graders.protocol import Grade, Grader, to_grade

PREFIX = "gym:"
PARSER = "sympy.parsing.sympy_parser"
PLAIN = (
    *(ast.Expression, ast.Constant, ast.List, ast.Tuple, ast.Set, ast.Dict, ast.Load, ast.Name, ast.Call, ast.keyword),
    *(ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop),
)
"""What values and expressions are written with; no attributes, no subscripts, nothing that binds a name."""
EXPRESSIONS = frozenset({"Symbol", "Integer", "Float", "Rational", "Pow", "sqrt", "cbrt", "root", "abs"})
"""What expressions may call beside SymPy's mathematical functions."""
DRAW = {"count", "seed", "index", "options"}
"""What makes an entry again."""


class Gym(Grader):
    """The scores of one task of reasoning-gym, in [0, 1]."""

    def __init__(self, name: str):
        self.name = name

    def grade_batch(self, problems: Sequence[Problem], texts: Sequence[str]) -> list[Grade]:
        """What the library's `score_answer` gives the final answers."""
        pairs = zip(problems, texts, strict=True)
        return [to_grade(self._score(problem, text), self.name) for problem, text in pairs]

    def _score(self, problem: Problem, text: str) -> float:
        draw = json.loads(problem.answer)
        dataset = _dataset(self.name.removeprefix(PREFIX), draw["count"], draw["seed"], json.dumps(draw["options"]))
        with _only_values():
            score = dataset.score_answer(find_answer(text).text, dataset[draw["index"]])
        return float(score)

    def fault(self, problem: Problem) -> str | None:
        """A message if the answer does not name a draw."""
        try:
            draw = json.loads(problem.answer)
        except ValueError:
            draw = None
        if isinstance(draw, dict) and draw.keys() >= DRAW:
            return None
        return f"answer: {problem.answer[:80]!r} names no draw of reasoning-gym; make the problems with gym_problems"


def gym_problems(name: str, count: int, *, seed: int, **options: Any) -> list[Problem]:
    """Draws `count` problems of a task; the same name, seed and options give the same ones.

    Args:
      name: a task of reasoning-gym, such as `leg_counting`.
      count: how many.
      seed: of the draw.
      **options: fields of the task's own config, such as `min_animals=3`.

    Raises:
      InputError: there is no such task, or it refuses the options.
    """
    dataset = _dataset(name, count, seed, json.dumps(options))
    problems = []
    for index in range(count):
        entry = dataset[index]
        draw = {"answer": str(entry["answer"]), "count": count, "seed": seed, "index": index, "options": options}
        problems.append(Problem(f"{name}-{seed}-{index}", entry["question"], json.dumps(draw), f"{PREFIX}{name}"))
    return problems


def read_gym(source: str) -> list[Problem]:
    """The problems that `gym:NAME:COUNT` or `gym:NAME:COUNT:SEED` names; it stands where a file's path may.

    Raises:
      InputError: it is not of this form, or there is no such task.
    """
    name, *numbers = source.removeprefix(PREFIX).split(":")
    count, seed = count_and_seed(numbers, source, "gym:NAME", "gym:leg_counting")
    return gym_problems(name, count, seed=seed)


def count_and_seed(numbers: Sequence[str], source: str, form: str, example: str) -> tuple[int, int]:
    """COUNT and SEED of what stands where a file's path may: `form`:COUNT or `form`:COUNT:SEED; 0 is the seed left out.

    Raises:
      InputError: it is not of this form.
    """
    if not 1 <= len(numbers) <= 2 or not all(number.isdecimal() for number in numbers) or int(numbers[0]) < 1:
        raise InputError(f"{source}: write {form}:COUNT or {form}:COUNT:SEED, such as {example}:1000:0")
    return int(numbers[0]), int(numbers[1]) if numbers[1:] else 0


@functools.lru_cache(maxsize=16)
def _dataset(name: str, count: int, seed: int, options: str) -> Any:
    """The library's data set, whose entries are made when they are asked for."""
    from reasoning_gym.factory import DATASETS, create_dataset

    if name not in DATASETS:
        raise InputError(unknown_word("reasoning-gym task", name, sorted(DATASETS)))
    try:
        return create_dataset(name, size=count, seed=seed, **json.loads(options))
    except (AssertionError, TypeError, ValueError) as error:
        raise InputError(f"reasoning-gym task {name!r} refuses its options {options}: {error}") from error


@contextlib.contextmanager
def _only_values() -> Iterator[None]:
    """Within it, what the library and SymPy's parser call `eval` is `_value`."""
    modules = [
        vars(sys.modules[name]) for name in list(sys.modules) if name == PARSER or name.startswith("reasoning_gym.")
    ]
    for module in modules:
        module["eval"] = _value
    try:
        yield
    finally:
        for module in modules:
            del module["eval"]


def _value(source: Any, names: Mapping[str, Any] | None = None, nearer: Mapping[str, Any] | None = None) -> Any:
    """`eval` of a text that is a value, or an expression of SymPy's.

    Raises:
      ValueError: it is anything else.
    """
    if not isinstance(source, str):
        raise ValueError("only text is read")
    known = {**(names or {}), **(nearer or {})}
    for node in ast.walk(tree := ast.parse(source.strip(), mode="eval")):
        called = node.func if isinstance(node, ast.Call) else None
        if not isinstance(node, PLAIN) or not isinstance(called, ast.Name | None):
            raise ValueError(f"{ast.unparse(node)[:80]!r} is neither a value nor an expression")
        if isinstance(node, ast.Name) and not _is_mathematics(node.id, known.get(node.id)):
            raise ValueError(f"{node.id[:80]!r} is no name in mathematics")
    return eval(compile(tree, "<answer>", "eval"), {"__builtins__": {}}, known)


def _is_mathematics(name: str, value: Any) -> bool:
    """Whether a name is that of one of SymPy's values or mathematical functions."""
    from sympy import Basic
    from sympy.core.function import FunctionClass

    return name in EXPRESSIONS or isinstance(value, Basic | FunctionClass)
