"""Layers of two kinds in one scan (Llama 4): local and global ones, told apart by a flag that is scanned with them.

Local layers rotate queries and keys, scale them to norm sqrt(H), and attend within chunks of positions. Global ones do
not rotate, and see every position; their queries grow with the position, so that attention over many keys stays sharp.
Models whose layers are all alike have no flags, and compute nothing for their sake.

Dimensions: P problems, G rollouts, T query tokens, N query or kv heads, H head size.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from isocompute_jax.model.config import ModelConfig
from isocompute_jax.model.layers import apply_rope, rope_angles


class Places(NamedTuple):
    """What positions [...] do to queries and keys."""

    cos: Array  # of the angles of RoPE, [..., H/2]
    sin: Array  # of the same
    temperature: Array | None  # of the queries of global layers, [...]; None where there is none


def places(config: ModelConfig, positions: Int[Array, "..."]) -> Places:
    """The same for all layers."""
    # Behind a barrier, or XLA computes them again next to every layer that is unrolled.
    cos, sin = jax.lax.optimization_barrier(rope_angles(config, positions))
    scaling, temperature = config.query_scaling, None
    if scaling is not None:
        turns = jnp.floor((positions + 1).astype(config.float_dtype) / scaling.floor)
        temperature = jnp.log1p(turns) * scaling.scale + 1.0
    return Places(cos, sin, temperature)


def flags(config: ModelConfig) -> Bool[Array, "L"] | None:
    """Which layers are local, to be scanned with them; None where all are alike."""
    return None if config.local_layers is None else jnp.asarray(config.local_layers)


def by_kind(local: Array | None, of_local: Array | None, of_global: Array) -> Array:
    """What a layer takes by its flag; without flags `of_global`, and `of_local` may be None."""
    if local is None or of_local is None:
        return of_global
    return jnp.where(local, of_local, of_global)


def placed(
    config: ModelConfig,
    q: Float[Array, "P G T Q H"],
    k: Float[Array, "P G T K H"],
    at: Places,
    local: Array | None,
) -> tuple[Float[Array, "P G T Q H"], Float[Array, "P G T K H"]]:
    """Queries and keys as attention compares them: rotated, normed and scaled as the kind of the layer asks.

    x rsqrt(mean(x^2) + eps) after RoPE in local layers, temperature in global ones, computed in float32.
    """
    if local is None:
        return apply_rope(q, at.cos, at.sin), apply_rope(k, at.cos, at.sin)
    cos, sin = jnp.where(local, at.cos, 1.0), jnp.where(local, at.sin, 0.0)
    temperature = jnp.ones((), cos.dtype) if at.temperature is None else at.temperature[..., None, None]

    def scaled(x: Array, of_global: Array) -> Array:
        wide = x.astype(cos.dtype)
        norm = jnp.ones((), cos.dtype)
        if config.qk_l2_norm:
            norm = jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + config.norm_eps)
        return (wide * jnp.where(local, norm, of_global)).astype(x.dtype)

    return scaled(apply_rope(q, cos, sin), temperature), scaled(apply_rope(k, cos, sin), jnp.ones((), cos.dtype))


def chunk_starts(config: ModelConfig, positions: Int[Array, "..."]) -> Int[Array, "..."] | None:
    """Position of the first key that a query of a local layer sees; None where there are no local layers."""
    if not config.attention_chunk:
        return None
    return positions - positions % config.attention_chunk


def same_chunk(
    config: ModelConfig, mask: Bool[Array, "..."], queries: Int[Array, "... T"], keys: Int[Array, "... S"]
) -> Bool[Array, "..."] | None:
    """`mask` (broadcasts to [..., T, S]) less the keys of other chunks than the query's; None without local layers."""
    if not config.attention_chunk:
        return None
    chunk = config.attention_chunk
    return mask & (queries[..., :, None] // chunk == keys[..., None, :] // chunk)
