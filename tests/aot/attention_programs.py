"""Run by test_attention.py where the compilers are."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from isocompute_jax import sharding
from isocompute_jax.model.kernels import ATTENTION_OUTPUT
from isocompute_jax.model.kernels.chunked import chunked_attention
from isocompute_jax.model.packed_attention import packed_attention
from isocompute_jax.plan.topology import parse_topology

HEADS, KV_HEADS, SIZE = 32, 8, 128
"""Those of Llama 3.1 8B and of Qwen3 8B."""


def compiled(name, length, kernel, tensor=1, size=SIZE, dtype="bfloat16", context=1):
    """Forward and backward of one row of `length` tokens on each device, or on each `tensor` x `context` of them.

    Returns:
      MiB of temporaries on a device, and the names of kernels that the program calls.
    """
    program = _program(name, length, kernel, None, tensor, size, dtype, context)
    kernels = [key for key in ("mosaic_gpu", "triton", "tpu_custom_call") if key in program.as_text()]
    return program.memory_analysis().temp_size_in_bytes / 2**20, kernels


def kernel_calls(name, kernel, target):
    """Calls of custom kernels when a checkpoint saves what attention names, everything, and nothing."""
    policies = jax.checkpoint_policies
    saved = (policies.save_only_these_names(ATTENTION_OUTPUT), policies.everything_saveable, policies.nothing_saveable)
    return [_program(name, 1024, kernel, policy).as_text().count(f'custom_call_target="{target}') for policy in saved]


def _program(name, length, kernel, policy, tensor=1, size=SIZE, dtype="bfloat16", context=1) -> Any:
    devices = parse_topology(name).devices()
    rows = len(devices) // (tensor * context)
    mesh = sharding.make_mesh(fsdp=rows, context=context, tensor=tensor, devices=devices)

    def abstract(heads):
        shape, axes = (rows, length, heads, size), ("rows", "tokens", "kv_heads", None)
        return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding.named_sharding(mesh, shape, axes))

    def loss(q, k, v, first):
        out = packed_attention(q, k, v, first, kernel=kernel, mesh=mesh)
        return jnp.sum(out.astype(jnp.float32) ** 2)

    def recomputed(q, k, v, first):
        return loss(jnp.sin(q), k, v, first)

    loss_or_recomputed = loss if policy is None else jax.checkpoint(recomputed, policy=policy)
    where = sharding.named_sharding(mesh, (rows, length), ("rows", "tokens"))
    first = jax.ShapeDtypeStruct((rows, length), jnp.int32, sharding=where)
    gradient = jax.jit(jax.value_and_grad(loss_or_recomputed, argnums=(0, 1, 2)))
    return gradient.lower(abstract(HEADS), abstract(KV_HEADS), abstract(KV_HEADS), first).compile()


def tokamax_by_reference():
    """tokamax's wrapper around its reference operator, which runs anywhere, beside chunks: relative differences."""
    from tokamax._src.ops.attention import api, base  # pyright: ignore[reportMissingImports]

    from isocompute_jax.model.kernels import tokamax

    reference = base.DotProductAttention().replace(vjp=base.DotProductAttentionVjp())
    api.IMPLEMENTATIONS = {"triton": reference}
    rng = np.random.default_rng(0)
    q, k, v, gradient = (jnp.asarray(rng.normal(size=(2, 90, heads, 16)), jnp.bfloat16) for heads in (4, 2, 2, 4))
    # Sequences of 40, 1 and 30 tokens and padding; one of all 90.
    first = jnp.asarray([[0] * 40 + [40] + [41] * 30 + list(range(71, 90)), [0] * 90], jnp.int32)
    found = []
    for attend in (
        functools.partial(tokamax.tokamax_attention, implementation="triton", device=jax.devices()[0]),
        functools.partial(chunked_attention, chunk=32),
    ):
        out, pullback = jax.vjp(lambda *given, attend=attend: attend(*given, first), q, k, v)
        found.append((out, *pullback(gradient)))
    return [_relative(a, b) for a, b in zip(*found, strict=True)]


def _relative(ours, theirs):
    wide = jnp.asarray(theirs, jnp.float32)
    return float(jnp.linalg.norm(jnp.asarray(ours, jnp.float32) - wide) / jnp.linalg.norm(wide))
