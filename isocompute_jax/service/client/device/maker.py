"""How a group of the learner's devices and those of some servers is formed."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import secrets
import tempfile
import time
from collections.abc import Mapping, Sequence

import grpc
import jax

from isocompute_jax.model import ModelConfig
from isocompute_jax.records.tensors import TensorSpec
from isocompute_jax.service.client.connection import Endpoint
from isocompute_jax.service.client.device.group import Group
from isocompute_jax.service.client.device.ranks import JOIN_S, LearnerRanks, close_formed, joined, learner_ranks
from isocompute_jax.service.client.device.shares import DESCRIBE, JOIN, LEAVE
from isocompute_jax.service.client.orders import Orders, ShareLostError
from isocompute_jax.service.proto import convert
from isocompute_jax.service.proto import sampler_pb2 as pb
from isocompute_jax.service.proto.host_id import host_id
from isocompute_jax.service.proto.refusal import Refusal
from isocompute_jax.service.weights.coverage import listed_tensors
from isocompute_jax.service.weights.device import nccl
from isocompute_jax.service.weights.device.links import traffic
from isocompute_jax.service.weights.device.plan import Device, Plan, make_plan
from isocompute_jax.service.weights.device.schedule import (
    Schedule,
    message_to_device,
    schedule_to_message,
    schedules,
)
from isocompute_jax.service.weights.device.transport import SOCKETS, TransferError

STATUS_S = 30.0
LONGEST_FOLDER = 50
"""The address of a local socket has at most 107 characters, and a cluster's TMPDIR may be most of that."""

LOG = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Host:
    """A learner host.

    Attributes:
      node: its name.
      gpus: its GPUs that are ranks.
    """

    node: str
    gpus: list[str]


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

    async def form(
        self, leaves: Sequence[jax.Array], version: int, endpoints: Sequence[Endpoint], orders: Orders | None
    ) -> Group:
        """A group with some servers.

        Args:
          leaves: of `to_hf_layout`; where they lie, later ones will.
          version: theirs.
          endpoints: of the servers.
          orders: has the other learner hosts join; None without any.

        Raises:
          TransferError: it was not formed, and why.
        """
        began = time.monotonic()
        try:
            asked = (endpoint.status(timeout=STATUS_S, tensors=True, ranks=True) for endpoint in endpoints)
            replies = await asyncio.gather(*asked)
            receivers = [
                [message_to_device(rank, listed_tensors(reply.tensors, self.tensors)) for rank in reply.ranks]
                for reply in replies
            ]
            ranks = learner_ranks(self.config, leaves)
            hosts = await self._hosts(ranks, version, orders)
            senders = [
                Device(hosts[process].node, tuple(each.box for each in boxes))
                for process, boxes in zip(ranks.processes, ranks.held, strict=True)
            ]
            everyone = [device for devices in receivers for device in devices]
            plan = await asyncio.to_thread(make_plan, self.tensors, senders, everyone)
            occupied = [gpu for host in hosts.values() for gpu in host.gpus]
            servers = list(zip(endpoints, map(len, receivers), strict=True))
            group = await self._open(ranks, schedules(plan), servers, occupied, version, orders)
        except grpc.aio.AioRpcError as error:
            raise TransferError(error.details() or str(error.code())) from error
        except (Refusal, ValueError, ShareLostError) as error:
            raise TransferError(str(error)) from error
        self._tell(plan, len(endpoints), len(everyone), time.monotonic() - began)
        return group

    async def _hosts(self, ranks: LearnerRanks, version: int, orders: Orders | None) -> Mapping[int, Host]:
        """The learner's, by process.

        Raises:
          TransferError: one of them sends by something else.
        """
        hosts = {0: Host(host_id(), ranks.gpus(self.transport[0]))}
        if orders is not None:
            for process, (transport, node, gpus) in (await orders.give(DESCRIBE, lambda _: (version,))).items():
                if transport != self.transport:
                    theirs, ours = " ".join(transport), " ".join(self.transport)
                    name = orders.team.names[process]
                    raise TransferError(f"{name} sends weights by {theirs}, and process 0 by {ours}")
                hosts[process] = Host(node, gpus)
        return hosts

    async def _open(
        self,
        ranks: LearnerRanks,
        work: Sequence[Schedule],
        servers: Sequence[tuple[Endpoint, int]],
        occupied: Sequence[str],
        version: int,
        orders: Orders | None,
    ) -> Group:
        """Has everybody join: this process, the others, and the servers, each with so many ranks."""
        transfer, first, calls = secrets.randbits(63), len(ranks.held), []
        rendezvous = self._rendezvous()
        index = {tensor.name: i for i, tensor in enumerate(self.tensors)}
        messages = [schedule_to_message(each, index) for each in work]
        for endpoint, count in servers:
            request = pb.OpenTransferRequest(
                transfer=transfer,
                transport=self.transport[0],
                rendezvous=rendezvous,
                world=len(work),
                tensors=convert.tensors_to_messages(self.tensors),
                schedules=messages[first : first + count],
                occupied=occupied,
            )
            calls.append(asyncio.ensure_future(endpoint.open_transfer(request, timeout=JOIN_S)))
            first += count
        if orders is not None:

            def join(host: int) -> tuple:
                own = [messages[rank].SerializeToString() for rank in ranks.of(host)]
                return version, transfer, rendezvous, len(work), own

            calls.append(asyncio.ensure_future(orders.give(JOIN, join)))
        joining = asyncio.ensure_future(joined(ranks.join, self.transport[0], rendezvous, len(work), owner=True))
        try:
            await asyncio.gather(*calls)
            transport = await joining
        except BaseException:
            joining.add_done_callback(close_formed)
            if orders is not None:
                orders.say(LEAVE, transfer)
            raise
        finally:
            for call in (*calls, joining):
                call.cancel()
        outgoing = ranks.outgoing(self.config, [work[rank] for rank in ranks.devices])
        targets = frozenset(endpoint.target for endpoint, _ in servers)
        return Group(outgoing, transport, transfer, targets, self.tensors, orders)

    def _rendezvous(self) -> bytes:
        """By what the ranks find each other."""
        if self.transport[0] != SOCKETS:
            return nccl.load().unique_id()
        short = len(tempfile.gettempdir()) <= LONGEST_FOLDER
        return tempfile.mkdtemp(prefix="isocompute-transfer-", dir=None if short else "/tmp").encode()

    def _tell(self, plan: Plan, servers: int, ranks: int, seconds: float) -> None:
        LOG.info(
            "weights go from device to device to %d server%s (%d ranks) by %s: %.3g GB each time, %.3g over the "
            "busiest network adapter; prepared in %.1f s",
            *(servers, "" if servers == 1 else "s", ranks, self.transport[0]),
            *(sum(message.nbytes * len(message.hops) for message in plan.messages) / 1e9, traffic(plan).busiest / 1e9),
            seconds,
        )
