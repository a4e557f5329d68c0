"""The receiving end of a transfer, one rank of a server: weights arrive beside what the device does, and wait there."""

from __future__ import annotations

import collections
import dataclasses
import threading
from collections.abc import Mapping, Sequence

from isocompute_jax.records.tensors import Box
from isocompute_jax.service.weights.device.schedule import Schedule
from isocompute_jax.service.weights.device.transport import TransferError, Transport

ROUND_S = 60.0
"""Longest wait for one round: for the slowest of the ranks."""


@dataclasses.dataclass(frozen=True)
class Placed:
    """A box that has arrived.

    Attributes:
      box: which.
      start: the byte at which it begins in the rank's memory.
    """

    box: Box
    start: int


class Receiver:
    """Walks through the rounds of a schedule in a thread of its own, update by update.

    Args:
      transport: of this rank.
      schedule: what it is sent, and hands on.
      address: of memory on its device, aligned as `Schedule.starts` says and as large.
    """

    def __init__(self, transport: Transport, schedule: Schedule, address: int):
        self._transport = transport
        self._schedule = schedule
        starts, _ = schedule.starts()
        self._addresses: Mapping[int, int] = {i: address + start for i, start in enumerate(starts)}
        self._thread: threading.Thread | None = None
        self._failure: Exception | None = None
        placed: dict[str, list[Placed]] = collections.defaultdict(list)
        for boxes, start in zip(schedule.messages, starts, strict=True):
            for box in boxes:
                placed[box.name].append(Placed(box, start))
                start += box.nbytes
        self.placed: Mapping[str, Sequence[Placed]] = placed
        """Where the parts of each tensor are, once `join` has returned."""

    def begin(self) -> None:
        """Starts to receive; what was received before is written over.

        Raises:
          TransferError: it is at it already, or a former update failed.
        """
        if self._thread is not None:
            raise TransferError("an update is on its way already")
        self._thread = threading.Thread(target=self._receive, name="weights", daemon=True)
        self._thread.start()

    def _receive(self) -> None:
        try:
            for number, steps in enumerate(self._schedule.rounds):
                if steps:
                    self._transport.exchange(self._schedule.moves(number, self._addresses), timeout_s=ROUND_S)
        except Exception as error:
            self._failure = error

    def join(self) -> None:
        """Waits until everything is there.

        Raises:
          TransferError: it will not come. The group is of no use any more.
        """
        if self._thread is None:
            raise TransferError("no update is on its way")
        self._thread.join()
        self._thread = None
        if self._failure is not None:
            self.close()
            raise TransferError(str(self._failure)) from self._failure

    def close(self) -> None:
        """Gives up what is on its way, and the group."""
        self._transport.close()
