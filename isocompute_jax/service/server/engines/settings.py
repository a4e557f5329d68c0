"""What engines are told when they are made; each field is a flag of its name. Imports nothing heavy."""

from __future__ import annotations

import dataclasses
from typing import Literal

from isocompute_jax.compiling import HELP
from isocompute_jax.options import check, described, option


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
