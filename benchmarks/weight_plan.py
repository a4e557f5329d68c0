"""What the weight plan makes each network adapter carry, beside what it must carry at least: exact figures of the plan.

    python -m benchmarks.weight_plan

Learners are layouts of configs/layouts/: eight devices a node, each with an adapter of its own. Servers stand on other
nodes, eight devices each. Nothing is sent: `python -m benchmarks.weight_push` measures what is.
"""

from __future__ import annotations

import dataclasses
import itertools
import time
from typing import Any

import jax
from absl import flags

from isocompute_jax import app, model, sharding
from isocompute_jax.model.hf_devices import device_boxes
from isocompute_jax.records.tensors import TensorSpec
from isocompute_jax.service.server.engines.vllm.layout import Heads, places, wanted
from isocompute_jax.service.weights.device.links import lower_bounds, traffic
from isocompute_jax.service.weights.device.plan import Device, make_plan

NODE = 8
DEVICES = 64


@dataclasses.dataclass(frozen=True)
class Case:
    """A learner and its servers.

    Attributes:
      model: folder of configs/models.
      mesh: axes of the learner's mesh.
      servers: how many.
      tensor_parallel: devices of each.
    """

    model: str
    mesh: dict[str, Any]
    servers: int
    tensor_parallel: int


CASES = (
    Case("llama-3.1-8b", {"fsdp": 8}, 2, 4),
    Case("llama-3.1-8b", {"data": 2, "fsdp": 8}, 8, 1),
    Case("llama-3.1-8b", {"data": 2, "fsdp": 8}, 64, 1),
    Case("qwen3-30b-a3b", {"fsdp": 8}, 2, 4),
    Case("llama-4-scout", {"fsdp": 8, "expert": 8}, 8, 8),
)
HEADER = (
    f"{'model':16}{'learner':18}{'servers':10}{'GB':>7}{'crossing':>11}{'out, learner':>14}{'out, server':>13}"
    f"{'into':>8}{'at least':>10}{'ratio':>8}{'plan':>8}"
)

_CASES = flags.DEFINE_integer("cases", len(CASES), "How many of the cases; the last ones take longest.", 1, len(CASES))


def main() -> None:
    """Flags -> table."""
    jax.config.update("jax_num_cpu_devices", DEVICES)
    print(HEADER)
    for case in CASES[: _CASES.value]:
        print(_row(case), flush=True)


def _row(case: Case) -> str:
    config = dataclasses.replace(model.load_config(f"configs/models/{case.model}"), dtype="bfloat16")
    tensors = [TensorSpec(name, config.dtype, shape) for name, shape in model.hf_tensor_shapes(config)]
    held = device_boxes(config, sharding.make_mesh(**case.mesh))
    senders = [Device(f"learner {i // NODE}", tuple(each.box for each in boxes)) for i, boxes in enumerate(held)]
    heads = Heads(config.num_heads, config.num_kv_heads)
    ranks = itertools.product(range(case.servers), places(case.tensor_parallel, 1))
    receivers = [
        Device(f"server {i // NODE}", tuple(wanted(tensors, place, heads))) for i, (_, place) in enumerate(ranks)
    ]
    began = time.perf_counter()
    plan = make_plan(tensors, senders, receivers)
    seconds = time.perf_counter() - began
    found = traffic(plan)
    least = max(lower_bounds(tensors, senders, receivers))
    learner = " ".join(f"{axis}={size}" for axis, size in case.mesh.items())
    giga = [
        size / 1e9
        for size in (
            sum(tensor.nbytes for tensor in tensors),
            sum(found.into),
            max(found.out[: len(senders)]),
            max(found.out[len(senders) :]),
            max(found.into),
            least,
        )
    ]
    return (
        f"{case.model:16}{learner:18}{f'{case.servers} x TP{case.tensor_parallel}':10}{giga[0]:7.1f}{giga[1]:11.1f}"
        f"{giga[2]:14.3f}{giga[3]:13.3f}{giga[4]:8.3f}{giga[5]:10.3f}{found.busiest / least:8.5f}{seconds:6.1f} s"
    )


if __name__ == "__main__":
    app.run(main)
