"""Our transformer as the learner's score function, and the log-probabilities of whole batches without a gradient."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int

from isocompute_jax import model, sharding
from isocompute_jax.learner.layout import Batch, TokenBatch, microbatch_of
from isocompute_jax.learner.objective import Params, Score, Scores
from isocompute_jax.model import ModelConfig


def make_score(config: ModelConfig, *, temperature: float, chunk_tokens: int) -> Score:
    """The score function of our transformer.

    Args:
      config: model shape.
      temperature: of the distribution that was sampled from.
      chunk_tokens: tokens whose logits may exist at once.
    """

    def score(params: Params, batch: TokenBatch) -> Scores:
        return Scores(
            *completion_logprobs(
                config,
                params,
                batch.prompt_tokens,
                batch.prompt_mask,
                batch.tokens,
                temperature=temperature,
                chunk_tokens=chunk_tokens,
            )
        )

    return score


def completion_logprobs(
    config: ModelConfig,
    params: model.Params,
    prompt_tokens: Int[Array | np.ndarray, "N S"],
    prompt_mask: Bool[Array | np.ndarray, "N S"],
    tokens: Int[Array | np.ndarray, "N R T"],
    *,
    temperature: float | Array,
    chunk_tokens: int,
) -> tuple[Float[Array, "N R T"], Float[Array, "N R T"]]:
    """Log-probabilities and entropies (nats) of completions, each prompt read once for its R rollouts.

    `params` may be wider than `config.dtype` (float32 master weights): they are cast, and gradients are not.
    """
    params = model.cast_params(params, config.dtype)
    rows, rollouts, length = tokens.shape
    tokens = jnp.asarray(tokens)
    hidden, prefix = model.prefill(config, params, jnp.asarray(prompt_tokens), jnp.asarray(prompt_mask))
    first = jnp.broadcast_to(hidden[:, None, -1:], (rows, rollouts, 1, hidden.shape[-1]))
    rest, _ = model.extend(config, params, tokens[..., :-1], prefix)
    hidden = jnp.concatenate([first, rest], axis=2).reshape(rows, rollouts * length, -1)
    scores = model.token_logprobs(
        config, params, hidden, tokens.reshape(rows, -1), temperature=temperature, chunk_tokens=chunk_tokens
    )
    logprobs, entropies = (x.reshape(tokens.shape) for x in scores)
    return logprobs, entropies


def make_scorer(score: Score, *, mesh: Mesh | None = None) -> Callable[[Params, Batch], Float[Array, "M N ..."]]:
    """Compiles `scorer(params, batch)`: the log-probabilities that a step on `batch` would start from.

    They are `old_logprobs` where a batch is used late, and the learner's side of agreement checks. The same forward
    pass as the step's, micro-batch by micro-batch; those without rows are zero and not computed.

    Args:
      score: the model, as the step takes it.
      mesh: where parameters and batch are sharded; None for one device.
    """

    def scorer(params: Params, batch: Batch) -> Float[Array, "M N ..."]:
        def one(index: Array) -> Array:
            return Scores.of(score(params, microbatch_of(batch, index, mesh))).logprobs

        def add(index: Array, scores: Array) -> Array:
            return jax.lax.dynamic_update_index_in_dim(scores, one(index), index, 0)

        zeros = jnp.zeros(batch.tokens.shape, jax.eval_shape(one, jnp.int32(0)).dtype)
        scores = jax.lax.fori_loop(0, batch.num_microbatches, add, zeros)
        if mesh is None:
            return scores
        rows = sharding.named_sharding(mesh, scores.shape, (None, "batch", *[None] * (scores.ndim - 2)))
        return jax.lax.with_sharding_constraint(scores, rows)

    return jax.jit(scorer)
