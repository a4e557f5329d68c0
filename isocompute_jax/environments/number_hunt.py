"""A game with hidden state that a tiny model learns in minutes: find a number by guesses, told where it lies.

The environment thinks of a number in 0 .. `largest`. The policy writes a guess and an equals sign, `7=`; the answer is
`+` where the number is larger, `-` where it is smaller. A guess that is right ends the rollout, with reward 1; so does
the last of `guesses`, with 0. Whatever else is written is answered like a wrong guess, by `,`.

Everything is written with the tokens of the embedded tasks. Who halves what is left always finds the number within
log2(largest + 2) guesses, rounded up; who guesses blindly finds it with probability guesses / (largest + 1) or less.
"""

from __future__ import annotations

import random
import re
from typing import ClassVar

from isocompute_jax.environments.protocol import Environment, Step
from isocompute_jax.environments.registry import Runs
from isocompute_jax.records.errors import InputError
from isocompute_jax.records.rollout import Problem

_GUESS = re.compile(r"(0|[1-9][0-9]?)=")


class NumberHunt(Environment):
    """One game.

    Args:
      largest: of the numbers that it may be, up to 99.
      guesses: at most.
    """

    deterministic = True
    runs: ClassVar[Runs] = "inline"
    stop: ClassVar[tuple[str, ...]] = ("=",)

    def __init__(self, largest: int = 14, guesses: int = 4):
        if not 1 <= largest <= 99 or guesses < 1:
            raise InputError(
                f"number_hunt: largest = {largest} must lie in 1 .. 99, and guesses = {guesses} be above 0"
            )
        self._largest = largest
        self._guesses = guesses
        self._number = 0

    def reset(self, problem: Problem, seed: int) -> None:
        """Thinks of a number: the problem's answer, where it has one."""
        self._number = int(problem.answer) if problem.answer else random.Random(seed).randint(0, self._largest)

    def step(self, text: str) -> Step:
        """Says where the number lies."""
        self._guesses -= 1
        guess = _GUESS.fullmatch(text)
        if guess and int(guess[1]) == self._number:
            return Step(reward=1.0, done=True, metrics={"found": 1.0})
        metrics = {"found": 0.0, "guesses_no_number": float(guess is None)}
        if not self._guesses:
            return Step(done=True, metrics=metrics)
        return Step("," if guess is None else "+" if int(guess[1]) < self._number else "-", metrics=metrics)

    def problems(self, count: int, seed: int) -> list[Problem]:
        """So many games; the prompt says where the number lies, as `0-14,`."""
        return [Problem(f"hunt-{seed}-{i}", f"0-{self._largest},", "", "number_hunt") for i in range(count)]
