"""A learner host's weights on their way to servers: by NCCL, as a file that a server reads, or streamed.

With several learner hosts each sends its own share. A server takes an update when every host's share has come, and
whatever goes wrong with one share ends it for all. So one of them decides: the fleet of process 0 knows which server
needs what, orders the shares of the others together with its own, and orders them again when one was lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import secrets
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, Literal, NoReturn

import grpc

from isocompute_jax.distributed import Team, alone
from isocompute_jax.model import (
    LoraConfig,
    ModelConfig,
    Params,
    adapter_specs,
    all_finite,
    hf_boxes,
    hf_packs,
    hf_tensor_shapes,
    merged,
    scaled_adapters,
)
from isocompute_jax.model.params import spec_leaves
from isocompute_jax.records.errors import CONFIG, InputError, RunError
from isocompute_jax.records.requests import SampleRequest
from isocompute_jax.records.rollout import RolloutGroup
from isocompute_jax.records.tensors import DTYPE_BYTES, TensorSpec
from isocompute_jax.sampling.protocol import NO_DEVICES, TRAIN
from isocompute_jax.service.client import weight_broadcast
from isocompute_jax.service.client.connection import Endpoint, reason_of, update_calls
from isocompute_jax.service.client.service_config import ServiceConfig
from isocompute_jax.service.client.weight_broadcast import KeptWeights
from isocompute_jax.service.proto import convert
from isocompute_jax.service.proto import sampler_pb2 as pb
from isocompute_jax.service.proto.terms import NOT_FINITE, host_id
from isocompute_jax.service.weights.files import Outbox, Parcel
from isocompute_jax.service.weights.nccl import TransferError

UNREADABLE = (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.DATA_LOSS)
"""How a server refuses a manifest whose file it cannot read."""
REFUSED = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)
"""A server takes nothing from this host, now or later."""
ORDER, GIVE_UP, PROGRESS, DONE = "order", "give up order", "order goes on", "order done"
"""Topics of the team's messages."""
TELL_S = 1.0
CLOSE_S = 15.0

Weights = Parcel | KeptWeights
InFlight = Literal["abort", "wait", "continue", "recompute"]

IN_FLIGHT: dict[InFlight, pb.InFlight] = {
    "abort": pb.IN_FLIGHT_ABORT,
    "wait": pb.IN_FLIGHT_WAIT,
    "continue": pb.IN_FLIGHT_CONTINUE,
    "recompute": pb.IN_FLIGHT_RECOMPUTE,
}

LOG = logging.getLogger(__name__)


class Sender:
    """Lays down the weights of this host, its share of them where there are several, and brings them to servers.

    Args:
      service: where the servers are, and how they are used.
      config: model shape; `config.dtype` is what weights travel in.
      session: names the run, the same after a restart: its folder in `service.shared_dir` is found and emptied.
      in_flight: what becomes of groups that are being sampled when weights change: `abort` draws them again with the
        new weights, and holds every rollout to the version that was current when it was asked for (on-policy);
        `wait` finishes them first; `continue` and `recompute` continue with the new weights and the old, or new, cache.
      start: names this start of the run, the same on all its hosts; drawn when None. Weights of an earlier start
        never pass for those of this one, though their versions be the same.
      team: the learner hosts, each of which sends its own share; None for this one alone.
      lora: of the adapters that travel alone (`LoraConfig.served`); None where all weights do.

    Raises:
      InputError: a field of `service` cannot work.
      RunError: a live process has the same `session`.
    """

    def __init__(
        self,
        service: ServiceConfig,
        config: ModelConfig,
        *,
        session: str,
        in_flight: InFlight,
        start: str | None = None,
        team: Team | None = None,
        lora: LoraConfig | None = None,
    ):
        service.validate()
        if not service.remote:
            raise InputError(f"{CONFIG.service.endpoints} is empty: list the servers, host:port,host:port")
        if config.dtype not in DTYPE_BYTES:
            raise InputError(f"{CONFIG.dtype} = {config.dtype!r}: weights travel as {', '.join(DTYPE_BYTES)} only")
        self.service = service
        self.config = config
        self.session = f"{session}#{start or secrets.token_hex(16)}"  # of this start of the learner
        self.in_flight: InFlight = in_flight
        self.team = team = team or alone()
        # NCCL's; None for the other ways
        self.libraries = weight_broadcast.libraries(service) if lora is None else None
        self._adapters = None if lora is None else adapter_specs(config, lora)
        self.orders: Orders | None = None  # has the other hosts send their shares; set by process 0's fleet
        self._outbox = Outbox(
            service.shared_dir,
            run=session if team.count == 1 else f"{session}-{team.index}",
            tensors=self._tensors(),
            whole=team.count == 1,
        )

    def _tensors(self) -> list[TensorSpec]:
        """What travels."""
        if self._adapters is None:
            return [TensorSpec(name, self.config.dtype, shape) for name, shape in hf_tensor_shapes(self.config)]
        specs, dtype = spec_leaves(self._adapters), self.config.float_dtype.name
        return [TensorSpec(name, dtype, spec.hf_shape) for spec in specs for name in spec.hf_names]

    def close(self) -> None:
        """Removes the copies of the weights."""
        self._outbox.close()

    def take(self, params: Params, *, version: int) -> Weights:
        """Lays `params` down in a file or, to be sent by NCCL, keeps them on the devices.

        Of adapted ones the adapters alone, where servers take these, or else all of them, merged.

        Raises:
          RunError: there is no room for the file.
        """
        if self._adapters is not None:
            scaled = scaled_adapters(params)
            boxes = hf_boxes(self.config, scaled, table=self._adapters, dtype=self.config.float_dtype.name)
        elif self.libraries is not None:
            packs = hf_packs.lay_out(self.config, merged(params))
            return KeptWeights(self.config, packs, version, self._outbox)
        else:
            boxes = hf_boxes(self.config, merged(params))
        try:
            return self._outbox.write(boxes, version=version)
        except BaseException:
            with contextlib.suppress(Exception):
                for _ in boxes:  # other hosts compute them too
                    pass
            raise

    async def send(self, weights: Weights, endpoint: Endpoint, server_host: str, *, sent: Callable[[], None]) -> None:
        """By NCCL where that is set up, else by manifest where the server can read the file, else streamed.

        `server_host` is the server's (`host_id`); `sent` is called as a sign of progress.

        Raises:
          grpc.aio.AioRpcError: the server did not take them.
          ShareLostError: another learner host did not send its share.
          RunError: there is no room for a file.
        """
        if isinstance(weights, KeptWeights) and await self._send_by_nccl(weights, endpoint, sent):
            return
        parcel = await _in_file(weights)
        shared = self._can_read(endpoint, server_host)
        try:
            await self._send_all_shares(parcel, endpoint, server_host, shared, sent)
        except grpc.aio.AioRpcError as error:
            unreadable = error.code() in UNREADABLE and NOT_FINITE not in (error.details() or "")
            if not shared or self.service.push == "shared" or not unreadable:
                raise
            LOG.info("weights are streamed to %s: %s", endpoint.target, error.details())
            await self._send_all_shares(parcel, endpoint, server_host, False, sent)
            endpoint.cannot_read = True

    async def send_share(
        self, weights: Weights, endpoint: Endpoint, server_host: str, *, sent: Callable[[], None]
    ) -> None:
        """This host's share alone, once: what is to be sent again, process 0 decides. As `send`, but for NCCL.

        Raises:
          grpc.aio.AioRpcError: the server did not take it.
          RunError: there is no room for a file.
        """
        try:
            await self._push(await _in_file(weights), endpoint, self._can_read(endpoint, server_host), sent)
        except grpc.aio.AioRpcError as error:
            if error.code() in UNREADABLE:
                endpoint.cannot_read = True  # a file, if that was how; the next attempt streams
            raise

    def _can_read(self, endpoint: Endpoint, server_host: str) -> bool:
        """Whether a server is sent the name of a file."""
        mode = self.service.push
        return mode == "shared" or (mode != "stream" and server_host == host_id() and not endpoint.cannot_read)

    async def _send_by_nccl(self, kept: KeptWeights, endpoint: Endpoint, sent: Callable[[], None]) -> bool:
        """Whether they came to the endpoint by NCCL."""
        if not kept.round.serves(endpoint.target):
            return False
        header = pb.WeightsHeader(
            session=self.session,
            version=kept.version,
            tensors=convert.tensors_to_messages(kept.tensors),
            in_flight=IN_FLIGHT[self.in_flight],
            senders=1,
        )
        try:
            await kept.round.push(endpoint, header, sent=sent)
            return True
        except (TransferError, grpc.aio.AioRpcError) as error:
            LOG.warning("weights of version %d go to %s by file: %s", kept.version, endpoint.target, reason_of(error))
            return False

    async def _send_all_shares(
        self, parcel: Parcel, endpoint: Endpoint, server_host: str, shared: bool, sent: Callable[[], None]
    ) -> None:
        """This host's share beside those of the others; what goes wrong with one ends all."""
        own = self._push(parcel, endpoint, shared, sent)
        if self.orders is None:
            await own
            return
        theirs = self.orders.give(endpoint.target, parcel.version, server_host, sent=sent)
        await self.orders.beside(own, theirs)

    async def _push(self, parcel: Parcel, endpoint: Endpoint, shared: bool, sent: Callable[[], None]) -> None:
        def calls(base: int | None) -> list[Iterator[bytes]]:
            return update_calls(
                parcel,
                session=self.session,
                in_flight=IN_FLIGHT[self.in_flight],
                shared=shared,
                streams=self.service.streams,
                process_index=self.team.index,
                process_count=self.team.count,
                keep=self.service.changes,
                base=base,
            )

        base, endpoint.keeps = endpoint.keeps, None
        try:
            await endpoint.push(calls(base), sent=sent)
        except grpc.aio.AioRpcError as error:
            # A call that is refused while it is being written may end in gRPC's own error.
            if base is None or error.code() not in (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.INTERNAL):
                raise
            LOG.info("weights of version %d go to %s whole: %s", parcel.version, endpoint.target, error.details())
            await endpoint.push(calls(None), sent=sent)
        if self.service.changes and not shared:
            endpoint.keeps = parcel.version


async def _in_file(weights: Weights) -> Parcel:
    return await weights.laid_down() if isinstance(weights, KeptWeights) else weights


class ShareLostError(Exception):
    """Another host did not do its share; says which one, and why."""

    def __init__(self, message: str, *, refused: bool = False):
        super().__init__(message)
        self.refused = refused  # a server takes nothing from that host


class Orders:
    """Process 0 has the other hosts send their shares. Made and used on one running event loop."""

    def __init__(self, team: Team):
        self.team = team
        self._loop = asyncio.get_running_loop()
        self._numbers = itertools.count()
        self._out: dict[int, tuple[set[int], asyncio.Future[None], Callable[[], None]]] = {}
        team.on(DONE, lambda sender, value: _soon(self._loop, self._on_done, sender, *value))
        team.on(PROGRESS, lambda sender, number: _soon(self._loop, self._on_progress, number))

    async def give(self, target: str, version: int, server_host: str, *, sent: Callable[[], None]) -> None:
        """Has every other host send its share to the server at `target`; cancelled, it has them give that up.

        Raises:
          ShareLostError: one could not.
        """
        number = next(self._numbers)
        done: asyncio.Future[None] = self._loop.create_future()
        others = range(1, self.team.count)
        self._out[number] = set(others), done, sent
        for host in others:
            self.team.send(host, ORDER, (number, target, version, server_host))
        try:
            await done
        finally:
            del self._out[number]
            if done.cancelled() or done.exception() is not None:
                self.team.send_all(GIVE_UP, number)

    async def beside(self, own: Awaitable[Any], theirs: Awaitable[Any]) -> None:
        """Waits for this host's share and those of the others; what goes wrong with one ends all.

        Raises:
          Exception: of whichever failed first.
        """
        both = {asyncio.ensure_future(own), asyncio.ensure_future(theirs)}
        try:
            done, _ = await asyncio.wait(both, return_when=asyncio.FIRST_EXCEPTION)
            for task in done:
                task.result()
        finally:
            for task in both:
                task.cancel()
            await asyncio.gather(*both, return_exceptions=True)

    def _on_done(self, sender: int, number: int, error: str, refused: bool) -> None:
        if number not in self._out:
            return
        missing, done, _ = self._out[number]
        missing.discard(sender)
        if error and not done.done():
            done.set_exception(ShareLostError(f"{self.team.names[sender]}: {error}", refused=refused))
        elif not missing and not done.done():
            done.set_result(None)

    def _on_progress(self, number: int) -> None:
        if number in self._out:
            self._out[number][2]()


class ShareSender:
    """The sampler of the other hosts: it draws nothing, and sends its share of the weights when process 0 says so."""

    concurrent = True
    redrawn_rollouts = 0
    device_seconds = NO_DEVICES

    def __init__(self, sender: Sender):
        self._sender = sender
        self._team = team = sender.team
        self._weights: Weights | None = None
        self._taken = asyncio.Condition()
        self._endpoints: dict[str, Endpoint] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="shares", daemon=True)
        self._thread.start()
        self._obeying: dict[int, asyncio.Task[None]] = {}
        team.on(ORDER, lambda sender, order: _soon(self._loop, self._on_order, *order))
        team.on(GIVE_UP, lambda sender, number: _soon(self._loop, self._on_give_up, number))

    def update_weights(self, params: Params, *, version: int) -> None:
        """Takes this host's share of `params`; it is sent when process 0 says so.

        Raises:
          RunError: there is no room for it.
        """
        weights = self._sender.take(params, version=version)
        asyncio.run_coroutine_threadsafe(self._offer(weights), self._loop).result()
        if isinstance(weights, KeptWeights):
            all_finite(weights.leaves)  # process 0 asks, too
            while self._team.broadcast(lambda: False):  # what process 0 finds: servers wait for another broadcast
                for _ in hf_packs.packed(hf_packs.buckets(self._sender.config), weights.leaves):
                    pass

    def submit(self, requests: Sequence[SampleRequest], *, lane: str = TRAIN) -> NoReturn:
        """Process 0 alone draws."""
        raise AssertionError("process 0 alone draws")

    def completed(self, *, lane: str = TRAIN) -> Iterator[RolloutGroup]:
        """Process 0 alone draws."""
        raise AssertionError("process 0 alone draws")

    def close(self) -> None:
        """Closes the connections and removes the copy of the share."""
        if self._loop.is_closed():
            return
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(CLOSE_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CLOSE_S)
        self._loop.close()
        self._sender.close()

    async def _close(self) -> None:
        tasks = list(self._obeying.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(endpoint.close() for endpoint in self._endpoints.values()))

    async def _offer(self, weights: Weights) -> None:
        async with self._taken:
            self._weights = weights
            self._taken.notify_all()

    async def _of_version(self, version: int) -> Weights:
        """Weights, as soon as this host has come to them."""
        async with self._taken:
            await self._taken.wait_for(lambda: self._weights is not None and self._weights.version >= version)
        if self._weights is None or self._weights.version != version:
            raise RunError(f"weights of version {version} are gone: those of a later version are laid down")
        return self._weights

    def _on_order(self, number: int, target: str, version: int, server_host: str) -> None:
        self._obeying[number] = self._loop.create_task(self._obey(number, target, version, server_host))

    def _on_give_up(self, number: int) -> None:
        task = self._obeying.pop(number, None)
        if task is not None:
            task.cancel()

    async def _obey(self, number: int, target: str, version: int, server_host: str) -> None:
        """Sends this host's share, and tells process 0 how that goes and how it ended."""
        error, refused, last = "", False, 0.0

        def tell() -> None:
            nonlocal last
            if time.monotonic() - last > TELL_S:
                last = time.monotonic()
                self._team.send(0, PROGRESS, number)

        try:
            weights = await self._of_version(version)
            if target not in self._endpoints:
                self._endpoints[target] = Endpoint(target, self._sender.service)
            await self._sender.send_share(weights, self._endpoints[target], server_host, sent=tell)
        except grpc.aio.AioRpcError as failure:
            error, refused = reason_of(failure), failure.code() in REFUSED
        except Exception as failure:  # whatever it is, process 0 is to know
            error = str(failure) if isinstance(failure, RunError) else repr(failure)
        self._obeying.pop(number, None)
        self._team.send(0, DONE, (number, error, refused))


def _soon(loop: asyncio.AbstractEventLoop, function: Callable[..., None], *arguments: Any) -> None:
    """Calls it on a loop, unless that is closed: what other hosts still say at the end of a run matters to nobody."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(function, *arguments)
