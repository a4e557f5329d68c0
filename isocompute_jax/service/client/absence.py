"""Every endpoint is gone: said from time to time, and for how long a run waits.

A run that has servers waits for them. One that finds, when it starts, none whose certificate holds does not: that will
not mend by itself, and is bad input.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from isocompute_jax.records.errors import InputError, RunError
from isocompute_jax.service.client.connection import untrusted
from isocompute_jax.service.client.member import Member
from isocompute_jax.service.client.service_config import ServiceConfig

REMIND_S = 60.0
PATIENCE_S = 2.0
"""An absence that is over sooner, or ends the run sooner, is not worth a message."""

LOG = logging.getLogger(__name__)


class Absence:
    """Of all endpoints.

    Args:
      service: the fleet's settings.

    Attributes:
      since: since when (`time.monotonic`) there is none; None as long as there is one.
    """

    def __init__(self, service: ServiceConfig):
        self.since: float | None = None
        self._service = service
        self._said = 0.0
        self._served = False

    def check(self, members: Sequence[Member], *, serves: bool, gone: bool) -> InputError | RunError | None:
        """Looks at the endpoints: what ends the run, if it has waited for too long.

        Args:
          members: those that are listed.
          serves: whether one draws.
          gone: whether none will without help.
        """
        now = time.monotonic()
        if serves:
            self._served = True
            if self.since is not None and self._said >= self.since:
                LOG.info("a sampler is back after %.0f s", now - self.since)
            self.since = None
        elif gone:
            if self.since is None:
                self.since, self._said = now, now - REMIND_S + PATIENCE_S
            unmended = now - self.since >= min(PATIENCE_S, self._service.wait_s)
            if unmended and not self._served and members and all(untrusted(member.error) for member in members):
                said = "; ".join(f"{member.target} {member.error}" for member in members)
                return InputError(f"no sampler can be used: {said}. Then run the same command again")
            left = self.since + self._service.wait_s - now
            if left <= 0:
                waited = f"The run gives up after {self._service.wait_s:.0f} s"
                return RunError(self._lament(members, now, waited))
            if now - self._said >= REMIND_S:
                LOG.error("%s", self._lament(members, now, f"The run waits and gives up in {left:.0f} s"))
                self._said = now
        return None

    def _lament(self, members: Sequence[Member], now: float, outlook: str) -> str:
        """Which endpoints are gone, since when and why."""
        service = self._service
        listed = "; ".join(
            f"{member.target} (for {now - member.down_since:.0f} s) {member.error}" for member in members
        )
        field = "endpoints_file" if service.endpoints_file else "endpoints"
        remedy = f"start the servers, or correct config.service.{field}"
        if "certificate" not in listed:  # else it has been said what is wrong with it
            remedy += "; servers with TLS need config.service.ca_file, those with mutual TLS cert_file and key_file too"
        listed = listed or f"{service.endpoints_file} lists none"
        return f"no sampler is left: {listed}. {outlook} (config.service.wait_s): {remedy}"
