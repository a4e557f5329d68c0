"""`python -m isocompute_jax.serve`: one sampler server.

    python -m isocompute_jax.serve --engine=jax --model=runs/base/model --port=50051
    python -m isocompute_jax.serve --engine=vllm --model=Qwen2.5-1.5B --port=50051 --token_file=token --wait_for_weights

It serves until SIGTERM or SIGINT: then it takes no new groups, gives running ones --grace_s seconds, and ends.
"""

from __future__ import annotations

import asyncio
import os

from absl import flags

from isocompute_jax import app
from isocompute_jax.records.errors import InputError
from isocompute_jax.service.server import server_flags
from isocompute_jax.service.server.engines.base import Engine
from isocompute_jax.service.server.server import serve

flags.adopt_module_key_flags(server_flags)
ENGINE = flags.DEFINE_enum("engine", None, ["vllm", "jax"], "What draws the completions.")
MODEL = flags.DEFINE_string(
    "model", None, "Hugging Face directory; with --wait_for_weights only its config.json is read."
)
DTYPE = flags.DEFINE_enum(
    "dtype",
    "auto",
    ["auto", "float32", "bfloat16", "float16"],
    "Of weights and activations; auto is the checkpoint's. The head is float32 in any case.",
)
MAX_MODEL_LEN = flags.DEFINE_integer(
    "max_model_len", None, "Longest prompt and completion together, in tokens; as long as the model holds if absent.", 2
)
MAX_GROUP_SIZE = flags.DEFINE_integer("max_group_size", 1024, "Largest group that is taken.", 1)
KV_CACHE_BYTES = flags.DEFINE_integer(
    "kv_cache_bytes", None, "Memory for keys and values per device, in bytes; the engine's choice if absent.", 1
)

TENSOR_PARALLEL = flags.DEFINE_integer("tensor_parallel", 1, "vllm: devices that share one replica's weights.", 1)
DATA_PARALLEL = flags.DEFINE_integer("data_parallel", 1, "vllm: replicas.", 1)
GPU_MEMORY_UTILIZATION = flags.DEFINE_float(
    "gpu_memory_utilization", None, "vllm: share of each GPU's memory that it may take; its default if absent.", 0, 1
)

MAX_SLOTS = flags.DEFINE_integer("max_slots", 64, "jax: rollouts drawn at once, at most; the others wait.", 1)
MESH_DATA = flags.DEFINE_integer("mesh_data", 1, "jax: replicas of the weights.", 1)
MESH_FSDP = flags.DEFINE_integer("mesh_fsdp", 1, "jax: parts that weights are cut into along `embed`.", 1)
MESH_TENSOR = flags.DEFINE_integer("mesh_tensor", 1, "jax: parts that heads, layers and vocabulary are cut into.", 1)

OWN_FLAGS = {
    "vllm": (TENSOR_PARALLEL, DATA_PARALLEL, GPU_MEMORY_UTILIZATION),
    "jax": (MAX_SLOTS, MESH_DATA, MESH_FSDP, MESH_TENSOR),
}


def main() -> None:
    """Flags -> one call."""
    if not ENGINE.value or not MODEL.value:
        raise InputError("--engine and --model are needed; see --help")
    for engine, own in OWN_FLAGS.items():
        given = [flag.name for flag in own if flag.present]
        if given and engine != ENGINE.value:
            raise InputError(f"--{given[0]} belongs to --engine={engine}; this is --engine={ENGINE.value}")
    config = server_flags.server_config()
    asyncio.run(serve((_vllm if ENGINE.value == "vllm" else _jax)(MODEL.value), config))


def _vllm(model: str) -> Engine:
    try:
        from isocompute_jax.service.server.engines.vllm.engine import VllmEngine
    except ImportError as error:
        raise InputError(f"--engine=vllm: {error}; run it in the environment of `make vllm-env`") from error

    return VllmEngine(
        model,
        dtype=DTYPE.value,
        max_model_len=MAX_MODEL_LEN.value,
        max_group_size=MAX_GROUP_SIZE.value,
        kv_cache_bytes=KV_CACHE_BYTES.value,
        tensor_parallel=TENSOR_PARALLEL.value,
        data_parallel=DATA_PARALLEL.value,
        gpu_memory_utilization=GPU_MEMORY_UTILIZATION.value,
        load=not server_flags.WAIT_FOR_WEIGHTS.value,
    )


def _jax(model: str) -> Engine:
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")  # "PyTorch was not found": it is not wanted
    try:
        from isocompute_jax.service.server.engines.jax_engine import JaxEngine
        from isocompute_jax.sharding import make_mesh
    except ImportError as error:
        raise InputError(f"--engine=jax: {error}; run it in the environment of `make setup`") from error

    data, fsdp, tensor = MESH_DATA.value, MESH_FSDP.value, MESH_TENSOR.value
    try:
        mesh = make_mesh(data=data, fsdp=fsdp, tensor=tensor) if data * fsdp * tensor > 1 else None
    except ValueError as error:
        raise InputError(f"--mesh_data, --mesh_fsdp, --mesh_tensor: {error}") from error
    return JaxEngine(
        model,
        dtype=DTYPE.value,
        max_model_len=MAX_MODEL_LEN.value,
        max_group_size=MAX_GROUP_SIZE.value,
        kv_cache_bytes=KV_CACHE_BYTES.value,
        max_slots=MAX_SLOTS.value,
        mesh=mesh,
        load=not server_flags.WAIT_FOR_WEIGHTS.value,
    )


if __name__ == "__main__":
    app.run(main)
