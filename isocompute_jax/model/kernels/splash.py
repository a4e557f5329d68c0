"""JAX's splash attention for TPUs (Pallas), with the sequences of a packed row as its segments.

Its masks are static, so by itself it skips blocks of keys after a query, but not those of earlier sequences, and a row
would cost T^2 / 2 scores however it is packed. Which blocks to compute it reads from an array: there they are crossed
out here.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from isocompute_jax.model.kernels import ATTENTION_OUTPUT, filled_up
from isocompute_jax.model.kernels.imports import why_missing

LANES = 128
"""Blocks are multiples of it."""

LARGEST_BLOCK = 512
"""Tokens of a block. It compiles for v5e, v5p and v6e up to H = 256 in float32; nothing is tuned."""

_PACKAGE = "jax.experimental.pallas.ops.tpu.splash_attention"


def missing() -> str | None:
    """Why the kernel cannot be had here, or None; it is imported for the answer."""
    return why_missing(f"{_PACKAGE}.splash_attention_kernel", f"{_PACKAGE}.splash_attention_mask")


def splash_attention(
    q: Float[Array, "N T Q H"],
    k: Float[Array, "N T K H"],
    v: Float[Array, "N T K H"],
    first: Int[Array, "N T"],
    *,
    largest_block: int = LARGEST_BLOCK,
    interpret: bool = False,
) -> Float[Array, "N T Q H"]:
    """See `packed_attention`. Scores and softmax are float32.

    Args:
      q: queries.
      k: keys.
      v: values.
      first: of each token, where in its row its sequence begins.
      largest_block: tokens of a block, at most; a multiple of 128.
      interpret: emulate the kernel, on any platform (slow; for tests).
    """
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

    _, length, heads, size = q.shape
    block = min(largest_block, -(-length // LANES) * LANES)
    padded = -(-length // block) * block
    kernel = splash.make_splash_mha_single_device(
        masks.MultiHeadMask([_causal_mask(padded)] * heads),
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
        earliest = jnp.min(segments.reshape(padded // block, block), axis=1) // block
        read = jnp.arange(padded // block) >= earliest[:, None]

        def crossed_out(info: Any) -> Any:
            return info._replace(block_mask=jnp.where(read, info.block_mask, 0).astype(info.block_mask.dtype))

        infos = (kernel.fwd_mask_info, kernel.dq_mask_info, kernel.dkv_mask_info)
        packed = splash.SplashAttentionKernel(*map(crossed_out, infos), **kernel.kwargs)
        return packed(q, k, v, segment_ids=splash.SegmentIds(segments, segments))

    def by_head(x: Array) -> Array:
        return jnp.pad(x, ((0, 0), (0, padded - length), (0, 0), (0, 0))).swapaxes(1, 2)

    # The kernel takes scaled queries. A segment is where `first` is equal; padding is one segment a token.
    wide = jnp.promote_types(q.dtype, jnp.float32)
    scaled = (q.astype(wide) * size**-0.5).astype(q.dtype)
    segments = filled_up(first, padded)
    # Row by row: what differs between rows cannot be batched, and JAX's loop over a batch would hold twice the memory.
    # The map over one row is none; it spares the copies that taking a row out and putting it back would make.
    rows = zip(*(jnp.split(x, len(first)) for x in (by_head(scaled), by_head(k), by_head(v), segments)), strict=True)
    out = jnp.concatenate([jax.vmap(one)(*row) for row in rows])
    return out.swapaxes(1, 2)[:, :length]


def _causal_mask(length: int) -> Any:
    """JAX's, which compares T^2 indices while tracing (a minute at 128k), where those of most blocks need not be."""
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

    class Causal(masks.CausalMask):
        def __getitem__(self, idx: tuple[slice, slice]) -> np.ndarray:
            queries, keys = idx
            shape = queries.stop - queries.start, keys.stop - keys.start
            if keys.start >= queries.stop:
                return np.zeros(shape, bool)
            return np.ones(shape, bool) if keys.stop <= queries.start else super().__getitem__(idx)

    return Causal((length, length))
