"""A sampler server around `simulated_engine`, or several of them in one process, each with an engine and a port.

python -m benchmarks.simulated --port=50051 --tokens_per_s=2000 --slots=64
python -m benchmarks.simulated --servers=64 --port_file=addresses
"""

from __future__ import annotations

import asyncio
import dataclasses
import pathlib
import signal
from collections.abc import Sequence

from absl import flags

from benchmarks.simulated_engine import SimulatedEngine
from isocompute_jax import app
from isocompute_jax.options import define_flags, from_flags
from isocompute_jax.records.tensors import TensorSpec
from isocompute_jax.service.server.engines.vllm import environment
from isocompute_jax.service.server.server import Server, ServerConfig, serve

define_flags(ServerConfig)
_SERVERS = flags.DEFINE_integer(
    "servers", 1, "Servers in this process; of several, --port_file lists all addresses, with commas.", 1
)
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
        tensors = environment.tensor_specs(
            _MODEL.value, dtype=environment.resolve_dtype(_MODEL.value, "auto"), load=True
        )
    engines = [
        SimulatedEngine(
            tensors or (TensorSpec("weight", "float32", (4, 4)),),
            tokens_per_s=_TOKENS_PER_S.value,
            slots=_SLOTS.value,
            median_length=_MEDIAN_LENGTH.value,
            tail=_TAIL.value,
            vocab_size=_VOCAB_SIZE.value,
            max_model_len=_MAX_MODEL_LEN.value,
        )
        for _ in range(_SERVERS.value)
    ]
    config = from_flags(ServerConfig)
    asyncio.run(serve(engines[0], config) if len(engines) == 1 else serve_all(engines, config))


async def serve_all(engines: Sequence[SimulatedEngine], config: ServerConfig) -> None:
    """A server around each engine, at a free port, until SIGTERM or SIGINT."""
    told = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, told.set)
    servers = [Server(engine, dataclasses.replace(config, port=0, port_file="")) for engine in engines]
    for server in servers:
        await server.start()
    if config.port_file:
        part = pathlib.Path(f"{config.port_file}.part")
        part.write_text(",".join(server.address for server in servers))
        part.rename(config.port_file)
    await told.wait()
    await asyncio.gather(*(server.stop(config.grace_s) for server in servers))


if __name__ == "__main__":
    app.run(main)
