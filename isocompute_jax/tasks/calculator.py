"""A two-turn task: sums that a tiny model cannot do, and a calculator that does what the model asks.

A prompt such as `384+579,` is answered by `963`. The model may write the sum again with an equals sign, `384+579=`;
that ends its turn, the calculator puts `963,` behind it, and the model goes on. What counts is what stands behind the
last comma: the reward is 1 if it is the sum, whoever did it.

The calculator is a pure function of the completion's text, as any tool is (`sampling.tools`); it takes what the model
wrote, not what the prompt asks.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

import numpy as np

from isocompute_jax.records.errors import InputError
from isocompute_jax.records.rollout import Problem

NAME = "calculator"
STOP = "="
"""What ends a call."""
LARGEST = 999
"""Of the numbers of a problem."""
LONGEST_ANSWER = 8
"""Characters of the calculator's longest answer."""

_CALL = re.compile(r"(?:^|,)(\d{1,3}(?:[+-]\d{1,3}){1,8})=$")


def answer(text: str) -> str | None:
    """What the calculator puts behind a completion that ends with a call; None for what is none."""
    call = _CALL.search(text)
    if call is None:
        return None
    return f"{sum(map(int, re.findall(r'[+-]?[0-9]+', call[1])))},"


def make_problems(count: int, *, seed: int, digits: int = 3) -> list[Problem]:
    """Draws `count` distinct sums of two numbers of up to so many digits.

    Raises:
      InputError: there are not so many.
    """
    numbers = 10**digits
    if not 1 <= digits <= len(str(LARGEST)) or not 1 <= count <= numbers**2:
        raise InputError(f"count = {count}, digits = {digits}: ask for 1 .. {numbers**2} sums of 1 to 3 digits")
    drawn = np.random.default_rng(seed).choice(numbers**2, size=count, replace=False).tolist()
    pairs = [divmod(pair, numbers) for pair in drawn]
    return [Problem(f"{a}+{b}", f"{a}+{b},", str(a + b), NAME) for a, b in pairs]


@dataclasses.dataclass(frozen=True)
class Demonstrator:
    """Who teaches a base model: sometimes it calls the calculator, else it guesses a number.

    Attributes:
      calls: share of its demonstrations that call, in [0, 1].
    """

    calls: float

    def answers(self, problems: Sequence[Problem], rng: np.random.Generator) -> list[str]:
        """One demonstration per problem, drawn anew at each call; the calculator's answers stand in it."""
        calling = rng.random(len(problems)) < self.calls
        guesses = rng.permutation([problem.answer for problem in problems]).tolist()  # right ones, of others
        return [
            f"{problem.text.removesuffix(',')}={problem.answer},{problem.answer}" if calls else guess
            for problem, calls, guess in zip(problems, calling, guesses, strict=True)
        ]
