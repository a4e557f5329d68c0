"""Rollouts being played: live environments by name, each brought forward by all the turns of its rollout.

Who asks for a step sends every turn so far, and not the last alone. Whoever holds the environment plays what it has not
seen, which is the last one; where the environment was lost, with a process that was killed say, a new one plays all of
them, if it is deterministic. So there is nothing to hand over, to repair or to ask twice.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from isocompute_jax.environments.protocol import InvalidStepError, Step, checked_observation, checked_step
from isocompute_jax.environments.registry import Kind
from isocompute_jax.records.rollout import Problem

T = TypeVar("T")

Turns = Sequence[str | Sequence[int]]
"""What the policy wrote, turn by turn: texts, or the ids that it drew where the environment asks for tokens."""


@dataclasses.dataclass(frozen=True)
class Play:
    """What is asked of an environment: to answer the last of a rollout's turns, or to begin where there are none."""

    rollout: str  # its name, which no other rollout has
    problem: Problem
    seed: int
    turns: Turns = ()


class LostStateError(Exception):
    """The state of a rollout is gone, and its environment does not promise the same answers again."""


@dataclasses.dataclass(eq=False)
class _Live:
    """An environment, what it has seen, and its last answer."""

    environment: Any
    turns: list[Any]
    last: Step


class Episodes:
    """Environments of one kind by rollout; for one thread, or one event loop.

    Args:
      kind: makes them.
    """

    def __init__(self, kind: Kind):
        self._kind = kind
        self._live: dict[str, _Live] = {}

    async def play(self, asked: Play) -> Step:
        """The answer to the last turn; before any, a Step with what `reset` returns.

        The same question gets the same answer once more, and nothing is played for it.

        Raises:
          LostStateError: turns were played that nobody remembers, and cannot be repeated.
          InvalidStepError: what is answered is no answer.
          Exception: whatever the environment raises.
        """
        turns = list(asked.turns)
        live = self._live.pop(asked.rollout, None)
        if live is None or live.turns != turns[: len(live.turns)]:
            if len(turns) > 1 and not self._kind.deterministic:
                raise LostStateError(
                    f"the state of {asked.rollout} was lost after {len(turns) - 1} turns, and {self._kind.name} does "
                    "not say that it is deterministic, so that its turns cannot be played again"
                )
            live = await self._begin(asked)
        self._live[asked.rollout] = live
        while len(live.turns) < len(turns):
            turn = turns[len(live.turns)]
            live.last = checked_step(await _awaited(live.environment.step(turn)), self._kind.name)
            live.turns.append(turn)
        if live.last.done:
            await self.end(asked.rollout)
        return live.last

    async def end(self, rollout: str) -> None:
        """Closes the environment of a rollout, if it is live."""
        live = self._live.pop(rollout, None)
        close = getattr(live and live.environment, "close", None)
        if close is not None:
            await _awaited(close())

    async def close(self) -> None:
        """Closes all of them."""
        for rollout in list(self._live):
            await self.end(rollout)

    async def _begin(self, asked: Play) -> _Live:
        environment = self._kind.make()
        first = await _awaited(environment.reset(asked.problem, asked.seed))
        if isinstance(first, Step):
            raise InvalidStepError(f"{self._kind.name}: reset returned a Step; return the text alone, or None")
        return _Live(environment, [], Step(checked_observation(first, self._kind.name, "reset")))


def at_once(coroutine: Coroutine[Any, Any, T]) -> T:
    """What a coroutine returns that never waits, as those of plain functions do not."""
    try:
        coroutine.send(None)
    except StopIteration as ended:
        return ended.value
    coroutine.close()
    raise RuntimeError("an environment of plain functions waits")


async def _awaited(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value
