"""A server process: the sampler service with health, reflection and metrics around it, from start to shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import os
import secrets
import signal

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from isocompute_jax.records.errors import InputError, RunError
from isocompute_jax.service.proto import sampler_pb2_grpc
from isocompute_jax.service.proto.refusal import Refusal
from isocompute_jax.service.server.engines.base import Engine, EngineError
from isocompute_jax.service.server.metrics import MetricsServer
from isocompute_jax.service.server.refusals import SERVICE, Refusals
from isocompute_jax.service.server.servicer import Servicer
from isocompute_jax.service.server.settings import ServerConfig
from isocompute_jax.service.weights.receive import StagingArea, check_directory

log = logging.getLogger(__name__)

HEALTH_INTERVAL_S = 2.0
MIB = 1 << 20
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h


class Server:
    """A running server around an engine that has started.

    Args:
      engine: started; `stop` leaves it running.
      config: its settings.

    Raises:
      InputError: a file cannot be read, or an address cannot be bound.
    """

    def __init__(self, engine: Engine, config: ServerConfig):
        self._engine = engine
        self._config = config
        self._health = health.aio.HealthServicer()  # pyright: ignore[reportAttributeAccessIssue]
        self._metrics: MetricsServer | None = None
        self._checks: asyncio.Task[None] | None = None
        self.address = ""
        token = config.token()
        self._area = StagingArea(config.weights_dir, engine.facts.tensors)
        self.servicer = Servicer(
            engine,
            self._area,
            token=token,
            wait_for_weights=config.wait_for_weights,
            max_groups=config.max_groups,
            max_client_groups=config.max_client_groups or max(1, config.max_groups // 4),
            max_message_bytes=config.max_message_mib * MIB,
            peer_timeout_s=config.peer_timeout_s,
            changed=self._report_health,
        )
        refusals = Refusals(
            self.servicer.fail,
            self.servicer.metrics.refused,
            self.servicer.calls,
            wait_s=config.peer_timeout_s,
            max_message_mib=config.max_message_mib,
        )
        self._grpc = grpc.aio.server(interceptors=(refusals,), options=_options(config))
        sampler_pb2_grpc.add_SamplerServicer_to_server(self.servicer, self._grpc)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._grpc)
        names = (SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self._grpc)

    async def start(self) -> None:
        """Binds and serves; `address` then says where."""
        config = self._config
        if config.metrics_port:
            host = "127.0.0.1" if config.host.startswith("unix:") else config.host
            try:
                self._metrics = MetricsServer(
                    self.servicer.metrics.registry, host, config.metrics_port, tls=config.tls_context()
                )
            except OSError as error:
                raise InputError(f"--metrics_port={config.metrics_port} on {host}: {error.strerror}") from error
        self.address = self._bind()
        await self._report_health()
        await self._grpc.start()
        self._checks = asyncio.create_task(self._check_engine())
        if config.port_file:
            _write_atomically(config.port_file, self.address)
        log.info("listening on %s", self.address)

    async def stop(self, grace_s: float) -> None:
        """Takes no new groups, lets running ones end within `grace_s` seconds, and closes."""
        servicer = self.servicer
        servicer.stopping = True
        await self._report_health()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await servicer.emptied()
        servicer.interrupt(Refusal(grpc.StatusCode.UNAVAILABLE, "the server has shut down"))
        await servicer.emptied()
        await servicer.updates.close(grace_s)
        if self._checks is not None:
            self._checks.cancel()
            await asyncio.wait([self._checks])
        await self._grpc.stop(grace=0)
        servicer.calls.close()
        if self._metrics is not None:
            await asyncio.to_thread(self._metrics.close)
        self.remove_files()

    def remove_files(self) -> None:
        """Removes what a process that ends at once would leave behind."""
        self._area.close()
        if self._config.port_file:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._config.port_file)

    async def _report_health(self) -> None:
        statuses = health_pb2.HealthCheckResponse
        status = statuses.SERVING if self.servicer.serving else statuses.NOT_SERVING
        for name in ("", SERVICE):
            await self._health.set(name, status)

    async def _check_engine(self) -> None:
        """Notices an engine that dies while nobody asks it for anything."""
        while True:
            try:
                await self._engine.check_health()
            except EngineError as error:
                await self.servicer.fail(str(error))
                return
            await asyncio.sleep(HEALTH_INTERVAL_S)

    def _bind(self) -> str:
        config = self._config
        unix = config.host.startswith("unix:")
        host = f"[{config.host}]" if ":" in config.host and not unix else config.host
        address = host if unix else f"{host}:{config.port}"
        credentials = config.credentials()
        try:
            if credentials is None:
                port = self._grpc.add_insecure_port(address)
            else:
                port = self._grpc.add_secure_port(address, credentials)
        except RuntimeError as error:
            raise InputError(f"cannot listen on {address} (--host, --port, --tls_cert, --tls_key): {error}") from error
        return host if unix else f"{host}:{port}"


async def serve(engine: Engine, config: ServerConfig) -> None:
    """Starts an engine and a server around it, and serves until SIGTERM or SIGINT; a second one ends at once.

    Raises:
      InputError: the engine or the server cannot be started as asked.
      RunError: the engine has failed.
    """
    _keep_freed_memory()
    # What is wrong with files is said before the engine takes its time to start.
    check_directory(config.weights_dir)
    config.token()
    config.credentials()
    loop, ending, server = asyncio.get_running_loop(), asyncio.Event(), None

    def tell(number: int) -> None:
        if ending.is_set():
            if server is not None:
                server.remove_files()
            os._exit(128 + number)
        ending.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, tell, number)
    try:
        if not await _first(engine.start(), ending):
            return
        server = Server(engine, config)
        try:
            await server.start()
            if not await _first(server.servicer.failed.wait(), ending):
                log.info("shutting down")
        finally:
            await server.stop(config.grace_s)
        if server.servicer.failure:
            raise RunError(f"the engine has failed: {server.servicer.failure}")
    except EngineError as error:
        raise RunError(f"the engine has failed: {error}") from error
    finally:
        await engine.stop()


async def _first(awaitable, event: asyncio.Event) -> bool:
    """Waits for `awaitable`, or for the event, which cancels it; whether it was the first."""
    task, waiting = asyncio.ensure_future(awaitable), asyncio.ensure_future(event.wait())
    await asyncio.wait([task, waiting], return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if not task.done():
        task.cancel()
        await asyncio.wait([task])
        return False
    task.result()
    return True


def _keep_freed_memory() -> None:
    """Tells glibc to keep the pages of freed messages: fresh ones cost more time than receiving what they hold."""
    with contextlib.suppress(OSError, AttributeError):  # another C library
        mallopt = ctypes.CDLL("libc.so.6").mallopt
        mallopt(_M_MMAP_THRESHOLD, 32 * MIB)
        mallopt(_M_TRIM_THRESHOLD, 256 * MIB)


def _options(config: ServerConfig) -> list[tuple[str, int]]:
    size = config.max_message_mib * MIB
    return [
        ("grpc.max_receive_message_length", size),
        ("grpc.max_send_message_length", size),
        # Calls beyond it would wait in their clients, and never hear that the server is full.
        ("grpc.max_concurrent_streams", 2 * config.max_groups + 64),
        # Two servers on one port would each get half of the calls.
        ("grpc.so_reuseport", 0),
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 20_000),
        ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
        ("grpc.keepalive_permit_without_calls", 1),
    ]


def _write_atomically(path: str, text: str) -> None:
    temporary = f"{path}.{secrets.token_hex(4)}"
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(temporary, path)
