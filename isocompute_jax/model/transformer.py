"""The forward pass over whole sequences, in four forms that share every line but the keys they attend to.

`prefill` reads prompts once; `extend` scores G completions per prompt against its keys (`decoding` draws them so);
`tree_hidden` reads whatever sequences begin with once; `packed_hidden` reads rows of several whole sequences, long
ones. Sharing keys is exact: gradients flow through them, and prefill + extend equals one pass over the joined tokens.

Sequences longer than `config.max_positions` are refused while tracing, by their padded lengths (InputError).
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int

from isocompute_jax.model.block import PACKED_ROWS, run_layers
from isocompute_jax.model.config import ModelConfig, check_length
from isocompute_jax.model.experts import Routed
from isocompute_jax.model.layers import Keys, attention, causal_mask
from isocompute_jax.model.local_layers import by_kind, chunk_starts, same_chunk
from isocompute_jax.model.packed_attention import packed_attention
from isocompute_jax.model.params import Params


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
    hidden, _, routed = run_layers(
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

    hidden, _, _ = run_layers(config, params, tokens[:, None], positions, attend, None, mesh=mesh)
    return hidden[:, 0]


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
    hidden, (k, v), routed = run_layers(
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
    nearby = nearby_masks(config, (shared, own), positions[:, :1], prefix, positions[:, :1])

    def attend(q: Array, k: Array, v: Array, layer: tuple[Array, Array], local: Array | None) -> tuple[Array, None]:
        before, after = map(functools.partial(by_kind, local), nearby, (shared, own))
        return attention(q, [Keys(*layer, before), Keys(k, v, after)]), None

    hidden, _, routed = run_layers(
        config, params, tokens, positions, attend, (prefix.k, prefix.v), replay=replay, mesh=mesh
    )
    return hidden, routed


def _positions(mask: Bool[Array, "P S"]) -> Int[Array, "P S"]:
    """Of tokens among those that are no padding, from 0."""
    return jnp.maximum(jnp.cumsum(mask, axis=1) - 1, 0)


def nearby_masks(
    config: ModelConfig, masks: tuple[Array, Array], queries: Array, prefix: Prefix, keys: Array
) -> tuple[Array | None, Array | None]:
    """The masks of a prefix and of what follows it, in local layers. Positions are [P, 1, T] of queries and keys."""
    before, after = masks
    return (
        same_chunk(config, before, queries, _positions(prefix.mask)[:, None]),
        same_chunk(config, after, queries, keys),
    )
