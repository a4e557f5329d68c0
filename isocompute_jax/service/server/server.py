"""A server process: the sampler service with health, reflection and metrics around it, from start to shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import dataclasses
import ipaddress
import logging
import os
import signal
import ssl

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from isocompute_jax.options import check, described, option
from isocompute_jax.records.errors import InputError, RunError
from isocompute_jax.records.run_files import write_atomic
from isocompute_jax.records.tokens import sampler_token
from isocompute_jax.service.proto import sampler_pb2_grpc
from isocompute_jax.service.proto.terms import Refusal
from isocompute_jax.service.server.engines.base import Engine, EngineError
from isocompute_jax.service.server.groups import Groups
from isocompute_jax.service.server.metrics import MetricsServer
from isocompute_jax.service.server.refusals import SERVICE, Refusals
from isocompute_jax.service.server.servicer import Servicer
from isocompute_jax.service.weights.files import StagingArea, check_directory

log = logging.getLogger(__name__)

HEALTH_INTERVAL_S = 2.0
MIB = 1 << 20
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h


@described
@dataclasses.dataclass(frozen=True)
class ServerConfig:
    """The settings of a server, whatever its engine; each is a flag of its name."""

    host: str = option("127.0.0.1", "Address to bind to, or unix:PATH. Any but loopback needs TLS or --insecure.")
    port: int = option(0, "Port; 0 picks a free one.", low=0, high=65535)
    port_file: str = option("", "File that the address is written to once the server can be called.")
    tls_cert: str = option("", "PEM certificate chain of the server.")
    tls_key: str = option("", "PEM key of the server.")
    tls_client_ca: str = option(
        "", "PEM certificates of the authority that signs clients'; given, clients need one (mutual TLS)."
    )
    insecure: bool = option(False, "Allow other addresses than loopback without TLS.")
    token_file: str = option(
        "",
        "File that holds the token which weight updates need; readable by you alone. Empty for that of the "
        "environment variable ISOCOMPUTE_TOKEN, if there is one.",
    )
    weights_dir: str = option(
        "/dev/shm", "Folder in which arriving weights are put together, and in which manifests' files must lie."
    )
    wait_for_weights: bool = option(False, "Serve only after the first weight update.")
    max_groups: int = option(1024, "Groups that may be in the server at once; more are told to come again.", low=1)
    max_client_groups: int = option(
        0,
        "Groups that one address may have in the server at once, but for the learner whose weights serve; 0 for a "
        "quarter of --max_groups.",
        low=0,
    )
    max_message_mib: int = option(64, "Largest message, in MiB.", low=1, high=2047)
    metrics_port: int = option(0, "Port of Prometheus metrics, on the same host; 0 for none.", low=0, high=65535)
    grace_s: float = option(30.0, "Seconds that running groups may continue after SIGTERM or SIGINT.", low=0)
    peer_timeout_s: float = option(
        60.0, "Longest wait for a sender of weights, or for the other senders, in seconds.", low=0.001
    )

    def __post_init__(self) -> None:
        check(self, "--")
        if bool(self.tls_cert) != bool(self.tls_key):
            raise InputError("give both --tls_cert and --tls_key, or neither")
        if self.tls_client_ca and not self.tls_cert:
            raise InputError("--tls_client_ca asks clients for certificates: it needs --tls_cert and --tls_key")
        if not (self.tls_cert or self.insecure or is_loopback(self.host)):
            raise InputError(
                f"--host={self.host} can be reached from other machines: give --tls_cert and --tls_key, or --insecure "
                "if the network is trusted"
            )

    def credentials(self) -> grpc.ServerCredentials | None:
        """Those of TLS, or None without it. Raises InputError for a file that cannot be read."""
        if not self.tls_cert:
            return None
        return grpc.ssl_server_credentials(
            [(self._read("tls_key"), self._read("tls_cert"))],
            self._read("tls_client_ca") if self.tls_client_ca else None,
            bool(self.tls_client_ca),
        )

    def tls_context(self) -> ssl.SSLContext | None:
        """The same for Python's own sockets. Raises OSError for a file that cannot be read, or is none of its kind."""
        if not self.tls_cert:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.tls_cert, self.tls_key)
        if self.tls_client_ca:
            context.load_verify_locations(self.tls_client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def token(self) -> str:
        """The token, or nothing. Raises InputError for a file that cannot be read, or holds none."""
        return sampler_token(self.token_file, "--token_file")

    def _read(self, field: str) -> bytes:
        path = getattr(self, field)
        try:
            with open(path, "rb") as file:
                return file.read()
        except OSError as error:
            raise InputError(f"--{field}={path}: {error.strerror}") from error


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address to bind to."""
    if host == "localhost" or host.startswith("unix:"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Server:
    """A running server around an engine that has started, and that `stop` leaves running.

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
            groups=Groups(config.max_groups, config.max_client_groups or max(1, config.max_groups // 4)),
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
            write_atomic(config.port_file, self.address)
        log.info("listening on %s", self.address)

    async def stop(self, grace_s: float) -> None:
        """Takes no new groups, lets running ones end within `grace_s` seconds, and closes."""
        servicer = self.servicer
        servicer.stopping = True
        await self._report_health()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await servicer.groups.emptied()
        servicer.groups.interrupt(Refusal(grpc.StatusCode.UNAVAILABLE, "the server has shut down"))
        await servicer.groups.emptied()
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
