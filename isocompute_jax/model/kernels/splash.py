"""JAX's splash attention for TPUs (Pallas), with the sequences of a packed row as its segments.

It skips blocks of keys after a query, not those of earlier sequences: a row costs T^2 / 2 scores however it is packed.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from isocompute_jax.model.kernels import ATTENTION_OUTPUT

LANES = 128
"""Blocks are multiples of it."""

LARGEST_BLOCK = 512
"""Tokens of a block: as large as the vector memory of a v5e holds with both passes' buffers at H = 256."""


def splash_attention(
    q: Float[Array, "N T Q H"],
    k: Float[Array, "N T K H"],
    v: Float[Array, "N T K H"],
    first: Int[Array, "N T"],
    *,
    interpret: bool = False,
) -> Float[Array, "N T Q H"]:
    """See `packed_attention`. Scores and softmax are float32.

    Args:
      q: queries.
      k: keys.
      v: values.
      first: of each token, where in its row its sequence begins.
      interpret: emulate the kernel, on any platform (slow; for tests).
    """
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

    _, length, heads, size = q.shape
    block = min(LARGEST_BLOCK, -(-length // LANES) * LANES)
    padded = -(-length // block) * block
    kernel = splash.make_splash_mha_single_device(
        masks.MultiHeadMask([masks.CausalMask((padded, padded))] * heads),
        block_sizes=splash.BlockSizes(
            block_q=block,
            block_kv=block,
            block_q_dkv=block,
            block_kv_dkv=block,
            block_kv_dkv_compute=block,
            block_q_dq=block,
            block_kv_dq=block,
        ),
        residual_checkpoint_name=ATTENTION_OUTPUT,
        interpret=interpret,
    )

    def one(q: Array, k: Array, v: Array, segments: Array) -> Any:
        return kernel(q, k, v, segment_ids=splash.SegmentIds(segments, segments))

    def by_head(x: Array) -> Array:
        return jnp.pad(x, ((0, 0), (0, padded - length), (0, 0), (0, 0))).swapaxes(1, 2)

    # The kernel takes scaled queries. A segment is where `first` is equal; padding is one segment a token.
    wide = jnp.promote_types(q.dtype, jnp.float32)
    scaled = (q.astype(wide) * size**-0.5).astype(q.dtype)
    filled = jnp.broadcast_to(jnp.arange(length, padded, dtype=first.dtype), (len(first), padded - length))
    segments = jnp.concatenate([first, filled], axis=1)
    out = jax.vmap(one)(by_head(scaled), by_head(k), by_head(v), segments)
    return out.swapaxes(1, 2)[:, :length]
