"""What carries the bytes of a plan: one interface, over local sockets (`sockets.py`) and over NCCL (`nccl.py`)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Protocol

SOCKETS, NCCL = "sockets", "nccl"


class TransferError(Exception):
    """Weights did not come through; the message says why. What was received of them is worth nothing."""


@dataclasses.dataclass(frozen=True)
class Move:
    """Bytes that one rank of this process sends to another rank, or is sent.

    Attributes:
      rank: ours.
      peer: the other one.
      outgoing: whether ours sends.
      address: of the bytes, in the memory of our rank's device; their owner keeps them until the exchange is over.
      nbytes: how many.
    """

    rank: int
    peer: int
    outgoing: bool
    address: int
    nbytes: int


@dataclasses.dataclass(frozen=True)
class SentWeights:
    """Weights that an engine's ranks are being sent from device to device, in the place of a file that holds them."""


class Transport(Protocol):
    """Some ranks of a group, all in one process."""

    def exchange(self, moves: Sequence[Move], *, timeout_s: float) -> None:
        """Makes all moves, in any order but that of each pair of ranks, and returns when they are done.

        Raises:
          TransferError: they were not done in time, or a peer is gone. Nothing can be exchanged any more.
        """
        ...

    def close(self) -> None:
        """Ends it; an exchange that is under way raises `TransferError`. May be called twice, from any thread."""
        ...
