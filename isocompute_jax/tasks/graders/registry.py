"""Graders by name: those shipped here, those of installed packages, and functions of the user's own.

A name is one of

- a shipped grader: `exact`, `numeric`, `math`, `arithmetic`, ...;
- `gym:NAME`, a task of reasoning-gym;
- `package.module:function`, a function of the user's own (see `function`);
- `http://host:port/path`, a reward service, or several with commas between them (see `service`);
- an entry point of the group `isocompute_jax.rewards`, whose value is `package.module:function`.

A problem's `task` may be any of these but a function and an address: files are data, and only who starts a run says
what code is run and who is sent its answers.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
from collections.abc import Callable, Collection, Mapping

from isocompute_jax.options import unknown_word
from isocompute_jax.records.errors import InputError
from isocompute_jax.tasks.graders.arithmetic import Arithmetic
from isocompute_jax.tasks.graders.calculator import Calculator
from isocompute_jax.tasks.graders.code import CodeGrader
from isocompute_jax.tasks.graders.exact import Exact
from isocompute_jax.tasks.graders.function import grader_of_function
from isocompute_jax.tasks.graders.gym import PREFIX as GYM
from isocompute_jax.tasks.graders.gym import Gym
from isocompute_jax.tasks.graders.math import Math
from isocompute_jax.tasks.graders.numeric import Numeric
from isocompute_jax.tasks.graders.protocol import AnyGrader
from isocompute_jax.tasks.graders.service import SCHEMES, Service

ENTRY_POINTS = "isocompute_jax.rewards"

SHIPPED: Mapping[str, Callable[[], AnyGrader]] = {
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
REMEDY = "name it in config.reward.allow, or in config.reward.function, which grades all problems"
"""How a run is told of a function or an address that problems name."""


@functools.lru_cache(maxsize=256)
def get_grader(name: str) -> AnyGrader:
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
        return grader_of_function(name)
    if name in SHIPPED:
        check_installed(name)
        return SHIPPED[name]()
    found = installed()
    if name in found:
        return grader_of_function(found[name], name=name)
    if name.endswith(".py"):
        raise InputError(
            f"{name!r} is a file: name a function in it, {name.removesuffix('.py').replace('/', '.')}:FUNCTION"
        )
    raise InputError(unknown_word("task", name, [*SHIPPED, *found, f"{GYM}NAME", "package.module:function"]))


def check_named_by_file(task: str, allowed: Collection[str] = (), *, remedy: str = REMEDY) -> str:
    """The name of a grader that a problem's `task` gives.

    Args:
      task: as the file has it.
      allowed: functions and addresses that files may name; several addresses are allowed where each of them is.
      remedy: what the message says to do.

    Raises:
      InputError: it is another function or address.
    """
    address = "://" in task
    if ":" not in task or task.startswith(GYM) or task in allowed:
        return task
    if address and {part.strip() for part in task.split(",")} <= set(allowed):
        return task
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
