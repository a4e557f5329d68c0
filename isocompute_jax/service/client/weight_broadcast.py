"""Weights by NCCL: one communicator for each server, and one update through them.

A communicator is made when it is first needed, given up when it fails, and tried again later and later. In an update
servers say on the event loop that they receive, and the learner's thread broadcasts to them.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import grpc
import jax
import jax.numpy as jnp

from isocompute_jax.model import ModelConfig
from isocompute_jax.model.hf_layout import boxes_of_layout
from isocompute_jax.model.hf_packs import Bucket
from isocompute_jax.records.errors import CONFIG, InputError
from isocompute_jax.service.client.connection import Endpoint, reason_of
from isocompute_jax.service.client.service_config import ServiceConfig
from isocompute_jax.service.proto import convert
from isocompute_jax.service.proto import sampler_pb2 as pb
from isocompute_jax.service.weights import nccl
from isocompute_jax.service.weights.files import Outbox, Parcel
from isocompute_jax.service.weights.nccl import RECEIVING, TransferError

if TYPE_CHECKING:  # it imports this
    from isocompute_jax.service.client.member import Member

JOIN_S = 30.0
"""Longer than a server waits for the learner, so that its reason is heard."""
JOIN_POLL_S = 0.005
FIRST_WAIT_S, LONGEST_WAIT_S = 60.0, 3600.0
"""A server that could not be sent weights so is sent files for so long, each time twice as long."""
LATE_S = 20.0
"""Longest wait for one bucket; half as long as a server waits for it."""
SETTLE_S = 0.5
"""Once a server receives others are awaited for so long; those that come later are sent everything by themselves."""
REASON_S = 1.0
SEND_POLL_S = 0.0005

LOG = logging.getLogger(__name__)


@dataclasses.dataclass(eq=False)
class ServerLink:
    """The communicator of one start of a server; `failed` is why it is of no use any more, and empty while it is."""

    target: str
    incarnation: str
    transfer: int
    communicator: nccl.Communicator
    failed: str = ""

    def fail(self, why: str) -> None:
        """Gives it up; the first reason counts."""
        self.failed = self.failed or why or "it failed"
        self.communicator.abort()


class ServerLinks:
    """The links of a learner, kept between updates; used on one event loop.

    `buckets` are what is broadcast in every update, `device` is rank 0's: this process's first in the mesh.
    """

    def __init__(self, libraries: nccl.Nccl, buckets: Sequence[Bucket], device: Any):
        self._libraries = libraries
        self._device = device
        self._tensors = convert.tensors_to_messages(tensor for bucket in buckets for tensor in bucket.tensors)
        self._counts = [len(bucket.tensors) for bucket in buckets]
        self._links: dict[str, ServerLink] = {}
        # By the incarnation of a server, which another start of it does not share: it is sent files until then, and for
        # so long, in seconds.
        self._files_until: dict[str, tuple[float, float]] = {}

    async def prepare(self, members: Sequence[Member]) -> dict[str, ServerLink]:
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
                self._files_until.pop(link.incarnation, None)
        now = time.monotonic()
        wanted = [
            each
            for each in members
            if each.target not in self._links and now >= self._files_until.get(each.status.incarnation, (0.0, 0.0))[0]
        ]
        await asyncio.gather(*map(self._join, wanted))
        return {target: self._links[target] for target in here if target in self._links}

    def close(self) -> None:
        """Gives up every communicator."""
        for link in self._links.values():
            link.communicator.abort()
        self._links.clear()

    def _refuse(self, target: str, incarnation: str, why: str) -> None:
        """Remembers that a server is to be sent files, each time for twice as long."""
        _, before_s = self._files_until.get(incarnation, (0.0, FIRST_WAIT_S / 2))
        wait_s = min(2 * before_s, LONGEST_WAIT_S)
        self._files_until[incarnation] = time.monotonic() + wait_s, wait_s
        LOG.warning("sampler %s is sent no weights by NCCL for %.0f s, but files: %s", target, wait_s, why)

    async def _join(self, member: Member) -> None:
        """Makes a server's link, or remembers why not."""
        status, began = member.status, time.monotonic()
        try:
            self._check_version(status)
            link = await self._joined(member)
        except (TransferError, grpc.aio.AioRpcError, TimeoutError) as error:
            reason = reason_of(error) or f"its ranks did not come within {JOIN_S:g} s"
            self._refuse(member.target, status.incarnation, reason)
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

    async def _joined(self, member: Member) -> ServerLink:
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
        return ServerLink(member.target, incarnation, request.transfer, communicator)

    async def _enter(self, communicator: nccl.Communicator, number: jax.Array) -> None:
        """Waits until all ranks are there, then adds up one number with them, which vLLM's ranks do, too."""
        while not communicator.done():
            await asyncio.sleep(JOIN_POLL_S)
        communicator.add(number.unsafe_buffer_pointer(), number)
        while not communicator.done():
            await asyncio.sleep(JOIN_POLL_S)


def libraries(service: ServiceConfig) -> nccl.Nccl | None:
    """What `service.push` = `nccl` needs; None for the other ways.

    Raises:
      InputError: this process cannot send weights so, and why.
    """
    if service.push != "nccl":
        return None
    platform = jax.default_backend()
    if platform != "gpu":
        raise InputError(
            f"{CONFIG.service.push} = 'nccl': the learner runs on {platform.upper()}s, and NCCL joins GPUs: set it "
            "to 'auto'"
        )
    try:
        return nccl.load()
    except TransferError as error:
        raise InputError(
            f"{CONFIG.service.push} = 'nccl': {error}: install the extra nccl (docs/clusters.md), or set it to 'auto'"
        ) from error


class Round:
    """The servers of one update. All but `send` happens on one event loop.

    A server is told of the update and says when it receives; `following` gives those that do to the learner's thread,
    which `send`s them everything.
    """

    def __init__(self) -> None:
        self._links: dict[str, ServerLink] = {}
        self._awaited: set[ServerLink] = set()
        self._receiving: list[ServerLink] = []
        self._sent: dict[ServerLink, asyncio.Future[None]] = {}
        self._closed = False
        self._changed = asyncio.Event()

    def open(self, links: Mapping[str, ServerLink]) -> None:
        """These servers may be sent the weights."""
        self._links = dict(links)
        self._awaited = set(links.values())

    def close(self) -> None:
        """From here on nobody sends: who comes later is sent a file."""
        self._closed = True
        self._links.clear()
        self._changed.set()
        for sent in self._sent.values():
            if not sent.done():
                sent.set_exception(TransferError("the update is over"))

    def serves(self, target: str) -> bool:
        """Whether a server may be sent the weights by this."""
        return target in self._links

    async def push(self, endpoint: Endpoint, header: pb.WeightsHeader, *, sent: Callable[[], None]) -> None:
        """Brings the weights to one server, once; returns when it samples with them. `sent` is a sign of progress.

        Raises:
          TransferError: they did not come through.
          grpc.aio.AioRpcError: the server refused them.
        """
        link = self._links.pop(endpoint.target)
        device = pb.DeviceWeights(transfer=link.transfer)
        call = endpoint.push_messages(_messages(header, device))
        replied = asyncio.ensure_future(call)
        try:
            if RECEIVING not in dict(await call.initial_metadata()):
                await replied
            if self._closed:
                raise TransferError("the update is over")
            sent()
            outcome = self._sent[link] = asyncio.get_running_loop().create_future()
            self._awaited.discard(link)
            self._receiving.append(link)
            self._changed.set()
            await asyncio.wait((replied, outcome), return_when=asyncio.FIRST_COMPLETED)
            if outcome.done() and outcome.exception() is not None:
                await asyncio.wait((replied,), timeout=REASON_S)  # the server's own reason says more
            if replied.done():
                replied.result()
            await outcome
            sent()
            await replied
        except BaseException as error:
            link.fail(reason_of(error) or "the push was given up")
            raise
        finally:
            replied.cancel()
            self._awaited.discard(link)
            self._sent.pop(link, None)
            if link in self._receiving:
                self._receiving.remove(link)

    async def following(self) -> list[ServerLink]:
        """The servers that receive by now, at least one; none once the round is closed."""
        while not self._receiving and not self._closed:
            self._changed.clear()
            await self._changed.wait()
        end = time.monotonic() + SETTLE_S
        while self._awaited and not self._closed and time.monotonic() < end:
            await asyncio.sleep(SETTLE_S / 20)
        receiving, self._receiving = self._receiving, []
        return receiving

    def finish(self, links: Sequence[ServerLink]) -> None:
        """Everything was sent to these, or they have failed."""
        for link in links:
            outcome = self._sent.get(link)
            if outcome is None or outcome.done():
                continue
            if link.failed:
                outcome.set_exception(TransferError(link.failed))
            else:
                outcome.set_result(None)


class KeptWeights:
    """One version of the weights in Hugging Face layout, on the devices: sent from there, or from a file of the outbox.

    `leaves` are of `hf_packs.lay_out`; nobody donates them.
    """

    def __init__(self, config: ModelConfig, leaves: Sequence[jax.Array], version: int, outbox: Outbox):
        self.version = version
        self.tensors = outbox.tensors
        self.leaves = leaves
        self.round = Round()
        self._config = config
        self._outbox = outbox
        self._file: asyncio.Future[Parcel] | None = None

    async def laid_down(self) -> Parcel:
        """The same in a file, written when it is first asked for. Raises RunError: there is no room for it."""
        if self._file is None:
            boxes = boxes_of_layout(self._config, self.leaves)
            self._file = asyncio.ensure_future(asyncio.to_thread(self._outbox.write, boxes, version=self.version))
        return await asyncio.shield(self._file)


def send(packs: Iterable[jax.Array], links: Sequence[ServerLink]) -> None:
    """Broadcasts every pack to every server, each in its own time but for the slowest of `LATE_S`. Blocks.

    Who fails, or is late, is given up; all packs are run through, whoever is left.
    """
    for pack in packs:
        live = [link for link in links if not link.failed]
        for link in live:
            _try(link, lambda link, pack=pack: _broadcast(link, pack))
        deadline = time.monotonic() + LATE_S
        while live := [link for link in live if not link.failed and not _try(link, lambda x: x.communicator.done())]:
            if time.monotonic() > deadline:
                for link in live:
                    link.fail(f"it did not take {pack.nbytes} bytes within {LATE_S:g} s")
            time.sleep(SEND_POLL_S)


def _broadcast(link: ServerLink, pack: jax.Array) -> None:
    link.communicator.broadcast(pack.unsafe_buffer_pointer(), pack.nbytes, pack)


def _try(link: ServerLink, step: Callable[[ServerLink], bool | None]) -> bool | None:
    """A step of one link, which fails by itself."""
    try:
        return step(link)
    except TransferError as error:
        link.fail(str(error))
        return None


async def _messages(header: pb.WeightsHeader, device: pb.DeviceWeights) -> AsyncIterator[bytes]:
    """What a server is told of weights that come by another way."""
    for part in (
        pb.UpdateWeightsRequest(header=header),
        pb.UpdateWeightsRequest(device=device),
        pb.UpdateWeightsRequest(end=pb.WeightsEnd()),
    ):
        yield part.SerializeToString()
