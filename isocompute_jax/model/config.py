"""The shape of a Qwen2-architecture model."""

from __future__ import annotations

import dataclasses
from typing import Literal

import jax.numpy as jnp

from isocompute_jax.options import check, option
from isocompute_jax.records.errors import InputError

Dtype = Literal["float32", "bfloat16", "float16", "float64"]


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """Qwen2 / Qwen2.5 architecture: RMSNorm, RoPE, grouped-query attention with QKV bias, SwiGLU.

    Raises:
      InputError: an unknown dtype, a size below 1, or sizes that do not go together; it names the field.
    """

    vocab_size: int = option(help="V.", low=1)
    embed_dim: int = option(help="D.", low=1)
    num_layers: int = option(help="L.", low=1)
    num_heads: int = option(help="N, query heads.", low=1)
    num_kv_heads: int = option(help="K, key and value heads; divides N.", low=1)
    head_dim: int = option(help="H; even, because RoPE rotates pairs.", low=2)
    mlp_dim: int = option(help="F.", low=1)
    tied_embeddings: bool = option(help="The output head is the embedding table.")
    rope_theta: float = option(help="RoPE base.", low=1)
    norm_eps: float = option(help="RMSNorm epsilon.", low=0)
    max_positions: int = option(
        help="Longest sequence, prompt and completion together; Hugging Face's max_position_embeddings.", low=1
    )
    dtype: Dtype = option(
        "float32", "Of parameters and activations; norms, softmax, RoPE and the output head are float32 at least."
    )
    remat: bool = option(
        False,
        "Recompute each layer's activations in the backward pass (less memory, about a third more compute).",
        identity=False,
    )

    def __post_init__(self) -> None:
        check(self)
        if self.num_heads % self.num_kv_heads:
            raise InputError(f"num_kv_heads = {self.num_kv_heads} does not divide num_heads = {self.num_heads}")
        if self.head_dim % 2:
            raise InputError(f"head_dim = {self.head_dim} is odd; RoPE needs pairs")

    @property
    def float_dtype(self) -> jnp.dtype:
        """`dtype`, or float32 where that is narrower: for norms, softmax and the head."""
        return jnp.promote_types(self.dtype, jnp.float32)


def check_length(config: ModelConfig, prompt: int, completion: int) -> None:
    """Refuses sequences that are longer than those the model was made for; positions beyond were never trained.

    Args:
      config: model shape.
      prompt: longest prompt, in tokens.
      completion: longest completion, in tokens.

    Raises:
      InputError: they are longer together than `config.max_positions`.
    """
    if prompt + completion > config.max_positions:
        raise InputError(
            f"max_prompt_tokens = {prompt} and max_tokens = {completion} make sequences of up to {prompt + completion} "
            f"tokens; the model's max_position_embeddings = {config.max_positions}: lower one of them, or take a model "
            "made for longer sequences"
        )


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
