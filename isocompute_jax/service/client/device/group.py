"""A group of the learner's devices and those of some servers, and one update through it; `maker` forms it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

import jax

from isocompute_jax.records.tensors import TensorSpec
from isocompute_jax.service.client.connection import Endpoint
from isocompute_jax.service.client.device.outgoing import Outgoing
from isocompute_jax.service.client.device.shares import LEAVE, SEND
from isocompute_jax.service.client.orders import Orders, ShareLostError
from isocompute_jax.service.proto import convert
from isocompute_jax.service.proto import sampler_pb2 as pb
from isocompute_jax.service.weights.device.transport import TransferError, Transport

START_S = 30.0
"""Longest wait until every server of the group has been told of an update."""
SIGN_OF_LIFE_S = 5.0


class Group:
    """Servers that are sent weights together; used on one event loop.

    Args:
      outgoing: this process's devices.
      transport: of their ranks.
      transfer: the group's number.
      targets: the servers' addresses.
      tensors: the model's.
      orders: has the other learner hosts, which are in it too, send; None without any.
    """

    def __init__(
        self,
        outgoing: Outgoing,
        transport: Transport,
        transfer: int,
        targets: frozenset[str],
        tensors: Sequence[TensorSpec],
        orders: Orders | None,
    ):
        self.targets = targets
        self.tensors = convert.tensors_to_messages(tensors)
        self.broken = False
        self._outgoing = outgoing
        self._transport = transport
        self._orders = orders
        self.transfer = transfer

    async def send(self, leaves: Sequence[jax.Array], version: int, sent: Callable[[], None]) -> None:
        """Sends everything, from all learner hosts.

        Args:
          leaves: of `to_hf_layout`.
          version: of the weights.
          sent: called as a sign of progress.

        Raises:
          TransferError: it did not come through.
        """
        loop = asyncio.get_running_loop()

        def progress() -> None:
            loop.call_soon_threadsafe(sent)

        own = asyncio.to_thread(self._outgoing.send, leaves, self._transport, progress)
        if self._orders is None:
            await own
            return
        theirs = self._orders.give(SEND, lambda host: (version, self.transfer), sent=sent)
        try:
            await self._orders.beside(own, theirs)
        except ShareLostError as error:
            self.close()
            raise TransferError(str(error)) from error

    def close(self) -> None:
        """Ends it; what is under way fails."""
        if self._orders is not None and not self.broken:
            self._orders.say(LEAVE, self.transfer)
        self.broken = True
        self._transport.close()


class Round:
    """One update, from the first server that is told of it to the last byte. Whatever fails ends the group.

    Args:
      group: whose.
      leaves: of `to_hf_layout`.
      version: of the weights.
    """

    def __init__(self, group: Group, leaves: Sequence[jax.Array], version: int):
        self._group = group
        self._leaves = leaves
        self._version = version
        self._missing = set(group.targets)
        self._told = asyncio.Event()
        self._progress: list[Callable[[], None]] = []
        self._sending: asyncio.Future[None] | None = None

    def serves(self, target: str) -> bool:
        """Whether a server is in the group, and the group is whole."""
        return target in self._group.targets and not self._group.broken

    async def push(self, endpoint: Endpoint, session: str, in_flight: pb.InFlight, *, sent: Callable[[], None]) -> None:
        """One server's part of it: returns when it samples with the new weights.

        Args:
          endpoint: the server.
          session: names the learner.
          in_flight: what becomes of groups that are being sampled.
          sent: called as a sign of progress.

        Raises:
          TransferError: the weights did not come through, to this server or to another one.
          grpc.aio.AioRpcError: the server refused them.
        """
        self._progress.append(sent)
        header = pb.WeightsHeader(
            session=session, version=self._version, tensors=self._group.tensors, in_flight=in_flight, senders=1
        )
        try:
            await endpoint.push_messages(self._messages(endpoint.target, header))
        except BaseException as error:
            self._group.close()
            self._told.set()
            if self._sending is not None and self._sending.done() and not self._sending.cancelled():
                cause = self._sending.exception()
                if isinstance(cause, TransferError):
                    raise cause from error
            raise

    async def _messages(self, target: str, header: pb.WeightsHeader) -> AsyncIterator[bytes]:
        """What the server is told while the devices send."""
        yield pb.UpdateWeightsRequest(header=header).SerializeToString()
        device = pb.UpdateWeightsRequest(device=pb.DeviceWeights(transfer=self._group.transfer)).SerializeToString()
        yield device
        self._missing.discard(target)
        if not self._missing:
            self._told.set()
        try:
            async with asyncio.timeout(START_S):
                await self._told.wait()
        except TimeoutError:
            raise TransferError(f"not all servers were told of the update within {START_S:g} s") from None
        if self._group.broken:
            raise TransferError("the group has lost a server")
        if self._sending is None:
            sending = self._group.send(self._leaves, self._version, self._tell)
            self._sending = asyncio.ensure_future(sending)
        while not self._sending.done():
            await asyncio.wait([self._sending], timeout=SIGN_OF_LIFE_S)
            yield device
        self._sending.result()
        yield pb.UpdateWeightsRequest(end=pb.WeightsEnd()).SerializeToString()

    def _tell(self) -> None:
        for sent in self._progress:
            sent()
