"""Rewards of a user's own, good and bad, for tests; worker processes import them by name."""

from __future__ import annotations

import asyncio
import ctypes
import os
import subprocess
import sys
import time

from isocompute_jax.tasks import Grade


def length(problem, completion):
    return len(completion) / 10


def formatted(problem, completion):
    return Grade(
        float(completion == problem.answer), {"length": len(completion), **({"ok": 1.0} if completion else {})}
    )


def batch_lengths(problems, completions):
    return [float(len(text)) for text in completions]


async def waits(problem, completion):
    await asyncio.sleep(0.05)
    return float(len(completion))


async def batch_waits(problems, completions):
    await asyncio.sleep(0.05)
    return [float(len(text)) for text in completions]


def needs_a_key(problem, completion):
    """The length of its own variable, if the one that the completion names is not there."""
    return float(len(os.environ["A_JUDGES_KEY"]) if completion not in os.environ else 0)


def as_told(problem, completion):
    """Does what the completion says."""
    match completion:
        case "raise":
            raise LookupError("no such thing")
        case "hang":
            subprocess.Popen([sys.executable, "-c", "import time; time.sleep(601)"])
            while True:
                pass
        case "exit":
            os._exit(7)
        case "segfault":
            ctypes.string_at(0)
        case "nan":
            return float("nan")
        case "text":
            return "1.0"
        case "none":
            return None
        case "print":
            print("to whom it may concern")
    return 1.0


async def as_told_async(problem, completion):
    """The same on an event loop."""
    match completion:
        case "raise":
            raise LookupError("no such thing")
        case "hang":
            await asyncio.sleep(600)
        case "ignore":
            while True:
                try:
                    await asyncio.sleep(600)
                except asyncio.CancelledError:
                    if asyncio.get_running_loop().is_closed():
                        raise
                    await asyncio.sleep(0.2)
                    return 1.0
        case "block":
            time.sleep(6)
        case "nan":
            return float("nan")
    return 1.0


async def as_the_problem_says(problem, completion):
    """1.0 for what ends with 1, else 0.5; raises as `problem.extra["fails"]` says: on `all`, on what is `wrong`."""
    right, fails = completion.endswith("=1"), problem.extra.get("fails")
    if completion and (fails == "all" or (fails == "wrong" and not right)):
        raise LookupError("no such judge")
    return 1.0 if right else 0.5


def what_a_worker_has(problem, completion):
    """1.0 if neither JAX nor a room of training was imported, and the process leads its own session."""
    heavy = {"jax", "jaxlib", "flax", "torch", "transformers", "isocompute_jax.learner", "isocompute_jax.experiment"}
    return float(not heavy & sys.modules.keys() and os.getsid(0) == os.getpid())


def pid(problem, completion):
    return float(os.getpid())


def fails_on_empty(problem, completion):
    return float(completion[0] == "a")


def returns_text(problem, completion):
    return "1.0"


def returns_nothing(problem, completion): ...


def wrong_names(prompt, answer):
    return 0.0


def one_too_many(problem, completion, threshold):
    return 0.0


def too_few(problems, completions):
    return [1.0]


NOT_A_FUNCTION = 3
