"""Rewards that failed: what happened, counted, and told once in a while."""

from __future__ import annotations

import collections
import dataclasses
import logging
import threading
from typing import Literal

LOG = logging.getLogger(__name__)

FailureKind = Literal["raised", "hung", "died", "invalid"]
LOGGED = 5
"""Log lines per kind."""


@dataclasses.dataclass(frozen=True)
class Failure:
    """A completion whose reward is not known.

    Attributes:
      kind: `raised` an exception; `hung`: no answer within the deadline; `died`: its process ended; `invalid`: what
        it returned is no reward.
      message: what is known of it, a traceback say.
    """

    kind: FailureKind
    message: str

    @property
    def what(self) -> str:
        """What the reward did, as a verb."""
        return "returned no reward" if self.kind == "invalid" else self.kind

    @property
    def summary(self) -> str:
        """Its last line, which of a traceback is the exception."""
        return self.message.strip().splitlines()[-1] if self.message.strip() else self.kind


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
        LOG.warning("reward %s %s on problem %r: %s%s", grader, failure.what, problem_id, failure.summary, rest)
