"""Whether a server serves, asked as the probes of a cluster ask, over TLS too."""

from __future__ import annotations

from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from isocompute_jax.records.errors import InputError, RunError


def ask(address: str, *, ca_file: str | None, tls_name: str | None, timeout_s: float) -> int:
    """The server's answer, a `HealthCheckResponse.ServingStatus`.

    Raises:
      InputError: the file of certificates cannot be read.
      RunError: no answer.
    """
    options: list[tuple[str, str | int]] = [("grpc.enable_http_proxy", 0)]
    if tls_name:
        options.append(("grpc.ssl_target_name_override", tls_name))
    try:
        with _channel(address, ca_file, options) as channel:
            stub: Any = health_pb2_grpc.HealthStub(channel)
            return stub.Check(health_pb2.HealthCheckRequest(), timeout=timeout_s).status
    except OSError as error:
        raise InputError(f"--ca_file={ca_file}: {error.strerror}") from error
    except grpc.RpcError as error:
        assert isinstance(error, grpc.Call)
        raise RunError(f"{address}: {error.details()}") from error


def _channel(address: str, ca_file: str | None, options: list[tuple[str, str | int]]) -> grpc.Channel:
    if not ca_file:
        return grpc.insecure_channel(address, options)
    with open(ca_file, "rb") as file:
        return grpc.secure_channel(address, grpc.ssl_channel_credentials(file.read()), options)
