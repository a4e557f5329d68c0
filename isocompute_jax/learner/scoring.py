"""Our transformer as the learner's score function, and the log-probabilities of whole batches without a gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int

from isocompute_jax import model
from isocompute_jax.learner.batches import Batch, batch_shardings, microbatch_of
from isocompute_jax.learner.objective import Params, Routing, Score, Scores
from isocompute_jax.learner.packing import PackedBatch
from isocompute_jax.learner.routing import routing_sums
from isocompute_jax.learner.trees import TreeBatch
from isocompute_jax.model import ModelConfig, Routed


def make_score(
    config: ModelConfig,
    *,
    temperature: float,
    chunk_tokens: int | None,
    routing: Routing = "own",
    mesh: Mesh | None = None,
) -> Score:
    """The score function of our transformer, for every layout of a batch.

    A mixture of experts reports how its experts are used (`learner.routing`).

    Args:
      config: model shape.
      temperature: of the distribution that was sampled from.
      chunk_tokens: logits that may exist at once on a device, in tokens (see `model.token_logprobs`).
      routing: what becomes of the experts that the sampler chose, where the batch has them; see `LossConfig`.
      mesh: where parameters and batches are sharded; None for one device.
    """
    transformer = _Transformer(config, temperature, chunk_tokens, mesh)
    replays = routing == "replay"

    def score(params: Params, batch: Batch) -> Scores:
        match batch:
            case TreeBatch():
                return Scores(*_score_trees(transformer, params, batch))
            case PackedBatch():
                pair, routed = _score_packed(transformer, params, batch, replays)
            case _:
                pair, routed = _score_completions(
                    transformer,
                    params,
                    batch.prompt_tokens,
                    batch.prompt_mask,
                    batch.tokens,
                    prompt_experts=batch.prompt_experts if replays else None,
                    experts=batch.experts if replays else None,
                    support=batch.support,
                )
        if routed is None:
            return Scores(*pair)
        sampled = None if routing == "own" else batch.predicting_experts
        return Scores(*pair, routing_sums(config, routed, batch.mask, sampled))

    return score


Pair = tuple[Array, Array]
"""Log-probabilities and entropies."""


class _Transformer(NamedTuple):
    """What a model is scored with; see `make_score`."""

    config: ModelConfig
    temperature: float | Array
    chunk_tokens: int | None
    mesh: Mesh | None

    def token_logprobs(self, params: model.Params, hidden: Array, targets: Array, support: Array | None = None) -> Pair:
        """Of the targets [N, T], predicted from hidden states [N, T, D], among what each could be [N, T, K]."""
        return model.token_logprobs(
            self.config,
            params,
            hidden,
            targets,
            temperature=self.temperature,
            chunk_tokens=self.chunk_tokens,
            support=support,
            mesh=self.mesh,
        )


def completion_logprobs(
    config: ModelConfig,
    params: model.Params,
    prompt_tokens: Int[Array | np.ndarray, "N S"],
    prompt_mask: Bool[Array | np.ndarray, "N S"],
    tokens: Int[Array | np.ndarray, "N R T"],
    *,
    temperature: float | Array,
    chunk_tokens: int | None,
    mesh: Mesh | None = None,
) -> tuple[Float[Array, "N R T"], Float[Array, "N R T"]]:
    """Log-probabilities and entropies (nats) of completions, each prompt read once for its R rollouts.

    `params` may be wider than `config.dtype` (float32 master weights): they are cast, and gradients are not, that of
    the head least: it is summed in float32 over all tokens and never rounded.
    """
    transformer = _Transformer(config, temperature, chunk_tokens, mesh)
    return _score_completions(transformer, params, prompt_tokens, prompt_mask, tokens)[0]


def _score_completions(
    transformer: _Transformer,
    params: model.Params,
    prompt_tokens: Array | np.ndarray,
    prompt_mask: Array | np.ndarray,
    tokens: Array | np.ndarray,
    *,
    prompt_experts: Array | np.ndarray | None = None,
    experts: Array | np.ndarray | None = None,
    support: Array | np.ndarray | None = None,
) -> tuple[Pair, Routed | None]:
    """`completion_logprobs`, and where the positions were routed that the tokens are predicted from."""
    config, mesh = transformer.config, transformer.mesh
    masters, params = params, model.cast_params(params, config.dtype)
    tokens = jnp.asarray(tokens)
    rows, rollouts, length = tokens.shape
    hidden, prefix = model.prefill(
        config, params, jnp.asarray(prompt_tokens), jnp.asarray(prompt_mask), replay=_array(prompt_experts), mesh=mesh
    )
    replay = None if experts is None else jnp.asarray(experts)[:, :, :-1]
    rest, routed = model.extend(config, params, tokens[..., :-1], prefix, replay=replay, mesh=mesh)

    def joined(prompt: Array, rest: Array, axis: int) -> Array:
        """The prompt's last position, for each of its rollouts, before the positions of the completions."""
        last = jnp.expand_dims(jax.lax.index_in_dim(prompt, -1, axis), axis)
        shape = (*rest.shape[: axis + 1], 1, *rest.shape[axis + 2 :])
        return jnp.concatenate([jnp.broadcast_to(last, shape), rest], axis + 1)

    places = joined(hidden, rest, 1).reshape(rows, rollouts * length, config.embed_dim)
    if support is not None:
        support = jnp.asarray(support).reshape(rows, rollouts * length, -1)
    scores = transformer.token_logprobs(masters, places, tokens.reshape(rows, rollouts * length), support)
    logprobs, entropies = (x.reshape(tokens.shape) for x in scores)
    if prefix.routed is not None:
        routed = jax.tree.map(lambda prompt, rest: joined(prompt, rest, 2), prefix.routed, routed)
    return (logprobs, entropies), routed


def _score_packed(
    transformer: _Transformer, params: model.Params, batch: PackedBatch, replays: bool
) -> tuple[Pair, Routed | None]:
    """Log-probabilities and entropies (nats, [N, T]) of the tokens of a micro-batch, and their routing.

    They are 0 at the first token of each sequence, and on padding. Routing is that of the positions that the tokens
    are predicted from. `params` may be wider than `config.dtype`, as in `completion_logprobs`.
    """
    config, mesh = transformer.config, transformer.mesh
    tokens, first = jnp.asarray(batch.tokens), jnp.asarray(batch.first)
    replay = _array(batch.experts if replays else None)
    hidden, routed = model.packed_hidden(
        config, model.cast_params(params, config.dtype), tokens, first, replay=replay, mesh=mesh
    )
    # A token is predicted one before it. The last of a row predicts nothing; its target is any.
    support = None if batch.support is None else jnp.roll(jnp.asarray(batch.support), -1, axis=1)
    scores = transformer.token_logprobs(params, hidden, jnp.roll(tokens, -1, axis=1), support)
    begins = first == jnp.arange(tokens.shape[1])
    logprobs, entropies = (jnp.where(begins, 0.0, jnp.roll(x, 1, axis=1)) for x in scores)
    return (logprobs, entropies), jax.tree.map(lambda x: jnp.roll(x, 1, axis=2), routed)


def _score_trees(transformer: _Transformer, params: model.Params, batch: TreeBatch) -> Pair:
    """Log-probabilities and entropies (nats, [N, R, T]) of the completions of a micro-batch: those of their edges."""
    config = transformer.config
    hidden = model.tree_hidden(
        config,
        model.cast_params(params, config.dtype),
        jnp.asarray(batch.nodes),
        jnp.asarray(batch.positions),
        jnp.asarray(batch.ends),
        mesh=transformer.mesh,
    )
    scores = transformer.token_logprobs(
        params,
        jnp.take_along_axis(hidden, jnp.asarray(batch.edge_nodes)[..., None], axis=1),
        jnp.asarray(batch.edge_tokens),
    )
    rows, rollouts, length = batch.edges.shape
    edges = jnp.asarray(batch.edges).reshape(rows, rollouts * length)
    logprobs, entropies = (jnp.take_along_axis(x, edges, axis=1).reshape(rows, rollouts, length) for x in scores)
    return logprobs, entropies


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
        return jax.lax.with_sharding_constraint(scores, batch_shardings(batch, mesh).tokens)

    return jax.jit(scorer)
