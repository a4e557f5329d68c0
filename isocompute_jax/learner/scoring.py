"""Our transformer as the learner's score function, and the log-probabilities of whole batches without a gradient."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int

from isocompute_jax import model, sharding
from isocompute_jax.learner.batches import Batch, TokenBatch, microbatch_of
from isocompute_jax.learner.objective import Params, Routing, Score, Scores
from isocompute_jax.learner.routing import routing_sums
from isocompute_jax.model import ModelConfig


def make_score(
    config: ModelConfig,
    *,
    temperature: float,
    chunk_tokens: int,
    routing: Routing = "own",
    mesh: Mesh | None = None,
) -> Score:
    """The score function of our transformer. A mixture of experts reports how its experts are used (`learner.routing`).

    Args:
      config: model shape.
      temperature: of the distribution that was sampled from.
      chunk_tokens: tokens whose logits may exist at once.
      routing: what becomes of the experts that the sampler chose, where the batch has them; see `LossConfig`.
      mesh: where parameters and batch are sharded; None for one device.
    """

    def score(params: Params, batch: TokenBatch) -> Scores:
        replay = routing == "replay"
        hidden, routed = _read(
            config,
            params,
            batch.prompt_tokens,
            batch.prompt_mask,
            batch.tokens,
            prompt_experts=batch.prompt_experts if replay else None,
            experts=batch.experts if replay else None,
            mesh=mesh,
        )
        scores = _scores(config, params, hidden, batch.tokens, temperature=temperature, chunk_tokens=chunk_tokens)
        if routed is None:
            return Scores(*scores)
        sampled = None if routing == "own" else batch.predicting_experts
        return Scores(*scores, routing_sums(config, routed, batch.mask, sampled))

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
    mesh: Mesh | None = None,
) -> tuple[Float[Array, "N R T"], Float[Array, "N R T"]]:
    """Log-probabilities and entropies (nats) of completions, each prompt read once for its R rollouts.

    `params` may be wider than `config.dtype` (float32 master weights): they are cast, and gradients are not.
    """
    hidden, _ = _read(config, params, prompt_tokens, prompt_mask, tokens, mesh=mesh)
    return _scores(config, params, hidden, tokens, temperature=temperature, chunk_tokens=chunk_tokens)


def _read(
    config: ModelConfig,
    params: Params,
    prompt_tokens: Array | np.ndarray,
    prompt_mask: Array | np.ndarray,
    tokens: Array | np.ndarray,
    *,
    prompt_experts: Array | np.ndarray | None = None,
    experts: Array | np.ndarray | None = None,
    mesh: Mesh | None,
) -> tuple[Float[Array, "N R T D"], model.Routed | None]:
    """Hidden states that each token of the completions is predicted from, and where those positions were routed."""
    params = model.cast_params(params, config.dtype)
    tokens = jnp.asarray(tokens)
    hidden, prefix = model.prefill(
        config, params, jnp.asarray(prompt_tokens), jnp.asarray(prompt_mask), replay=_array(prompt_experts), mesh=mesh
    )
    replay = None if experts is None else jnp.asarray(experts)[:, :, :-1]
    rest, routed = model.extend(config, params, tokens[..., :-1], prefix, replay=replay, mesh=mesh)

    def joined(last: Array, rest: Array, axis: int) -> Array:
        """The prompt's last position, for each of its rollouts, before the positions of the completions."""
        shape = list(rest.shape)
        shape[axis] = 1
        return jnp.concatenate([jnp.broadcast_to(jnp.expand_dims(last, axis), shape), rest], axis)

    hidden = joined(hidden[:, None, -1], rest, 2)
    if prefix.routed is not None:
        routed = jax.tree.map(lambda prompt, rest: joined(prompt[:, :, None, -1], rest, 3), prefix.routed, routed)
    return hidden, routed


def _scores(
    config: ModelConfig,
    params: Params,
    hidden: Float[Array, "N R T D"],
    tokens: Array | np.ndarray,
    *,
    temperature: float | Array,
    chunk_tokens: int,
) -> tuple[Float[Array, "N R T"], Float[Array, "N R T"]]:
    """Log-probabilities and entropies of `tokens`, from the hidden states before them."""
    rows, rollouts, length, _ = hidden.shape
    logprobs, entropies = model.token_logprobs(
        config,
        model.cast_params(params, config.dtype),
        hidden.reshape(rows, rollouts * length, -1),
        jnp.asarray(tokens).reshape(rows, rollouts * length),
        temperature=temperature,
        chunk_tokens=chunk_tokens,
    )
    return logprobs.reshape(tokens.shape), entropies.reshape(tokens.shape)


def _array(x: Array | np.ndarray | None) -> Array | None:
    return None if x is None else jnp.asarray(x)


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
