"""What a server and its engine are told; each field is a flag of its name."""

from __future__ import annotations

import dataclasses
import ipaddress
import ssl
from typing import Literal

import grpc

from isocompute_jax.compiling import HELP
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


@described
@dataclasses.dataclass(frozen=True)
class EngineSettings:
    """What every engine is told."""

    model: str = option(help="Hugging Face directory; with --wait_for_weights only its config.json is read.")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = option(
        "auto", "Of weights and activations; auto is the checkpoint's. The head is float32 in any case."
    )
    max_model_len: int | None = option(
        None, "Longest prompt and completion together, in tokens; as long as the model holds if absent.", low=2
    )
    max_group_size: int = option(1024, "Largest group that is taken.", low=1)
    kv_cache_bytes: int | None = option(
        None, "Memory for keys and values per device, in bytes; the engine's choice if absent.", low=1
    )
    load: bool = option(True, "Read the weights; otherwise they are of no use until the first update.", flag=None)

    def __post_init__(self) -> None:
        check(self, "--")


@described
@dataclasses.dataclass(frozen=True)
class VllmSettings(EngineSettings):
    """What the engine of vLLM is told; `kv_cache_bytes` is 1 GiB on a CPU if absent."""

    tensor_parallel: int = option(1, "vllm: devices that share one replica's weights.", low=1)
    data_parallel: int = option(1, "vllm: replicas.", low=1)
    gpu_memory_utilization: float | None = option(
        None, "vllm: share of each GPU's memory that it may take; its default if absent.", low=0, high=1
    )


@described
@dataclasses.dataclass(frozen=True)
class JaxSettings(EngineSettings):
    """What the engine of JAX is told; as many slots are made as both `max_slots` and `kv_cache_bytes` allow."""

    max_slots: int | None = option(
        64, "jax: rollouts drawn at once, at most; the others wait. A slot takes as long idle as busy.", low=1
    )
    routing: bool = option(
        False,
        "jax: completions of a mixture of experts say which its tokens went to; learners ask for it by "
        "config.loss.routing.",
    )
    compile_cache: str = option("", f"jax: {HELP[0].lower()}{HELP[1:]}")
    mesh_data: int = option(1, "jax: replicas of the weights.", low=1)
    mesh_fsdp: int = option(1, "jax: parts that weights are cut into along `embed`.", low=1)
    mesh_expert: int = option(1, "jax: parts that experts are cut into.", low=1)
    mesh_tensor: int = option(1, "jax: parts that heads, layers and vocabulary are cut into.", low=1)
