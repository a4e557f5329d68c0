"""Other learners at an endpoint that this one is to use: waited for, but not for long."""

from __future__ import annotations

import collections
import logging
import time

from isocompute_jax.records.errors import RunError
from isocompute_jax.service.proto.session import same_run

MAX_TAKEOVERS = 3
TAKEOVER_WINDOW_S = 600.0
KEEP_AWAY_S = 15.0
"""Longer than a server counts as taken after its learner has gone."""

LOG = logging.getLogger(__name__)


class Rivals:
    """Those of one endpoint.

    Args:
      target: the endpoint.
      session: names this start of this learner.
    """

    def __init__(self, target: str, session: str):
        self._target = target
        self._session = session
        self._there_since = 0.0
        self._takeovers: collections.deque[float] = collections.deque()

    def of_the_same_run(self, session: str) -> bool:
        """Whether a learner is an earlier start of this run, which is over: only one of them can be alive."""
        return same_run(session, self._session)

    def is_there(self, session: str) -> RunError | None:
        """Another learner is at work on the endpoint: what ends this run if it has been for long."""
        now = time.monotonic()
        self._there_since = self._there_since or now
        if now - self._there_since <= KEEP_AWAY_S:
            return None
        return RunError(
            f"{self._target} is used by another learner, {session!r}: give every learner servers of its own "
            "(config.service.endpoints), or wait until that one has ended"
        )

    def has_gone(self) -> None:
        """No other learner is at work on it."""
        self._there_since = 0.0

    def took_over(self, session: str) -> RunError | None:
        """Another learner has replaced the weights of this one: what ends this run if that happens again and again."""
        now = time.monotonic()
        self._takeovers.append(now)
        while now - self._takeovers[0] > TAKEOVER_WINDOW_S:
            self._takeovers.popleft()
        LOG.warning("%s was given other weights by the learner %r", self._target, session)
        if len(self._takeovers) < MAX_TAKEOVERS:
            return None
        return RunError(
            f"{self._target} is used by another learner, {session!r}, which keeps replacing the weights of this one, "
            f"{self._session!r}: give every learner servers of its own (config.service.endpoints), and a token of its "
            "own (config.service.token_file)"
        )
