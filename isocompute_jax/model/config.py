"""The shape of a Qwen2-architecture model."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """Qwen2 / Qwen2.5 architecture: RMSNorm, RoPE, grouped-query attention with QKV bias, SwiGLU.

    Attributes:
      vocab_size: V.
      embed_dim: D.
      num_layers: L.
      num_heads: N, query heads.
      num_kv_heads: K, key and value heads; divides N.
      head_dim: H; even, because RoPE rotates pairs.
      mlp_dim: F.
      tied_embeddings: the output head is the embedding table.
      rope_theta: RoPE base.
      norm_eps: RMSNorm epsilon.
      max_positions: longest sequence the model was made for.
      dtype: dtype of parameters and activations; norms, softmax, RoPE and the output head are float32 at least.
      remat: recompute each layer's activations in the backward pass (less memory, about a third more compute).
    """

    vocab_size: int
    embed_dim: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    mlp_dim: int
    tied_embeddings: bool
    rope_theta: float
    norm_eps: float
    max_positions: int
    dtype: str = "float32"
    remat: bool = False

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise ValueError(f"num_kv_heads = {self.num_kv_heads} does not divide num_heads = {self.num_heads}")
        if self.head_dim % 2:
            raise ValueError(f"head_dim = {self.head_dim} is odd; RoPE needs pairs")

    @property
    def float_dtype(self) -> jnp.dtype:
        """`dtype`, or float32 where that is narrower: for norms, softmax and the head."""
        return jnp.promote_types(self.dtype, jnp.float32)


EMBEDDED = ModelConfig(
    vocab_size=32,
    embed_dim=64,
    num_layers=2,
    num_heads=2,
    num_kv_heads=1,
    head_dim=32,
    mlp_dim=192,
    tied_embeddings=True,
    rope_theta=10_000.0,
    norm_eps=1e-6,
    max_positions=64,
)
"""The embedded default: 0.1 M parameters; the head size of 32 is one that vLLM's CPU build serves.

The arithmetic tokenizer's 17 ids are rounded up to 32, as is usual; the ids beyond them are never taught.
"""
