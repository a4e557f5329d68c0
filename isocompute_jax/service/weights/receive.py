"""Receiving weights: several senders, one update.

All calls with one (session, version) are the parts of one update. While its parts come in, an update of another
(session, version) takes its place: the newer one wins, and the senders of the older get ABORTED. An update that is
being applied is not disturbed: the next one waits for its end. Who may begin is asked of the servicer (`admit`), before
anything is given up for it. Whatever goes wrong with one sender ends the update for all of them, and the old weights
serve on.
"""

from __future__ import annotations

import asyncio
import collections
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, TypeVar

import grpc
import numpy as np
import xxhash

from isocompute_jax.records.tensors import Box, TensorSpec
from isocompute_jax.service.proto import sampler_pb2 as pb
from isocompute_jax.service.proto.convert import Chunk
from isocompute_jax.service.proto.terms import NO_BASE, Interruptible, Refusal, check_name, invalid, lost
from isocompute_jax.service.weights.changes import changed
from isocompute_jax.service.weights.check import (
    Coverage,
    ManifestFile,
    checked_box,
    is_finite,
    listed_tensors,
    not_finite,
)
from isocompute_jax.service.weights.files import StagingArea, WeightFile, WeightWriter

THREADS = 4
WRITES_AHEAD = 4
"""Chunks of one sender that wait for a thread before its next one is read."""
MAX_SENDERS = 4096
MAX_VERSION = 2**31 - 1
"""Completions carry versions as int32."""

T = TypeVar("T")
Message = pb.UpdateWeightsRequest | Chunk
Messages = Callable[[], Awaitable[Message | None]]
"""The next message of a sender; None at the end of its stream."""


class WeightUpdate:
    """An update that is being collected, then applied; `_give_back` frees what it holds."""

    def __init__(self, header: pb.WeightsHeader, coverage: Coverage, peer: str):
        self.header = header
        self.peer = peer
        self.coverage = coverage
        self.calls: dict[int, Interruptible] = {}
        self.missing = header.senders
        self.arrived = asyncio.Event()  # all parts are there
        self.outcome: asyncio.Future[pb.UpdateWeightsReply] = asyncio.get_running_loop().create_future()
        # Of the communicator by which the engine is sent the weights, and what tells the learner to begin.
        self.transfer: int | None = None
        self.receiving: Callable[[], Awaitable[None]]
        # Else a file that is used as it is, or one in which chunks and parts of files are put together.
        self.file: ManifestFile | None = None
        self.staged: asyncio.Future[WeightWriter] | None = None
        self.writes: set[asyncio.Future] = set()
        self.applying: asyncio.Task[None] | None = None
        self.committed = False  # the engine has been told: from then on nothing stops it


class Kept(NamedTuple):
    """The version that the engine took last, whole."""

    name: tuple[str, int]  # session and version
    writer: WeightWriter


class WeightUpdates:
    """Collects updates from their senders.

    Args:
      area: where weights are put together.
      admit: given a header and that of the update which is coming in, if there is one: raises the Refusal of an update
        that may not begin, or not take the other's place.
      apply: takes complete weights to the engine, those of a file or, without one, of `update.transfer`; it sets
        `committed` when that begins, and gives the reply.
      peer_timeout_s: longest wait for a sender's next message, and for the other senders.
    """

    def __init__(
        self,
        area: StagingArea,
        admit: Callable[[pb.WeightsHeader, pb.WeightsHeader | None], None],
        apply: Callable[[WeightUpdate, WeightFile | None], Awaitable[pb.UpdateWeightsReply]],
        *,
        peer_timeout_s: float,
    ):
        self._area = area
        self._admit = admit
        self._apply = apply
        self._timeout = peer_timeout_s
        self._current: WeightUpdate | None = None
        self._kept: Kept | None = None
        self._threads = ThreadPoolExecutor(THREADS, "weights")
        self._releasing: set[asyncio.Task[None]] = set()

    @property
    def senders(self) -> int:
        """Calls that are part of the current update."""
        return len(self._current.calls) if self._current is not None else 0

    async def receive(
        self, messages: Messages, *, peer: str, receiving: Callable[[], Awaitable[None]]
    ) -> pb.UpdateWeightsReply:
        """One sender's call, from its header to the reply; `peer` is its address, for the log.

        `receiving` tells it that the engine waits for what it sends by NCCL.

        Raises:
          Refusal: why the update failed.
        """
        header = await self._header(messages)
        listed = listed_tensors(header.tensors, self._area.tensors)
        if header.HasField("base") and (self._kept is None or self._kept.name != (header.session, header.base)):
            raise no_base(header.base)
        update = await self._join(header, peer)
        try:
            with Interruptible() as call:
                update.calls[header.sender] = call
                update.receiving = receiving
                await self._collect(update, listed, messages)
                update.missing -= 1
                if not update.missing:
                    update.applying = asyncio.create_task(self._finish(update))
                    update.arrived.set()
                await self._wait(update.arrived.wait(), f"the other senders of version {header.version}")
                return await asyncio.shield(update.outcome)
        except Refusal as refusal:
            self._fail(update, refusal, header.sender)
            raise
        except asyncio.CancelledError:
            refusal = Refusal(grpc.StatusCode.DATA_LOSS, f"the call of sender {header.sender} broke")
            self._fail(update, refusal, header.sender)
            raise
        except Exception as error:
            self._fail(update, lost(f"sender {header.sender} failed: {error!r}"), header.sender)
            raise

    async def close(self, grace_s: float) -> None:
        """Ends what is being collected, lets the engine take what it has begun to, and removes the staging files."""
        update = self._current
        if update is not None and update.committed and update.applying is not None:
            await asyncio.wait([update.applying], timeout=grace_s)
        if self._current is not None:
            self._fail(self._current, Refusal(grpc.StatusCode.UNAVAILABLE, "the server is shutting down"))
        if self._releasing:
            await asyncio.wait(self._releasing)
        self._threads.shutdown()
        self._area.close()

    async def _header(self, messages: Messages) -> pb.WeightsHeader:
        first = await self._next(messages)
        if isinstance(first, Chunk) or first.WhichOneof("part") != "header":
            raise invalid("the first message of an update must be its header")
        header = first.header
        check_name("session", header.session)
        if not 1 <= header.senders <= MAX_SENDERS:
            raise invalid(f"senders = {header.senders} must lie in 1 .. {MAX_SENDERS}")
        if header.sender >= header.senders:
            raise invalid(f"sender = {header.sender} must lie below senders = {header.senders}")
        if not 0 <= header.version <= MAX_VERSION:
            raise invalid(f"version = {header.version} must lie in 0 .. {MAX_VERSION}")
        if header.in_flight not in pb.InFlight.values():
            raise invalid(f"in_flight = {header.in_flight} is unknown")
        return header

    async def _join(self, header: pb.WeightsHeader, peer: str) -> WeightUpdate:
        """The update that a header belongs to: the current one, or a new one in its place."""
        while (update := self._current) is not None:
            if update.arrived.is_set():
                await asyncio.wait([update.outcome])
            elif (header.session, header.version) != (update.header.session, update.header.version):
                self._admit(header, update.header)
                self._fail(update, Refusal(grpc.StatusCode.ABORTED, f"version {header.version} took its place"))
            else:
                break
        if update is None:
            self._admit(header, None)
            self._current = WeightUpdate(header, Coverage(self._area.tensors), peer)
            return self._current
        if header.sender in update.calls:
            refusal = invalid(f"sender {header.sender} of version {header.version} came twice")
        elif (header.senders, header.in_flight) != (update.header.senders, update.header.in_flight):
            refusal = invalid(f"the senders of version {header.version} do not agree on `senders` and `in_flight`")
        else:
            return update
        self._fail(update, refusal)
        raise refusal

    async def _collect(self, update: WeightUpdate, listed: Sequence[TensorSpec], messages: Messages) -> None:
        """Reads one sender's parts up to its `end`."""
        received, waiting = 0, collections.deque[asyncio.Future[None]]()
        while True:
            message = await self._next(messages)
            if isinstance(message, Chunk):
                box = checked_box(message.box, listed)
                update.coverage.add(box)
                received += len(message.data) + len(message.gaps or b"")
                staged = await self._staged(update)
                if message.gaps is not None:
                    if self._kept is None or not update.header.HasField("base"):
                        raise invalid(f"tensor {box.name!r}: changes came without the version that they are of")
                    waiting.append(self._in_thread(update, _write_changes, staged, self._kept.writer, box, message))
                elif len(message.data) != box.nbytes:
                    raise invalid(f"tensor {box.name!r}: a chunk has {len(message.data)} bytes, its box {box.nbytes}")
                else:
                    waiting.append(self._in_thread(update, _write, staged, box, message))
                if len(waiting) > WRITES_AHEAD:
                    await waiting.popleft()
                continue
            match message.WhichOneof("part"):
                case "manifest":
                    received += await self._read_manifest(update, listed, message.manifest)
                case "device":
                    if update.transfer is not None or update.header.senders != 1 or received:
                        raise invalid("weights that come by NCCL need no other part, and one sender alone")
                    update.transfer = message.device.transfer
                case "end":
                    for write in waiting:
                        await write
                    if message.end.bytes != received:
                        raise lost(f"{message.end.bytes} bytes were sent, {received} arrived")
                    return
                case _:
                    raise invalid("after the header only chunks, manifests and one `end` may come")

    async def _read_manifest(self, update: WeightUpdate, listed: Sequence[TensorSpec], manifest: pb.Manifest) -> int:
        """Books a manifest's boxes and takes them over; their bytes."""
        file = await self._in_thread(update, ManifestFile, manifest, listed)
        for box in file.boxes:
            update.coverage.add(box)
        in_place = update.header.senders == 1 and file.is_whole
        to = None if in_place else await self._staged(update)
        await self._in_thread(update, file.read, self._area.directory, to)
        if in_place:
            update.file = file
        return sum(box.nbytes for box in file.boxes)

    async def _staged(self, update: WeightUpdate) -> WeightWriter:
        """The update's staging file, made when its first part comes."""
        if update.staged is None:
            update.staged = self._take()
        try:
            return await asyncio.shield(update.staged)
        except Refusal as refusal:
            if self._kept is None:
                raise
            # No room for two copies.
            kept, self._kept = self._kept, None
            self._area.give_back(kept.writer)
            if update.header.HasField("base"):
                raise no_base(update.header.base) from refusal
            update.staged = self._take()
            return await asyncio.shield(update.staged)

    def _take(self) -> asyncio.Future[WeightWriter]:
        staged = asyncio.get_running_loop().run_in_executor(self._threads, self._area.take)
        staged.add_done_callback(_seen)
        return staged

    def _in_thread(self, update: WeightUpdate, function: Callable[..., T], *arguments: object) -> asyncio.Future[T]:
        """Runs a function in a thread; the update's files are kept until it ends."""
        future = asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)
        update.writes.add(future)
        future.add_done_callback(update.writes.discard)
        shielded = asyncio.shield(future)
        shielded.add_done_callback(_seen)
        return shielded

    async def _next(self, messages: Messages) -> Message:
        message = await self._wait(messages(), "the next part of the weights")
        if message is None:
            raise lost("the stream ended before its `end`")
        return message

    async def _wait(self, awaitable: Awaitable[T], what: str) -> T:
        """Waits for a sender, but not forever."""
        try:
            async with asyncio.timeout(self._timeout):
                return await awaitable
        except TimeoutError:
            raise lost(f"waited {self._timeout:g} s for {what}") from None

    async def _finish(self, update: WeightUpdate) -> None:
        """Applies a complete update, and tells every sender."""
        try:
            weights = None
            if update.transfer is None:  # else the engine asks for each tensor by name
                await self._in_thread(update, update.coverage.check_complete)
                file = update.file
                weights = (await self._staged(update)).weights if file is None else file.weights(self._area.tensors)
            reply = await self._apply(update, weights)
        except Refusal as refusal:
            update.committed = False
            self._fail(update, refusal)
        except Exception as error:
            update.committed = False
            self._fail(update, lost(f"the update failed: {error!r}"))
            raise
        else:
            self._current = None
            update.outcome.set_result(reply)
            self._keep(update)
            self._release(update)

    def _keep(self, update: WeightUpdate) -> None:
        """Keeps what the engine has taken for the next update's changes, if it is asked for; lets go of the last."""
        kept, self._kept = self._kept, None
        if update.header.keep and update.staged is not None:
            self._kept = Kept((update.header.session, update.header.version), update.staged.result())
            update.staged = None
        if kept is not None:
            self._area.give_back(kept.writer)

    def _fail(self, update: WeightUpdate, refusal: Refusal, sender: int | None = None) -> None:
        """Ends an update for all senders; `sender` is the one that knows already."""
        if update.committed or update.outcome.done():
            return
        self._current = None
        update.outcome.cancel()
        if update.applying is not None and update.applying is not asyncio.current_task():
            update.applying.cancel()
        for number, call in update.calls.items():
            if number != sender:
                call.interrupt(refusal)
        self._release(update)

    def _release(self, update: WeightUpdate) -> None:
        task = asyncio.create_task(self._give_back(update))
        self._releasing.add(task)
        task.add_done_callback(self._releasing.discard)

    async def _give_back(self, update: WeightUpdate) -> None:
        """Frees the staging file once no thread writes to it."""
        if update.writes:
            await asyncio.wait(update.writes)
        if update.file is not None:
            update.file.close()
        if update.staged is not None:
            await asyncio.wait([update.staged])
            if update.staged.exception() is None:
                self._area.give_back(update.staged.result())


def no_base(version: int) -> Refusal:
    """Of changes to another version than the one that is kept."""
    return Refusal(grpc.StatusCode.FAILED_PRECONDITION, f"{NO_BASE} {version}: send whole chunks")


def _write_changes(writer: WeightWriter, kept: WeightWriter, box: Box, chunk: Chunk) -> None:
    old = kept.read(box)
    try:
        new = changed(old, np.frombuffer(chunk.gaps or b"", np.uint8), np.frombuffer(chunk.data, old.dtype))
    except ValueError as error:
        raise invalid(f"tensor {box.name!r}: {error}") from None
    data = new.view(np.uint8).data
    if xxhash.xxh3_64_intdigest(data) != chunk.checksum:
        raise lost(f"tensor {box.name!r}: with its changes a chunk does not have its checksum")
    if not is_finite(data, box.dtype):
        raise not_finite(box.name)
    writer.write(box, new)


def _write(writer: WeightWriter, box: Box, chunk: Chunk) -> None:
    if xxhash.xxh3_64_intdigest(chunk.data) != chunk.checksum:
        raise lost(f"tensor {box.name!r}: a chunk does not have its checksum")
    if not is_finite(chunk.data, box.dtype):
        raise not_finite(box.name)
    writer.write(box, np.frombuffer(chunk.data, np.uint8))


def _seen(future: asyncio.Future) -> None:
    """An error of a thread that nobody waits for any more is no news."""
    if not future.cancelled():
        future.exception()
