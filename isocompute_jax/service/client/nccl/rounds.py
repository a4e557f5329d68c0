"""One update by NCCL: servers say on the event loop that they receive, and the learner's thread broadcasts to them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence

import grpc
import jax

from isocompute_jax.model import ModelConfig
from isocompute_jax.model.hf_layout import boxes_of_layout
from isocompute_jax.service.client.connection import Endpoint
from isocompute_jax.service.client.nccl.links import Link
from isocompute_jax.service.proto import sampler_pb2 as pb
from isocompute_jax.service.weights.outbox import Outbox, Parcel
from isocompute_jax.service.weights.transfer import RECEIVING, TransferError

LATE_S = 20.0
"""Longest wait for one bucket; half as long as a server waits for it."""
SETTLE_S = 0.5
"""Once a server receives others are awaited for so long; those that come later are sent everything by themselves."""
REASON_S = 1.0
POLL_S = 0.0005


class Round:
    """The servers of one update. All but `send` happens on one event loop.

    A server is told of the update and says when it receives; `following` gives those that do to the learner's thread,
    which `send`s them everything.
    """

    def __init__(self) -> None:
        self._links: dict[str, Link] = {}
        self._awaited: set[Link] = set()
        self._receiving: list[Link] = []
        self._sent: dict[Link, asyncio.Future[None]] = {}
        self._closed = False
        self._changed = asyncio.Event()

    def open(self, links: Mapping[str, Link]) -> None:
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
        """Brings the weights to one server, once; returns when it samples with them.

        Args:
          endpoint: the server.
          header: of the update.
          sent: called as a sign of progress.

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
            link.fail(_reason(error))
            raise
        finally:
            replied.cancel()
            self._awaited.discard(link)
            self._sent.pop(link, None)
            if link in self._receiving:
                self._receiving.remove(link)

    async def following(self) -> list[Link]:
        """The servers that receive by now, at least one; none once the round is closed."""
        while not self._receiving and not self._closed:
            self._changed.clear()
            await self._changed.wait()
        end = time.monotonic() + SETTLE_S
        while self._awaited and not self._closed and time.monotonic() < end:
            await asyncio.sleep(SETTLE_S / 20)
        found, self._receiving = self._receiving, []
        return found

    def finish(self, links: Sequence[Link]) -> None:
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
    """One version of the weights in Hugging Face layout, on the devices: sent from there, or from a file.

    Args:
      config: model shape.
      leaves: of `hf_packs.lay_out`; nobody donates them.
      version: policy version.
      outbox: where they are laid down for servers that are not sent them by NCCL.
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
        """The same in a file, written when it is first asked for.

        Raises:
          RunError: there is no room for it.
        """
        if self._file is None:
            boxes = boxes_of_layout(self._config, self.leaves)
            self._file = asyncio.ensure_future(asyncio.to_thread(self._outbox.write, boxes, version=self.version))
        return await asyncio.shield(self._file)


def send(packs: Iterable[jax.Array], links: Sequence[Link]) -> None:
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
            time.sleep(POLL_S)


def _broadcast(link: Link, pack: jax.Array) -> None:
    link.communicator.broadcast(pack.unsafe_buffer_pointer(), pack.nbytes, pack)


def _try(link: Link, step: Callable[[Link], bool | None]) -> bool | None:
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


def _reason(error: BaseException) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return error.details() or str(error.code())
    return str(error) or "the push was given up"
