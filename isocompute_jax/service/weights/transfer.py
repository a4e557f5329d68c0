"""Weights that come from the learner's GPU to an engine's: what both sides know of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable

from isocompute_jax.records.tensors import TensorSpec

RECEIVING = "isocompute-receiving"
"""Initial metadata of an update: the engine has stopped sampling, and waits for the first broadcast."""
UNIQUE_ID_BYTES = 128


class TransferError(Exception):
    """Weights did not come through; the message says why."""


@dataclasses.dataclass(frozen=True)
class Opening:
    """How an engine's ranks become members of a communicator.

    Attributes:
      unique_id: NCCL's, by which its members find each other.
      world: ranks in all; the learner's is 0, the engine's follow in their order.
      buckets: the tensors of each broadcast, in their order.
    """

    unique_id: bytes
    world: int
    buckets: tuple[tuple[TensorSpec, ...], ...]


@dataclasses.dataclass(frozen=True)
class SentWeights:
    """Weights that an engine's ranks are sent, in the place of a file that holds them.

    Attributes:
      transfer: the communicator's number.
      receiving: to be awaited once the engine waits for them: the learner then begins.
    """

    transfer: int
    receiving: Callable[[], Awaitable[None]]
