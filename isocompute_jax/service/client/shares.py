"""The weights of several learner hosts: each sends its own share, when process 0 says so.

A server takes an update when every host's share has come, and whatever goes wrong with one share ends it for all. So
one of them decides: the fleet of process 0 knows which server needs what, orders the shares of the others together
with its own, and orders them again when one was lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import grpc

from isocompute_jax.distributed import Team
from isocompute_jax.model import ModelConfig, Params, all_finite, hf_boxes, hf_packs, hf_tensor_shapes
from isocompute_jax.records.errors import RunError
from isocompute_jax.records.requests import SampleRequest
from isocompute_jax.records.rollout import RolloutGroup
from isocompute_jax.records.tensors import TensorSpec
from isocompute_jax.sampling.protocol import NO_DEVICES, TRAIN
from isocompute_jax.service.client.connection import Endpoint
from isocompute_jax.service.client.delivery import UNREADABLE, Weights
from isocompute_jax.service.client.nccl import links
from isocompute_jax.service.client.nccl.rounds import KeptWeights
from isocompute_jax.service.client.orders import Worker
from isocompute_jax.service.client.service_config import ServiceConfig
from isocompute_jax.service.proto import sampler_pb2 as pb
from isocompute_jax.service.proto.host_id import host_id
from isocompute_jax.service.weights.outbox import Outbox, Parcel
from isocompute_jax.service.weights.push import Push

CLOSE_S = 15.0


class ShareSender:
    """The sampler of the other hosts: it draws nothing, and sends this host's share of the weights when it is told to.

    Args:
      service: where the servers are, and how they are reached.
      config: model shape; `config.dtype` is what weights travel in.
      session, start: as in `RemoteSampler`, the same in all hosts.
      in_flight: likewise.
      team: of the hosts.

    Raises:
      InputError: a field of `service` cannot work.
    """

    concurrent = True
    redrawn_rollouts = 0
    device_seconds = NO_DEVICES

    def __init__(
        self,
        service: ServiceConfig,
        config: ModelConfig,
        *,
        session: str,
        start: str,
        in_flight: pb.InFlight,
        team: Team,
    ):
        service.validate()
        self._service = service
        self._config = config
        self._session = f"{session}#{start}"
        self._in_flight: pb.InFlight = in_flight
        self._team = team
        self._by_nccl = links.libraries(service) is not None
        tensors = [TensorSpec(name, config.dtype, shape) for name, shape in hf_tensor_shapes(config)]
        self._outbox = Outbox(service.shared_dir, run=f"{session}-{team.index}", tensors=tensors, whole=False)
        self._parcel: Weights | None = None
        self._laid_down = asyncio.Condition()
        self._endpoints: dict[str, Endpoint] = {}
        self._cannot_read: set[str] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="shares", daemon=True)
        self._thread.start()
        self._worker = Worker(team, self._loop, self._push)

    def update_weights(self, params: Params, *, version: int) -> None:
        """Lays this host's share of `params` down, or keeps it on the devices; it is sent when process 0 says so.

        Raises:
          RunError: there is no room for it.
        """
        if not self._by_nccl:
            parcel = laid_down(self._outbox, hf_boxes(self._config, params), version)
            asyncio.run_coroutine_threadsafe(self._take(parcel), self._loop).result()
            return
        leaves = hf_packs.lay_out(self._config, params)
        kept = KeptWeights(self._config, leaves, version, self._outbox)
        asyncio.run_coroutine_threadsafe(self._take(kept), self._loop).result()
        all_finite(leaves)  # process 0 asks, too
        while self._team.broadcast(lambda: False):  # what process 0 finds: servers wait for another broadcast
            for _ in hf_packs.packed(hf_packs.buckets(self._config), leaves):
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
        self._outbox.close()

    async def _take(self, parcel: Weights) -> None:
        async with self._laid_down:
            self._parcel = parcel
            self._laid_down.notify_all()

    async def _of_version(self, version: int) -> Weights:
        """Weights, as soon as this host has come to them."""
        async with self._laid_down:
            await self._laid_down.wait_for(lambda: self._parcel is not None and self._parcel.version >= version)
        if self._parcel is None or self._parcel.version != version:
            raise RunError(f"weights of version {version} are gone: those of a later version are laid down")
        return self._parcel

    async def _close(self) -> None:
        await self._worker.close()
        await asyncio.gather(*(endpoint.close() for endpoint in self._endpoints.values()))

    async def _push(self, target: str, version: int, server_host: str, *, tell: Callable[[], None]) -> None:
        """Sends the share by file or stream."""
        parcel = await self._of_version(version)
        mode = self._service.push
        near = mode in ("auto", "nccl") and server_host == host_id() and target not in self._cannot_read
        push = Push(
            parcel=await parcel.laid_down() if isinstance(parcel, KeptWeights) else parcel,
            session=self._session,
            in_flight=self._in_flight,
            shared=mode == "shared" or near,
            streams=self._service.streams,
            process_index=self._team.index,
            process_count=self._team.count,
        )
        if target not in self._endpoints:
            self._endpoints[target] = Endpoint(target, self._service)
        try:
            await self._endpoints[target].push(push, sent=tell)
        except grpc.aio.AioRpcError as failure:
            if failure.code() in UNREADABLE:
                self._cannot_read.add(target)  # of a file, if that was how; the next attempt streams
            raise


def laid_down(outbox: Outbox, boxes: Iterator[Any], version: int) -> Parcel:
    """Lays weights down; where that fails the boxes are run through all the same, as other hosts compute them too."""
    try:
        return outbox.write(boxes, version=version)
    except BaseException:
        with contextlib.suppress(Exception):
            for _ in boxes:
                pass
        raise
