"""Log-probabilities and entropies of given tokens, computed in chunks so that [B, T, V] never exists."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from isocompute_jax.model.config import ModelConfig
from isocompute_jax.model.params import Params
from isocompute_jax.model.transformer import logits


def token_logprobs(
    config: ModelConfig,
    params: Params,
    hidden: Float[Array, "R M D"],
    targets: Int[Array, "R M"],
    *,
    temperature: float | Array,
    chunk_tokens: int,
) -> tuple[Float[Array, "R M"], Float[Array, "R M"]]:
    """Log-probability of `targets` and entropy of the tempered distribution softmax(logits / temperature), in nats.

    Chunks run along M, so that the sharding of the row axis R is kept; each chunk's logits are recomputed in the
    backward pass. Peak memory of the head is about `chunk_tokens` x V float32 numbers instead of R x M x V.

    Args:
      config: model shape.
      params: parameters (the head is read).
      hidden: [R, M, D] hidden states at the positions that predict `targets`.
      targets: [R, M] token ids.
      temperature: sampling temperature, > 0.
      chunk_tokens: tokens whose logits may exist at once.

    Returns:
      log-probabilities [R, M] and entropies [R, M], float32 (float64 for a float64 model).
    """
    rows, length, _ = hidden.shape
    width = min(length, max(1, chunk_tokens // rows))

    def score(hidden: Array, targets: Array) -> tuple[Array, Array]:
        return _score(logits(config, params, hidden) / temperature, targets)

    if width == length:
        return score(hidden, targets)
    chunks = -(-length // width)
    pad = chunks * width - length
    hidden = jnp.pad(hidden, ((0, 0), (0, pad), (0, 0))).reshape(rows, chunks, width, -1).swapaxes(0, 1)
    targets = jnp.pad(targets, ((0, 0), (0, pad))).reshape(rows, chunks, width).swapaxes(0, 1)
    logprobs, entropies = jax.lax.map(jax.checkpoint(lambda chunk: score(*chunk)), (hidden, targets))
    return tuple(x.swapaxes(0, 1).reshape(rows, -1)[:, :length] for x in (logprobs, entropies))


def _score(
    scaled: Float[Array, "... V"], targets: Int[Array, "..."]
) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """log softmax(scaled)[target] and the entropy -sum(p log p)."""
    normalizer = jax.nn.logsumexp(scaled, axis=-1, keepdims=True)
    logprobs = scaled - normalizer
    # A masked sum, not a gather: it needs no all-gather when the vocabulary is sharded.
    chosen = jnp.arange(scaled.shape[-1]) == targets[..., None]
    picked = jnp.sum(jnp.where(chosen, logprobs, 0.0), axis=-1)
    return picked, -jnp.sum(jnp.exp(logprobs) * logprobs, axis=-1)
