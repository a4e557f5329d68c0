"""Decoding: the forward pass that adds tokens to sequences whose keys lie in a cache.

`decode` adds one token to each completion of a prompt; `extend_slots` adds tokens to sequences that have slots of one
cache, each at a position of its own (continuous batching). Slots have one length, which whoever makes them checks.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int

from isocompute_jax.model.block import Layer, run_cached
from isocompute_jax.model.config import ModelConfig, check_length
from isocompute_jax.model.experts import Routed
from isocompute_jax.model.layers import Keys, blockwise_attention, decoding_attention
from isocompute_jax.model.local_layers import by_kind, chunk_starts
from isocompute_jax.model.params import Params
from isocompute_jax.model.sampling_copy import are_apart
from isocompute_jax.model.transformer import Prefix, nearby_masks


class Cache(NamedTuple):
    """Keys and values of the prompts, and of the tokens decoded so far.

    As products read them: laid out as they are made, [T, K, H], XLA:CPU would transpose them for every token.
    """

    prompt_k: Array  # [L, P, K, H, S], shared by a problem's rollouts
    prompt_v: Array  # [L, P, K, S, H]
    k: Array  # [L, P, G, K, H, T]
    v: Array  # [L, P, G, K, T, H]


class SlotCache(NamedTuple):
    """Keys and values of sequences in slots, in blocks of positions. k, v: [L, blocks, slots, K, block, H].

    A block of a layer is contiguous, with its batch dimensions first: matrix products read it where it lies.
    """

    k: Array
    v: Array

    @property
    def length(self) -> int:
        """Positions that a slot holds."""
        return self.k.shape[1] * self.k.shape[4]


Caches = tuple[Cache, ...]
"""One of all layers, or, where layers are apart (`split_layers`), one of each with L = 1."""


VECTOR = 16
"""Positions: products over rows of another length take XLA:CPU three times as long."""


def init_caches(config: ModelConfig, prefix: Prefix, rollouts: int, length: int) -> Caches:
    """Caches for `rollouts` completions of each prompt, of up to `length` tokens, which is rounded up."""
    check_length(config, prefix.k.shape[2], length)
    length = -(-length // VECTOR) * VECTOR
    prompt_k, prompt_v = jnp.einsum("lpskh->lpkhs", prefix.k), jnp.einsum("lpskh->lpksh", prefix.v)
    layers, problems, heads, head_dim, _ = prompt_k.shape
    lead = (layers, problems, rollouts, heads)
    k, v = (jnp.zeros(lead + size, prefix.k.dtype) for size in ((head_dim, length), (length, head_dim)))
    cache = Cache(prompt_k, prompt_v, k, v)
    if not are_apart(config):
        return (cache,)
    return tuple(jax.tree.map(lambda x, i=i: x[i : i + 1], cache) for i in range(layers))


def decode(
    config: ModelConfig,
    params: Params,
    tokens: Int[Array, "P G"],
    index: Array,
    prefix: Prefix,
    caches: Caches,
    *,
    mesh: Mesh | None = None,
) -> tuple[Float[Array, "P G D"], Caches, Routed | None]:
    """One step: the hidden states [P, G, D] of `tokens`, the `index`-th tokens of their completions, and the caches.

    Where tokens went, [L, P, G, ...], comes back too; None without experts.
    """
    length = caches[0].k.shape[-1]
    positions = jnp.broadcast_to((prefix.lengths + index)[:, None, None], (*tokens.shape, 1))
    own = (jnp.arange(length) <= index)[None, None, None]
    shared = prefix.mask[:, None, None]
    decoded = prefix.lengths[:, None, None] + jnp.arange(length)
    nearby = nearby_masks(config, (shared, own), positions[:, :1], prefix, decoded)

    def attend(q: Array, k: Array, v: Array, layer: Layer, local: Array | None, cache: Cache) -> tuple[Array, Cache]:
        k, v = (jnp.moveaxis(x, 2, 3)[None] for x in (k, v))  # [1, P, G, K, 1, H]
        cache = cache._replace(
            k=jax.lax.dynamic_update_slice(cache.k, k.swapaxes(-1, -2), (layer, 0, 0, 0, 0, index)),
            v=jax.lax.dynamic_update_slice(cache.v, v, (layer, 0, 0, 0, index, 0)),
        )
        # Else XLA fuses the write with what reads it, and goes through the whole cache once more for it.
        cache = jax.lax.optimization_barrier(cache)
        here = Cache(*(x[layer] for x in cache))
        before, after = map(functools.partial(by_kind, local), nearby, (shared, own))
        prompt = Keys(jnp.einsum("pkhs->pskh", here.prompt_k), jnp.einsum("pksh->pskh", here.prompt_v), before)
        drawn = Keys(jnp.einsum("pgkht->pgtkh", here.k), jnp.einsum("pgkth->pgtkh", here.v), after)
        return decoding_attention(q, [prompt, drawn]), cache

    x, caches, routed = run_cached(config, params, tokens[..., None], positions, attend, caches, mesh=mesh)
    return x[:, :, 0], caches, jax.tree.map(lambda x: x[:, :, :, 0], routed)


def extend_slots(
    config: ModelConfig,
    params: Params,
    tokens: Int[Array, "R T"],
    positions: Int[Array, "R T"],
    slots: Int[Array, "R"] | None,
    cache: SlotCache,
    *,
    mesh: Mesh | None = None,
) -> tuple[Float[Array, "R T D"], SlotCache, Routed | None]:
    """Adds tokens to sequences in slots, and their keys and values to the cache.

    The cache is carried through the layers and written where the tokens are: given a donated one, XLA updates it in
    place.

    Args:
      config: model shape.
      params: parameters.
      tokens: T tokens of R sequences.
      positions: of each token, from 0 on; those before a sequence's first are in the cache. `cache.length` marks
        padding: it is not written, and its hidden states are undefined.
      slots: the slot of each sequence, all different; None when the R sequences are all slots, in order.
      cache: keys and values.
      mesh: where all of it lies; None for one device.

    Returns:
      hidden states, the cache, and where the tokens went, [L, R, T, ...], None without experts.
    """
    _, blocks, _, _, block, _ = cache.k.shape
    rows = jnp.arange(tokens.shape[0]) if slots is None else slots
    length = jnp.max(jnp.where(positions < cache.length, positions, 0)) + 1
    num_blocks = 1 if blocks == 1 else (length + block - 1) // block

    starts = chunk_starts(config, positions)

    def attend(
        q: Array, k: Array, v: Array, layer: Layer, local: Array | None, cache: SlotCache
    ) -> tuple[Array, SlotCache]:
        def write(old: Array, new: Array) -> Array:
            # Padding lies beyond the last block, and is dropped.
            at = old.at[layer, positions // block, rows[:, None], :, positions % block]
            return at.set(new[:, 0], mode="drop", unique_indices=True)

        def read(index: Array | int) -> tuple[Array, Array]:
            k, v = written.k[layer, index], written.v[layer, index]
            return (k, v) if slots is None else (k[slots], v[slots])

        written = SlotCache(write(cache.k, k), write(cache.v, v))
        first = None if starts is None else by_kind(local, starts, jnp.zeros_like(starts))
        out = blockwise_attention(q[:, 0], positions, read, num_blocks=num_blocks, first=first)
        return out[:, None], written

    x, [cache], routed = run_cached(config, params, tokens[:, None], positions[:, None], attend, (cache,), mesh=mesh)
    return x[:, 0], cache, jax.tree.map(lambda x: x[:, :, 0], routed)
