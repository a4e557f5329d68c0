"""A model that compiles in seconds, with parameters that all matter."""

import functools
from typing import Any

import jax
import numpy as np

from isocompute_jax import model

LLAMA4: dict[str, Any] = dict(
    attention_bias=False,
    num_experts=4,
    experts_per_token=1,
    shared_expert=True,
    sigmoid_routing=True,
    attention_chunk=4,
    global_interval=2,
    qk_l2_norm=True,
    query_scaling=model.QueryScaling(3, 0.5),
)
"""Of a Llama 4 whose chunks, and whose floor of the temperature, are shorter than the tests' sequences."""


def tiny_config(**changes: Any) -> model.ModelConfig:
    """Two layers, 12 tokens; every sharded dimension but the one kv head divides a 2 x 2 x 2 mesh."""
    fields: dict[str, Any] = dict(
        vocab_size=12,
        embed_dim=16,
        num_layers=2,
        num_heads=2,
        num_kv_heads=1,
        head_dim=8,
        mlp_dim=24,
        tied_embeddings=True,
        rope_theta=1e4,
        norm_eps=1e-6,
        max_positions=64,
    )
    return model.ModelConfig(**(fields | changes))


def random_params(config: model.ModelConfig, seed: int = 0, scale: float = 0.3) -> model.Params:
    """Every parameter random, biases and norms included, and large enough to matter; drawn without compiling."""
    rng = np.random.default_rng(seed)
    flat, tree = jax.tree_util.tree_flatten_with_path(model.abstract_params(config))
    centres = [1.0 if "norm" in jax.tree_util.keystr(path) else 0.0 for path, _ in flat]
    draws = [
        (centre + scale * rng.normal(size=leaf.shape)).astype(leaf.dtype)
        for centre, (_, leaf) in zip(centres, flat, strict=True)
    ]
    return jax.device_put(jax.tree_util.tree_unflatten(tree, draws))


@functools.partial(jax.jit, static_argnums=0)
def logits_of(config: model.ModelConfig, params: model.Params, tokens: jax.Array, mask: jax.Array) -> jax.Array:
    """Of every token of whole sequences, in one program."""
    hidden, _ = model.prefill(config, params, tokens, mask)
    return model.logits(config, params, hidden)
