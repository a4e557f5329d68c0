"""Groups in which weights come from device to device: asked for by a learner, formed by the engine."""

from __future__ import annotations

import logging

import grpc

from isocompute_jax.service.proto import sampler_pb2 as pb
from isocompute_jax.service.proto.refusal import Refusal, invalid
from isocompute_jax.service.server.engines.base import Engine, ReceivingEngine
from isocompute_jax.service.weights.coverage import listed_tensors
from isocompute_jax.service.weights.device.schedule import check_schedule, device_to_message, message_to_schedule
from isocompute_jax.service.weights.device.transport import TransferError

log = logging.getLogger(__name__)


class Transfers:
    """The one group that an engine is in, if it is in one."""

    def __init__(self, engine: Engine):
        self._engine = engine
        self._open: int | None = None

    def ranks(self) -> list[pb.Rank]:
        """The engine's ranks; their boxes count the tensors of its facts."""
        index = {tensor.name: i for i, tensor in enumerate(self._engine.facts.tensors)}
        return [device_to_message(rank, index) for rank in self._engine.facts.ranks]

    async def open(self, message: pb.OpenTransferRequest) -> None:
        """Forms a group, in place of the former one.

        Raises:
          Refusal: the engine cannot, the request is wrong, or the group was not formed.
        """
        engine = self._receiving()
        self._check(message)
        self._open = None
        try:
            await engine.open_transfer(message)
        except TransferError as error:
            raise _failed(error) from error
        self._open = message.transfer
        log.info("weights come from device to device, by %s", message.transport)

    async def begin(self, transfer: int) -> None:
        """Begins to receive.

        Raises:
          Refusal: there is no such group, or it is of no use any more.
        """
        if transfer != self._open:
            raise Refusal(
                grpc.StatusCode.FAILED_PRECONDITION, "the group of these weights is not open any more: open another"
            )
        try:
            await self._receiving().begin_transfer()
        except TransferError as error:
            raise _failed(error) from error

    async def take(self, *, version: int, recompute: bool) -> float:
        """Makes what comes the weights that serve; the seconds with sampling stopped.

        Raises:
          NotTakenError, EngineError: as `Engine.update_weights`.
        """
        return await self._receiving().take_sent_weights(version=version, recompute=recompute)

    async def abandon(self) -> None:
        """Gives up what is on its way, and the group."""
        self._open = None
        await self._receiving().abandon_transfer()

    def _receiving(self) -> ReceivingEngine:
        if not isinstance(self._engine, ReceivingEngine):
            raise Refusal(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"the engine {self._engine.facts.engine} takes none from device to device: send a file, or chunks",
            )
        return self._engine

    def _check(self, message: pb.OpenTransferRequest) -> None:
        facts = self._engine.facts
        if message.transport not in {name for name, _ in facts.transports}:
            ways = ", ".join(name for name, _ in facts.transports) or "no way"
            raise invalid(f"transport = {message.transport!r}: the engine can be sent weights by {ways}")
        if len(message.schedules) != len(facts.ranks):
            raise invalid(f"{len(message.schedules)} schedules came for {len(facts.ranks)} ranks")
        tensors = listed_tensors(message.tensors, facts.tensors)
        for each, rank in zip(message.schedules, facts.ranks, strict=True):
            if each.rank >= message.world:
                raise invalid(f"rank = {each.rank} must lie below world = {message.world}")
            check_schedule(message_to_schedule(each, tensors), rank.boxes)


def _failed(error: TransferError) -> Refusal:
    return Refusal(grpc.StatusCode.FAILED_PRECONDITION, f"no weights come from device to device: {error}")
