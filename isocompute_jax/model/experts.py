"""Mixture of experts: each token goes to the few experts that its router scores highest, and none is dropped.

Tokens are sorted by expert, and every expert's matrix meets its own tokens only (`grouped_product`): the work is that
of the experts in use, whatever the balance (arXiv 2211.15841).

On a mesh every device routes and sorts the tokens of its own rows. Where experts are divided, the devices that hold
them stand in a ring: tokens travel round it once, and each device adds what its experts make of them. How many tokens
an expert gets needs no bound, and a device holds one device's tokens at a time.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Float, Int

from isocompute_jax import sharding
from isocompute_jax.model.config import ModelConfig
from isocompute_jax.model.grouped_product import TILE, GroupedKernel, grouped_kernel, grouped_product
from isocompute_jax.model.lora import Adapted, Weight, frozen, map_weight
from isocompute_jax.model.params import Axes, Params

UNKNOWN = -1
"""In place of an expert that is to be replayed: the router chooses."""


class Routed(NamedTuple):
    """Where tokens [...] went."""

    experts: Int[Array, "... A"]  # A of each
    own: Int[Array, "... A"]  # those that the router would have chosen: the same, unless they were replayed
    entropy: Float[Array, "..."]  # of the router's distribution over all experts, in nats


def route(
    config: ModelConfig,
    router: Float[Array, "D E"],
    x: Float[Array, "... D"],
    replay: Int[Array, "... A"] | None = None,
) -> tuple[Float[Array, "... A"], Routed]:
    """The experts with the highest scores x router, in float32, and the weights of what they give, or read.

    Weights are probabilities softmax(scores), or with `sigmoid_routing` each score's own sigmoid.

    Args:
      config: model shape.
      router: its matrix.
      x: tokens.
      replay: experts to take instead, where they are known; their weights are the router's own, so that it learns.
    """
    scores = (x @ router).astype(jnp.promote_types(x.dtype, jnp.float32))
    ranked = scores if config.sigmoid_routing else jax.nn.softmax(scores, axis=-1)
    _, own = jax.lax.top_k(ranked, config.experts_per_token)
    chosen = own if replay is None else jnp.where(replay == UNKNOWN, own, replay.astype(own.dtype))
    weights = jnp.take_along_axis(ranked, chosen, axis=-1)
    if config.sigmoid_routing:
        weights = jax.nn.sigmoid(weights)
    elif config.normalized_routing:
        weights = weights / jnp.sum(weights, axis=-1, keepdims=True)
    fixed = jax.lax.stop_gradient(scores)
    entropy = -jnp.sum(jax.nn.softmax(fixed, axis=-1) * jax.nn.log_softmax(fixed, axis=-1), axis=-1)
    return weights.astype(x.dtype), Routed(chosen, own, entropy)


def experts(
    config: ModelConfig,
    layer: Params,
    x: Float[Array, "... D"],
    replay: Int[Array, "... A"] | None = None,
    *,
    axes: Axes = ("batch",),
    mesh: Mesh | None = None,
) -> tuple[Float[Array, "... D"], Routed]:
    """The weighted sum of each token's experts, SwiGLU MLPs (arXiv 2505.09388), and where the tokens went.

    With `sigmoid_routing` the sum is plain, and what each expert reads is weighted.

    Args:
      config: model shape.
      layer: router [D, E], w_gate and w_up [E, D, F], w_down [E, F, D], adapted or not.
      x: tokens.
      replay: see `route`.
      axes: logical axes of the first dimensions of x; the expert axis is among those of the very first.
      mesh: where they lie; None for one device.
    """
    weights = tuple(layer[name] for name in ("w_gate", "w_up", "w_down"))
    if mesh is None:
        kernel = grouped_kernel(jax.local_devices()[0], x.dtype, frozen(weights[0]).shape[1:])
        mixing, routed = route(config, layer["router"], x, replay)
        weigh = config.sigmoid_routing
        return _mixed(weights, x, routed.experts, mixing, first=0, kernel=kernel, weigh_input=weigh), routed
    return _on_mesh(config, layer["router"], weights, x, replay, axes, mesh)


def _on_mesh(
    config: ModelConfig,
    router: Array,
    weights: tuple[Weight, ...],
    x: Array,
    replay: Array | None,
    axes: Axes,
    mesh: Mesh,
) -> tuple[Array, Routed]:
    """`experts` in a `shard_map`: what one device does, and where its arrays lie."""
    (number, embed, width), spec = frozen(weights[0]).shape, functools.partial(sharding.partition_spec, mesh)
    batch, owners, whole, hidden = (
        sharding.mesh_axes(mesh, size, axis)
        for size, axis in ((x.shape[0], axes[0]), (number, "experts"), (embed, "embed"), (width, "mlp"))
    )
    ring = owners if batch else ()
    added = (*(() if batch else owners), *hidden)
    here = width // math.prod(mesh.shape[name] for name in hidden)
    up, down = (("experts", "embed"), ("experts", "mlp")), (("experts", "mlp"), ("experts", "embed"))
    kernel = grouped_kernel(mesh.devices.flat[0], x.dtype, (embed, here))

    def gathered(w: Array, axes: Axes) -> Array:
        """Whole along `embed`; its gradient is summed and scattered again."""
        return jax.lax.all_gather(w, whole, axis=axes.index("embed"), tiled=True) if whole and "embed" in axes else w

    def local(router: Array, weights: tuple[Weight, ...], x: Array, replay: Array | None) -> tuple[Array, Routed]:
        router = gathered(router, ("embed", None))
        weights = tuple(map_weight(gathered, w, *where) for w, where in zip(weights, (up, up, down), strict=True))
        first = jax.lax.axis_index(owners) * frozen(weights[0]).shape[0] if owners else 0
        mixing, routed = route(config, router, x, replay)
        mix = functools.partial(_mixed, weights, first=first, kernel=kernel, weigh_input=config.sigmoid_routing)
        out = _round_the_ring(mix, ring, x, routed.experts, mixing) if ring else mix(x, routed.experts, mixing)
        return out[None], routed

    rows = spec(x.shape[: len(axes)], axes)
    parts, routed = jax.shard_map(
        local,
        mesh=mesh,
        in_specs=(
            spec(router.shape, ("embed", None)),
            tuple(
                map_weight(lambda x, axes: spec(x.shape, axes), w, *where)
                for w, where in zip(weights, (up, up, down), strict=True)
            ),
            rows,
            rows,
        ),
        out_specs=(PartitionSpec(added or None, *rows), rows),
        check_vma=False,  # kernels do not say over which axes their results vary
    )(router, weights, x, replay)
    # Summed out here, where its gradient is a copy; within, each device's part would be summed there and back.
    return jnp.sum(parts, axis=0), routed


def _round_the_ring(mix: Callable[..., Array], ring: tuple[str, ...], *tokens: Array) -> Array:
    """What the experts of all devices of the axes `ring` make of this device's tokens, which visit them in turn.

    Args:
      mix: (x, experts, weights) -> what this device's experts make of them.
      ring: mesh axes.
      *tokens: x, experts and weights.
    """
    size = jax.lax.axis_size(ring)
    turn = [(device, (device + 1) % size) for device in range(size)]

    def visit(carry: tuple[Any, Array], _: None) -> tuple[tuple[Any, Array], None]:
        tokens, out = carry
        # Sent on first, so that they travel while the products are computed.
        sent = jax.tree.map(lambda x: jax.lax.ppermute(x, ring, turn), tokens)
        return (sent, jax.lax.ppermute(out + mix(*tokens), ring, turn)), None

    # Products are computed again in the backward pass: kept for all visits, they would be those of all devices' tokens.
    visit = jax.checkpoint(visit, prevent_cse=False)
    (_, out), _ = jax.lax.scan(visit, (tokens, jnp.zeros_like(tokens[0])), None, length=size)
    return out


def _mixed(
    weights: tuple[Weight, ...],
    x: Float[Array, "... D"],
    experts: Int[Array, "... A"],
    mixing: Float[Array, "... A"],
    *,
    first: Array | int,
    kernel: GroupedKernel,
    weigh_input: bool,
) -> Float[Array, "... D"]:
    """The weighted sum over those of each token's experts that lie here: as many as `weights` has, from `first` on.

    With `weigh_input` the plain sum of what they make of the weighted token.
    """
    w_gate, w_up, w_down = weights
    here, active, d = frozen(w_gate).shape[0], experts.shape[-1], x.shape[-1]
    tokens = x.reshape(math.prod(x.shape[:-1]), d)
    count = len(tokens)
    own = (experts >= first) & (experts < first + here)
    group = jnp.where(own, experts - first, here).reshape(count * active)  # the others come last
    order = jnp.argsort(group, stable=True)
    sizes = jnp.bincount(group, length=here).astype(jnp.int32)
    back = jnp.zeros_like(order).at[order].set(jnp.arange(len(order)), unique_indices=True)
    copies: Any = _copies
    permuted: Any = _permuted
    sorted_tokens = copies(tokens, order, back, active)
    if weigh_input:
        sorted_tokens *= permuted(mixing.reshape(count * active, 1), order, back)

    def product(x: Array, w: Weight) -> Array:
        if isinstance(w, Adapted):
            low = product(product(x, w.factors.a), w.factors.b)
            return product(x, w.base) + w.factors.scale * low
        # Adapters are too narrow for kernels of whole tiles.
        return grouped_product(x, w, sizes, "blocks" if any(size % TILE for size in w.shape[1:]) else kernel)

    gate, up = (product(sorted_tokens, w) for w in (w_gate, w_up))
    out = product(jax.nn.silu(gate) * up, w_down)
    out = permuted(out, back, order).reshape(count, active, d)
    if weigh_input:
        return jnp.sum(out, axis=1).reshape(x.shape)
    return jnp.sum(out * mixing.reshape(count, active, 1), axis=1).reshape(x.shape)


# Rows are gathered in both directions: the transpose of a gather would be a scatter, which is slow, and adds up.


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def _copies(tokens: Array, order: Array, back: Array, active: int) -> Array:
    """Rows `order` of the tokens, each repeated `active` times; `back` is the inverse of `order`."""
    return tokens[order // active]


def _copies_forward(tokens: Array, order: Array, back: Array, active: int) -> tuple[Any, Array]:
    return _copies(tokens, order, back, active), back


def _copies_backward(active: int, back: Array, gradient: Array) -> tuple[Array, None, None]:
    copies = gradient[back].reshape(len(back) // active, active, gradient.shape[-1])
    return jnp.sum(copies, axis=1), None, None


_copies.defvjp(_copies_forward, _copies_backward)


@jax.custom_vjp
def _permuted(rows: Array, order: Array, back: Array) -> Array:
    """Rows in the order `order`; `back` is its inverse."""
    return rows[order]


def _permuted_forward(rows: Array, order: Array, back: Array) -> tuple[Any, Array]:
    return _permuted(rows, order, back), back


def _permuted_backward(back: Array, gradient: Array) -> tuple[Array, None, None]:
    return gradient[back], None, None


_permuted.defvjp(_permuted_forward, _permuted_backward)
