"""One endpoint: how it is reached, by whom, and what settings are refused before anything is."""

import asyncio
import os
import pathlib
import re
import subprocess
import sys
from typing import Any

import grpc
import pytest

from isocompute_jax.records.errors import InputError, RunError
from isocompute_jax.service.client.connection import Endpoint
from isocompute_jax.service.client.service_config import ServiceConfig
from isocompute_jax.service.proto import sampler_pb2 as pb
from tests.service.builders import token_file
from tests.service.fleet_builders import fleet, live, params, requests


def tls(certificates: pathlib.Path, name: str) -> dict[str, Any]:
    """Settings of a server that has this certificate."""
    return {"tls_cert": str(certificates / f"{name}.pem"), "tls_key": str(certificates / f"{name}.key")}


def status(address: str, **service) -> pb.StatusReply:
    """What a server answers."""

    async def ask():
        endpoint = Endpoint(address, ServiceConfig(**service))
        try:
            return await endpoint.status(timeout=10.0)
        finally:
            await endpoint.close()

    return asyncio.run(ask())


def unavailable(address: str, **service) -> bool:
    """Whether nobody who may be talked to is found there."""
    try:
        status(address, **service)
    except grpc.aio.AioRpcError as error:
        return error.code() is grpc.StatusCode.UNAVAILABLE
    return False


def test_status_over_tcp_and_a_unix_socket(tmp_path):
    with live() as [server]:
        assert status(server.address).engine == "simulated"
    path = f"unix:{tmp_path}/socket"
    with live(host=path) as [server]:
        assert server.address == path and status(path).vocab_size == 32


def test_tls_and_mutual_tls(certificates, tmp_path):
    def pair(name: str) -> dict[str, Any]:
        return {"cert_file": str(certificates / f"{name}.pem"), "key_file": str(certificates / f"{name}.key")}

    ours: dict[str, Any] = {"ca_file": str(certificates / "ca.pem")}
    own = tls(certificates, "server")
    with live(**own) as [server]:
        assert status(server.address, **ours).engine == "simulated"
        assert unavailable(server.address)
        assert unavailable(server.address, ca_file=str(certificates / "other.pem"))
    with live(tls_client_ca=str(certificates / "ca.pem"), **own) as [server]:
        assert unavailable(server.address, **ours)
        assert unavailable(server.address, **ours, **pair("stranger"))
        assert status(server.address, **ours, **pair("client")).engine == "simulated"
        with fleet(server, directory=tmp_path, **ours, **pair("client"), version=1) as sampler:
            sampler.submit(requests(3))
            assert len(list(sampler.completed())) == 3


@pytest.mark.parametrize(
    ("server", "authority", "said"),
    [
        ("expired", "ca", "its certificate has expired: give the server a new one"),
        ("server", "other", "its certificate is not signed by the authority of config.service.ca_file"),
        ("elsewhere", "ca", "its certificate is for another name"),
        ("", "ca", "it does not speak TLS"),
    ],
)
def test_a_certificate_that_does_not_hold_at_the_start_is_bad_input(certificates, tmp_path, server, authority, said):
    """The run does not wait for half an hour: no waiting mends that."""
    with (
        live(**tls(certificates, server) if server else {}) as [one],
        fleet(one, directory=tmp_path, ca_file=str(certificates / f"{authority}.pem"), wait_s=0.5) as sampler,
        pytest.raises(InputError, match=rf"no sampler can be used: {one.address} cannot be reached: {said}"),
    ):
        sampler.update_weights(params(), version=1)


@pytest.mark.slow
def test_a_run_that_has_had_a_server_waits_for_another_certificate(certificates, tmp_path):
    good, expired = (tls(certificates, name) for name in ("server", "expired"))
    with (
        live(**good) as [one],
        fleet(one, directory=tmp_path, ca_file=str(certificates / "ca.pem"), wait_s=1.5) as sampler,
    ):
        sampler.update_weights(params(), version=1)
        one.stop()
        with (
            live(port=one.port, **expired),
            pytest.raises(RunError, match=r"no sampler is left: .* its certificate has expired: .*gives up after"),
        ):
            sampler.update_weights(params(), version=2)


CALL = """
import sys
import isocompute_jax.app
import grpc
with open(sys.argv[2], "rb") as authority:
    channel = grpc.secure_channel(sys.argv[1], grpc.ssl_channel_credentials(authority.read()))
try:
    grpc.channel_ready_future(channel).result(timeout=2)
except grpc.FutureTimeoutError:
    print("not reached")
"""


def test_mains_do_not_show_what_grpc_says_at_each_attempt(certificates):
    with live(**tls(certificates, "expired")) as [one]:
        environment = {name: value for name, value in os.environ.items() if name != "GRPC_VERBOSITY"}
        command = [sys.executable, "-c", CALL, one.address, str(certificates / "ca.pem")]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "not reached\n" and done.stderr == ""


@pytest.mark.parametrize(
    ("ours", "said"),
    [
        ({}, "it may want TLS: config.service.ca_file"),
        ({"ca_file": "ca.pem"}, "it may want a certificate of the learner: config.service.cert_file and key_file"),
        (
            {"ca_file": "ca.pem", "cert_file": "expired.pem", "key_file": "expired.key"},
            "it may refuse the certificate of config.service.cert_file, which may have expired",
        ),
    ],
)
def test_the_learner_is_told_what_it_may_lack_itself(certificates, tmp_path, ours, said):
    """All that gRPC hears of it is that the connection was closed."""
    files: dict[str, Any] = {field: str(certificates / name) for field, name in ours.items()}
    with (
        live(**tls(certificates, "server"), tls_client_ca=str(certificates / "ca.pem")) as [one],
        fleet(one, directory=tmp_path, wait_s=0.5, **files) as sampler,
        pytest.raises(RunError, match=rf"cannot be reached: .*Socket closed \(if it is there, {said}"),
    ):
        sampler.update_weights(params(), version=1)


@pytest.mark.parametrize(
    ("ours", "said"),
    [("wrong", "refuses the token"), ("", "needs a token, and none was given: set config.service.tok")],
)
def test_a_wrong_token_is_said_once(tmp_path, caplog, ours, said):
    right, wrong = (token_file(tmp_path / name, name) for name in ("right", "wrong"))
    with live(token_file=right) as [server]:
        with (
            fleet(server, directory=tmp_path, token_file=wrong if ours else "") as sampler,
            pytest.raises(InputError, match=f"{server.address} {said}.*ISOCOMPUTE_TOKEN"),
        ):
            sampler.update_weights(params(), version=1)
        with fleet(server, directory=tmp_path, token_file=right) as sampler:
            sampler.update_weights(params(), version=1)
    learners = [record.getMessage() for record in caplog.records if ".server." not in record.name]
    assert "metadata" not in "".join(learners) and "right" not in caplog.text


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (dict(endpoints="here"), "config.service.endpoints: 'here' is neither host:port"),
        (dict(endpoints="a:1,b:70000"), "config.service.endpoints: 'b:70000'"),
        (dict(endpoints="http://a:1"), "config.service.endpoints: 'http://a:1'"),
        (dict(endpoints="a:1, a:1"), "config.service.endpoints = 'a:1, a:1': a:1 is listed twice"),
        (dict(cert_file="c"), "config.service.cert_file and config.service.key_file belong together"),
        (dict(cert_file="c", key_file="k"), "config.service.cert_file needs config.service.ca_file"),
        (dict(token_file="/nowhere"), "config.service.token_file = '/nowhere': No such file"),
        (dict(ca_file="/dev/null"), "config.service.ca_file = '/dev/null': the file is empty"),
        (dict(shared_dir="/nowhere"), "config.service.shared_dir = '/nowhere': not a folder"),
        (dict(streams=0), "config.service.streams = 0"),
        (dict(stall_s=0.0), "config.service.stall_s = 0.0"),
        (dict(wait_s=-1.0), "config.service.wait_s = -1.0"),
    ],
)
def test_settings_that_cannot_work(fields, said):
    with pytest.raises(InputError, match=re.escape(said)):
        ServiceConfig(**{"endpoints": "a:1", **fields}).validate()


def test_settings_that_can():
    config = ServiceConfig(endpoints="a:1, [::1]:2,10.0.0.1:3,unix:/tmp/s,unix:t")
    config.validate()
    assert config.targets == ("a:1", "[::1]:2", "10.0.0.1:3", "unix:/tmp/s", "unix:t")


def test_no_endpoints_is_an_error(tmp_path):
    with pytest.raises(InputError, match=re.escape("config.service.endpoints is empty")), fleet(directory=tmp_path):
        pass
