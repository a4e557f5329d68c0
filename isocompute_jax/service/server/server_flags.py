"""The flags of every main that is a server."""

from __future__ import annotations

from typing import Any

from absl import flags

from isocompute_jax.service.server.server import ServerConfig

_DEFAULT = ServerConfig()

HOST = flags.DEFINE_string(
    "host", _DEFAULT.host, "Address to bind to, or unix:PATH. Any but loopback needs TLS or --insecure."
)
PORT = flags.DEFINE_integer("port", _DEFAULT.port, "Port; 0 picks a free one.", 0, 65535)
PORT_FILE = flags.DEFINE_string(
    "port_file", _DEFAULT.port_file, "File that the address is written to once the server can be called."
)
TLS_CERT = flags.DEFINE_string("tls_cert", _DEFAULT.tls_cert, "PEM certificate chain of the server.")
TLS_KEY = flags.DEFINE_string("tls_key", _DEFAULT.tls_key, "PEM key of the server.")
TLS_CLIENT_CA = flags.DEFINE_string(
    "tls_client_ca",
    _DEFAULT.tls_client_ca,
    "PEM certificates of the authority that signs clients'; given, clients need one (mutual TLS).",
)
INSECURE = flags.DEFINE_bool("insecure", _DEFAULT.insecure, "Allow other addresses than loopback without TLS.")
TOKEN_FILE = flags.DEFINE_string(
    "token_file", _DEFAULT.token_file, "File that holds the token which weight updates need; readable by you alone."
)
WEIGHTS_DIR = flags.DEFINE_string(
    "weights_dir",
    _DEFAULT.weights_dir,
    "Folder in which arriving weights are put together, and in which manifests' files must lie.",
)
WAIT_FOR_WEIGHTS = flags.DEFINE_bool(
    "wait_for_weights", _DEFAULT.wait_for_weights, "Serve only after the first weight update."
)
MAX_GROUPS = flags.DEFINE_integer(
    "max_groups", _DEFAULT.max_groups, "Groups that may be in the server at once; more are told to come again.", 1
)
MAX_MESSAGE_MIB = flags.DEFINE_integer("max_message_mib", _DEFAULT.max_message_mib, "Largest message, in MiB.", 1, 2047)
METRICS_PORT = flags.DEFINE_integer(
    "metrics_port", _DEFAULT.metrics_port, "Port of Prometheus metrics, on the same host; 0 for none.", 0, 65535
)
GRACE_S = flags.DEFINE_float(
    "grace_s", _DEFAULT.grace_s, "Seconds that running groups may go on after SIGTERM or SIGINT.", 0
)
PEER_TIMEOUT_S = flags.DEFINE_float(
    "peer_timeout_s", _DEFAULT.peer_timeout_s, "Longest wait for a sender of weights to go on, in seconds.", 0.001
)

_FLAGS = (
    HOST,
    PORT,
    PORT_FILE,
    TLS_CERT,
    TLS_KEY,
    TLS_CLIENT_CA,
    INSECURE,
    TOKEN_FILE,
    WEIGHTS_DIR,
    WAIT_FOR_WEIGHTS,
    MAX_GROUPS,
    MAX_MESSAGE_MIB,
    METRICS_PORT,
    GRACE_S,
    PEER_TIMEOUT_S,
)


def server_config() -> ServerConfig:
    """The settings that the command line gave; every field of `ServerConfig` is a flag of its name."""
    values: dict[str, Any] = {flag.name: flag.value for flag in _FLAGS}
    return ServerConfig(**values)
