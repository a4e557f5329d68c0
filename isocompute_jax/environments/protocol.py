r"""What an environment is: it is begun with a problem and a seed, and answers the policy turn by turn.

    class Guess(Environment):
        deterministic = True

        def reset(self, problem, seed):
            self.secret = random.Random(seed).randint(1, 100)
            return "Guess my number."

        def step(self, text):
            ...
            return Step("higher")   # or Step(reward=1.0, done=True)

One object plays one rollout. Any class with these two methods will do; both may be `async def`, and `step` may ask for
`tokens`, the ids that the policy drew, in place of `text`.

A `deterministic` environment answers the same turns with the same words, whatever else happens: all that it does is a
function of problem, seed and turns. Its state may then be lost, with the process that held it say, and is made again by
playing the turns once more; and a run repeats itself bit for bit after any kill.
"""

from __future__ import annotations

import abc
import dataclasses
import math
import numbers
from collections.abc import Coroutine, Mapping
from typing import Any, ClassVar

from isocompute_jax.records.rollout import Problem
from isocompute_jax.tasks.graders.protocol import InvalidRewardError


@dataclasses.dataclass(frozen=True)
class Step:
    """What an environment answers to a turn."""

    observation: str | None = None  # what the policy reads next; needed unless the rollout is done
    reward: float = 0.0  # of this turn: those of a rollout add up
    done: bool = False  # whether the rollout ends with this turn
    metrics: Mapping[str, float] = dataclasses.field(
        default_factory=dict
    )  # by name; the last value of a rollout counts


class Environment(abc.ABC):
    """What answers the turns of one rollout."""

    deterministic: ClassVar[bool] = False
    """Whether all that it does is a function of problem, seed and turns."""
    stop: ClassVar[tuple[str, ...]] = ()
    """Texts that end a turn, beside the model's own end of an answer and what the config names."""

    @abc.abstractmethod
    def reset(self, problem: Problem, seed: int) -> str | Coroutine[Any, Any, str | None] | None:
        """Begins a rollout.

        Args:
          problem: as its file has it, `extra` columns included.
          seed: of all that is random; the rollouts of a group have the same.

        Returns:
          What stands behind the problem's prompt before the policy's first turn; None for nothing.
        """

    @abc.abstractmethod
    def step(self, text: str) -> Step | Coroutine[Any, Any, Step]:
        """Answers a turn: what the policy wrote, without the token that ended it."""

    def close(self) -> Coroutine[Any, Any, None] | None:
        """Gives back what it holds, once the rollout is over, however that is."""
        return None


class InvalidStepError(InvalidRewardError):
    """An environment answered what is no answer."""


def checked_step(value: Any, name: str) -> Step:
    """What `step` of the environment `name` returned, as a Step of plain numbers.

    Raises:
      InvalidStepError: it is no Step, a number is not finite, or the rollout goes on and there is no observation.
    """
    if not isinstance(value, Step):
        raise InvalidStepError(f"{name}: step returned {value!r:.80}, a {type(value).__name__} and not a Step")
    if value.observation is None and not value.done:
        raise InvalidStepError(
            f"{name}: step returned no observation, and the rollout is not done: give Step an observation, or done=True"
        )
    return Step(
        checked_observation(value.observation, name, "step"),
        _number(value.reward, name, "reward"),
        bool(value.done),
        {str(key): _number(number, name, f"metric {key!r}") for key, number in value.metrics.items()},
    )


def checked_observation(value: Any, name: str, method: str) -> str | None:
    """An observation. Raises InvalidStepError where it is no text."""
    if value is not None and not isinstance(value, str):
        raise InvalidStepError(
            f"{name}: the observation of {method} is {value!r:.80}, a {type(value).__name__}, not text"
        )
    return value


def _number(value: Any, name: str, what: str) -> float:
    scalar = value.item() if hasattr(value, "item") and getattr(value, "ndim", None) == 0 else value
    if not isinstance(scalar, numbers.Real) or not math.isfinite(scalar):
        raise InvalidStepError(f"{name}: the {what} of a Step is {scalar!r:.80}, and must be a finite number")
    return float(scalar)
