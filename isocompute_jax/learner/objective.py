"""What one update minimises: per-token terms, their weights, and what a practitioner watches beside them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, Literal

import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from isocompute_jax.learner import losses
from isocompute_jax.learner.batches import Batch
from isocompute_jax.learner.credit import Credit
from isocompute_jax.learner.routing import SUMMED, finish_routing
from isocompute_jax.options import check, described, field_of, named, option
from isocompute_jax.records.errors import InputError

RatioFrom = Literal["old", "sampler"]
TermIn = Literal["loss", "reward"]
Routing = Literal["own", "compare", "replay"]
Params = Any
"""The parameters of any model: a pytree of arrays."""
Metrics = dict[str, Array]


@flax.struct.dataclass
class Scores:
    """What a model says of the tokens of a micro-batch, whose shape [N, R, T] or [N, T] is that of its `tokens`."""

    logprobs: Float[Array, "..."]  # log-probabilities, in nats
    entropies: Float[Array, "..."]  # of the distributions that the tokens were drawn from, in nats
    # what else it reports of itself, summed over trained tokens, or maxima by a name in `_max`
    metrics: Metrics = flax.struct.field(default_factory=dict)

    @classmethod
    def of(cls, found: Scores | tuple[Array, Array]) -> Scores:
        """What a score function returned."""
        return found if isinstance(found, Scores) else cls(*found)


Score = Callable[[Params, Any], Scores | tuple[Array, Array]]
"""A model, as the learner sees it: (params, micro-batch) -> `Scores`, or the pair without metrics."""


@described
@dataclasses.dataclass(frozen=True)
class LossConfig:
    """What one update minimises; equations and sources are in `losses`."""

    policy_loss: losses.PolicyLoss = option(
        "clipped",
        "Policy-gradient term: reinforce, clipped (PPO, GRPO, DAPO), gspo, cispo, dppo_tv or dppo_kl (DPPO), sapo, or "
        "none, to learn from the KL and entropy terms alone.",
    )
    clip_low: float = option(
        0.2,
        "The ratio is clipped below 1 - clip_low. Of DPPO, how far a token may diverge where the advantage is "
        "negative (the paper: 0.15 for dppo_tv, 0.05 for dppo_kl).",
        low=0,
    )
    clip_high: float = option(
        0.2,
        "The ratio is clipped above 1 + clip_high; infinite for not at all. Of DPPO, the divergence where the "
        "advantage is positive.",
        low=0,
        finite=False,
    )
    dual_clip: float = option(
        0.0,
        "Where the advantage is negative, the ratio is clipped above this too (3 is usual); 0 for no such bound. For "
        "clipped and gspo.",
        low=0,
        later=True,
    )
    ratio_from: RatioFrom = option(
        "old",
        "The ratio's denominator: old, the learner before the update, or sampler, what the sampler reported "
        "(asynchronous training; the sampler correction is then off, it would correct twice).",
    )
    correction_level: losses.CorrectionLevel = option("token", "Sampler correction per token or per sequence.")
    correction_mode: losses.CorrectionMode = option(
        "truncate", "Sampler correction: truncate (TIS), mask (of tokens: IcePop), kpop, or off."
    )
    correction_low: float = option(0.5, "Lower end of the kept range in mode mask.", low=0)
    correction_high: float = option(
        2.0,
        "The cap of truncate, the upper end of mask, the most that kpop lets a token diverge (0.1); infinite for none.",
        above=0,
        finite=False,
    )
    kl_coef: float = option(0.0, "Weight of the KL penalty towards the reference policy; 0 needs no reference.", low=0)
    kl_estimator: losses.KLEstimator = option("k2", "Estimator of the KL penalty: k1, k2 or k3.")
    kl_ratio: bool = option(
        False,
        "Weigh each KL term of the loss with the policy's ratio, gradient included: unbiased with k3 (DeepSeek-V3.2).",
        later=True,
    )
    kl_in: TermIn = option(
        "loss",
        "Where the KL penalty stands: loss, a term per token; reward, subtracted from each rollout's reward, by k1 "
        "before the update and summed over its tokens (PPO, RLOO).",
        later=True,
    )
    entropy_coef: float = option(0.0, "Weight of the entropy bonus; with `entropy_target`, the first one.", low=0)
    entropy_in: TermIn = option(
        "loss",
        "Where the entropy bonus stands: loss, the exact entropy of each token; reward, minus the sum of the log-"
        "probabilities that a rollout's tokens had before the update, added to its reward.",
        later=True,
    )
    entropy_target: float = option(
        0.0,
        "Entropy in nats per token below which the bonus acts, with a weight that grows while entropy is below and "
        "falls while it is above (Skywork-OR1); 0 for a fixed weight.",
        low=0,
        later=True,
    )
    entropy_coef_change: float = option(
        1e-4, "What the weight of the bonus changes by at each step, with `entropy_target`.", low=0, later=True
    )
    entropy_coef_max: float = option(5e-3, "Greatest weight of the bonus, with `entropy_target`.", low=0, later=True)
    routing: Routing = option(
        "own",
        "Experts of a mixture: own, the learner's router chooses; compare, it does, and the share of the sampler's "
        "choices that it shares is logged; replay, those that the sampler chose (arXiv 2510.11370), with weights from "
        "the learner's router, which learns through them.",
        later=True,
    )
    chunk_tokens: int | None = option(
        None,
        "Logits that may exist at once on a device, in tokens of the whole vocabulary; None: 256 MiB of float32.",
        low=1,
        identity=False,
    )
    tau_positive: float = option(
        1.0, "sapo: how fast its gate closes where the advantage is positive.", low=0.01, later=True
    )
    tau_negative: float = option(1.05, "sapo: the same where it is negative.", low=0.01, later=True)

    def __post_init__(self) -> None:
        check(self)
        if 0 < self.dual_clip <= 1:
            raise InputError(
                field_of(self, "dual_clip"),
                f" = {self.dual_clip} must be above 1, or 0 for no such bound: it would take the gradient of ratios "
                "that have not moved",
            )
        if self.correction_mode == "kpop" and self.correction_level != "token":
            raise InputError(
                field_of(self, "correction_level"),
                " = 'sequence' is not for correction_mode='kpop': set it to 'token'",
            )

    @property
    def bounds(self) -> dict[str, float]:
        """What bounds the policy-gradient term, as `losses.PolicyGradient` takes it."""
        if self.policy_loss == "sapo":
            return {"tau_positive": self.tau_positive, "tau_negative": self.tau_negative}
        return {"clip_low": self.clip_low, "clip_high": self.clip_high, "dual_clip": self.dual_clip or math.inf}

    @property
    def reads_reference(self) -> bool:
        """Whether an update scores the reference policy."""
        return self.kl_coef > 0 and self.kl_in == "loss"

    @property
    def in_reward(self) -> bool:
        """Whether a term is part of what rollouts are worth, so that they are scored before the update."""
        return (self.kl_coef > 0 and self.kl_in == "reward") or (self.entropy_coef > 0 and self.entropy_in == "reward")


Loss = Callable[[Params, Batch], tuple[Array, Metrics]]


def make_loss(
    score: Score,
    config: LossConfig,
    credited: Credit,
    reference_params: Params | None,
    entropy_coef: float | Float[Array, ""] | None = None,
) -> Loss:
    """`loss(params, micro-batch) -> (scalar, metrics)`; summing both over micro-batches gives those of the batch.

    Terms that stand in the reward (`kl_in`, `entropy_in`) are in `credited` already. `entropy_coef` is used in place of
    the config's where it is given.
    """
    entropy_coef = config.entropy_coef if entropy_coef is None else entropy_coef
    entropy_coef = entropy_coef if config.entropy_in == "loss" else 0.0

    def loss(params: Params, batch: Batch) -> tuple[Array, Metrics]:
        scores = Scores.of(score(params, batch))
        logprobs, entropies = scores.logprobs, scores.entropies
        tokens = batch.credit_of_tokens(credited)
        mask = jnp.asarray(batch.mask & tokens.takes_part)
        segments = None if batch.segments is None else jnp.asarray(batch.segments)
        sampler = jnp.asarray(batch.sampler_logprobs)
        old = jax.lax.stop_gradient(logprobs) if batch.old_logprobs is None else jnp.asarray(batch.old_logprobs)
        denominator = sampler if config.ratio_from == "sampler" else old
        policy, correction = policy_gradient_terms(
            config, logprobs, old, sampler, mask, jnp.asarray(tokens.advantages), segments
        )
        policy_loss = jnp.sum(jnp.where(mask, tokens.policy_weights, 0.0) * (correction * policy.loss))
        regularizer_weights = jnp.where(mask, tokens.regularizer_weights, 0.0)
        total = policy_loss - entropy_coef * jnp.sum(regularizer_weights * entropies)
        kl = jnp.zeros(())
        if config.reads_reference:
            reference = batch.reference_logprobs
            if reference is None:
                if reference_params is None:
                    raise ValueError("kl_coef > 0 needs reference_params, or a batch with reference_logprobs")
                reference = Scores.of(jax.lax.stop_gradient(score(reference_params, batch))).logprobs
            terms = losses.kl_penalty(logprobs, jnp.asarray(reference), mask, estimator=config.kl_estimator)
            if config.kl_ratio:
                terms = losses.masked_ratio(logprobs, denominator, mask) * terms
            kl = jnp.sum(regularizer_weights * terms)
            total = total + config.kl_coef * kl
        metrics = token_metrics(mask, logprobs, sampler, entropies, policy, correction, config)
        return total, {**scores.metrics, **metrics, "loss": total, "policy_loss": policy_loss, "kl": kl}

    return loss


def policy_gradient_terms(
    config: LossConfig,
    logprobs: Float[Array, "... T"],
    old_logprobs: Float[Array, "... T"],
    sampler_logprobs: Float[Array, "... T"],
    mask: Bool[Array, "... T"],
    advantages: Float[Array, "... #T"],
    segments: Int[Array, "... T"] | None,
) -> tuple[losses.PolicyTerms, Float[Array, "... T"]]:
    """The policy-gradient terms that `config` names, and the weights that correct them for the sampler's mismatch."""
    from_sampler = config.ratio_from == "sampler"
    policy = named(losses.POLICY_LOSSES, config.policy_loss, "policy_loss")(
        logprobs,
        sampler_logprobs if from_sampler else old_logprobs,
        mask,
        advantages,
        segments=segments,
        **config.bounds,
    )
    correction = losses.sampler_correction(
        jax.lax.stop_gradient(old_logprobs),
        sampler_logprobs,
        mask,
        segments=segments,
        level=config.correction_level,
        mode="off" if from_sampler else config.correction_mode,
        low=config.correction_low,
        high=config.correction_high,
    )
    return policy, correction


def token_metrics(
    mask: Array,
    logprobs: Array,
    sampler_logprobs: Array,
    entropies: Array,
    policy: losses.PolicyTerms,
    correction: Array,
    config: LossConfig,
) -> Metrics:
    """Sums over trained tokens (and `_max` maxima) of what a practitioner watches; `finish_metrics` divides."""

    def total(x: Array) -> Array:
        return jnp.sum(jnp.where(mask, x, 0.0))

    difference = jnp.where(mask, jnp.abs(logprobs - sampler_logprobs), 0.0)
    capped = (correction >= config.correction_high) & (config.correction_mode == "truncate")
    return {
        "trained_tokens": total(jnp.ones_like(logprobs)),
        "entropy": total(entropies),
        "ratio": total(policy.ratio),
        "ratio_max": jnp.max(jnp.where(mask, policy.ratio, 0.0)),
        "clip_fraction": total(policy.cut.astype(logprobs.dtype)),
        "correction": total(correction),
        "correction_cut": total((capped | (correction == 0)).astype(logprobs.dtype)),
        "logprob_difference": total(difference),
        "logprob_difference_max": jnp.max(difference),
    }


SUMS = ("loss", "policy_loss", "kl", "trained_tokens")
"""Metrics that are already aggregated by the batch's weights, or counts; the others are means over trained tokens."""


def merge(name: str) -> Callable[[Array, Array], Array]:
    """How a metric of two micro-batches becomes one: maxima by name, everything else is a sum."""
    return jnp.maximum if name.endswith("_max") else jnp.add


def finish_metrics(metrics: Metrics) -> Metrics:
    """Turns sums over trained tokens into means, and those of a mixture of experts into its scalars."""
    tokens = jnp.maximum(metrics["trained_tokens"], 1)
    routing = {name: value for name, value in metrics.items() if name in SUMMED}
    finished = {
        name: value if name in SUMS or name.endswith("_max") else value / tokens
        for name, value in metrics.items()
        if name not in routing
    }
    return {**finished, **finish_routing(routing)} if routing else finished
