"""Graders by name: those shipped here, those of installed packages, and functions of the user's own.

A name is one of

- a shipped grader: `exact`, `numeric`, `math`, `arithmetic`, ...;
- `gym:NAME`, a task of reasoning-gym;
- `package.module:function`, a function of the user's own;
- `http://host:port/path`, a reward service, or several with commas between them (see `service`);
- an entry point of the group `isocompute_jax.rewards`, whose value is `package.module:function`.

A function is one of these two, and may be `async def`; the names of its parameters say which it is:

    def reward(problem, completion) -> float | Grade
    def reward(problems, completions) -> list[float | Grade]      # the distinct completions of a group at once

`problem` is a `Problem`, `completion` the text without its end-of-sequence token.

A problem's `task` may be any of these but a function and an address: files are data, and only who starts a run says
what code is run and who is sent its answers.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal

from isocompute_jax.options import unknown_word
from isocompute_jax.records.errors import CONFIG, InputError
from isocompute_jax.records.rollout import Problem
from isocompute_jax.tasks.embedded import Arithmetic, Calculator
from isocompute_jax.tasks.graders.answers import Exact
from isocompute_jax.tasks.graders.code import CodeGrader
from isocompute_jax.tasks.graders.gym import PREFIX as GYM
from isocompute_jax.tasks.graders.gym import Gym
from isocompute_jax.tasks.graders.math import Math
from isocompute_jax.tasks.graders.numeric import Numeric
from isocompute_jax.tasks.graders.protocol import Grade, GradeCall, Grader, to_grade, to_grades
from isocompute_jax.tasks.graders.service import SCHEMES, Service

ENTRY_POINTS = "isocompute_jax.rewards"
SINGLE = ("problem", "completion")
BATCH = ("problems", "completions")

SHIPPED: Mapping[str, Callable[[], Grader]] = {
    "arithmetic": Arithmetic,
    "calculator": Calculator,
    "code": CodeGrader,
    "exact": Exact,
    "math": Math,
    "numeric": Numeric,
}
"""By the name that problems carry."""
NEEDS: Mapping[str, tuple[str, str]] = {"math": ("math_verify", "train"), GYM: ("reasoning_gym", "gym")}
"""Module that a grader works with, and the extra that brings it."""


@functools.lru_cache(maxsize=256)
def get_grader(name: str) -> Grader:
    """The grader of a name; the same object every time.

    Raises:
      InputError: there is none of this name, or it cannot be used; names what is known, or the remedy.
    """
    if name.startswith(SCHEMES):
        return Service(name)
    if name.startswith(GYM):
        check_installed(GYM)
        if not name.removeprefix(GYM).isidentifier():
            raise InputError(f"task = {name[:200]!r}: write gym:NAME, such as gym:leg_counting")
        return Gym(name)
    if ":" in name:
        return Function(name, load_function(name))
    if name in SHIPPED:
        check_installed(name)
        return SHIPPED[name]()
    found = installed()
    if name in found:
        return Function(name, load_function(found[name]))
    if name.endswith(".py"):
        raise InputError(
            f"{name!r} is a file: name a function in it, {name.removesuffix('.py').replace('/', '.')}:FUNCTION"
        )
    raise InputError(unknown_word("task", name, [*SHIPPED, *found, f"{GYM}NAME", "package.module:function"]))


def check_named_by_file(task: str, allowed: Collection[str] = (), *, remedy: str = "") -> str:
    """The name of a grader that a problem's `task` gives.

    Args:
      task: as the file has it.
      allowed: functions and addresses that files may name; several addresses are allowed where each of them is.
      remedy: what the message says to do; by default, how a run is told of what problems name.

    Raises:
      InputError: it is another function or address.
    """
    address = "://" in task
    if ":" not in task or task.startswith(GYM) or task in allowed:
        return task
    if address and {part.strip() for part in task.split(",")} <= set(allowed):
        return task
    remedy = remedy or f"name it in {CONFIG.reward.allow}, or in {CONFIG.reward.function}, which grades all problems"
    raise InputError(
        f"task: {task[:200]!r} is {'an address' if address else 'a function'}, and a file of problems may name none: "
        f"{'who is sent answers' if address else 'what is run'} is not for a file to say. If it is meant, {remedy}"
    )


def installed() -> dict[str, str]:
    """Name -> `package.module:function` of the rewards that installed packages bring."""
    return {entry.name: entry.value for entry in importlib.metadata.entry_points(group=ENTRY_POINTS)}


def check_installed(name: str) -> None:
    """Raises InputError where the library that a grader works with is missing."""
    module, extra = NEEDS.get(name, ("", ""))
    if module and importlib.util.find_spec(module) is None:
        raise InputError(
            f"the task {name!r} needs {module}, which is not installed: pip install 'isocompute-jax[{extra}]'"
        )


class Function(Grader):
    """A grader that calls a function: in a worker process, or on the event loop if it is `async def`.

    Args:
      name: what problems call it.
      function: takes (problem, completion) or (problems, completions).

    Raises:
      InputError: its parameters are others.
    """

    def __init__(self, name: str, function: Callable[..., Any]):
        self.name = name
        self.batch = 0 if _takes_batch(name, function) else 1
        self.runs = "loop" if inspect.iscoroutinefunction(function) else "process"
        self._function = function

    def grade_batch(self, problems: Sequence[Problem], texts: Sequence[str]) -> GradeCall:
        """What the function returns. Raises InvalidRewardError where that is not a reward for each text."""
        if self.runs == "loop":
            return self._awaited(problems, texts)
        if self.batch == 1:
            return [to_grade(self._function(*pair), self.name) for pair in zip(problems, texts, strict=True)]
        return to_grades(self._function(list(problems), list(texts)), len(texts), self.name)

    async def _awaited(self, problems: Sequence[Problem], texts: Sequence[str]) -> list[Grade]:
        if self.batch == 1:  # calls beside each other are the caller's business
            return [to_grade(await self._function(*pair), self.name) for pair in zip(problems, texts, strict=True)]
        return to_grades(await self._function(list(problems), list(texts)), len(texts), self.name)


def load_function(spec: str) -> Callable[..., Any]:
    """Imports `package.module:function`; the working directory is importable.

    Raises:
      InputError: it cannot be imported, or is not a function of (problem, completion) or (problems, completions).
    """
    found = imported(spec, "reward", "function", "rewards:length")
    if not callable(found) or inspect.isclass(found):
        attribute = spec.partition(":")[2]
        raise InputError(f"reward {spec!r}: {attribute} is a {type(found).__name__}, not a function")
    _takes_batch(spec, found)
    return found


def imported(spec: str, kind: str, noun: Literal["function", "class"], example: str) -> Any:
    """What `package.module:name` is; the working directory is importable.

    Args:
      spec: as the user wrote it.
      kind: what it is to be, in messages.
      noun: what of a module's is offered where it has no such name.
      example: of a right one.

    Raises:
      InputError: it cannot be imported.
    """
    module_name, _, attribute = spec.partition(":")
    if not attribute or not all(part.isidentifier() for part in (*module_name.split("."), *attribute.split("."))):
        raise InputError(f"{kind} {spec!r}: write package.module:{noun}, such as {example}")
    if module_name == "__main__":
        raise InputError(f"{kind} {spec!r}: worker processes cannot import the main program; put it in a module")
    if not {"", os.getcwd()} & set(sys.path):
        sys.path.append(os.getcwd())
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name + ".").startswith(error.name + "."):
            raise InputError(f"{kind} {spec!r}: importing {module_name} failed: {error}") from error
        raise InputError(
            f"{kind} {spec!r}: there is no module {error.name!r}; it is looked for in the working directory "
            f"({os.getcwd()}), in the folders of PYTHONPATH and among installed packages"
        ) from None
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        raise InputError(
            f"{kind} {spec!r}: importing {module_name} failed in {where.filename}:{where.lineno}: "
            f"{type(error).__name__}: {error}"
        ) from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            is_one = inspect.isfunction if noun == "function" else inspect.isclass
            known = ", ".join(name for name, value in vars(found).items() if is_one(value)) or "none"
            its = "its functions" if noun == "function" else "its classes"
            raise InputError(f"{kind} {spec!r}: {module_name} has no {part!r}; {its}: {known}")
        found = getattr(found, part)
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
