"""The layers one after the other: the block that all forms of the forward pass share, with or without a cache."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import Mesh
from jaxtyping import Array, Float

from isocompute_jax import sharding
from isocompute_jax.model.config import ModelConfig, Remat
from isocompute_jax.model.experts import Routed, experts
from isocompute_jax.model.kernels import ATTENTION_OUTPUT
from isocompute_jax.model.layers import linear, rms_norm, swiglu, to_heads
from isocompute_jax.model.local_layers import Places, flags, placed, places
from isocompute_jax.model.lora import frozen, rows_joined
from isocompute_jax.model.params import Axes, Params
from isocompute_jax.model.sampling_copy import split_layers

UNROLLED_LAYERS = 8
"""Models of up to this many layers are unrolled: the loop of a scan costs more than the compile time it saves."""

BATCH, PACKED_ROWS = ("batch", None, None), ("rows", None, "tokens")
"""Logical axes of [P, G, T]: of sequences apart from each other, and of packed rows, which may be cut."""


def run_layers(
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
    collect of the layer; `tokens` and `positions` are [P, G, T], `replay` is [P, G, T, L, A], `axes` are those of
    [P, G, T]. Hidden states [P, G, T, D] come back.
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

    replays = None if replay is None else jnp.moveaxis(replay, -2, 0)
    if isinstance(params["layers"], tuple):  # the copy that is sampled with
        found = []
        for index, layer in enumerate(params["layers"]):
            of_layer = jax.tree.map(lambda x, i=index: x[i], (keys, flags(config), replays))
            x, both = body(x, (layer, *of_layer))
            found.append(both)
        collected, routed = jax.tree.map(lambda *x: jnp.stack(x), *found)
        return rms_norm(x, params["final_norm"], eps=config.norm_eps), collected, routed
    # Unrolled, layers would be computed again next to where they were, and XLA would see through it.
    few = config.num_layers <= UNROLLED_LAYERS and config.remat == "none"
    unroll = config.num_layers if few else 1
    scanned = (params["layers"], keys, flags(config), replays)
    x, (collected, routed) = jax.lax.scan(rematerialized(body, config.remat), x, scanned, unroll=unroll)
    return rms_norm(x, params["final_norm"], eps=config.norm_eps), collected, routed


Layer = Array | int
"""Where a layer's keys are in its cache."""


def run_cached(
    config: ModelConfig,
    params: Params,
    tokens: Array,
    positions: Array,
    attend: Callable,
    caches: tuple[Any, ...],
    *,
    mesh: Mesh | None,
) -> tuple[Array, tuple[Any, ...], Routed | None]:
    """As `run_layers`, with caches that the layers write to: one that they hand on, or one of each, of layers apart.

    `attend(q, k, v, Layer, whether it is local, cache)` returns the attended values, and the cache with what the layer
    adds. `tokens` and `positions` are [P, G, T]; hidden states [P, G, T, D] come back.
    """
    params = split_layers(config, params)
    x = params["embed"][tokens]
    at = places(config, positions)

    def body(carry: tuple[Array, Any], scanned: tuple[Params, Layer, Array | None]) -> tuple[tuple[Array, Any], Any]:
        x, cache = carry
        layer, index, local = scanned
        x, cache, routed = _run_layer(
            config, layer, x, at, lambda q, k, v: attend(q, k, v, index, local, cache), local=local, mesh=mesh
        )
        return (x, cache), routed

    local = flags(config)
    if isinstance(params["layers"], tuple):
        routes, written = [], [*caches]
        for index, layer in enumerate(params["layers"]):
            place, within = (index, 0) if len(caches) > 1 else (0, index)
            here = None if local is None else local[index]
            (x, written[place]), routed = body((x, written[place]), (layer, within, here))
            routes.append(routed)
        routed = jax.tree.map(lambda *x: jnp.stack(x), *routes)
    else:
        scanned = (params["layers"], jnp.arange(config.num_layers), local)
        (x, *written), routed = jax.lax.scan(body, (x, *caches), scanned)
    return rms_norm(x, params["final_norm"], eps=config.norm_eps), tuple(written), routed


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
    q, k, v = (to_heads(normed, layer[name]) for name in ("wq", "wk", "wv"))
    if config.attention_bias:
        q, k, v = q + layer["bq"], k + layer["bk"], v + layer["bv"]
    if config.qk_norm:
        q, k = (rms_norm(heads, layer[name], eps=config.norm_eps) for heads, name in ((q, "q_norm"), (k, "k_norm")))
    q, k = placed(config, q, k, at, local)
    attended, collected = attend(q, k, v)
    # One contraction, over [N H]: of two, XLA:CPU puts H first, and so transposes the weights, in decoding every token.
    wo = rows_joined(layer["wo"])
    x = x + linear(attended.reshape(*x.shape[:-1], frozen(wo).shape[0]), wo)
    normed = rms_norm(x, layer["mlp_norm"], eps=config.norm_eps)
    if config.num_experts:
        mixed, routed = experts(config, layer, normed, replay, axes=axes, mesh=mesh)
        if config.shared_expert:
            mixed += swiglu(normed, layer["shared_gate"], layer["shared_up"], layer["shared_down"])
        return x + mixed, collected, routed
    return x + swiglu(normed, layer["w_gate"], layer["w_up"], layer["w_down"]), collected, None


LAYER_INPUT = "layer_input"

_policies = jax.checkpoint_policies

POLICIES: Mapping[Remat, Any] = {
    "full": _policies.nothing_saveable,
    # Attention's output beside them: the kernels' products are none that XLA knows, and would run again.
    "dots": _policies.save_from_both_policies(
        _policies.dots_with_no_batch_dims_saveable, _policies.save_only_these_names(ATTENTION_OUTPUT)
    ),
    "attention_output": _policies.save_only_these_names(ATTENTION_OUTPUT),
    "offload": _policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[],
        names_which_can_be_offloaded=[LAYER_INPUT],
        offload_src="device",
        offload_dst="pinned_host",
    ),
}
"""Beside `none`, which keeps everything."""

LayerBody = Callable[[Float[Array, "..."], Any], tuple[Float[Array, "..."], Any]]


def rematerialized(body: LayerBody, remat: Remat) -> LayerBody:
    """`body(x, scanned)` of a scan over layers, keeping what `remat` names (see `ModelConfig.remat`)."""
    if remat == "none":
        return body

    def named(x: Float[Array, "..."], scanned: Any) -> tuple[Float[Array, "..."], Any]:
        return body(checkpoint_name(x, LAYER_INPUT), scanned)

    # In a scan nothing can be moved between the two passes, so they need no barrier against it.
    return jax.checkpoint(named, policy=POLICIES[remat], prevent_cse=False)
