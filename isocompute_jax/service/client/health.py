"""How the servers of a run are: what fleet.json says, what they cost, and how long a run waits when all are gone."""

from __future__ import annotations

import collections
import dataclasses
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from isocompute_jax.records.errors import CONFIG, InputError, RunError
from isocompute_jax.service.client.connection import untrusted
from isocompute_jax.service.client.service_config import ServiceConfig

if TYPE_CHECKING:  # it imports this
    from isocompute_jax.service.client.member import Member

REMIND_S = 60.0
PATIENCE_S = 2.0
"""An absence that is over sooner, or ends the run sooner, is not worth a message."""

LOG = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class MemberHealth:
    """What the learner knows of an endpoint."""

    endpoint: str  # `host:port` or `unix:PATH`
    up: bool  # it answers and makes progress
    version: int | None  # of the weights that it serves for this run
    receiving_weights: bool  # newer ones are on their way to it
    groups: int  # that it was sent and that are not back
    rollouts: int  # of these groups
    leaving: bool  # it draws what it was sent, and is sent nothing more: it is off the list, or is shutting down
    # As it said last: its devices, tokens drawn since it started, groups that its engine works on, and those that wait
    # there for an update.
    devices: int
    device_kind: str
    tokens_drawn: int
    groups_running: int
    groups_waiting: int
    silent_s: float  # since it last answered
    down_s: float  # since it was taken out; 0 while it is up
    error: str  # why it is not up, or takes no weights; empty where it does
    last_error: str  # the last of these, kept when it is up again; empty where there was none


@dataclasses.dataclass(frozen=True)
class FleetHealth:
    """What the learner knows of its servers."""

    groups_queued: int  # that no server has room for, or that wait for weights
    redrawn_rollouts: int  # that were asked for again so far
    members: list[MemberHealth]


class Meter:
    """Seconds x devices of one server, by kind, from its first answer on until it leaves the fleet.

    A server that is down counts with the devices that it had: they are still lent to the run. It may be read in any
    thread.
    """

    def __init__(self) -> None:
        # One value, which is replaced and never changed: when it was made, what had come together, what is held since.
        self._known: tuple[float, Mapping[str, float], tuple[str, int]] = 0.0, {}, ("", 0)

    @property
    def devices(self) -> tuple[str, int]:
        """Kind and number of what it holds; `("", 0)` before the first answer."""
        return self._known[2]

    def hold(self, kind: str, count: int) -> None:
        """It has answered, and says so many devices."""
        if self.devices != (kind, count):
            self._known = time.monotonic(), self.seconds(), (kind, count)

    def seconds(self) -> dict[str, float]:
        """Kind -> seconds x devices."""
        since, before, (kind, count) = self._known
        total = dict(before)
        if count:
            total[kind] = total.get(kind, 0.0) + count * (time.monotonic() - since)
        return total


def together(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """The sum of several, kind by kind."""
    total: collections.Counter[str] = collections.Counter()
    for part in parts:
        total.update(part)
    return dict(total)


class Absence:
    """Of all endpoints; `since` is when (`time.monotonic`) the last one went, None as long as there is one."""

    def __init__(self, service: ServiceConfig):
        self.since: float | None = None
        self._service = service
        self._reminded = 0.0
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
            if self.since is not None and self._reminded >= self.since:
                LOG.info("a sampler is back after %.0f s", now - self.since)
            self.since = None
        elif gone:
            if self.since is None:
                self.since, self._reminded = now, now - REMIND_S + PATIENCE_S
            unmended = now - self.since >= min(PATIENCE_S, self._service.wait_s)
            if unmended and not self._served and members and all(untrusted(member.error) for member in members):
                reasons = "; ".join(f"{member.target} {member.error}" for member in members)
                return InputError(f"no sampler can be used: {reasons}. Then run the same command again")
            left = self.since + self._service.wait_s - now
            if left <= 0:
                waited = f"The run gives up after {self._service.wait_s:.0f} s"
                return RunError(self._lament(members, now, waited))
            if now - self._reminded >= REMIND_S:
                LOG.error("%s", self._lament(members, now, f"The run waits and gives up in {left:.0f} s"))
                self._reminded = now
        return None

    def _lament(self, members: Sequence[Member], now: float, outlook: str) -> str:
        """Which endpoints are gone, since when and why."""
        service = self._service
        listed = "; ".join(
            f"{member.target} (for {now - member.down_since:.0f} s) {member.error}" for member in members
        )
        field = "endpoints_file" if service.endpoints_file else "endpoints"
        remedy = f"start the servers, or correct {getattr(CONFIG.service, field)}"
        if "certificate" not in listed:  # else it has been said what is wrong with it
            remedy += f"; servers with TLS need {CONFIG.service.ca_file}, those with mutual "
            remedy += "TLS cert_file and key_file too"
        listed = listed or f"{service.endpoints_file} lists none"
        return f"no sampler is left: {listed}. {outlook} ({CONFIG.service.wait_s}): {remedy}"
