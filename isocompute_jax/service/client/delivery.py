"""How weights come to one endpoint: by NCCL, as a file that it reads, or streamed."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable

import grpc

from isocompute_jax.service.client.connection import Endpoint
from isocompute_jax.service.client.nccl.rounds import KeptWeights
from isocompute_jax.service.client.orders import Orders
from isocompute_jax.service.client.service_config import ServiceConfig
from isocompute_jax.service.proto import convert
from isocompute_jax.service.proto import sampler_pb2 as pb
from isocompute_jax.service.proto.host_id import host_id
from isocompute_jax.service.proto.refusal import NOT_FINITE
from isocompute_jax.service.weights.outbox import Parcel
from isocompute_jax.service.weights.push import Push
from isocompute_jax.service.weights.transfer import TransferError

UNREADABLE = (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.DATA_LOSS)
"""How a server refuses a manifest whose file it cannot read."""

Weights = Parcel | KeptWeights

LOG = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Sender:
    """What all pushes of a learner have in common.

    Attributes:
      session: names this start of the learner.
      in_flight: what becomes of groups that are being sampled.
      process_index: this learner host.
      process_count: learner hosts.
    """

    session: str
    in_flight: pb.InFlight
    process_index: int
    process_count: int


class Delivery:
    """Brings weights to an endpoint.

    Args:
      endpoint: it.
      service: the fleet's settings.
      sender: the learner.
      orders: has other learner hosts send their shares; None without any.
    """

    def __init__(self, endpoint: Endpoint, service: ServiceConfig, sender: Sender, orders: Orders | None):
        self._endpoint = endpoint
        self._service = service
        self._sender = sender
        self._orders = orders
        self._cannot_read = False

    async def send(self, parcel: Weights, server_host: str, *, sent: Callable[[], None]) -> None:
        """By NCCL where that is set up, else by manifest where the server can read the file, else streamed.

        Args:
          parcel: the weights.
          server_host: the host that the server runs on (`host_id`).
          sent: called as a sign of progress.

        Raises:
          grpc.aio.AioRpcError: the server did not take them.
          ShareLostError: another learner host did not send its share.
          RunError: there is no room for a file.
        """
        if isinstance(parcel, KeptWeights):
            if await self._sent_by_nccl(parcel, sent):
                return
            parcel = await parcel.laid_down()
        mode = self._service.push
        shared = mode == "shared" or (mode != "stream" and server_host == host_id() and not self._cannot_read)
        push = Push(parcel=parcel, shared=shared, streams=self._service.streams, **dataclasses.asdict(self._sender))
        try:
            await self._push(push, server_host, sent)
        except grpc.aio.AioRpcError as error:
            unreadable = error.code() in UNREADABLE and NOT_FINITE not in (error.details() or "")
            if not shared or mode == "shared" or not unreadable:
                raise
            LOG.info("weights are streamed to %s: %s", self._endpoint.target, error.details())
            await self._push(dataclasses.replace(push, shared=False), server_host, sent)
            self._cannot_read = True

    async def _sent_by_nccl(self, kept: KeptWeights, sent: Callable[[], None]) -> bool:
        """Whether they came to the endpoint by NCCL."""
        target, sender = self._endpoint.target, self._sender
        if not kept.round.serves(target):
            return False
        header = pb.WeightsHeader(
            session=sender.session,
            version=kept.version,
            tensors=convert.tensors_to_messages(kept.tensors),
            in_flight=sender.in_flight,
            senders=1,
        )
        try:
            await kept.round.push(self._endpoint, header, sent=sent)
            return True
        except (TransferError, grpc.aio.AioRpcError) as error:
            why = error.details() if isinstance(error, grpc.aio.AioRpcError) else error
            LOG.warning("weights of version %d go to %s by file: %s", kept.version, target, why)
            return False

    async def _push(self, push: Push, server_host: str, sent: Callable[[], None]) -> None:
        """This host's share and those of the others; what goes wrong with one ends all."""
        own = self._endpoint.push(push, sent=sent)
        if self._orders is None:
            await own
            return
        order = self._endpoint.target, push.parcel.version, server_host
        await self._orders.beside(own, self._orders.give(order, sent=sent))
