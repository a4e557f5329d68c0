"""One GRPO update: jitted, sharded, split into micro-batches under global denominators."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int

from isocompute_jax import model, sharding
from isocompute_jax.learner import losses
from isocompute_jax.learner.batch import TrainBatch
from isocompute_jax.learner.state import TrainState, state_shardings
from isocompute_jax.model import ModelConfig, Params

PolicyLoss = Literal["reinforce", "clipped", "gspo", "cispo"]
RatioFrom = Literal["old", "sampler"]
Metrics = dict[str, Array]


@dataclasses.dataclass(frozen=True)
class LossConfig:
    """What one update minimises (REFERENCE section 2).

    Attributes:
      policy_loss: policy-gradient term.
      clip_low: the ratio is clipped below 1 - clip_low.
      clip_high: the ratio is clipped above 1 + clip_high.
      ratio_from: the ratio's denominator: `old`, the learner before the update, or `sampler`, what the sampler
        reported (asynchronous training; the sampler correction is then off, it would correct twice).
      correction_level: sampler correction per `token` or per `sequence`.
      correction_mode: `truncate` (TIS), `mask`, or `off`.
      correction_low: lower end of the kept range in mode `mask`.
      correction_high: the cap of `truncate`, the upper end of `mask`.
      kl_coef: weight of the KL penalty towards the reference policy; 0 needs no reference.
      kl_estimator: `k1`, `k2` or `k3`.
      entropy_coef: weight of the entropy bonus.
      chunk_tokens: tokens whose logits may exist at once.
    """

    policy_loss: PolicyLoss = "clipped"
    clip_low: float = 0.2
    clip_high: float = 0.2
    ratio_from: RatioFrom = "old"
    correction_level: losses.CorrectionLevel = "token"
    correction_mode: Literal["truncate", "mask", "off"] = "truncate"
    correction_low: float = 0.5
    correction_high: float = 2.0
    kl_coef: float = 0.0
    kl_estimator: losses.KLEstimator = "k2"
    entropy_coef: float = 0.0
    chunk_tokens: int = 4096


TrainStep = Callable[..., tuple[TrainState, Metrics]]


def make_train_step(
    config: ModelConfig,
    loss_config: LossConfig,
    optimizer: optax.GradientTransformation,
    *,
    mesh: Mesh | None = None,
    donate: bool = False,
) -> TrainStep:
    """Compiles `train_step(state, batch, learning_rate, temperature, reference_params=None)`.

    The step returns the new state and a dict of float32 scalars. Micro-batches are summed, never averaged: the
    batch's weights hold the denominators of the whole batch. When no rollout takes part (every group had zero
    variance), parameters and optimizer state, moments included, stay as they are, and the step still counts.

    Args:
      config: model shape.
      loss_config: what to minimise.
      optimizer: from `make_optimizer`; its result is multiplied by -learning_rate.
      mesh: where the state is sharded; None for one device.
      donate: reuse the old state's memory (the caller must not touch the old state again).
    """

    def train_step(
        state: TrainState,
        batch: TrainBatch,
        learning_rate: Float[Array, ""],
        temperature: Float[Array, ""],
        reference_params: Params | None = None,
    ) -> tuple[TrainState, Metrics]:
        loss = make_loss(config, loss_config, temperature, reference_params)
        gradients, metrics = accumulate_gradients(loss, state.params, batch, mesh)
        if mesh is not None:
            gradients = jax.lax.with_sharding_constraint(gradients, model.param_shardings(config, mesh))
        direction, opt_state = optimizer.update(gradients, state.opt_state, state.params)
        updates = jax.tree.map(lambda x: -learning_rate * x, direction)
        params = optax.apply_updates(state.params, updates)
        stepped = batch.num_microbatches > 0
        params, opt_state = jax.tree.map(
            lambda new, old: jnp.where(stepped, new, old), (params, opt_state), (state.params, state.opt_state)
        )
        metrics = {**finish_metrics(metrics), "gradient_norm": optax.tree.norm(gradients)}
        return TrainState(state.step + 1, params, opt_state), metrics

    shardings = None if mesh is None else (state_shardings(config, mesh, optimizer), sharding.replicated(mesh))
    return jax.jit(train_step, donate_argnums=0 if donate else (), out_shardings=shardings)


def completion_logprobs(
    config: ModelConfig,
    params: Params,
    prompt_tokens: Int[Array, "N S"],
    prompt_mask: Bool[Array, "N S"],
    tokens: Int[Array, "N R T"],
    *,
    temperature: float | Array,
    chunk_tokens: int,
) -> tuple[Float[Array, "N R T"], Float[Array, "N R T"]]:
    """Log-probabilities and entropies (nats) of completions, each prompt read once for its R rollouts.

    `params` may be wider than `config.dtype` (float32 master weights): they are cast, and gradients are not.
    """
    params = model.cast_params(params, config.dtype)
    rows, rollouts, length = tokens.shape
    hidden, prefix = model.prefill(config, params, prompt_tokens, prompt_mask)
    first = jnp.broadcast_to(hidden[:, None, -1:], (rows, rollouts, 1, hidden.shape[-1]))
    rest = model.extend(config, params, tokens[..., :-1], prefix)
    hidden = jnp.concatenate([first, rest], axis=2).reshape(rows, rollouts * length, -1)
    scores = model.token_logprobs(
        config, params, hidden, tokens.reshape(rows, -1), temperature=temperature, chunk_tokens=chunk_tokens
    )
    logprobs, entropies = (x.reshape(tokens.shape) for x in scores)
    return logprobs, entropies


def make_loss(
    config: ModelConfig, loss_config: LossConfig, temperature: Array, reference_params: Params | None
) -> Callable[[Params, TrainBatch], tuple[Array, Metrics]]:
    """`loss(params, micro-batch) -> (scalar, metrics)`; summing both over micro-batches gives those of the batch."""
    if loss_config.kl_coef and reference_params is None:
        raise ValueError("kl_coef > 0 needs reference_params")

    def score(params: Params, batch: TrainBatch) -> tuple[Array, Array]:
        return completion_logprobs(
            config,
            params,
            batch.prompt_tokens,
            batch.prompt_mask,
            batch.tokens,
            temperature=temperature,
            chunk_tokens=loss_config.chunk_tokens,
        )

    def loss(params: Params, batch: TrainBatch) -> tuple[Array, Metrics]:
        logprobs, entropies = score(params, batch)
        old = jax.lax.stop_gradient(logprobs) if batch.old_logprobs is None else batch.old_logprobs
        policy_terms, ratio, correction = policy_gradient_terms(loss_config, batch, logprobs, old)
        policy_weights = jnp.where(batch.mask, batch.policy_weights[..., None], 0.0)
        regularizer_weights = jnp.where(batch.mask, batch.regularizer_weights[..., None], 0.0)
        policy_loss = jnp.sum(policy_weights * policy_terms)
        entropy_bonus = jnp.sum(regularizer_weights * entropies)
        total = policy_loss - loss_config.entropy_coef * entropy_bonus
        kl = jnp.zeros(())
        if loss_config.kl_coef and reference_params is not None:
            reference, _ = jax.lax.stop_gradient(score(reference_params, batch))
            terms = losses.kl_penalty(logprobs, reference, batch.mask, estimator=loss_config.kl_estimator)
            kl = jnp.sum(regularizer_weights * terms)
            total = total + loss_config.kl_coef * kl
        metrics = token_metrics(batch.mask, logprobs, batch.sampler_logprobs, entropies, ratio, correction, loss_config)
        return total, {**metrics, "loss": total, "policy_loss": policy_loss, "kl": kl}

    return loss


def policy_gradient_terms(
    config: LossConfig, batch: TrainBatch, logprobs: Array, old_logprobs: Array
) -> tuple[Array, Array, Array]:
    """The corrected per-token policy-gradient terms [N, R, T], the ratios, and the correction weights."""
    advantages = batch.advantages[..., None]
    denominator = old_logprobs if config.ratio_from == "old" else batch.sampler_logprobs
    clips = {"clip_low": config.clip_low, "clip_high": config.clip_high}
    ratio = losses.masked_ratio(logprobs, denominator, batch.mask)
    if config.policy_loss == "reinforce":
        terms = losses.reinforce_loss(logprobs, advantages)
    elif config.policy_loss == "clipped":
        terms = losses.clipped_loss(ratio, advantages, **clips)
    elif config.policy_loss == "gspo":
        ratio = losses.sequence_ratio(logprobs, denominator, batch.mask)
        terms = losses.clipped_loss(ratio, advantages, **clips)
    else:
        terms = losses.cispo_loss(logprobs, ratio, advantages, **clips)
    correction = jnp.ones_like(ratio)
    if config.correction_mode != "off" and config.ratio_from == "old":
        correction = losses.sampler_correction(
            jax.lax.stop_gradient(old_logprobs),
            batch.sampler_logprobs,
            batch.mask,
            level=config.correction_level,
            mode=config.correction_mode,
            low=config.correction_low,
            high=config.correction_high,
        )
    return correction * terms, ratio, correction


def accumulate_gradients(
    loss: Callable[[Params, TrainBatch], tuple[Array, Metrics]], params: Params, batch: TrainBatch, mesh: Mesh | None
) -> tuple[Params, Metrics]:
    """Sums gradients and metrics over the micro-batches that hold rows (a dynamic number, one compiled program)."""

    def one(index: Array) -> tuple[Params, Metrics]:
        (_, metrics), gradients = jax.value_and_grad(loss, has_aux=True)(params, microbatch_of(batch, index, mesh))
        return gradients, jax.lax.stop_gradient(metrics)

    def add(index: Array, total: tuple[Params, Metrics]) -> tuple[Params, Metrics]:
        gradients, metrics = one(index)
        summed = {name: merge(name)(total[1][name], value) for name, value in metrics.items()}
        return jax.tree.map(jnp.add, total[0], gradients), summed

    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(one, jnp.int32(0)))
    if batch.tokens.shape[0] == 1:
        # A loop over one micro-batch is loop-invariant: XLA would hoist it and compute it even for no rows at all.
        return jax.lax.cond(batch.num_microbatches > 0, lambda: one(jnp.int32(0)), lambda: zeros)
    return jax.lax.fori_loop(0, batch.num_microbatches, add, zeros)


def microbatch_of(batch: TrainBatch, index: Array, mesh: Mesh | None) -> TrainBatch:
    """Micro-batch `index`, without the leading M; its rows stay sharded over the batch axis."""

    def cut(x: Array) -> Array:
        part = jax.lax.dynamic_index_in_dim(x, index, keepdims=False)
        if mesh is None:
            return part
        axes = ("batch", *[None] * (part.ndim - 1))
        return jax.lax.with_sharding_constraint(part, sharding.named_sharding(mesh, part.shape, axes))

    arrays = dataclasses.replace(batch, num_microbatches=None)
    return dataclasses.replace(jax.tree.map(cut, arrays), num_microbatches=jnp.int32(1))


def merge(name: str) -> Callable[[Array, Array], Array]:
    """How a metric of two micro-batches becomes one: maxima by name, everything else is a sum."""
    return jnp.maximum if name.endswith("_max") else jnp.add


def token_metrics(
    mask: Array,
    logprobs: Array,
    sampler_logprobs: Array,
    entropies: Array,
    ratio: Array,
    correction: Array,
    config: LossConfig,
) -> Metrics:
    """Sums over trained tokens (and `_max` maxima) of what a practitioner watches; `finish_metrics` divides."""

    def total(x: Array) -> Array:
        return jnp.sum(jnp.where(mask, x, 0.0))

    difference = jnp.where(mask, jnp.abs(logprobs - sampler_logprobs), 0.0)
    clipped = (ratio < 1 - config.clip_low) | (ratio > 1 + config.clip_high)
    return {
        "trained_tokens": total(jnp.ones_like(logprobs)),
        "entropy": total(entropies),
        "ratio": total(ratio),
        "ratio_max": jnp.max(jnp.where(mask, ratio, 0.0)),
        "clip_fraction": total(clipped.astype(logprobs.dtype)),
        "correction": total(correction),
        "correction_cut": total(((correction >= config.correction_high) | (correction == 0)).astype(logprobs.dtype)),
        "logprob_difference": total(difference),
        "logprob_difference_max": jnp.max(difference),
    }


SUMS = ("loss", "policy_loss", "kl", "trained_tokens")
"""Metrics that are already aggregated by the batch's weights, or counts; the others are means over trained tokens."""


def finish_metrics(metrics: Metrics) -> Metrics:
    """Turns sums over trained tokens into means."""
    tokens = jnp.maximum(metrics["trained_tokens"], 1)
    return {name: value if name in SUMS or name.endswith("_max") else value / tokens for name, value in metrics.items()}


def place_batch(batch: TrainBatch, mesh: Mesh | None) -> TrainBatch:
    """Puts a host batch on the devices, rows sharded over the batch axis."""
    if mesh is None:
        return batch

    def place(x: Any) -> Any:
        axes = (None, "batch", *[None] * (x.ndim - 2))[: x.ndim]
        return jax.device_put(x, sharding.named_sharding(mesh, x.shape, axes))

    return jax.tree.map(place, batch)
