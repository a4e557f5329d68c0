"""How a server is reached, and what it takes."""

from __future__ import annotations

import dataclasses
import ipaddress
import ssl

import grpc

from isocompute_jax.options import check, described, option
from isocompute_jax.records.errors import InputError
from isocompute_jax.records.tokens import sampler_token


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
