"""Rewards that failed: what happened, counted, and told once in a while."""

from __future__ import annotations

import collections
import dataclasses
import logging
import os
import pathlib
import sysconfig
import threading
import traceback
from typing import Literal

LOG = logging.getLogger(__name__)

FailureKind = Literal["raised", "hung", "died", "invalid"]
LOGGED = 5
"""Log lines per kind."""

_PACKAGE = str(pathlib.Path(__file__).parents[2]) + os.sep
_INSTALLED = tuple({path for name, path in sysconfig.get_paths().items() if name in ("stdlib", "purelib", "platlib")})


@dataclasses.dataclass(frozen=True)
class Failure:
    """A completion whose reward is not known.

    Attributes:
      kind: `raised` an exception; `hung`: no answer within the deadline; `died`: its process ended; `invalid`: what
        it returned is no reward.
      message: what is known of it, a traceback say.
      where: `file:line` of the user's where it raised; empty where that is not known.
    """

    kind: FailureKind
    message: str
    where: str = ""

    @classmethod
    def raised(cls, error: BaseException) -> Failure:
        """That of a reward that raised `error`."""
        return cls("raised", *told(error))

    @property
    def what(self) -> str:
        """What the reward did, as a verb."""
        return "returned no reward" if self.kind == "invalid" else self.kind

    @property
    def summary(self) -> str:
        """Its last line, which of a traceback is the exception."""
        return self.message.strip().splitlines()[-1] if self.message.strip() else self.kind

    @property
    def line(self) -> str:
        """What happened, and where, in one line."""
        return f"{self.where}: {self.summary}" if self.where else self.summary


def told(error: BaseException) -> tuple[str, str]:
    """The traceback of what a reward raised, without the frames of this package that called it, and `file:line`.

    What a grader of this package raises on purpose is its message alone.
    """
    if type(error).__module__.partition(".")[0] == __name__.partition(".")[0]:
        return str(error), ""
    trace = traceback.TracebackException.from_exception(error)
    outside = [place for place, frame in enumerate(trace.stack) if not frame.filename.startswith(_PACKAGE)]
    if not outside:
        return "".join(trace.format()), ""
    own = [place for place in outside if not trace.stack[place].filename.startswith(_INSTALLED)]
    frame = trace.stack[(own or outside)[-1]]
    trace.stack[: outside[0]] = []
    return "".join(trace.format()), f"{frame.filename}:{frame.lineno}"


class FailureLog:
    """Logs the first failures of each kind; used from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: collections.Counter[str] = collections.Counter()

    def note(self, failure: Failure, *, problem_id: str, grader: str) -> None:
        """Logs a failure, unless there were many of its kind."""
        with self._lock:
            self._seen[failure.kind] += 1
            seen = self._seen[failure.kind]
        if seen > LOGGED:
            return
        rest = "; further ones are only counted" if seen == LOGGED else ""
        LOG.warning("reward %s %s on problem %r: %s%s", grader, failure.what, problem_id, failure.line, rest)
