"""A model that compiles in seconds, with parameters that all matter."""

import jax

from isocompute_jax import model


def tiny_config(**changes) -> model.ModelConfig:
    """Two layers, 12 tokens; every sharded dimension but the one kv head divides a 2 x 2 x 2 mesh."""
    fields = dict(
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
    """Every parameter random, biases and norms included, and large enough to matter."""
    params = model.init_params(config, jax.random.key(seed))
    leaves, tree = jax.tree.flatten(params)
    keys = jax.random.split(jax.random.key(seed + 1000), len(leaves))
    noise = [scale * jax.random.normal(key, leaf.shape, leaf.dtype) for key, leaf in zip(keys, leaves, strict=True)]
    return jax.tree.unflatten(tree, [leaf + n for leaf, n in zip(leaves, noise, strict=True)])
