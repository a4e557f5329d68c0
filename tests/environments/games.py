"""Environments as users write them, right and wrong, for the tests; worker processes import them by name."""

import asyncio
import math
import os
import random
import time

from isocompute_jax.environments import Environment, Step


class Adder(Environment):
    """Sums the numbers it is told, from a random one on; says the sum so far; ends at `enough`."""

    deterministic = True

    def __init__(self, enough: int = 1000):
        self.enough = enough

    def reset(self, problem, seed):
        self.total = random.Random(seed).randint(0, 9)
        return f"{self.total},"

    def step(self, text):
        number = text.removesuffix("=")
        self.total += int(number) if number.isdecimal() else 0
        return Step(f"{self.total},", reward=0.5, done=self.total >= self.enough, metrics={"total": self.total})


class Forgetful(Adder):
    """The same, without a promise."""

    deterministic = False


class Dying(Adder):
    """Ends its process at a 7, the first time only: a file notes it."""

    def __init__(self, note: str):
        super().__init__()
        self.note = note

    def step(self, text):
        if text == "7" and not os.path.exists(self.note):
            with open(self.note, "w"):
                os._exit(3)
        return super().step(text)


class DyingForgetful(Dying):
    deterministic = False


class Waiting:
    """Asynchronous; a class of nobody's."""

    deterministic = True

    def __init__(self, seconds: float = 0.0):
        self.seconds = seconds

    async def reset(self, problem, seed):
        self.heard: list[str] = []

    async def step(self, text):
        await asyncio.sleep(self.seconds)
        self.heard.append(text)
        return Step(" ".join(self.heard), reward=1.0)

    async def close(self):
        self.heard.clear()


class Says:
    """Says the same always: `first` before the first turn, and `then` on every one."""

    deterministic = True

    def __init__(self, first: str, then: str):
        self.first, self.then = first, then

    async def reset(self, problem, seed):
        return self.first

    async def step(self, text):
        return Step(self.then)


class Tokens:
    """Reads ids."""

    def reset(self, problem, seed):
        return None

    def step(self, tokens):
        return Step(str(len(tokens)), metrics={"last": tokens[-1] if tokens else -1})


class Wrong(Environment):
    """Goes wrong as `how` says: in its first step of a turn with text, or in reset."""

    def __init__(self, how: str):
        self.how = how

    def reset(self, problem, seed):
        if self.how == "reset raises":
            raise LookupError("no such board")
        return 3 if self.how == "reset returns a number" else None

    def step(self, text):
        if not text and not self.how.startswith("always"):
            return Step("")
        match self.how.removeprefix("always "):
            case "raises":
                raise LookupError("no such move")
            case "hangs":
                time.sleep(1000)
            case "nan":
                return Step("", reward=math.nan)
            case "nan metric":
                return Step("", metrics={"m": math.inf})
            case "no observation":
                return Step()
            case "number":
                return 3
            case "observation of a number":
                return Step(3)  # pyright: ignore[reportArgumentType]
        return Step("")


class Abstract(Environment):
    def reset(self, problem, seed):
        return None


class WithoutStep:
    def reset(self, problem, seed):
        return None


class OtherStep(WithoutStep):
    def step(self, action):
        return Step("")


class Counting:
    """Rewards each turn with the digits in it."""

    deterministic = True

    def reset(self, problem, seed):
        return None

    def step(self, text):
        return Step(",", reward=sum(character.isdigit() for character in text))


class OneStop(Counting):
    """Says its stop as a text."""

    stop = "</move>"

    def problems(self, count, seed):
        return [{"id": str(i)} for i in range(count)]


class NoStop(Counting):
    stop = None
