"""One communicator for each server: made when first needed, given up when it fails, tried again later and later."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import secrets
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import grpc
import jax
import jax.numpy as jnp

from isocompute_jax.model.hf_packs import Bucket
from isocompute_jax.records.errors import InputError
from isocompute_jax.service.client.service_config import ServiceConfig
from isocompute_jax.service.proto import convert
from isocompute_jax.service.proto import sampler_pb2 as pb
from isocompute_jax.service.weights import nccl
from isocompute_jax.service.weights.transfer import TransferError

if TYPE_CHECKING:  # it imports this
    from isocompute_jax.service.client.member import Member

JOIN_S = 30.0
"""Longer than a server waits for the learner, so that its reason is heard."""
POLL_S = 0.005
FIRST_WAIT_S, LONGEST_WAIT_S = 60.0, 3600.0
"""A server that could not be sent weights so is sent files for so long, each time twice as long."""

FIELD = "config.service.push = 'nccl'"
LOG = logging.getLogger(__name__)


@dataclasses.dataclass(eq=False)
class Link:
    """A server's communicator.

    Attributes:
      target: the server's address.
      incarnation: which start of it.
      transfer: the communicator's number.
      communicator: it.
      failed: why it is of no use any more; empty while it is.
    """

    target: str
    incarnation: str
    transfer: int
    communicator: nccl.Communicator
    failed: str = ""

    def fail(self, why: str) -> None:
        """Gives it up; the first reason counts."""
        self.failed = self.failed or why or "it failed"
        self.communicator.abort()


@dataclasses.dataclass(frozen=True)
class _Refusal:
    """A server that was not to be sent weights by NCCL; what it is sent until some time, if it is not started again."""

    incarnation: str
    until: float
    wait_s: float


class Links:
    """Those of a learner, kept between updates; used on one event loop.

    Args:
      libraries: NCCL's.
      buckets: what is broadcast in every update.
      device: of rank 0, this process's first in the mesh.
    """

    def __init__(self, libraries: nccl.Nccl, buckets: Sequence[Bucket], device: Any):
        self._libraries = libraries
        self._device = device
        self._tensors = convert.tensors_to_messages(tensor for bucket in buckets for tensor in bucket.tensors)
        self._counts = [len(bucket.tensors) for bucket in buckets]
        self._links: dict[str, Link] = {}
        self._refusals: dict[str, _Refusal] = {}

    async def prepare(self, members: Sequence[Member]) -> dict[str, Link]:
        """The links to some servers, by address; those that cannot have one are left out, and the reason is said.

        All are joined at the same time; one that is late delays this one update, by `JOIN_S` at most.
        """
        here = {each.target: each.status.incarnation for each in members}
        for target, link in list(self._links.items()):
            if here.get(target) != link.incarnation:
                self._links.pop(target).communicator.abort()
            elif link.failed:
                self._refuse(target, link.incarnation, link.failed)
                del self._links[target]
            else:
                self._refusals.pop(target, None)
        wanted = [each for each in members if each.target not in self._links and self._may_try(each)]
        await asyncio.gather(*map(self._join, wanted))
        return {target: self._links[target] for target in here if target in self._links}

    def close(self) -> None:
        """Gives up every communicator."""
        for link in self._links.values():
            link.communicator.abort()
        self._links.clear()

    def _may_try(self, member: Member) -> bool:
        refusal = self._refusals.get(member.target)
        if refusal is None or refusal.incarnation != member.status.incarnation:
            return True
        return time.monotonic() >= refusal.until

    def _refuse(self, target: str, incarnation: str, why: str) -> None:
        """Remembers that a server is to be sent files, and for how long."""
        before = self._refusals.get(target)
        doubled = before.wait_s * 2 if before is not None and before.incarnation == incarnation else FIRST_WAIT_S
        wait_s = min(doubled, LONGEST_WAIT_S)
        self._refusals[target] = _Refusal(incarnation, time.monotonic() + wait_s, wait_s)
        LOG.warning("sampler %s is sent no weights by NCCL for %.0f s, but files: %s", target, wait_s, why)

    async def _join(self, member: Member) -> None:
        """Makes a server's link, or remembers why not."""
        status, began = member.status, time.monotonic()
        try:
            self._check_version(status)
            link = await self._joined(member)
        except (TransferError, grpc.aio.AioRpcError, TimeoutError) as error:
            details = error.details() if isinstance(error, grpc.aio.AioRpcError) else str(error)
            self._refuse(member.target, status.incarnation, details or f"its ranks did not come within {JOIN_S:g} s")
            return
        self._links[member.target] = link
        seconds = time.monotonic() - began
        LOG.info("sampler %s joined by NCCL, %d ranks, in %.1f s", member.target, status.devices.count, seconds)

    def _check_version(self, status: pb.StatusReply) -> None:
        ours = self._libraries.version
        if not status.nccl:
            raise TransferError(f"its engine, {status.engine}, takes none so here")
        if status.nccl != ours:
            raise TransferError(f"it has NCCL {status.nccl}, and the learner {ours}: install the same on both sides")

    async def _joined(self, member: Member) -> Link:
        """Asks the server's ranks to join, and joins; whichever fails ends both."""
        unique_id, world = self._libraries.unique_id(), 1 + member.status.devices.count
        request = pb.OpenTransferRequest(
            transfer=secrets.randbits(63),
            unique_id=unique_id,
            world=world,
            tensors=self._tensors,
            buckets=self._counts,
        )
        number = jax.block_until_ready(jax.device_put(jnp.zeros(1, jnp.float32), self._device))
        communicator = nccl.Communicator(self._libraries, unique_id, world, self._device.local_hardware_id or 0)
        try:
            async with asyncio.timeout(JOIN_S), asyncio.TaskGroup() as group:
                group.create_task(member.endpoint.open_transfer(request, timeout=JOIN_S))
                group.create_task(self._enter(communicator, number))
        except BaseException as error:
            communicator.abort()
            raise (error.exceptions[0] if isinstance(error, ExceptionGroup) else error) from None
        incarnation = member.status.incarnation
        return Link(member.target, incarnation, request.transfer, communicator)

    async def _enter(self, communicator: nccl.Communicator, number: jax.Array) -> None:
        """Waits until all ranks are there, then adds up one number with them, which vLLM's ranks do, too."""
        while not communicator.done():
            await asyncio.sleep(POLL_S)
        communicator.add(number.unsafe_buffer_pointer(), number)
        while not communicator.done():
            await asyncio.sleep(POLL_S)


def libraries(service: ServiceConfig) -> nccl.Nccl | None:
    """What `service.push` = `nccl` needs; None for the other ways.

    Raises:
      InputError: this process cannot send weights so, and why.
    """
    if service.push != "nccl":
        return None
    platform = jax.default_backend()
    if platform != "gpu":
        raise InputError(f"{FIELD}: the learner runs on {platform.upper()}s, and NCCL joins GPUs: set it to 'auto'")
    try:
        return nccl.load()
    except TransferError as error:
        raise InputError(f"{FIELD}: {error}: install the extra nccl (docs/clusters.md), or set it to 'auto'") from error
