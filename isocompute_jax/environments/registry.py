"""Environments by name: those shipped here, classes of the user's own, and other libraries'.

A name is one of

- a shipped environment: `number_hunt`, `python`;
- `package.module:Class`, a class of the user's own with `reset` and `step` (see `protocol`);
- `verifiers:TASKSET`, an environment of the verifiers library, played by its own package.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
from collections.abc import Callable, Mapping
from typing import Any, Literal

from isocompute_jax.options import unknown_word
from isocompute_jax.records.errors import InputError
from isocompute_jax.records.rollout import Problem
from isocompute_jax.tasks.graders.registry import imported

VERIFIERS = "verifiers:"

SHIPPED: Mapping[str, str] = {
    "number_hunt": "isocompute_jax.environments.number_hunt:NumberHunt",
    "python": "isocompute_jax.environments.python_tool:PythonTool",
}
"""By the name that configs give them."""

Runs = Literal["inline", "process", "loop"]


@dataclasses.dataclass(frozen=True)
class Kind:
    """Environments of one name and one set of options."""

    name: str
    make: Callable[[], Any]  # a new one
    # where it is played: in the learner's thread, in a worker process, or on an event loop
    runs: Runs
    deterministic: bool
    takes_tokens: bool = False  # of the policy's turns the ids, not the text
    stop: tuple[str, ...] = ()  # texts that end a turn
    shared: Any = None  # what those on a loop share, with `aclose`; None for nothing

    def problems(self, count: int, seed: int) -> list[Problem]:
        """As many as the environment makes itself. Raises InputError where it makes none."""
        make = getattr(self.make(), "problems", None)
        if make is None:
            raise InputError(
                f"environment {self.name!r} makes no problems: its class has no problems(count, seed); write a file of "
                'them, a line such as {"id": "1", "prompt": "..."} for each'
            )
        found = list(make(count, seed))
        if wrong := next((problem for problem in found if not isinstance(problem, Problem)), None):
            raise InputError(
                f"environment {self.name!r}: problems(count, seed) gave {wrong!r:.80}, a {type(wrong).__name__}; make "
                "Problem objects (isocompute_jax.records.rollout)"
            )
        return found

    async def aclose(self) -> None:
        """Gives back what they share; called on the loop that they ran on."""
        if self.shared is not None:
            await self.shared.aclose()


def get_kind(name: str, options: Mapping[str, Any] = {}) -> Kind:
    """The environments of a name.

    Raises:
      InputError: there are none, or they refuse the options; names what is known, or the remedy.
    """
    return _kind(name, json.dumps(dict(options), sort_keys=True))


@functools.lru_cache(maxsize=32)
def _kind(name: str, options: str) -> Kind:
    chosen = json.loads(options)
    if name.startswith(VERIFIERS):
        from isocompute_jax.environments.verifiers_adapter import verifiers_kind

        return verifiers_kind(name, chosen)
    if name in SHIPPED:
        cls = imported(SHIPPED[name], "environment", "class", "")
        return _of_class(name, cls, chosen, cls.runs)
    if ":" in name and "://" not in name:
        return _of_class(name, imported(name, "environment", "class", "games:Maze"), chosen, "process")
    if name.endswith(".py"):
        module = name.removesuffix(".py").replace("/", ".")
        raise InputError(f"environment {name!r} is a file: name a class in it, {module}:Class")
    known = [*SHIPPED, "package.module:Class", f"{VERIFIERS}TASKSET"]
    raise InputError(unknown_word("environment", name, known))


def _of_class(name: str, cls: Any, options: Mapping[str, Any], runs: Runs) -> Kind:
    """Environments of a class, each made with the options; those whose methods are `async def` run on a loop.

    Raises:
      InputError: it is no class of environments, or does not take the options.
    """
    if not inspect.isclass(cls):
        raise InputError(f"environment {name!r} is a {type(cls).__name__}, not a class with reset and step")
    methods = {method: getattr(cls, method, None) for method in ("reset", "step")}
    missing = [
        method
        for method, found in methods.items()
        if not inspect.isfunction(found) or getattr(found, "__isabstractmethod__", False)
    ]
    if missing:
        signature = {"reset": "reset(self, problem, seed)", "step": "step(self, text)"}[missing[0]]
        raise InputError(f"environment {name!r}: the class has no method {missing[0]}; write def {signature}")
    reset, step = (list(inspect.signature(method).parameters)[1:] for method in methods.values() if method)
    if len(reset) != 2:
        raise InputError(f"environment {name!r}: reset takes ({', '.join(reset)}); write reset(self, problem, seed)")
    if step[:1] not in (["text"], ["tokens"]) or len(step) != 1:
        raise InputError(
            f"environment {name!r}: step takes ({', '.join(step)}); write step(self, text), or step(self, tokens) for "
            "the ids that the policy drew"
        )
    try:
        inspect.signature(cls).bind(**options)
    except TypeError as error:
        raise InputError(
            f"environment {name!r} does not take its options {json.dumps(dict(options))}: {error}; they are the "
            f"keywords of {inspect.signature(cls)}"
        ) from None
    awaits = any(inspect.iscoroutinefunction(method) for method in methods.values())
    return Kind(
        name,
        functools.partial(cls, **options),
        "loop" if awaits else runs,
        bool(getattr(cls, "deterministic", False)),
        step == ["tokens"],
        _stops(name, getattr(cls, "stop", None)),
    )


def _stops(name: str, stop: Any) -> tuple[str, ...]:
    """The texts that end a turn, as a class says them: one, several or none."""
    found = () if stop is None else (stop,) if isinstance(stop, str) else tuple(stop)
    if not all(isinstance(text, str) and text for text in found):
        raise InputError(f'environment {name!r}: stop = {stop!r}: write texts, such as stop = ("</move>",)')
    return found
