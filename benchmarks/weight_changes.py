"""What a stream of weights sends of a run's updates, beside all of them: bytes, and seconds over loopback.

    python -m isocompute_jax.train --config=configs/smollm2.py --workdir=runs/slow --config.dtype=bfloat16 \
      --config.optimizer.base_lr=1e-6 --config.optimizer.warmup_steps=0 --config.max_compute=384 --config.export_every=1
    python -m benchmarks.weight_changes --exports=runs/slow/exports

The exports, one for each update, go one after the other to a server in this process, whose engine only takes them:
whole, and as changes. Each line is of one update; seconds are from the laid down file to the server's reply.
"""

from __future__ import annotations

import asyncio
import pathlib
import tempfile
import time
from collections.abc import Iterator

import numpy as np
from absl import flags

from benchmarks.shared import print_head, print_row
from benchmarks.simulated_engine import SimulatedEngine
from isocompute_jax import app, model
from isocompute_jax.records.tensors import TensorSpec
from isocompute_jax.service.client.connection import Endpoint, update_calls
from isocompute_jax.service.client.service_config import ServiceConfig
from isocompute_jax.service.proto import sampler_pb2 as pb
from isocompute_jax.service.server.server import Server, ServerConfig
from isocompute_jax.service.weights.files import Outbox, Parcel

_EXPORTS = flags.DEFINE_string("exports", None, "Folder of a run's exports, step-1, step-2 and so on.", required=True)
_STREAMS = flags.DEFINE_integer("streams", ServiceConfig().streams, "Streams of a push.", 1)


def main() -> None:
    """Flags -> table."""
    exports = sorted(pathlib.Path(_EXPORTS.value).glob("step-*"), key=lambda path: int(path.name[5:]))
    print_head(("update", "numbers changed", "MB whole", "MB as changes", "of it", "s whole", "s as changes"))
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        asyncio.run(_push(exports, directory))


async def _push(exports: list[pathlib.Path], directory: str) -> None:
    config = model.load_config(exports[0])
    tensors = [TensorSpec(name, config.dtype, shape) for name, shape in model.hf_tensor_shapes(config)]
    settings = ServerConfig(port=0, wait_for_weights=True, weights_dir=directory)
    servers = [Server(SimulatedEngine(tuple(tensors)), settings) for _ in range(2)]
    for server in servers:
        await server.start()
    endpoints = [Endpoint(server.address, ServiceConfig()) for server in servers]
    outbox = Outbox(directory, run="benchmark", tensors=tensors, whole=True)
    for version, path in enumerate(exports):
        parcel = outbox.write(model.hf_boxes(config, model.load_params(path, config)), version=version)
        whole, whole_s = await _pushed(endpoints[0], parcel, None)
        changes, changes_s = await _pushed(endpoints[1], parcel, version - 1 if version else None)
        if parcel.before is None:
            continue
        old, new = (np.frombuffer(each.data, np.uint16) for each in (parcel.before, parcel))
        sizes = f"{whole / 1e6:.0f}", f"{changes / 1e6:.1f}", f"{changes / whole:.1%}"
        print_row(path.name, f"{np.mean(old != new):.1%}", *sizes, f"{whole_s:.2f}", f"{changes_s:.2f}")
    for endpoint, server in zip(endpoints, servers, strict=True):
        await endpoint.close()
        await server.stop(0)
    outbox.close()


async def _pushed(endpoint: Endpoint, parcel: Parcel, base: int | None) -> tuple[int, float]:
    """Bytes that were sent, and seconds."""

    def calls() -> list[Iterator[bytes]]:
        return update_calls(
            parcel,
            session="run",
            in_flight=pb.IN_FLIGHT_ABORT,
            shared=False,
            streams=_STREAMS.value,
            keep=True,
            base=base,
        )

    sent = [pb.UpdateWeightsRequest.FromString(message).end.bytes for call in calls() for message in call]
    start = time.perf_counter()
    await endpoint.push(calls(), sent=lambda: None)
    return sum(sent), time.perf_counter() - start


if __name__ == "__main__":
    app.run(main)
