"""A vLLM server that also drives its engine directly, when asked: the engine's own time, without the service.

    .venv-vllm/bin/python -m benchmarks.direct --model=DIR --socket=PATH --port_file=PATH

Started by `benchmarks.service_load`. Both ways use one engine in one process, so that they can take turns. Groups are
asked for on a Unix socket, a line of JSON each; the answer is how long they took, all at once.
"""

from __future__ import annotations

import asyncio
import json
import time

import numpy as np
from absl import flags

from isocompute_jax import app
from isocompute_jax.options import define_flags, from_flags
from isocompute_jax.records.requests import SampleRequest, SamplingParams
from isocompute_jax.service.server.engines.base import Engine, VllmSettings
from isocompute_jax.service.server.engines.vllm import VllmEngine
from isocompute_jax.service.server.server import ServerConfig, serve

KV_CACHE_BYTES = 256 << 20
LINE_BYTES = 1 << 24

define_flags(ServerConfig)
_MODEL = flags.DEFINE_string("model", "", "Hugging Face directory.")
_SOCKET = flags.DEFINE_string("socket", "", "Path of the Unix socket.")


async def _answer(engine: Engine, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    requests = [
        SampleRequest(
            problem_id=group["problem_id"],
            seed=0,
            step=group["step"],
            prompt_tokens=np.array(group["prompt_tokens"], np.int32),
            group_size=group["group_size"],
            params=SamplingParams(1.0, 1.0, group["max_tokens"]),
            stop_tokens=(),
        )
        for group in json.loads(await reader.readline())
    ]
    began = time.monotonic()
    await asyncio.gather(*(_draw(engine, request) for request in requests))
    writer.write(json.dumps({"seconds": time.monotonic() - began}).encode() + b"\n")
    await writer.drain()
    writer.close()


async def _draw(engine: Engine, request: SampleRequest) -> None:
    async for _ in engine.generate(request):
        pass


async def _serve(engine: Engine, config: ServerConfig, path: str) -> None:
    async with await asyncio.start_unix_server(
        lambda reader, writer: _answer(engine, reader, writer), path, limit=LINE_BYTES
    ):
        await serve(engine, config)


def main() -> None:
    """Flags -> one call."""
    engine = VllmEngine(VllmSettings(_MODEL.value, dtype="float32", kv_cache_bytes=KV_CACHE_BYTES))
    asyncio.run(_serve(engine, from_flags(ServerConfig), _SOCKET.value))


if __name__ == "__main__":
    app.run(main)
