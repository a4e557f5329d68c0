"""What the learner knows of its servers, as fleet.json has it."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class MemberHealth:
    """What the learner knows of an endpoint.

    Attributes:
      endpoint: `host:port` or `unix:PATH`.
      up: it answers and makes progress.
      version: of the weights that it serves for this run; None for none.
      receiving_weights: newer ones are on their way to it.
      groups: that it was sent and that are not back.
      rollouts: of these groups.
      leaving: it draws what it was sent, and is sent nothing more: it was taken off the list, or is shutting down.
      devices: that it holds, as it said last.
      device_kind: of these.
      tokens_drawn: by its engine since it started, as it said last.
      groups_running: that its engine works on, as it said last.
      groups_waiting: that wait there for an update, as it said last.
      silent_s: seconds since it last answered.
      down_s: seconds since it was taken out; 0 while it is up.
      error: why it is not up, or takes no weights; empty where it does.
      last_error: the last of these, kept when it is up again; empty where there was none.
    """

    endpoint: str
    up: bool
    version: int | None
    receiving_weights: bool
    groups: int
    rollouts: int
    leaving: bool
    devices: int
    device_kind: str
    tokens_drawn: int
    groups_running: int
    groups_waiting: int
    silent_s: float
    down_s: float
    error: str
    last_error: str


@dataclasses.dataclass(frozen=True)
class FleetHealth:
    """What the learner knows of its servers.

    Attributes:
      groups_queued: that no server has room for, or that wait for weights.
      redrawn_rollouts: that were asked for again so far.
      members: the endpoints.
    """

    groups_queued: int
    redrawn_rollouts: int
    members: list[MemberHealth]
