"""Run by test_experts.py where the compilers are."""

import dataclasses
import math
import re

import jax
import jax.numpy as jnp

from isocompute_jax import model, sharding
from isocompute_jax.model.experts import experts
from isocompute_jax.plan.topology import parse_topology

QWEN3 = model.ModelConfig(
    vocab_size=128, embed_dim=2048, num_layers=1, num_heads=32, num_kv_heads=4, head_dim=128, mlp_dim=768,
    tied_embeddings=False, rope_theta=1e6, norm_eps=1e-6, max_positions=32768, dtype="bfloat16", attention_bias=False,
    qk_norm=True, num_experts=128, experts_per_token=8,
)  # fmt: skip
"""The experts of Qwen3-30B-A3B."""
SCOUT = dataclasses.replace(
    QWEN3, embed_dim=5120, mlp_dim=8192, qk_norm=False, num_experts=16, experts_per_token=1, shared_expert=True,
    sigmoid_routing=True, attention_chunk=8192,
)  # fmt: skip
"""Those of Llama 4 Scout, without the shared one."""

_SHAPE = re.compile(r"\b(?:bf16|f32)\[([0-9,]+)\]")


def compiled(name, tokens, axes, of="QWEN3"):
    """One layer's experts, forward and backward, with a row of `tokens` tokens on each device.

    Returns:
      `flops` of the grouped products over those of the tokens' own experts; `largest` array of floats in the program,
      in numbers; `mib` of temporaries; `kernels` and `permutes` that the program calls.
    """
    config = {"QWEN3": QWEN3, "SCOUT": SCOUT}[of]
    devices = parse_topology(name).devices()
    mesh = sharding.make_mesh(**axes, devices=devices)
    specs = model.param_specs(config)["layers"]
    layer = {
        name: jax.ShapeDtypeStruct(
            specs[name].shape[1:],
            jnp.bfloat16,
            sharding=sharding.named_sharding(mesh, specs[name].shape[1:], specs[name].axes[1:]),
        )
        for name in ("router", "w_gate", "w_up", "w_down")
    }
    shape = (len(devices), 1, tokens, config.embed_dim)
    where = sharding.named_sharding(mesh, shape, ("batch", None, None, None))
    x = jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=where)

    def loss(layer, x):
        return jnp.sum(experts(config, layer, x, mesh=mesh)[0].astype(jnp.float32) ** 2)

    program = jax.jit(jax.value_and_grad(loss, argnums=(0, 1))).lower(layer, x).compile()
    text = program.as_text() or ""
    needed = 3 * 3 * 2 * tokens * config.experts_per_token * config.embed_dim * config.mlp_dim
    found, memory = program.cost_analysis(), program.memory_analysis()
    assert memory is not None
    return {
        "flops": (_kernel_flops(text, config.embed_dim) if found is None else found["flops"]) / needed,
        "largest": max(math.prod(map(int, shape.split(","))) for shape in _SHAPE.findall(text)),
        "mib": memory.temp_size_in_bytes / 2**20,
        "kernels": [key for key in ("mosaic_gpu", "tpu_custom_call") if key in text],
        "permutes": "collective-permute" in text,
    }


def _kernel_flops(text, embed_dim):
    """Of tokamax's kernels, which work through every row once, and of what else multiplies matrices."""
    total = 0
    for line in text.splitlines():
        if 'custom_call_target="mosaic_gpu' in line:
            result, *operands = [tuple(map(int, shape.split(","))) for shape in _SHAPE.findall(line)]
            if len(result) == 2:  # rows by the matrices [E, D, F] of their groups
                total += 2 * result[0] * math.prod(operands[-1][1:])
            else:  # x^T y of each group, x [D, rows] and y [rows, F]
                total += 2 * operands[-1][0] * math.prod(result[1:])
        elif " dot(" in line:  # no smaller than 2 x result x the shorter side of what is summed: routers only
            total += 2 * math.prod(map(int, _SHAPE.findall(line)[0].split(","))) * embed_dim
    return total
