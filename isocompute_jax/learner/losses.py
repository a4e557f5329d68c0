"""Per-token losses of the GRPO family, as functions on arrays; each returns terms to be minimised.

lp = `logprobs` (current), old = `old_logprobs` (learner, before the update), smp = `sampler_logprobs`,
ref = `reference_logprobs`, A = `advantages`; all in nats, of the tempered distribution, [..., T]. Aggregation is
separate: `aggregation_weights` names how per-token terms become one number.
"""

from __future__ import annotations

import functools
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

Aggregation = Literal["sequence_mean", "token_mean", "prompt_mean", "constant"]
KLEstimator = Literal["k1", "k2", "k3"]
CorrectionLevel = Literal["token", "sequence"]
CorrectionMode = Literal["truncate", "mask"]


def masked_ratio(logprobs: Array, denominator: Array, mask: Array) -> Array:
    """exp(lp - denominator) on the mask, 1 elsewhere; masked before exp, so no NaN gradient can leave padding."""
    return jnp.exp(jnp.where(mask, logprobs - denominator, 0.0))


def reinforce_loss(logprobs: Float[Array, "... T"], advantages: Float[Array, "... #T"]) -> Float[Array, "... T"]:
    """-A lp_t (Williams 1992)."""
    return -advantages * logprobs


def clipped_loss(
    ratio: Float[Array, "... T"], advantages: Float[Array, "... #T"], *, clip_low: float, clip_high: float
) -> Float[Array, "... T"]:
    """-min(rho A, clip(rho, 1 - clip_low, 1 + clip_high) A).

    PPO and GRPO use 0.2 / 0.2 (arXiv 2402.03300), DAPO's clip-higher 0.2 / 0.28 (2503.14476). With the sequence ratio
    of `sequence_ratio` it is GSPO (2507.18071), about 3e-4 / 4e-4.
    """
    clipped = jnp.clip(ratio, 1.0 - clip_low, 1.0 + clip_high)
    return -jnp.minimum(ratio * advantages, clipped * advantages)


def sequence_ratio(
    logprobs: Float[Array, "... T"], denominator: Float[Array, "... T"], mask: Bool[Array, "... T"]
) -> Float[Array, "... T"]:
    """GSPO's ratio s = exp(mean_t(lp_t - old_t)), in token form sg(s) exp(lp_t - sg(lp_t)) (arXiv 2507.18071)."""
    difference = jnp.where(mask, logprobs - denominator, 0.0)
    lengths = jnp.maximum(jnp.sum(mask, axis=-1, keepdims=True), 1)
    mean = jnp.sum(difference, axis=-1, keepdims=True) / lengths
    own = jnp.where(mask, logprobs - jax.lax.stop_gradient(logprobs), 0.0)
    return jnp.exp(jax.lax.stop_gradient(mean)) * jnp.exp(own)


def cispo_loss(
    logprobs: Float[Array, "... T"],
    ratio: Float[Array, "... T"],
    advantages: Float[Array, "... #T"],
    *,
    clip_low: float,
    clip_high: float,
) -> Float[Array, "... T"]:
    """-sg(clip(rho_t, 1 - clip_low, 1 + clip_high)) A lp_t (arXiv 2506.13585).

    ScaleRL caps only above: clip_low = 1 (no lower bound) and clip_high between 3 and 7, a cap of 4 to 8.
    """
    weight = jax.lax.stop_gradient(jnp.clip(ratio, 1.0 - clip_low, 1.0 + clip_high))
    return -weight * advantages * logprobs


def sampler_correction(
    old_logprobs: Float[Array, "... T"],
    sampler_logprobs: Float[Array, "... T"],
    mask: Bool[Array, "... T"],
    *,
    level: CorrectionLevel,
    mode: CorrectionMode,
    low: float,
    high: float,
) -> Float[Array, "... T"]:
    """Weights for the mismatch of two engines, w = exp(old - smp); no gradient passes.

    Args:
      old_logprobs: of the learner, before the update.
      sampler_logprobs: as the sampler reported them.
      mask: trained tokens.
      level: `token` weighs each token by its own ratio; `sequence` a whole rollout by the ratio of its summed
        log-probabilities.
      mode: `truncate` is min(w, high) (truncated importance sampling, TIS; cap 2 is usual); `mask` drops what lies
        outside [low, high].
      low: lower end of the kept range, read by `mask` alone.
      high: the cap, or the upper end of the kept range.
    """
    difference = jnp.where(mask, old_logprobs - sampler_logprobs, 0.0)
    if level == "sequence":
        difference = jnp.broadcast_to(jnp.sum(difference, axis=-1, keepdims=True), difference.shape)
    weights = jnp.exp(difference)
    if mode == "truncate":
        weights = jnp.minimum(weights, high)
    else:
        weights = jnp.where((weights >= low) & (weights <= high), weights, 0.0)
    return jax.lax.stop_gradient(weights)


def kl_penalty(
    logprobs: Float[Array, "... T"],
    reference_logprobs: Float[Array, "... T"],
    mask: Bool[Array, "... T"],
    *,
    estimator: KLEstimator,
) -> Float[Array, "... T"]:
    """Estimators of KL(policy || reference) from sampled tokens, with x = ref - lp (Schulman 2020).

    k1 = -x: unbiased in value, but on-policy its gradient has zero mean, so as a loss it does nothing;
    k2 = x^2 / 2: its gradient is that of the reverse KL (per token, prefixes fixed), the one usually meant;
    k3 = exp(x) - x - 1: unbiased and positive in value, but its gradient is that of the forward KL.
    """
    x = jnp.where(mask, reference_logprobs - logprobs, 0.0)
    if estimator == "k1":
        return -x
    if estimator == "k2":
        return x * x / 2.0
    if estimator == "k3":
        return jnp.exp(x) - x - 1.0
    raise ValueError(f"unknown KL estimator {estimator!r}")


@functools.partial(jax.jit, static_argnames=("aggregation", "max_tokens"))
def aggregation_weights(
    lengths: Int[Array | np.ndarray, "P G"],
    keep: Bool[Array | np.ndarray, "P"],
    *,
    aggregation: Aggregation,
    max_tokens: int,
) -> Float[Array, "P G"]:
    """The weight of each token of a rollout, so that loss = sum(weight x per-token term) over the whole batch.

    Denominators are global: they are taken here, from the whole batch, before it is split into micro-batches or
    shards, so splitting never changes a gradient.

    Args:
      lengths: [P, G] trained tokens per rollout.
      keep: [P] groups that take part; the others get weight 0 and leave every denominator.
      aggregation:
        `sequence_mean`: token mean per rollout, then mean over rollouts (GRPO);
        `token_mean`: all tokens of the batch alike (DAPO as implemented);
        `prompt_mean`: token mean within a problem's group, then mean over problems (ScaleRL; DAPO's formula);
        `constant`: sum / (rollouts x max_tokens) (Dr. GRPO).
      max_tokens: longest possible completion; `constant` divides by it.

    Returns:
      [P, G] weights.
    """
    lengths = jnp.where(keep[:, None], lengths, 0)
    problems = jnp.maximum(jnp.sum(keep), 1)
    rollouts = problems * lengths.shape[1]
    if aggregation == "sequence_mean":
        weights = 1.0 / (rollouts * jnp.maximum(lengths, 1))
    elif aggregation == "token_mean":
        weights = jnp.broadcast_to(1.0 / jnp.maximum(jnp.sum(lengths), 1), lengths.shape)
    elif aggregation == "prompt_mean":
        tokens = jnp.maximum(jnp.sum(lengths, axis=1, keepdims=True), 1)
        weights = jnp.broadcast_to(1.0 / (problems * tokens), lengths.shape)
    elif aggregation == "constant":
        weights = jnp.broadcast_to(1.0 / (rollouts * max_tokens), lengths.shape)
    else:
        raise ValueError(f"unknown aggregation {aggregation!r}")
    return jnp.where(keep[:, None], weights, 0.0)
