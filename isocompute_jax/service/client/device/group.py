"""A group of the learner's devices and those of some servers: how it is formed, and one update through it."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import secrets
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import grpc
import jax

from isocompute_jax.model import ModelConfig
from isocompute_jax.records.tensors import TensorSpec
from isocompute_jax.service.client.connection import Endpoint
from isocompute_jax.service.client.device.outgoing import Outgoing, held_by
from isocompute_jax.service.proto import convert
from isocompute_jax.service.proto import sampler_pb2 as pb
from isocompute_jax.service.proto.host_id import host_id
from isocompute_jax.service.proto.refusal import Refusal
from isocompute_jax.service.weights.coverage import listed_tensors
from isocompute_jax.service.weights.device import nccl
from isocompute_jax.service.weights.device.links import traffic
from isocompute_jax.service.weights.device.plan import Device, make_plan
from isocompute_jax.service.weights.device.schedule import message_to_device, schedule_to_message, schedules
from isocompute_jax.service.weights.device.sockets import SocketTransport
from isocompute_jax.service.weights.device.transport import NCCL, SOCKETS, TransferError, Transport

JOIN_S = 90.0
"""Longer than a server waits for the other members, so that its reason is heard."""
STATUS_S = 30.0
START_S = 30.0
"""Longest wait until every server of the group has been told of an update."""
SIGN_OF_LIFE_S = 5.0
LONGEST_FOLDER = 50
"""The address of a local socket has at most 107 characters, and a cluster's TMPDIR may be most of that."""

LOG = logging.getLogger(__name__)


class Group:
    """Servers that are sent weights together; used on one event loop.

    Args:
      outgoing: this process's devices.
      transport: of their ranks.
      transfer: the group's number.
      targets: the servers' addresses.
      tensors: the model's.
    """

    def __init__(
        self,
        outgoing: Outgoing,
        transport: Transport,
        transfer: int,
        targets: frozenset[str],
        tensors: Sequence[TensorSpec],
    ):
        self.targets = targets
        self.tensors = convert.tensors_to_messages(tensors)
        self.broken = False
        self._outgoing = outgoing
        self._transport = transport
        self._transfer = transfer

    def round(self, leaves: Sequence[jax.Array], version: int) -> Round:
        """One update through it."""
        return Round(self, self._transfer, version, lambda tell: self._outgoing.send(leaves, self._transport, tell))

    def close(self) -> None:
        """Ends it; what is under way fails."""
        self.broken = True
        self._transport.close()


class Round:
    """One update, from the first server that is told of it to the last byte. Whatever fails ends the group.

    Args:
      group: whose.
      transfer: its number.
      version: of the weights.
      send: sends everything, blocking; calls what it is given as a sign of progress.
    """

    def __init__(self, group: Group, transfer: int, version: int, send: Callable[[Callable[[], None]], None]):
        self._group = group
        self._transfer = transfer
        self._version = version
        self._send = send
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
        device = pb.UpdateWeightsRequest(device=pb.DeviceWeights(transfer=self._transfer)).SerializeToString()
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
            loop = asyncio.get_running_loop()
            tell = self._tell
            self._sending = asyncio.ensure_future(
                asyncio.to_thread(self._send, lambda: loop.call_soon_threadsafe(tell) and None)
            )
        while not self._sending.done():
            await asyncio.wait([self._sending], timeout=SIGN_OF_LIFE_S)
            yield device
        self._sending.result()
        yield pb.UpdateWeightsRequest(end=pb.WeightsEnd()).SerializeToString()

    def _tell(self) -> None:
        for sent in self._progress:
            sent()


@dataclasses.dataclass(frozen=True)
class Maker:
    """Forms groups.

    Attributes:
      config: model shape.
      tensors: the model's.
      transport: name and version of the learner's.
    """

    config: ModelConfig
    tensors: tuple[TensorSpec, ...]
    transport: tuple[str, str]

    async def form(self, mesh: jax.sharding.Mesh | None, endpoints: Sequence[Endpoint]) -> Group:
        """A group with some servers.

        Raises:
          TransferError: it was not formed, and why.
        """
        began = time.monotonic()
        try:
            replies = await asyncio.gather(
                *(endpoint.status(timeout=STATUS_S, tensors=True, ranks=True) for endpoint in endpoints)
            )
            return await self._form(mesh, endpoints, replies, began)
        except grpc.aio.AioRpcError as error:
            raise TransferError(error.details() or str(error.code())) from error
        except (Refusal, ValueError) as error:
            raise TransferError(str(error)) from error

    async def _form(
        self,
        mesh: jax.sharding.Mesh | None,
        endpoints: Sequence[Endpoint],
        replies: Sequence[pb.StatusReply],
        began: float,
    ) -> Group:
        held, devices = held_by(self.config, mesh)
        senders = [Device(host_id(), tuple(each.box for each in boxes)) for boxes in held]
        receivers = [
            [message_to_device(rank, listed_tensors(reply.tensors, self.tensors)) for rank in reply.ranks]
            for reply in replies
        ]
        everyone = [rank for ranks in receivers for rank in ranks]
        plan = await asyncio.to_thread(make_plan, self.tensors, senders, everyone)
        work = schedules(plan)
        outgoing = Outgoing(
            self.config, dict(enumerate(held)), dict(enumerate(work[: len(held)])), dict(enumerate(devices))
        )
        transfer, first, calls = secrets.randbits(63), len(held), []
        rendezvous, occupied, join = self._rendezvous(devices, len(work))
        index = {tensor.name: i for i, tensor in enumerate(self.tensors)}
        for endpoint, ranks in zip(endpoints, receivers, strict=True):
            request = pb.OpenTransferRequest(
                transfer=transfer,
                transport=self.transport[0],
                rendezvous=rendezvous,
                world=len(work),
                tensors=convert.tensors_to_messages(self.tensors),
                schedules=[schedule_to_message(each, index) for each in work[first : first + len(ranks)]],
                occupied=occupied,
            )
            calls.append(asyncio.ensure_future(endpoint.open_transfer(request, timeout=JOIN_S)))
            first += len(ranks)
        joined = asyncio.ensure_future(asyncio.to_thread(join))
        try:
            await asyncio.gather(*calls)
            transport = await joined
        except BaseException:
            joined.add_done_callback(_close_late)
            raise
        finally:
            for call in calls:
                call.cancel()
        carried = traffic(plan)
        LOG.info(
            "weights go from device to device to %d server%s (%d ranks) by %s: %.3g GB each time, %.3g over the "
            "busiest network adapter; prepared in %.1f s",
            *(len(endpoints), "" if len(endpoints) == 1 else "s", len(everyone), self.transport[0]),
            *(sum(message.nbytes * len(message.hops) for message in plan.messages) / 1e9, carried.busiest / 1e9),
            time.monotonic() - began,
        )
        return Group(outgoing, transport, transfer, frozenset(endpoint.target for endpoint in endpoints), self.tensors)

    def _rendezvous(self, devices: Sequence[Any], world: int) -> tuple[bytes, list[str], Callable[[], Transport]]:
        """By what the ranks find each other, the learner's GPUs, and how this process joins."""
        if self.transport[0] == SOCKETS:
            short = len(tempfile.gettempdir()) <= LONGEST_FOLDER
            folder = tempfile.mkdtemp(prefix="isocompute-transfer-", dir=None if short else "/tmp")

            def join_sockets() -> Transport:
                return SocketTransport(folder, range(len(devices)), world, timeout_s=JOIN_S, owner=True)

            return folder.encode(), [], join_sockets
        assert self.transport[0] == NCCL
        libraries = nccl.load()
        unique_id = libraries.unique_id()
        numbers = {rank: device.local_hardware_id or 0 for rank, device in enumerate(devices)}

        def join_nccl() -> Transport:
            return nccl.NcclTransport(libraries, unique_id, numbers, world, timeout_s=JOIN_S)

        return unique_id, [f"{host_id()}/{libraries.bus_id(n)}" for n in numbers.values()], join_nccl


def _close_late(joined: asyncio.Future[Transport]) -> None:
    """A group that was formed when nobody wanted it any more."""
    if not joined.cancelled() and joined.exception() is None:
        joined.result().close()
