"""Attention over packed rows, one file for each way of computing it; `model.packed_attention` chooses."""

import jax.numpy as jnp
from jaxtyping import Array, Int

ATTENTION_OUTPUT = "attention_output"
"""`jax.ad_checkpoint` name of what a kernel keeps for its backward pass beside q, k and v: output, softmax statistics.

With them saved (`jax.checkpoint_policies.save_only_these_names`), the backward pass does not run the forward again.
"""


def filled_up(first: Int[Array, "... T"], length: int) -> Int[Array, "... U"]:
    """`first` of rows of `length` tokens: those that are added see themselves.

    Where none is added, none are made: an array without elements in a `shard_map` that is differentiated crashes the
    partitioner of jaxlib 0.11.2 (`ManualComputationUnusedInputsPattern`; met with Llama 4, on CPUs and H200s).
    """
    tokens = first.shape[-1]
    if tokens == length:
        return first
    added = jnp.broadcast_to(jnp.arange(tokens, length, dtype=first.dtype), (*first.shape[:-1], length - tokens))
    return jnp.concatenate([first, added], axis=-1)
