"""What a server asks of an engine, and what engines are told. Imports nothing heavy."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Literal, Protocol, runtime_checkable

from isocompute_jax.compiling import HELP
from isocompute_jax.options import check, described, option
from isocompute_jax.records.errors import InputError
from isocompute_jax.records.requests import SampleRequest
from isocompute_jax.records.rollout import Completion
from isocompute_jax.records.tensors import TensorSpec
from isocompute_jax.records.tokens import check_url
from isocompute_jax.service.weights.files import WeightFile


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
    lora_rank: int = option(
        0,
        "Serve the model with adapters of this rank: updates are adapters alone, for learners with "
        "config.lora.served; 0 for updates of all weights.",
        low=0,
    )
    lora_targets: str = option("all", "Matrices that have adapters, as in config.lora.targets.")
    load: bool = option(True, "Read the weights; otherwise they are of no use until the first update.", flag=None)

    def __post_init__(self) -> None:
        check(self, "--")
        if self.lora_rank and not self.load:
            raise InputError("--lora_rank: adapters need the model's own weights: leave out --wait_for_weights")


@described
@dataclasses.dataclass(frozen=True)
class VllmSettings(EngineSettings):
    """What the engine of vLLM is told; `kv_cache_bytes` is 1 GiB on a CPU if absent."""

    tensor_parallel: int = option(1, "vllm: devices that share one replica's weights.", low=1)
    data_parallel: int = option(1, "vllm: replicas.", low=1)
    gpu_memory_utilization: float | None = option(
        None, "vllm: share of each GPU's memory that it may take; its default if absent.", above=0, high=1
    )


@described
@dataclasses.dataclass(frozen=True)
class StockSettings(EngineSettings):
    """What the gateway of a plain `vllm serve` is told; `max_model_len` and `kv_cache_bytes` are that server's own."""

    url: str = option("", "stock: address of the vLLM server, such as http://gpu-1:8000.")
    reload_dir: str = option(
        "",
        "stock: directory for new weights, that vLLM reads by the same path: of one machine, or of shared storage. Not "
        "needed where they come by NCCL.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.url:
            raise InputError("--url: --engine=stock needs it")
        for name in ("max_model_len", "kv_cache_bytes"):
            if getattr(self, name) is not None:
                raise InputError(f"--{name}: a stock vLLM has its own: give the flag to `vllm serve`")
        check_url(self.url, "--url")


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


def rollout_seed(request: SampleRequest, index: int) -> int:
    """Seed of the random numbers of a group's rollout `index`, from 0: 63 bits of the hash of what keys them."""
    key = f"{request.seed}/{request.step}/{request.first_rollout + index}/{request.problem_id}"
    if request.turn:
        key = f"turn {request.turn}/{key}"
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "little") >> 1


LOWEST_OF_VLLM = 0.01
"""vLLM raises temperatures below it to it, and draws greedily near zero."""


def check_for_vllm(request: SampleRequest) -> None:
    """Raises InputError where vLLM would draw from another distribution than is asked for."""
    if request.params.temperature < LOWEST_OF_VLLM:
        raise InputError(
            f"temperature = {request.params.temperature} is below {LOWEST_OF_VLLM}, the lowest that vLLM draws with"
        )


class EngineError(Exception):
    """The engine has failed and cannot continue; the message says why."""


class NotTakenError(Exception):
    """New weights were not taken, and the old ones serve on; the message says why."""


class HalfTakenError(Exception):
    """New weights came in part: nothing can be drawn until whole ones are taken; the message says why."""


@dataclasses.dataclass(frozen=True)
class EngineFacts:
    """What an engine serves."""

    engine: str  # `vllm`, `jax`, ...
    engine_version: str  # of the engine's library
    model: str  # the model's directory, as it was given
    vocab_size: int  # V; every token id lies below it
    max_model_len: int  # longest prompt and completion together, in tokens
    max_group_size: int
    tensors: tuple[TensorSpec, ...]  # every tensor of the model, in the order and dtype that updates must have
    devices: int  # all of one kind
    device_kind: str  # as their maker calls them; `cpu` for processors
    routing: bool = False  # completions say the experts that their tokens went to
    support: bool = False  # those of groups with `top_k` say which tokens could be drawn
    token_versions: bool = True  # completions say which weights drew each token, should these change meanwhile
    nccl: str = ""  # the version by which its ranks, one on each device, can be sent weights; empty where they cannot
    lacks: tuple[str, ...] = ()  # what the installed version of its library cannot do, as `name: what that means`


class Engine(Protocol):
    """Draws completions. All methods are called on one asyncio event loop, and none may block it."""

    @property
    def facts(self) -> EngineFacts:
        """What it serves; valid after `start`."""
        ...

    @property
    def tokens_generated(self) -> int:
        """Tokens drawn since the start; while groups run it grows."""
        ...

    async def start(self) -> None:
        """Loads the model. Raises InputError for one that it cannot serve."""
        ...

    def generate(self, request: SampleRequest) -> AsyncGenerator[list[tuple[int, Completion]], None]:
        """Yields (rollout index, completion) as they finish, each index once. Closing it early frees the engine.

        The request is checked: prompt and completion fit the model, ids lie in its vocabulary.

        Raises EngineError when the engine has died, and InputError, before anything is drawn, for a request that it
        cannot serve.
        """
        ...

    async def update_weights(self, weights: WeightFile, *, version: int, recompute: bool) -> float:
        """Takes new weights, marks what is drawn from now on with `version`, and forgets every cached prefix.

        The file is checked against `facts.tensors`, and may vanish after the call. With `recompute` what is running
        continues with keys and values computed anew, else with those of the old weights.

        Returns:
          seconds with sampling stopped.

        Raises:
          NotTakenError: nothing was touched.
          EngineError: it failed; nobody knows what the engine serves now, so the caller stops serving.
        """
        ...

    async def check_health(self) -> None:
        """Raises EngineError when the engine has died."""
        ...

    async def stop(self) -> None:
        """Ends the engine and every process it started."""
        ...


@runtime_checkable
class ReceivingEngine(Engine, Protocol):
    """An engine whose ranks can be sent weights by NCCL."""

    async def open_transfer(self, unique_id: bytes, buckets: tuple[tuple[TensorSpec, ...], ...]) -> None:
        """Makes its ranks members of a communicator, in place of any former one: the learner is rank 0.

        Args:
          unique_id: NCCL's, by which its members find each other.
          buckets: the tensors of each broadcast, in their order.

        Raises TransferError when not all came.
        """
        ...

    async def take_sent_weights(
        self, receiving: Callable[[], Awaitable[None]], *, version: int, recompute: bool
    ) -> float:
        """As `update_weights`, with what its ranks are sent once it has said that they are `receiving`.

        Raises HalfTakenError when not everything came.
        """
        ...
