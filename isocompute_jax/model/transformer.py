"""The forward pass in five forms that share every line but the keys they attend to.

`prefill` reads prompts once; `extend` scores G completions per prompt against its keys (the learner);
`decode` adds one token to each of them (the sampler); `extend_slots` adds tokens to sequences that have slots of one
cache, each at a position of its own (continuous batching); `packed_hidden` reads rows of several whole sequences (the
learner, where completions are long). Sharing the prompt's keys over its group is exact:
gradients flow through them, and prefill + extend equals one pass over the joined tokens.

Sequences longer than `config.max_positions` are refused while tracing, by their padded lengths (InputError). Slots have
one length, which whoever makes them checks.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int

from isocompute_jax import sharding
from isocompute_jax.model.config import ModelConfig, check_length
from isocompute_jax.model.experts import Routed, experts
from isocompute_jax.model.layers import (
    Keys,
    attention,
    blockwise_attention,
    causal_mask,
    rms_norm,
    swiglu,
)
from isocompute_jax.model.local_layers import Places, by_kind, chunk_starts, flags, placed, places, same_chunk
from isocompute_jax.model.packed_attention import packed_attention
from isocompute_jax.model.params import Axes, Params
from isocompute_jax.model.remat import rematerialized

UNROLLED_LAYERS = 8
"""Models of up to this many layers are unrolled: the loop of a scan costs more than the compile time it saves."""

BATCH, PACKED_ROWS = ("batch", None, None), ("rows", None, "tokens")
"""Logical axes of [P, G, T]: of sequences apart from each other, and of packed rows, which may be cut."""


class Prefix(NamedTuple):
    """A prompt's keys and values, shared by its rollouts.

    k, v: [L, P, S, K, H]; mask: [P, S], False on padding; lengths: [P] number of prompt tokens; routed: where the
    prompt's tokens went, [L, P, S, ...]; None without experts.
    """

    k: Array
    v: Array
    mask: Array
    lengths: Array
    routed: Routed | None = None


class Cache(NamedTuple):
    """Keys and values of the tokens decoded so far. k, v: [L, P, G, T, K, H]."""

    k: Array
    v: Array


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


def packed_hidden(
    config: ModelConfig,
    params: Params,
    tokens: Int[Array, "N T"],
    first: Int[Array, "N T"],
    *,
    replay: Int[Array, "N T L A"] | None = None,
    mesh: Mesh | None,
) -> tuple[Float[Array, "N T D"], Routed | None]:
    """Hidden states of rows that hold several whole sequences each, after the final norm.

    Rows may be longer than `config.max_positions`, their sequences may not, which whoever packs them checks.

    Args:
      config: model shape.
      params: parameters.
      tokens: [N, T] token ids.
      first: [N, T] where in its row each token's sequence begins: it sees the tokens from there to itself. A token of
        padding is a sequence of its own.
      replay: experts that the tokens go to in each layer, where they are known (see `experts.route`).
      mesh: where rows, heads and experts are sharded; None for one device.

    Returns:
      hidden states, and where the tokens went, [L, N, T, ...], None without experts.
    """
    positions = (jnp.arange(tokens.shape[1]) - first)[:, None]
    starts = chunk_starts(config, positions[:, 0])
    nearby = None if starts is None else first + starts

    def attend(q: Array, k: Array, v: Array, _: None, local: Array | None) -> tuple[Array, None]:
        seen = by_kind(local, nearby, first)
        out = packed_attention(q[:, 0], k[:, 0], v[:, 0], seen, kernel=config.attention, mesh=mesh)
        return out[:, None], None

    replayed = None if replay is None else replay[:, None]
    hidden, _, routed = _run_layers(
        config, params, tokens[:, None], positions, attend, None, replay=replayed, axes=PACKED_ROWS, mesh=mesh
    )
    return hidden[:, 0], jax.tree.map(lambda x: x[:, :, 0], routed)


def tree_hidden(
    config: ModelConfig,
    params: Params,
    tokens: Int[Array, "N W"],
    positions: Int[Array, "N W"],
    ends: Int[Array, "N W"],
    *,
    mesh: Mesh | None,
) -> Float[Array, "N W D"]:
    """Hidden states of rows of trees, after the final norm: sequences share the tokens that they begin with.

    Attention holds [W, W] scores.

    Args:
      config: model shape.
      params: parameters.
      tokens: [N, W] token ids in depth-first order.
      positions: [N, W] of a token in its sequences.
      ends: [N, W] where a token's descendants end: t sees s if s <= t < ends[s]. What sees nothing is padding.
      mesh: where all of it lies; None for one device.
    """
    at = jnp.arange(tokens.shape[1])
    visible = ((at[:, None] >= at) & (at[:, None] < ends[:, None, :]))[:, None]
    positions = positions[:, None]
    nearby = same_chunk(config, visible, positions, positions)

    def attend(q: Array, k: Array, v: Array, _: None, local: Array | None) -> tuple[Array, None]:
        return attention(q, [Keys(k, v, by_kind(local, nearby, visible))]), None

    hidden, _, _ = _run_layers(config, params, tokens[:, None], positions, attend, None, mesh=mesh)
    return hidden[:, 0]


def init_cache(config: ModelConfig, problems: int, rollouts: int, length: int) -> Cache:
    """An empty cache for `problems` x `rollouts` completions of up to `length` tokens."""
    shape = (config.num_layers, problems, rollouts, length, config.num_kv_heads, config.head_dim)
    return Cache(jnp.zeros(shape, config.dtype), jnp.zeros(shape, config.dtype))


def prefill(
    config: ModelConfig,
    params: Params,
    tokens: Int[Array, "P S"],
    mask: Bool[Array, "P S"],
    *,
    replay: Int[Array, "P S L A"] | None = None,
    mesh: Mesh | None = None,
) -> tuple[Float[Array, "P S D"], Prefix]:
    """Hidden states of whole sequences, padded on either side, and their keys for `extend` and `decode`.

    Args:
      config: model shape.
      params: parameters.
      tokens: [P, S] token ids.
      mask: [P, S], False on padding. Positions count unpadded tokens from 0.
      replay: experts that the tokens go to in each layer, where they are known (see `experts.route`).
      mesh: where all of it lies; None for one device.

    Returns:
      [P, S, D] hidden states after the final norm (undefined on padding), and the prefix.
    """
    check_length(config, tokens.shape[1], 0)
    positions = _positions(mask)[:, None]
    visible = causal_mask(mask[:, None])
    nearby = same_chunk(config, visible, positions, positions)

    def attend(q: Array, k: Array, v: Array, _: None, local: Array | None) -> tuple[Array, tuple[Array, Array]]:
        return attention(q, [Keys(k, v, by_kind(local, nearby, visible))]), (k[:, 0], v[:, 0])

    replayed = None if replay is None else replay[:, None]
    hidden, (k, v), routed = _run_layers(
        config, params, tokens[:, None], positions, attend, None, replay=replayed, mesh=mesh
    )
    routed = jax.tree.map(lambda x: x[:, :, 0], routed)
    return hidden[:, 0], Prefix(k, v, mask, jnp.sum(mask, axis=1), routed)


def extend(
    config: ModelConfig,
    params: Params,
    tokens: Int[Array, "P G T"],
    prefix: Prefix,
    *,
    replay: Int[Array, "P G T L A"] | None = None,
    mesh: Mesh | None = None,
) -> tuple[Float[Array, "P G T D"], Routed | None]:
    """Hidden states [P, G, T, D] of right-padded continuations of `prefix`, G of them per prompt.

    `replay` and `mesh` are those of `prefill`. Where tokens went, [L, P, G, T, ...], comes back too.
    """
    p, g, t = tokens.shape
    check_length(config, prefix.k.shape[2], t)
    positions = jnp.broadcast_to(prefix.lengths[:, None, None] + jnp.arange(t), (p, g, t))
    own = causal_mask(jnp.ones((1, 1, t), bool))
    shared = prefix.mask[:, None, None]
    nearby = _nearby(config, (shared, own), positions[:, :1], prefix, positions[:, :1])

    def attend(q: Array, k: Array, v: Array, layer: tuple[Array, Array], local: Array | None) -> tuple[Array, None]:
        before, after = map(functools.partial(by_kind, local), nearby, (shared, own))
        return attention(q, [Keys(*layer, before), Keys(k, v, after)]), None

    hidden, _, routed = _run_layers(
        config, params, tokens, positions, attend, (prefix.k, prefix.v), replay=replay, mesh=mesh
    )
    return hidden, routed


def decode(
    config: ModelConfig,
    params: Params,
    tokens: Int[Array, "P G"],
    index: Array,
    prefix: Prefix,
    cache: Cache,
    *,
    mesh: Mesh | None = None,
) -> tuple[Float[Array, "P G D"], Cache, Routed | None]:
    """One step: the hidden states [P, G, D] of `tokens`, the `index`-th tokens of their completions, and the cache.

    Where tokens went, [L, P, G, ...], comes back too; None without experts.
    """
    check_length(config, prefix.k.shape[2], cache.k.shape[3])
    positions = jnp.broadcast_to((prefix.lengths + index)[:, None, None], (*tokens.shape, 1))
    own = (jnp.arange(cache.k.shape[3]) <= index)[None, None, None]
    shared = prefix.mask[:, None, None]
    decoded = prefix.lengths[:, None, None] + jnp.arange(cache.k.shape[3])
    nearby = _nearby(config, (shared, own), positions[:, :1], prefix, decoded)

    def attend(q: Array, k: Array, v: Array, layer: Array, local: Array | None, cache: Cache) -> tuple[Array, Cache]:
        def write(old: Array, new: Array) -> Array:
            return jax.lax.dynamic_update_slice(old, new[None], (layer, 0, 0, index, 0, 0))

        written = Cache(write(cache.k, k), write(cache.v, v))
        before, after = map(functools.partial(by_kind, local), nearby, (shared, own))
        keys = [Keys(prefix.k[layer], prefix.v[layer], before), Keys(written.k[layer], written.v[layer], after)]
        return attention(q, keys), written

    x, cache, routed = _run_cached(config, params, tokens[..., None], positions, attend, cache, mesh=mesh)
    return x[:, :, 0], cache, jax.tree.map(lambda x: x[:, :, :, 0], routed)


def _positions(mask: Bool[Array, "P S"]) -> Int[Array, "P S"]:
    """Of tokens among those that are no padding, from 0."""
    return jnp.maximum(jnp.cumsum(mask, axis=1) - 1, 0)


def _nearby(
    config: ModelConfig, masks: tuple[Array, Array], queries: Array, prefix: Prefix, keys: Array
) -> tuple[Array | None, Array | None]:
    """The masks of a prefix and of what follows it, in local layers. Positions are [P, 1, T] of queries and keys."""
    before, after = masks
    return (
        same_chunk(config, before, queries, _positions(prefix.mask)[:, None]),
        same_chunk(config, after, queries, keys),
    )


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
        q: Array, k: Array, v: Array, layer: Array, local: Array | None, cache: SlotCache
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

    x, cache, routed = _run_cached(config, params, tokens[:, None], positions[:, None], attend, cache, mesh=mesh)
    return x[:, 0], cache, jax.tree.map(lambda x: x[:, :, 0], routed)


def _run_cached(
    config: ModelConfig,
    params: Params,
    tokens: Array,
    positions: Array,
    attend: Callable,
    cache: Any,
    *,
    mesh: Mesh | None,
) -> tuple[Array, Any, Routed | None]:
    """As `_run_layers`, with a cache that the layers hand on and write to, each where it is.

    `attend(q, k, v, layer, whether it is local, cache)` returns the attended values, and the cache with what the layer
    adds.
    """
    x = params["embed"][tokens]
    at = places(config, positions)

    def body(carry: tuple[Array, Any], scanned: tuple[Params, Array, Array | None]) -> tuple[tuple[Array, Any], Any]:
        x, cache = carry
        layer, index, local = scanned
        x, cache, routed = _run_layer(
            config, layer, x, at, lambda q, k, v: attend(q, k, v, index, local, cache), local=local, mesh=mesh
        )
        return (x, cache), routed

    unroll = config.num_layers if config.num_layers <= UNROLLED_LAYERS else 1
    scanned = (params["layers"], jnp.arange(config.num_layers), flags(config))
    (x, cache), routed = jax.lax.scan(body, (x, cache), scanned, unroll=unroll)
    return rms_norm(x, params["final_norm"], eps=config.norm_eps), cache, routed


def _run_layers(
    config: ModelConfig,
    params: Params,
    tokens: Array,
    positions: Array,
    attend: Callable,
    keys: Any,
    *,
    replay: Array | None = None,
    axes: Axes = BATCH,
    mesh: Mesh | None = None,
) -> tuple[Array, Any, Routed | None]:
    """Embeds, runs the layers, applies the final norm.

    `attend(q, k, v, keys of the layer, whether it is local)` returns the attended values [P, G, T, N, H] and what to
    collect of the layer; `replay` is [P, G, T, L, A], `axes` are those of [P, G, T].
    """
    x = params["embed"][tokens]
    if "tokens" in axes and sharding.shards(mesh, "tokens") > 1:
        # D goes from the devices of fsdp and context to those of context, then whole to its tokens. The partitioner
        # knows each of these steps, but not the one that does both, for which it would gather everything everywhere.
        x = _with_axes(x, ("rows", None, None, "tokens"), mesh)
    x = _with_axes(x, axes, mesh)
    at = places(config, positions)

    def body(x: Array, scanned: tuple[Params, Any, Array | None, Array | None]) -> tuple[Array, Any]:
        layer, layer_keys, local, replayed = scanned
        x, collected, routed = _run_layer(
            config,
            layer,
            x,
            at,
            lambda q, k, v: attend(q, k, v, layer_keys, local),
            local=local,
            replay=replayed,
            axes=axes,
            mesh=mesh,
        )
        return _with_axes(x, axes, mesh), (collected, routed)

    # Unrolled, layers would be computed again next to where they were, and XLA would see through it.
    few = config.num_layers <= UNROLLED_LAYERS and config.remat == "none"
    unroll = config.num_layers if few else 1
    replays = None if replay is None else jnp.moveaxis(replay, -2, 0)
    scanned = (params["layers"], keys, flags(config), replays)
    x, (collected, routed) = jax.lax.scan(rematerialized(body, config.remat), x, scanned, unroll=unroll)
    return rms_norm(x, params["final_norm"], eps=config.norm_eps), collected, routed


def _with_axes(x: Float[Array, "P G T D"], axes: Axes, mesh: Mesh | None) -> Float[Array, "P G T D"]:
    """x, sharded as `axes` say: left to itself, the partitioner may cut D as the weights are cut."""
    if mesh is None:
        return x
    axes = (*axes, None)[: x.ndim]
    return jax.lax.with_sharding_constraint(x, sharding.named_sharding(mesh, x.shape, axes))


def _run_layer(
    config: ModelConfig,
    layer: Params,
    x: Array,
    at: Places,
    attend: Callable,
    *,
    local: Array | None = None,
    replay: Array | None = None,
    axes: Axes = BATCH,
    mesh: Mesh | None = None,
) -> tuple[Array, Any, Routed | None]:
    """One layer: [P, G, T, D] to the same, what `attend(q, k, v)` returns beside the attended values, and routing."""
    normed = rms_norm(x, layer["attention_norm"], eps=config.norm_eps)
    q, k, v = (jnp.einsum("pgtd,dnh->pgtnh", normed, layer[name]) for name in ("wq", "wk", "wv"))
    if config.attention_bias:
        q, k, v = q + layer["bq"], k + layer["bk"], v + layer["bv"]
    if config.qk_norm:
        q, k = (rms_norm(heads, layer[name], eps=config.norm_eps) for heads, name in ((q, "q_norm"), (k, "k_norm")))
    q, k = placed(config, q, k, at, local)
    attended, collected = attend(q, k, v)
    x = x + jnp.einsum("pgtnh,nhd->pgtd", attended, layer["wo"])
    normed = rms_norm(x, layer["mlp_norm"], eps=config.norm_eps)
    if config.num_experts:
        mixed, routed = experts(config, layer, normed, replay, axes=axes, mesh=mesh)
        if config.shared_expert:
            mixed += swiglu(normed, layer["shared_gate"], layer["shared_up"], layer["shared_down"])
        return x + mixed, collected, routed
    return x + swiglu(normed, layer["w_gate"], layer["w_up"], layer["w_down"]), collected, None
