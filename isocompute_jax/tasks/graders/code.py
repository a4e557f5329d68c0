"""Programs against unit tests: the last code block of a completion, run in the sandbox, all tests or nothing."""

from __future__ import annotations

import functools
import logging
import math
import os
import re
import textwrap
from typing import Any, Literal

from isocompute_jax.records.errors import InputError
from isocompute_jax.records.rollout import Problem
from isocompute_jax.tasks.graders.code_tests import CodeTests, MalformedTests, Wrapped, read_tests
from isocompute_jax.tasks.graders.protocol import Grade
from isocompute_jax.tasks.sandbox import Failed, Sandbox, SandboxLimits, isolation

LOG = logging.getLogger(__name__)

TOLERANCE = 1e-6
"""Relative to the expected number, absolute below 1."""

_PYTHON = ("python", "python3", "py")
_THINKING_ENDS = "</think>"
_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?")
_INTEGER = re.compile(r"[+-]?[0-9]+")


class CodeGrader:
    """1.0 for a program that passes every test of its problem (`graders.code_tests`), else 0.0.

    Its metric `tests_passed` is the share of tests passed; those after a test that ran out of time count as failed.
    """

    name = "code"
    runs: Literal["inline", "process"] = "process"

    def __init__(self, limits: SandboxLimits | None = None):
        """Starts nothing yet: the sandbox starts with the first program, in the process that grades it."""
        self.limits = limits or SandboxLimits()
        self._sandbox: Sandbox | None = None
        self._process = 0

    def grade(self, problem: Problem, text: str) -> Grade:
        """Runs the program of a completion.

        Raises:
          InputError: the tests cannot be read; `fault` says so beforehand.
          RunError: the sandbox cannot be started on this machine.
        """
        try:
            tests = _read(problem.answer)
        except MalformedTests as error:
            raise InputError(f"problem {problem.id}: answer: {error}") from None
        source = code_of(text)
        passed = [] if source is None else self._passed(source, tests)
        return Grade(float(all(passed) and bool(passed)), {"tests_passed": sum(passed) / len(tests.expected)})

    def fault(self, problem: Problem) -> str | None:
        """What is wrong with the tests of a problem, and what to do."""
        try:
            _read(problem.answer)
        except MalformedTests as error:
            return f"answer: {error}"
        return None

    def close(self) -> None:
        """Ends the sandbox; the next program starts another."""
        if self._sandbox is not None and self._process == os.getpid():
            self._sandbox.close()
        self._sandbox = None

    def __getstate__(self) -> dict[str, Any]:
        return {"limits": self.limits, "_sandbox": None, "_process": 0}  # a worker process starts its own

    def _passed(self, source: str, tests: CodeTests) -> list[bool]:
        sandbox = self._own_sandbox()
        if tests.calls:
            values = sandbox.call(source, tests.calls)
            return [same_value(value, expected) for value, expected in zip(values, tests.expected, strict=True)]
        outcomes = sandbox.run(source, tests.inputs)
        return [
            outcome.ending == "ended" and same_output(outcome.stdout.decode("utf-8", "replace"), expected)
            for outcome, expected in zip(outcomes, tests.expected, strict=True)
        ]

    def _own_sandbox(self) -> Sandbox:
        """This process's sandbox; says once what it cannot isolate."""
        if self._sandbox is None or self._process != os.getpid():
            self._sandbox, self._process = Sandbox(self.limits), os.getpid()
            found = isolation(self._sandbox)
            LOG.log(logging.WARNING if found.missing else logging.INFO, "%s", found)
        return self._sandbox


@functools.lru_cache(maxsize=8)
def _read(answer: str) -> CodeTests:
    """The tests, read once for a group."""
    return read_tests(answer)


def code_of(text: str) -> str | None:
    """The last closed block marked as Python, else the last one; of what follows the thinking, where there is any."""
    text = text.rpartition(_THINKING_ENDS)[2]
    python: str | None = None
    other: str | None = None
    begin: tuple[int, str, bool] | None = None  # line, mark, whether it is indented
    lines = text.split("\n")
    for number, line in enumerate(lines):
        fence = line.strip()
        if not fence.startswith("```"):
            continue
        if fence != "```" or begin is None:  # one with a mark begins a block, also where the last one was left open
            begin = (number + 1, fence.strip("`").strip().lower(), line[:1].isspace())
            continue
        block = "\n".join(lines[begin[0] : number])
        block = textwrap.dedent(block) if begin[2] else block
        if begin[1] in _PYTHON:
            python = block
        else:
            other = block
        begin = None
    return other if python is None else python


def same_output(found: str, expected: str) -> bool:
    """Equality line by line and word by word, numbers within `TOLERANCE`; white space at ends does not count."""
    lines, wanted = (text.strip().split("\n") for text in (found, expected))
    if len(lines) != len(wanted):
        return False
    return all(_same_line(line.split(), other.split()) for line, other in zip(lines, wanted, strict=True))


def same_value(found: Any, expected: Any) -> bool:
    """Equality of plain data as Python has it, floats within `TOLERANCE`."""
    if found is Failed:
        return False
    if isinstance(expected, Wrapped):
        return same_value(found, expected.value) or same_value(found, expected.value[0])
    if isinstance(expected, list):
        same_shape = isinstance(found, list) and len(found) == len(expected)
        return same_shape and all(map(same_value, found, expected))
    if isinstance(expected, dict):
        same_keys = isinstance(found, dict) and found.keys() == expected.keys()
        return same_keys and all(same_value(found[key], expected[key]) for key in expected)
    if isinstance(found, float) or isinstance(expected, float):
        numbers = all(isinstance(value, int | float) for value in (found, expected))
        return numbers and (found == expected or _close(found, expected))
    return found == expected


def _same_line(words: list[str], wanted: list[str]) -> bool:
    return len(words) == len(wanted) and all(map(_same_word, words, wanted))


def _same_word(word: str, wanted: str) -> bool:
    if word == wanted:
        return True
    if not (_NUMBER.fullmatch(word) and _NUMBER.fullmatch(wanted)):
        return False
    if _INTEGER.fullmatch(wanted):
        # A whole number is met exactly, however large: by itself, or by a float that is written for it ("5.0").
        whole, _, decimals = word.partition(".")
        return not decimals.strip("0") and _canonical(whole) == _canonical(wanted)
    return _close(float(word), float(wanted))


def _canonical(integer: str) -> str:
    sign = "-" if integer.startswith("-") else ""
    digits = integer.lstrip("+-").lstrip("0")
    return sign + digits if digits else "0"


def _close(found: float, expected: float) -> bool:
    try:
        return math.isfinite(found) and abs(found - expected) <= TOLERANCE * max(1.0, abs(expected))
    except OverflowError:  # an integer beyond all floats
        return False
