"""How weights come to one endpoint: as a file that it reads, or streamed."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable

import grpc

from isocompute_jax.service.client.connection import Endpoint
from isocompute_jax.service.client.orders import Orders
from isocompute_jax.service.client.service_config import ServiceConfig
from isocompute_jax.service.proto import sampler_pb2 as pb
from isocompute_jax.service.proto.host_id import host_id
from isocompute_jax.service.proto.refusal import NOT_FINITE
from isocompute_jax.service.weights.outbox import Parcel
from isocompute_jax.service.weights.push import Push

PUSH = "push"
"""What process 0 orders of the other hosts."""
UNREADABLE = (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.DATA_LOSS)
"""How a server refuses a manifest whose file it cannot read."""

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

    async def send(self, parcel: Parcel, server_host: str, *, sent: Callable[[], None]) -> None:
        """By manifest where the server can read the file, else streamed.

        Args:
          parcel: the weights.
          server_host: the host that the server runs on (`host_id`).
          sent: called as a sign of progress.

        Raises:
          grpc.aio.AioRpcError: the server did not take them.
          ShareLostError: another learner host did not send its share.
        """
        mode = self._service.push
        shared = mode == "shared" or (mode == "auto" and server_host == host_id() and not self._cannot_read)
        push = Push(parcel=parcel, shared=shared, streams=self._service.streams, **dataclasses.asdict(self._sender))
        try:
            await self._push(push, server_host, sent)
        except grpc.aio.AioRpcError as error:
            if not shared or mode != "auto" or error.code() not in UNREADABLE or NOT_FINITE in (error.details() or ""):
                raise
            LOG.info("weights are streamed to %s: %s", self._endpoint.target, error.details())
            await self._push(dataclasses.replace(push, shared=False), server_host, sent)
            self._cannot_read = True

    async def _push(self, push: Push, server_host: str, sent: Callable[[], None]) -> None:
        """This host's share and those of the others; what goes wrong with one ends all."""
        own = self._endpoint.push(push, sent=sent)
        if self._orders is None:
            await own
            return
        order = self._endpoint.target, push.parcel.version, server_host
        await self._orders.beside(own, self._orders.give(PUSH, lambda _: order, sent=sent))
