"""Log-probabilities of a whole batch without a gradient: `old_logprobs`, and the learner's side of agreement checks."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Float

from isocompute_jax import sharding
from isocompute_jax.learner.batch import TrainBatch
from isocompute_jax.learner.step import completion_logprobs, microbatch_of
from isocompute_jax.model import ModelConfig, Params


def make_scorer(
    config: ModelConfig, *, chunk_tokens: int, mesh: Mesh | None = None
) -> Callable[[Params, TrainBatch, Float[Array, ""]], Float[Array, "M N R T"]]:
    """Compiles `score(params, batch, temperature)`: the log-probabilities that a step on `batch` would start from.

    The same forward pass as the step's, micro-batch by micro-batch; those without rows are zero and not computed.

    Args:
      config: model shape.
      chunk_tokens: tokens whose logits may exist at once.
      mesh: where parameters and batch are sharded; None for one device.
    """

    def score(params: Params, batch: TrainBatch, temperature: Float[Array, ""]) -> Float[Array, "M N R T"]:
        def add(index: Array, scores: Array) -> Array:
            part = microbatch_of(batch, index, mesh)
            logprobs, _ = completion_logprobs(
                config,
                params,
                part.prompt_tokens,
                part.prompt_mask,
                part.tokens,
                temperature=temperature,
                chunk_tokens=chunk_tokens,
            )
            return jax.lax.dynamic_update_index_in_dim(scores, logprobs, index, 0)

        zeros = jnp.zeros(batch.tokens.shape, config.float_dtype)
        scores = jax.lax.fori_loop(0, batch.num_microbatches, add, zeros)
        if mesh is None:
            return scores
        rows = sharding.named_sharding(mesh, scores.shape, (None, "batch", None, None))
        return jax.lax.with_sharding_constraint(scores, rows)

    return jax.jit(score)
