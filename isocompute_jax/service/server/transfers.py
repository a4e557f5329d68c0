"""The communicator through which an engine is sent weights by NCCL: asked for by a learner, joined by the engine."""

from __future__ import annotations

import itertools
import logging

import grpc

from isocompute_jax.service.proto import sampler_pb2 as pb
from isocompute_jax.service.proto.refusal import Refusal, invalid
from isocompute_jax.service.server.engines.base import Engine, HalfTakenError, ReceivingEngine
from isocompute_jax.service.weights.check import listed_tensors
from isocompute_jax.service.weights.nccl import UNIQUE_ID_BYTES, Opening, SentWeights, TransferError

log = logging.getLogger(__name__)


class Transfers:
    """The one communicator that an engine's ranks are members of, if there is one."""

    def __init__(self, engine: Engine):
        self._engine = engine
        self._open: int | None = None

    async def open(self, message: pb.OpenTransferRequest) -> None:
        """Has the engine's ranks join a communicator, in place of the former one.

        Raises:
          Refusal: the engine cannot, the request is wrong, or not all of its members came.
        """
        engine, opening = self._receiving(), self._opening(message)
        self._open = None
        try:
            await engine.open_transfer(opening)
        except TransferError as error:
            raise _precondition(f"no weights come by NCCL: {error}") from error
        self._open = message.transfer
        log.info("weights come by NCCL %s", engine.facts.nccl)

    async def take(self, sent: SentWeights, *, version: int, recompute: bool) -> float:
        """Has the engine receive weights and serve them; the seconds with sampling stopped.

        Raises:
          Refusal: there is no such communicator, and nothing was touched.
          HalfTakenError, EngineError: as `ReceivingEngine.take_sent_weights`.
        """
        engine = self._receiving()
        if sent.transfer != self._open:
            raise _precondition("the communicator of these weights is not open any more: open another")
        try:
            return await engine.take_sent_weights(sent.receiving, version=version, recompute=recompute)
        except HalfTakenError:
            self._open = None
            raise

    def _receiving(self) -> ReceivingEngine:
        if not isinstance(self._engine, ReceivingEngine) or not self._engine.facts.nccl:
            raise _precondition(f"the engine {self._engine.facts.engine} takes none by NCCL: send a file, or chunks")
        return self._engine

    def _opening(self, message: pb.OpenTransferRequest) -> Opening:
        """What was sent, checked."""
        facts = self._engine.facts
        if len(message.unique_id) != UNIQUE_ID_BYTES:
            raise invalid(f"unique_id has {len(message.unique_id)} bytes; NCCL's have {UNIQUE_ID_BYTES}")
        if message.world != 1 + facts.devices:
            raise invalid(f"world = {message.world} must be {1 + facts.devices}: the learner and the engine's ranks")
        tensors = listed_tensors(message.tensors, facts.tensors)
        if not all(message.buckets) or sum(message.buckets) != len(tensors):
            raise invalid(f"buckets must each hold a tensor, and together the {len(tensors)} that are listed")
        rest = iter(tensors)
        buckets = tuple(tuple(itertools.islice(rest, count)) for count in message.buckets)
        return Opening(message.unique_id, message.world, buckets)


def _precondition(message: str) -> Refusal:
    return Refusal(grpc.StatusCode.FAILED_PRECONDITION, message)
