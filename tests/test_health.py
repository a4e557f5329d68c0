"""The probe of a server, over TLS under another name than the one that it is reached by."""

import concurrent.futures
import contextlib
import pathlib
import subprocess

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from isocompute_jax.records.errors import InputError, RunError
from isocompute_jax.service.client.connection import ask
from tests import mains

SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.fixture(scope="module")
def certificates(tmp_path_factory) -> pathlib.Path:
    """A certificate for the servers of a JobSet, as docs/clusters.md makes it."""
    folder = tmp_path_factory.mktemp("certificates")
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "1"]
    for name, more in (("ca", []), ("tls", ["-CA", "ca.crt", "-CAkey", "ca.key"])):
        names = ["-addext", "subjectAltName=DNS:*.hard.default.svc"] if more else []
        files = ["-keyout", f"{name}.key", "-out", f"{name}.crt", "-subj", f"/CN={name}"]
        subprocess.run(
            ["openssl", "req", "-x509", *key, *files, *names, *more], cwd=folder, check=True, capture_output=True
        )
    return folder


@contextlib.contextmanager
def server(status: int, tls: pathlib.Path | None = None):
    """The address of a server of that health."""
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        running = grpc.server(pool)
        servicer = health.HealthServicer()
        servicer.set("", status)
        health_pb2_grpc.add_HealthServicer_to_server(servicer, running)
        if tls is None:
            port = running.add_insecure_port("localhost:0")
        else:
            pair = ((tls / "tls.key").read_bytes(), (tls / "tls.crt").read_bytes())
            port = running.add_secure_port("localhost:0", grpc.ssl_server_credentials([pair]))
        running.start()
        try:
            yield f"localhost:{port}"
        finally:
            running.stop(grace=None).wait()


def test_a_server_is_asked_over_tls(certificates):
    ca = str(certificates / "ca.crt")
    with server(SERVING, certificates) as address:
        name = "hard-servers-0-7.hard.default.svc"
        assert ask(address, ca_file=ca, tls_name=name, timeout_s=5) == SERVING
        for options in ({"ca_file": ca, "tls_name": "other.default.svc"}, {"ca_file": ca, "tls_name": None}):
            with pytest.raises(RunError, match=address):
                ask(address, **options, timeout_s=5)
    with pytest.raises(InputError, match="--ca_file=nowhere: No such file"):
        ask("localhost:1", ca_file="nowhere", tls_name=None, timeout_s=5)


def test_exit_codes():
    def probe(*flags: str) -> tuple[int, str]:
        done = mains.run("isocompute_jax.health", flags)
        return done.returncode, done.stderr

    for wrong in ("nan", "inf"):  # absl's own bounds let both pass
        assert probe(f"--timeout_s={wrong}") == (2, f"error: --timeout_s={wrong}: give a finite number\n")
    with server(NOT_SERVING) as address:
        assert probe(f"--address={address}") == (1, f"error: {address}: NOT_SERVING\n")
        assert probe(f"--address={address}", "--answers") == (0, "")
    code, message = probe(f"--address={address}", "--answers")
    assert code == 1 and message.startswith(f"error: {address}: ")
    with server(SERVING) as address:
        assert probe(f"--address={address}") == (0, "")
