"""Sampler servers in threads of this process, well-behaved and not, for tests of the learner's side."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from benchmarks.simulated_engine import SimulatedEngine
from isocompute_jax.model import ModelConfig, hf_boxes, hf_tensor_shapes
from isocompute_jax.records.requests import SampleRequest, SamplingParams
from isocompute_jax.records.tensors import TensorSpec
from isocompute_jax.service.client.connection import Endpoint, update_calls
from isocompute_jax.service.client.fleet import RemoteSampler
from isocompute_jax.service.client.service_config import ServiceConfig
from isocompute_jax.service.client.weight_sender import InFlight, Sender
from isocompute_jax.service.proto import sampler_pb2 as pb
from isocompute_jax.service.server.server import Server, ServerConfig
from isocompute_jax.service.weights.files import Outbox
from tests.model.tiny import random_params, tiny_config

CONFIG = tiny_config(vocab_size=32)
STOP = (1,)


def tensors(config: ModelConfig = CONFIG) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(name, config.dtype, shape) for name, shape in hf_tensor_shapes(config))


class Live:
    """A real server around a simulated engine, in a thread with an event loop of its own."""

    def __init__(self, port: int = 0, engine: Any = None, **config):
        self.engine: Any = engine or SimulatedEngine(tensors(), tokens_per_s=4000.0)
        self.config = ServerConfig(port=port, **{"wait_for_weights": True, **config})
        self.server: Server
        self.loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._up: concurrent.futures.Future[str] = concurrent.futures.Future()
        self._grace = 0.0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self.address = self._up.result()
        self.port = 0 if self.address.startswith("unix:") else int(self.address.rsplit(":", 1)[1])

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_until_complete(self._main())
        finally:
            self.loop.close()

    async def _main(self) -> None:
        try:
            await self.engine.start()
            self.server = Server(self.engine, self.config)
            await self.server.start()
        except BaseException as error:
            self._up.set_exception(error)
            return
        self._up.set_result(self.server.address)
        await self._stop.wait()
        await self.server.stop(self._grace)
        await self.engine.stop()

    def do(self, function: Callable, *arguments):
        """Runs a function on the server's loop; its result."""

        async def call():
            result = function(*arguments)
            return await result if asyncio.iscoroutine(result) else result

        return asyncio.run_coroutine_threadsafe(call(), self.loop).result()

    @property
    def groups(self) -> int:
        """Groups in it now."""
        return self.do(lambda: len(self.server.servicer.groups))

    def stop(self) -> None:
        """Ends it, running calls too."""
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()


@contextlib.contextmanager
def live(count: int = 1, **arguments) -> Iterator[list[Live]]:
    """Servers that end with the block."""
    servers = [Live(**arguments) for _ in range(count)]
    try:
        yield servers
    finally:
        for server in servers:
            server.stop()


@contextlib.contextmanager
def fleet(
    *servers,
    directory,
    in_flight: InFlight = "abort",
    routing: bool = False,
    turn_tokens: int = 0,
    session="run",
    start=None,
    interrupted=lambda: False,
    report=lambda health: None,
    version: int | None = None,
    **service,
) -> Iterator[RemoteSampler]:
    """A sampler over servers (or their addresses); with a `version` they have weights from it."""
    addresses = [server if isinstance(server, str) else server.address for server in servers]
    settings = {"endpoints": ",".join(addresses), "shared_dir": str(directory), "push": "stream", "stall_s": 30.0}
    sender = Sender(ServiceConfig(**{**settings, **service}), CONFIG, session=session, in_flight=in_flight, start=start)
    sampler = RemoteSampler(sender, routing=routing, turn_tokens=turn_tokens, interrupted=interrupted, report=report)
    try:
        if version is not None:
            sampler.update_weights(params(), version=version)
        yield sampler
    finally:
        sampler.close()


def requests(count: int, *, group_size: int = 4, max_tokens: int = 64, first: int = 0) -> list[SampleRequest]:
    params = SamplingParams(1.0, 1.0, max_tokens)
    return [
        SampleRequest(f"p{i}", np.array([3, 4], np.int32), group_size, 7, 0, STOP, params)
        for i in range(first, first + count)
    ]


def params(seed: int = 0):
    return random_params(CONFIG, seed)


def until(condition: Callable[[], object], *, seconds: float = 30.0) -> None:
    """Waits for something that another thread does; fails loudly when it never happens."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.005)


def until_used(sampler: RemoteSampler, server: Live) -> None:
    """Waits until the fleet samples on a server (again)."""
    before = server.engine.tokens_generated

    def drawn() -> bool:
        sampler.submit(requests(4))
        assert len(list(sampler.completed())) == 4
        return server.engine.tokens_generated > before

    until(drawn)


def give_weights(server: Live, directory, *, session: str) -> None:
    """What a learner does that is then gone without a word."""
    outbox = Outbox(str(directory), run=session, tensors=tensors(), whole=True)
    parcel = outbox.write(hf_boxes(CONFIG, params()), version=1)
    calls = update_calls(parcel, session=session, in_flight=pb.IN_FLIGHT_ABORT, shared=False, streams=1)

    async def call() -> None:
        endpoint = Endpoint(server.address, ServiceConfig())
        try:
            await endpoint.push(calls, sent=lambda: None)
        finally:
            await endpoint.close()

    asyncio.run(call())
    outbox.close()
