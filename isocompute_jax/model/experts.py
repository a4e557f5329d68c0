"""Mixture of experts: each token goes to the few experts that its router scores highest, and none is dropped.

Tokens are sorted by expert, and every expert's matrix meets its own tokens only (`grouped_product`): the work is that
of the experts in use, whatever the balance (arXiv 2211.15841).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from isocompute_jax.model.config import ModelConfig
from isocompute_jax.model.grouped_product import grouped_product
from isocompute_jax.model.params import Params


class Routing(NamedTuple):
    """Where M tokens go: `experts` [M, A] of A each, and `weights` [M, A] of their outputs."""

    experts: Int[Array, "M A"]
    weights: Float[Array, "M A"]


def route(config: ModelConfig, router: Float[Array, "D E"], x: Float[Array, "M D"]) -> Routing:
    """The experts with the highest probability softmax(x router), in float32, and their weights."""
    scores = (x @ router).astype(jnp.promote_types(x.dtype, jnp.float32))
    weights, chosen = jax.lax.top_k(jax.nn.softmax(scores, axis=-1), config.experts_per_token)
    if config.normalized_routing:
        weights = weights / jnp.sum(weights, axis=-1, keepdims=True)
    return Routing(chosen, weights.astype(x.dtype))


def experts(config: ModelConfig, layer: Params, x: Float[Array, "... D"]) -> Float[Array, "... D"]:
    """The weighted sum of each token's experts, SwiGLU MLPs (arXiv 2505.09388).

    Args:
      config: model shape.
      layer: router [D, E], w_gate and w_up [E, D, F], w_down [E, F, D].
      x: tokens.
    """
    tokens = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
    routing = route(config, layer["router"], tokens)
    count, active = routing.experts.shape
    order = jnp.argsort(routing.experts.ravel(), stable=True)
    sizes = jnp.bincount(routing.experts.ravel(), length=config.num_experts)
    # Permutations both ways: their gradients are permutations too, without colliding sums.
    copies = jnp.broadcast_to(tokens[:, None], (count, active, tokens.shape[-1]))
    copies = copies.reshape(count * active, tokens.shape[-1])
    sorted_tokens = copies.at[order].get(unique_indices=True)
    gate, up = (grouped_product(sorted_tokens, layer[name], sizes) for name in ("w_gate", "w_up"))
    out = grouped_product(jax.nn.silu(gate) * up, layer["w_down"], sizes)
    back = jnp.zeros_like(order).at[order].set(jnp.arange(len(order)), unique_indices=True)
    out = out.at[back].get(unique_indices=True).reshape(count, active, tokens.shape[-1])
    return jnp.sum(out * routing.weights[..., None], axis=1).reshape(x.shape)
