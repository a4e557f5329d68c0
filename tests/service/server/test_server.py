"""What stands around the service: addresses, TLS, health, reflection, metrics, and a real process from start to end."""

import asyncio
import contextlib
import os
import pathlib
import signal
import socket
import ssl
import subprocess
import sys
import threading
import urllib.request
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from isocompute_jax.records.errors import InputError
from isocompute_jax.service.proto import sampler_pb2 as pb
from isocompute_jax.service.proto import sampler_pb2_grpc
from isocompute_jax.service.server import metrics
from isocompute_jax.service.server.refusals import SERVICE
from isocompute_jax.service.server.server import Server, ServerConfig, is_loopback
from tests.service.builders import Probe, arrays, begun, health_stub, refused, request, run, serving, update

Code = grpc.StatusCode
ROOT = pathlib.Path(__file__).parents[3]


def client_credentials(folder, authority="ca", name=None) -> grpc.ChannelCredentials:
    files = [folder / f"{authority}.pem", *([folder / f"{name}.key", folder / f"{name}.pem"] if name else [])]
    return grpc.ssl_channel_credentials(*(file.read_bytes() for file in files))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"host": "0.0.0.0"}, "--insecure"),
        ({"host": "::"}, "--insecure"),
        ({"host": "example.org"}, "--insecure"),
        ({"host": "10.0.0.1"}, "--tls_cert"),
        ({"tls_cert": "a"}, "--tls_key"),
        ({"tls_key": "a"}, "--tls_cert"),
        ({"tls_client_ca": "a"}, "--tls_cert"),
    ],
)
def test_settings_that_do_not_fit(settings, words):
    with pytest.raises(InputError, match=words):
        ServerConfig(**settings)


def test_loopback_addresses():
    assert all(map(is_loopback, ["127.0.0.1", "127.9.9.9", "::1", "localhost", "unix:/tmp/socket"]))
    assert not any(map(is_loopback, ["0.0.0.0", "::", "192.168.0.1", "host.local", ""]))
    ServerConfig(host="0.0.0.0", insecure=True)
    ServerConfig(host="0.0.0.0", tls_cert="a", tls_key="b")


@pytest.mark.parametrize("flag", ["tls_cert", "tls_key", "token_file"])
async def test_files_that_cannot_be_read_are_named(tmp_path, certificates, flag):
    names = {"tls_cert": "server.pem", "tls_key": "server.key"} | {flag: "nowhere"}
    paths: dict[str, Any] = {field: str(certificates / name) for field, name in names.items()}
    config = ServerConfig(weights_dir=str(tmp_path), **paths)
    with pytest.raises(InputError, match=rf"--{flag}=.*nowhere"):
        await Server(Probe(), config).start()


@pytest.mark.parametrize("content", ["", "\n", "two\nlines", "ümlaut"])
async def test_tokens_that_cannot_be_sent(tmp_path, content):
    (tmp_path / "token").write_text(content)
    (tmp_path / "token").chmod(0o600)
    with pytest.raises(InputError, match=r"--token_file.*(empty|one line)"):
        Server(Probe(), ServerConfig(weights_dir=str(tmp_path), token_file=str(tmp_path / "token")))


async def test_a_port_in_use_is_said(tmp_path):
    async with serving(Probe(), tmp_path) as (server, _):
        port = int(server.address.rpartition(":")[2])
        second = Server(Probe(), ServerConfig(weights_dir=str(tmp_path), port=port))
        with pytest.raises(InputError, match=f"127.0.0.1:{port}"):
            await second.start()
        await second.stop(0)


async def test_reflection_and_unknown_health(tmp_path):
    async with serving(Probe(), tmp_path) as (_, client):
        stub: Any = reflection_pb2_grpc.ServerReflectionStub(client.channel)  # pyright: ignore[reportArgumentType]
        asked = [
            reflection_pb2.ServerReflectionRequest(list_services=""),
            reflection_pb2.ServerReflectionRequest(file_containing_symbol=SERVICE),
        ]
        listed, found = [reply async for reply in stub.ServerReflectionInfo(iter(asked))]
        names = {service.name for service in listed.list_services_response.service}
        assert {SERVICE, "grpc.health.v1.Health"} <= names
        assert found.file_descriptor_response.file_descriptor_proto
        health = health_stub(client)
        await refused(health.Check(health_pb2.HealthCheckRequest(service="unknown")), Code.NOT_FOUND)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def test_metrics_for_slow_callers_take_few_threads_and_write_nothing(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(metrics, "CALLER_S", 0.3)
    monkeypatch.setattr(metrics._Handler, "timeout", 0.3)
    port, before = free_port(), threading.active_count()

    def scrape() -> bytes:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as reply:
            return reply.read()

    async def test():
        async with serving(Probe(), tmp_path, metrics_port=port):
            slow = [socket.create_connection(("127.0.0.1", port)) for _ in range(80)]
            for connection in slow:
                connection.sendall(b"GET /metr")
            most = 0
            for _ in range(20):
                most = max(most, threading.active_count() - before)
                await asyncio.sleep(0.01)
            assert most <= metrics.CALLERS + 8  # before: one for each
            for connection in slow:
                with connection, contextlib.suppress(ConnectionError):
                    await asyncio.to_thread(connection.recv, 1000)  # hung up on
            garbage = socket.create_connection(("127.0.0.1", port))
            garbage.sendall(b"\x16\x03\x01\x00\xff\r\n\r\n")
            garbage.close()
            assert b"isocompute_uptime_seconds" in await asyncio.to_thread(scrape)

    run(test())
    assert "Traceback" not in capfd.readouterr().err


async def test_metrics_over_mutual_tls(tmp_path, certificates):
    port = free_port()
    tls = {
        "tls_cert": str(certificates / "server.pem"),
        "tls_key": str(certificates / "server.key"),
        "tls_client_ca": str(certificates / "ca.pem"),
    }

    def scrape(*, known: bool) -> bytes:
        context = ssl.create_default_context(cafile=str(certificates / "ca.pem"))
        context.check_hostname = False
        if known:
            context.load_cert_chain(certificates / "client.pem", certificates / "client.key")
        with urllib.request.urlopen(f"https://127.0.0.1:{port}/metrics", timeout=10, context=context) as reply:
            return reply.read()

    good = client_credentials(certificates, name="client")
    async with serving(Probe(), tmp_path, credentials=good, metrics_port=port, **tls):
        silent = socket.create_connection(("127.0.0.1", port))  # which is to hold nobody up
        assert b"isocompute_version" in await asyncio.to_thread(scrape, known=True)
        with pytest.raises(OSError):
            await asyncio.to_thread(scrape, known=False)
        silent.close()


async def test_metrics(tmp_path):
    port = free_port()

    def scrape() -> dict[str, float]:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as reply:
            lines = reply.read().decode().splitlines()
        return {name: float(value) for name, _, value in (li.rpartition(" ") for li in lines if li[0] != "#")}

    engine = Probe()
    async with serving(engine, tmp_path, metrics_port=port) as (_, client):
        await client.sample(group_size=3)
        await refused(client.sample(group_size=0), Code.INVALID_ARGUMENT)
        await client.update(update(arrays(1), version=5))
        engine.frozen = True
        call = client.start(group_size=1)
        await engine.started.acquire()
        await engine.started.acquire()
        found = await asyncio.to_thread(scrape)
        assert found["isocompute_rollouts_total"] == 3
        assert found["isocompute_tokens_total"] == engine.tokens_generated == 24
        assert found['isocompute_refused_total{code="INVALID_ARGUMENT",method="Sample"}'] == 1
        assert found["isocompute_update_seconds_count"] == 1
        assert (found["isocompute_groups_running"], found["isocompute_groups_waiting"]) == (1, 0)
        assert (found["isocompute_version"], found["isocompute_serving"]) == (5, 1)
        assert found["isocompute_drawn_tokens_total"] == engine.tokens_generated
        assert 0 <= found["isocompute_weights_age_seconds"] < found["isocompute_uptime_seconds"]
        call.cancel()
    with pytest.raises(OSError):
        await asyncio.to_thread(scrape)


async def test_shutdown_lets_running_groups_end(tmp_path):
    engine = Probe(frozen=True)
    async with serving(engine, tmp_path) as (server, client):
        [task] = await begun(client, engine)
        assert not (await client.status()).draining
        stopping = asyncio.create_task(server.stop(10))
        while (await client.status()).serving:
            pass
        assert (await client.status()).draining
        await refused(client.sample(group_id="late"), Code.UNAVAILABLE, "shutting down")
        await refused(client.update(update(arrays(1))), Code.UNAVAILABLE, "shutting down")
        health = health_stub(client)
        reply = await health.Check(health_pb2.HealthCheckRequest(service=SERVICE))
        assert reply.status == health_pb2.HealthCheckResponse.NOT_SERVING
        assert not task.done()
        engine.frozen = False
        assert len(await task) == 2
        await stopping


class Process:
    """`python -m benchmarks.simulated` as a process."""

    def __init__(self, folder: pathlib.Path, *flags: str):
        self.folder, self.port_file = folder, folder / "port"
        command = [sys.executable, "-m", "benchmarks.simulated", f"--port_file={self.port_file}"]
        command += [f"--weights_dir={folder}", *flags]
        self.process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
        self.lines: list[str] = []
        self.wait_for("listening on")

    def wait_for(self, words: str) -> str:
        """Reads the log up to a line with these words."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)
            if words in line:
                return line
        raise AssertionError(self.lines)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.communicate()

    def draw(self, use) -> None:
        """Has it draw a group, then runs `use` with the call."""

        async def main():
            async with grpc.aio.insecure_channel(self.port_file.read_text()) as channel:
                stub = sampler_pb2_grpc.SamplerStub(channel)
                call = stub.Sample(request())
                while not (await stub.Status(pb.StatusRequest())).running_groups:
                    await asyncio.sleep(0.01)
                await use(call)

        run(main())

    def end(self) -> int:
        _, rest = self.process.communicate(timeout=300)
        self.lines.append(rest)
        return self.process.returncode


def test_a_process_ends_gracefully(tmp_path):
    with Process(tmp_path, "--tokens_per_s=200", "--median_length=100") as server:
        assert server.lines[-1].endswith(f"listening on {server.port_file.read_text()}\n")

        async def end(call):
            server.process.send_signal(signal.SIGTERM)
            done = [one async for reply in call for one in reply.completions]
            assert sorted(one.index for one in done) == [0, 1] and len(done[0].tokens) == 100

        server.draw(end)
        assert server.end() == 0, server.lines
        assert os.listdir(tmp_path) == []
        assert "Traceback" not in "".join(server.lines)


def test_groups_that_outlast_the_grace_are_refused(tmp_path):
    with Process(tmp_path, "--tokens_per_s=0", "--grace_s=0.2") as server:

        async def end(call):
            server.process.send_signal(signal.SIGINT)
            await refused(call.read(), Code.UNAVAILABLE, "shut down")

        server.draw(end)
        assert server.end() == 0, server.lines


def test_a_second_signal_ends_at_once(tmp_path):
    with Process(tmp_path, "--tokens_per_s=0", "--grace_s=1000") as server:

        async def end(call):
            server.process.send_signal(signal.SIGTERM)
            await asyncio.to_thread(server.wait_for, "shutting down")
            server.process.send_signal(signal.SIGTERM)
            await refused(call.read(), Code.UNAVAILABLE)

        server.draw(end)
        assert server.end() == 128 + signal.SIGTERM
        assert os.listdir(tmp_path) == []
