"""What a grader is, and what it says of a completion: its grade, or how its reward failed."""

from __future__ import annotations

import abc
import asyncio
import numbers
import os
import pathlib
import sysconfig
import traceback
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from isocompute_jax.records.rollout import Problem

WORKER = "ISOCOMPUTE_GRADING_WORKER"
"""Environment variable that is set in worker processes: there a grader may bound what the process uses."""

LARGEST = 3.4e38
"""Of a reward, which is kept in float32."""
UNMARKED = "unmarked"
"""Metric of a grade: 1 where it pays for an answer that stands neither in a box nor behind a marker."""

FailureKind = Literal["raised", "timed out", "died", "invalid"]
"""An exception; no answer within the deadline; the end of its process; or what was returned is no reward."""

_PACKAGE = str(pathlib.Path(__file__).parents[2]) + os.sep
_INSTALLED = tuple({path for name, path in sysconfig.get_paths().items() if name in ("stdlib", "purelib", "platlib")})


@dataclass(frozen=True)
class Grade:
    """What one completion is worth."""

    reward: float  # any finite number; verifiers give 1.0 for solved and 0.0 for not
    metrics: Mapping[str, float] = field(default_factory=dict)  # further numbers by name, whose means are logged


@dataclass(frozen=True)
class Failure:
    """A completion whose reward is not known."""

    kind: FailureKind
    message: str  # what is known of it, a traceback say
    where: str = ""  # `file:line` of the user's where it raised; empty where that is not known

    @classmethod
    def raised(cls, error: BaseException) -> Failure:
        """The failure of a reward that raised `error`, with the traceback from the first frame outside this package.

        Of what a grader of this package raises on purpose the message alone is kept.
        """
        if type(error).__module__.partition(".")[0] == __name__.partition(".")[0]:
            return cls("raised", str(error))
        trace = traceback.TracebackException.from_exception(error)
        outside = [place for place, frame in enumerate(trace.stack) if not frame.filename.startswith(_PACKAGE)]
        if not outside:
            return cls("raised", "".join(trace.format()))
        own = [place for place in outside if not trace.stack[place].filename.startswith(_INSTALLED)]
        frame = trace.stack[(own or outside)[-1]]
        trace.stack[: outside[0]] = []
        return cls("raised", "".join(trace.format()), f"{frame.filename}:{frame.lineno}")

    @property
    def what(self) -> str:
        """What the reward did, as a verb."""
        return {"invalid": "returned no reward", "timed out": "hung"}.get(self.kind, self.kind)

    @property
    def line(self) -> str:
        """Where it happened, and the last line of the message, which of a traceback is the exception."""
        summary = self.message.strip().splitlines()[-1] if self.message.strip() else self.kind
        return f"{self.where}: {summary}" if self.where else summary


Outcome = Grade | Failure
GradeCall = list[Grade] | Coroutine[Any, Any, list[Grade]]
"""What `Grader.grade_batch` returns: the grades; of `loop` graders a coroutine that returns them."""


class InvalidRewardError(ValueError):
    """A reward returned what is no reward."""


class Grader(abc.ABC):
    """How the completions of one kind of problem are verified.

    `inline` graders return at once, whatever text they are given, and run within the training loop. `process` graders
    run in a worker process, which is killed when a call takes longer than its deadline. `loop` graders wait for others
    (a judge, a reward model): their `grade_batch` is `async def`, and many calls run at once on an event loop.
    """

    name: str  # what problems carry in `Problem.task`
    runs: Literal["inline", "process", "loop"] = "process"
    batch: int = 1  # the most completions of one call; 0 for all distinct ones of a group

    @abc.abstractmethod
    def grade_batch(self, problems: Sequence[Problem], texts: Sequence[str]) -> GradeCall:
        """As many grades as texts, in their order; text i answers problem i.

        Args:
          problems: one for each text.
          texts: completions without their end-of-sequence tokens.

        Raises:
          InvalidRewardError: what was returned is no reward.
        """

    def grade(self, problem: Problem, text: str) -> Grade:
        """What one completion is worth, whatever the grader runs on. Raises what `grade_batch` raises."""
        call = self.grade_batch([problem], [text])
        [grade] = call if isinstance(call, list) else asyncio.run(call)
        return grade

    def fault(self, problem: Problem) -> str | None:
        """The reason why no completion could ever solve `problem`, and what to do; None if one can, or nobody knows."""
        return None

    async def aclose(self) -> None:
        """Gives back what a `loop` grader holds; called on the loop that it ran on."""
        return None


def to_grade(value: Any, name: str) -> Grade:
    """What the reward `name` returned, as a Grade.

    Raises:
      InvalidRewardError: it is neither a finite number nor a Grade of finite numbers.
    """
    grade = value if isinstance(value, Grade) else Grade(_number(value, name, "returned"))
    reward = _number(grade.reward, name, "returned a Grade whose reward is")
    metrics = {
        str(key): _number(metric, name, f"returned a Grade whose metric {key!r} is")
        for key, metric in grade.metrics.items()
    }
    return Grade(reward, metrics)


def to_grades(values: Any, count: int, name: str) -> list[Grade]:
    """What the reward `name` returned for `count` completions, as Grades.

    Raises:
      InvalidRewardError: it is not a sequence of `count` rewards.
    """
    if isinstance(values, str | bytes | dict) or not hasattr(values, "__len__") or not hasattr(values, "__iter__"):
        raise InvalidRewardError(f"{name} returned a {type(values).__name__}, not a list of {count} rewards")
    if len(values) != count:
        raise InvalidRewardError(f"{name} returned {len(values)} rewards for {count} completions")
    return [to_grade(value, name) for value in values]


def _number(value: Any, name: str, what: str) -> float:
    scalar = value.item() if hasattr(value, "item") and getattr(value, "ndim", None) == 0 else value
    if not isinstance(scalar, numbers.Real):
        raise InvalidRewardError(f"{name} {what} {scalar!r:.80}, a {type(scalar).__name__} and not a number")
    if not abs(cast(float, scalar)) <= LARGEST:
        raise InvalidRewardError(f"{name} {what} {scalar!s:.80}, which is not finite in float32")
    return float(scalar)
