"""Rewards that are functions of the user's own: `package.module:function`.

    def reward(problem, completion) -> float | Grade
    def reward(problems, completions) -> list[float | Grade]      # the distinct completions of a group at once

Either may be `async def`. The parameters' names say which it is. `problem` is a `Problem`, `completion` the text
without its end-of-sequence token.
"""

from __future__ import annotations

import importlib
import inspect
import math
import numbers
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any, Literal

from isocompute_jax.records.errors import InputError
from isocompute_jax.records.rollout import Problem
from isocompute_jax.tasks.graders.protocol import AnyGrader, Grade

SINGLE = ("problem", "completion")
BATCH = ("problems", "completions")


class InvalidRewardError(ValueError):
    """A reward returned what is no reward."""


def grader_of_function(spec: str, *, name: str = "") -> AnyGrader:
    """The grader that calls a function.

    Args:
      spec: `package.module:function`.
      name: what problems call it, where that is not `spec`.

    Raises:
      InputError: it cannot be imported, or is not a function of (problem, completion) or (problems, completions).
    """
    function = load_function(spec)
    batch = _takes_batch(spec, function)
    if inspect.iscoroutinefunction(function):
        return AsyncFunction(name or spec, function, batch=batch)
    return BatchFunction(name or spec, function) if batch else Function(name or spec, function)


class Function:
    """A grader that calls `function(problem, completion)` in a worker process."""

    runs: Literal["process"] = "process"

    def __init__(self, name: str, function: Callable[[Problem, str], Any]):
        self.name = name
        self._function = function

    def grade(self, problem: Problem, text: str) -> Grade:
        """What the function returns. Raises InvalidRewardError where that is no reward."""
        return to_grade(self._function(problem, text), self.name)

    def fault(self, problem: Problem) -> None:
        """Only the function knows what it can grade."""


class BatchFunction:
    """A grader that calls `function(problems, completions)` in a worker process."""

    runs: Literal["batch"] = "batch"

    def __init__(self, name: str, function: Callable[[list[Problem], list[str]], Any]):
        self.name = name
        self._function = function

    def grade_batch(self, problems: Sequence[Problem], texts: Sequence[str]) -> list[Grade]:
        """What the function returns. Raises InvalidRewardError where that is not a reward for each text."""
        return to_grades(self._function(list(problems), list(texts)), len(texts), self.name)

    def fault(self, problem: Problem) -> None:
        """Only the function knows what it can grade."""


class AsyncFunction:
    """A grader that awaits an `async def`, one completion or the distinct completions of a group at a time."""

    runs: Literal["loop"] = "loop"

    def __init__(self, name: str, function: Callable[..., Any], *, batch: bool):
        self.name = name
        self.batch = 0 if batch else 1
        self._function = function

    async def grade_batch(self, problems: Sequence[Problem], texts: Sequence[str]) -> list[Grade]:
        """What the function returns. Raises InvalidRewardError where that is not a reward for each text."""
        if self.batch == 0:
            return to_grades(await self._function(list(problems), list(texts)), len(texts), self.name)
        pairs = zip(problems, texts, strict=True)  # of one: calls beside each other are the caller's business
        return [to_grade(await self._function(problem, text), self.name) for problem, text in pairs]

    async def close(self) -> None:
        """Holds nothing."""

    def fault(self, problem: Problem) -> None:
        """Only the function knows what it can grade."""


def load_function(spec: str) -> Callable[..., Any]:
    """Imports `package.module:function`; the working directory is importable.

    Raises:
      InputError: says why it cannot be.
    """
    module_name, _, attribute = spec.partition(":")
    if not attribute or not all(part.isidentifier() for part in (*module_name.split("."), *attribute.split("."))):
        raise InputError(f"reward {spec!r}: write package.module:function, such as rewards:length")
    if module_name == "__main__":
        raise InputError(f"reward {spec!r}: worker processes cannot import the main program; put it in a module")
    if not {"", os.getcwd()} & set(sys.path):
        sys.path.append(os.getcwd())
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name + ".").startswith(error.name + "."):
            raise InputError(f"reward {spec!r}: importing {module_name} failed: {error}") from error
        raise InputError(
            f"reward {spec!r}: there is no module {error.name!r}; it is looked for in the working directory "
            f"({os.getcwd()}), in the folders of PYTHONPATH and among installed packages"
        ) from None
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        raise InputError(
            f"reward {spec!r}: importing {module_name} failed in {where.filename}:{where.lineno}: "
            f"{type(error).__name__}: {error}"
        ) from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            known = ", ".join(name for name, value in vars(found).items() if inspect.isfunction(value)) or "none"
            raise InputError(f"reward {spec!r}: {module_name} has no {part!r}; its functions: {known}")
        found = getattr(found, part)
    if not callable(found) or inspect.isclass(found):
        raise InputError(f"reward {spec!r}: {attribute} is a {type(found).__name__}, not a function")
    return found


def _takes_batch(spec: str, function: Callable[..., Any]) -> bool:
    """Whether a function takes (problems, completions); InputError unless it takes that or (problem, completion)."""
    parameters = list(inspect.signature(function).parameters.values())
    needed = [p.name for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    positional = all(p.kind is not p.KEYWORD_ONLY for p in parameters if p.default is p.empty)
    if positional and tuple(needed) in (SINGLE, BATCH) and tuple(p.name for p in parameters[:2]) == tuple(needed):
        return tuple(needed) == BATCH
    raise InputError(
        f"reward {spec!r}: its signature is ({', '.join(p.name for p in parameters)}); write (problem, completion) for "
        "one completion, or (problems, completions) for a list of them, which returns a list"
    )


def to_grade(value: Any, name: str) -> Grade:
    """A function's return value as a Grade.

    Raises:
      InvalidRewardError: it is neither a finite number nor a Grade of finite numbers.
    """
    grade = value if isinstance(value, Grade) else Grade(_number(value, name, "returned"))
    reward = _number(grade.reward, name, "returned a Grade whose reward is")
    metrics = {
        str(key): _number(metric, name, f"returned a Grade whose metric {key!r} is")
        for key, metric in grade.metrics.items()
    }
    return Grade(reward, metrics)


def to_grades(values: Any, count: int, name: str) -> list[Grade]:
    """A batch function's return value as Grades.

    Raises:
      InvalidRewardError: it is not a sequence of `count` rewards.
    """
    if isinstance(values, str | bytes | dict) or not hasattr(values, "__len__") or not hasattr(values, "__iter__"):
        raise InvalidRewardError(f"{name} returned a {type(values).__name__}, not a list of {count} rewards")
    if len(values) != count:
        raise InvalidRewardError(f"{name} returned {len(values)} rewards for {count} completions")
    return [to_grade(value, name) for value in values]


def _number(value: Any, name: str, what: str) -> float:
    scalar = value.item() if hasattr(value, "item") and getattr(value, "ndim", None) == 0 else value
    if not isinstance(scalar, numbers.Real):
        raise InvalidRewardError(f"{name} {what} {scalar!r:.80}, a {type(scalar).__name__} and not a number")
    if not math.isfinite(scalar):
        raise InvalidRewardError(f"{name} {what} {scalar}, which is not finite")
    return float(scalar)
