"""A sampler server around `simulated_engine`.

python -m benchmarks.simulated --port=50051 --tokens_per_s=2000 --slots=64
"""

from __future__ import annotations

import asyncio

from absl import flags

from benchmarks.simulated_engine import SimulatedEngine
from isocompute_jax import app
from isocompute_jax.options import define_flags, from_flags
from isocompute_jax.records.tensors import TensorSpec
from isocompute_jax.service.server.engines.vllm import checkpoint
from isocompute_jax.service.server.server import serve
from isocompute_jax.service.server.server_config import ServerConfig

define_flags(ServerConfig)
_TOKENS_PER_S = flags.DEFINE_float("tokens_per_s", 1000.0, "Tokens per second of each slot.")
_SLOTS = flags.DEFINE_integer("slots", 64, "Rollouts drawn at once; the others wait.", 1)
_MEDIAN_LENGTH = flags.DEFINE_float("median_length", 8.0, "Median length of completions, in tokens.")
_TAIL = flags.DEFINE_float("tail", 0.0, "Standard deviation of the logarithm of the length.")
_VOCAB_SIZE = flags.DEFINE_integer("vocab_size", 32, "Token ids.", 1)
_MAX_MODEL_LEN = flags.DEFINE_integer("max_model_len", 4096, "Longest prompt and completion together.", 2)
_MODEL = flags.DEFINE_string("model", None, "Updates hold the tensors of this Hugging Face directory.")
_TENSOR_MIB = flags.DEFINE_multi_integer(
    "tensor_mib", [], "Updates hold a float32 tensor of so many MiB; may be given several times. A 4 x 4 one if absent."
)


def main() -> None:
    """Flags -> one call."""
    tensors = tuple(TensorSpec(f"weight.{i}", "float32", (mib * 256, 1024)) for i, mib in enumerate(_TENSOR_MIB.value))
    if _MODEL.value:
        tensors = checkpoint.tensor_specs(_MODEL.value, dtype=checkpoint.resolve_dtype(_MODEL.value, "auto"), load=True)
    engine = SimulatedEngine(
        tensors or (TensorSpec("weight", "float32", (4, 4)),),
        tokens_per_s=_TOKENS_PER_S.value,
        slots=_SLOTS.value,
        median_length=_MEDIAN_LENGTH.value,
        tail=_TAIL.value,
        vocab_size=_VOCAB_SIZE.value,
        max_model_len=_MAX_MODEL_LEN.value,
    )
    asyncio.run(serve(engine, from_flags(ServerConfig)))


if __name__ == "__main__":
    app.run(main)
