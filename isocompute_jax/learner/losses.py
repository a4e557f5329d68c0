"""Per-token losses of the GRPO family, as functions on arrays; each returns terms to be minimised.

lp = `logprobs` (current), old = `old_logprobs` (learner, before the update), smp = `sampler_logprobs`,
ref = `reference_logprobs`, A = `advantages`; all in nats, of the tempered distribution, [..., T]. Aggregation is
separate: `credit.aggregation_weights` names how per-token terms become one number.

A row of T tokens is one rollout, or holds several: then `segments` [..., T] says which tokens belong together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from isocompute_jax.options import named

PolicyLoss = Literal["reinforce", "clipped", "gspo", "cispo", "dppo_tv", "dppo_kl", "sapo", "none"]
KLEstimator = Literal["k1", "k2", "k3"]
CorrectionLevel = Literal["token", "sequence"]
CorrectionMode = Literal["truncate", "mask", "kpop", "off"]


# --- ratios


def rollout_total(x: Float[Array, "... T"], segments: Int[Array, "... T"] | None) -> Float[Array, "... T"]:
    """The sum of x over each token's own rollout, at every token; `segments` are numbers in [0, T), None for one."""
    if segments is None:
        return jnp.broadcast_to(jnp.sum(x, axis=-1, keepdims=True), x.shape)

    def of_row(x: Array, segments: Array) -> Array:
        return jax.ops.segment_sum(x, segments, num_segments=len(x))[segments]

    return jnp.vectorize(of_row, signature="(t),(t)->(t)")(x, segments)


def masked_ratio(
    logprobs: Float[Array, "... T"], denominator: Float[Array, "... T"], mask: Bool[Array, "... T"]
) -> Float[Array, "... T"]:
    """exp(lp - denominator) on the mask, 1 elsewhere; masked before exp, so no NaN gradient can leave padding."""
    return bounded_exp(jnp.where(mask, logprobs - denominator, 0.0))


def sequence_ratio(
    logprobs: Float[Array, "... T"],
    denominator: Float[Array, "... T"],
    mask: Bool[Array, "... T"],
    segments: Int[Array, "... T"] | None = None,
) -> Float[Array, "... T"]:
    """GSPO's ratio s = exp(mean_t(lp_t - old_t)), in token form sg(s) exp(lp_t - sg(lp_t)) (arXiv 2507.18071)."""
    difference = jnp.where(mask, logprobs - denominator, 0.0)
    lengths = jnp.maximum(rollout_total(mask.astype(difference.dtype), segments), 1)
    mean = rollout_total(difference, segments) / lengths
    own = jnp.where(mask, logprobs - jax.lax.stop_gradient(logprobs), 0.0)
    return bounded_exp(jax.lax.stop_gradient(mean)) * jnp.exp(own)


@jax.custom_jvp
def bounded_exp(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """exp(min(x, bound)), with its own value as derivative everywhere.

    The bound is 88.7 in float32 (709.7 in float64): the last tenth of a nat at which exp does not overflow, so that no
    ratio that a float can hold is changed. Above it value and gradient stay finite and keep their sign: infinity
    times an advantage or a cotangent of zero would be NaN.
    """
    return jnp.exp(jnp.minimum(x, _log_of_largest(x.dtype)))


@bounded_exp.defjvp
def _bounded_exp_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    value = bounded_exp(*primals)
    return value, value * tangents[0]


def _log_of_largest(dtype: np.dtype) -> float:
    return float(np.floor(10 * np.log(float(jnp.finfo(dtype).max))) / 10)


def binary_kl(logprobs: Float[Array, "..."], other: Float[Array, "..."]) -> Float[Array, "..."]:
    """KL(p || q) of two outcomes, this token or another: p log(p / q) + (1 - p) log((1 - p) / (1 - q)), p = exp(lp).

    A lower bound of the KL of the whole distributions. Probabilities are taken for at most exp(-1e-6): no infinities.
    """
    log_p, log_q = (jnp.minimum(x, -1e-6) for x in (logprobs, other))
    rest_p, rest_q = (jnp.log(-jnp.expm1(x)) for x in (log_p, log_q))
    return jnp.exp(log_p) * (log_p - log_q) - jnp.expm1(log_p) * (rest_p - rest_q)


def binary_tv(logprobs: Float[Array, "..."], other: Float[Array, "..."]) -> Float[Array, "..."]:
    """The total variation of the same: |p - q|."""
    return jnp.abs(jnp.exp(logprobs) - jnp.exp(other))


# --- policy-gradient terms


def reinforce_loss(logprobs: Float[Array, "... T"], advantages: Float[Array, "... #T"]) -> Float[Array, "... T"]:
    """-A lp_t (Williams 1992)."""
    return -advantages * logprobs


def clipped_loss(
    ratio: Float[Array, "... T"],
    advantages: Float[Array, "... #T"],
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float = math.inf,
) -> Float[Array, "... T"]:
    """-min(rho A, clip(rho, 1 - clip_low, 1 + clip_high) A), and where A < 0 no more than -dual_clip A.

    PPO and GRPO use 0.2 / 0.2 (arXiv 2402.03300), DAPO's clip-higher 0.2 / 0.28 (2503.14476). With the sequence ratio
    of `sequence_ratio` it is GSPO (2507.18071), about 3e-4 / 4e-4. A ratio on the bound is not clipped: its gradient is
    whole, and so is that of an on-policy step without any room (clip_low = clip_high = 0).

    The dual clip (1912.09729, with 3) bounds what the first one leaves open: a bad token that has become much likelier
    has a term that grows with its ratio. Infinity is PPO's loss, without it.
    """
    bound = jnp.where(advantages > 0, 1.0 + clip_high, jnp.where(ratio < 1.0, 1.0 - clip_low, dual_clip))
    cut = clip_binds(ratio, advantages, clip_low=clip_low, clip_high=clip_high, dual_clip=dual_clip)
    return -jnp.where(cut, bound, ratio) * advantages


def clip_binds(
    ratio: Float[Array, "... T"],
    advantages: Float[Array, "... #T"],
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float = math.inf,
) -> Bool[Array, "... T"]:
    """Tokens from which `clipped_loss` takes the gradient.

    A > 0 and rho > 1 + clip_high; A < 0 and rho < 1 - clip_low, or rho > dual_clip.
    """
    above = (ratio > 1.0 + clip_high) & (advantages > 0)
    return above | (((ratio < 1.0 - clip_low) | (ratio > dual_clip)) & (advantages < 0))


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


def cap_binds(
    ratio: Float[Array, "... T"], advantages: Float[Array, "... #T"], *, clip_low: float, clip_high: float
) -> Bool[Array, "... T"]:
    """Tokens whose gradient `cispo_loss` scales by a bound in place of their ratio, whatever the advantage's sign."""
    return ((ratio > 1.0 + clip_high) | (ratio < 1.0 - clip_low)) & (advantages != 0)


class PolicyTerms(NamedTuple):
    """A policy-gradient loss per token."""

    loss: Float[Array, "... T"]  # terms to be minimised
    ratio: Float[Array, "... T"]  # the importance ratio that the loss looks at
    cut: Bool[Array, "... T"]  # bool, tokens whose gradient a clip takes away or a cap changes


@runtime_checkable
class PolicyGradient(Protocol):
    """A policy-gradient loss, from log-probabilities; masked tokens never reach a gradient of the others."""

    def __call__(
        self,
        logprobs: Float[Array, "... T"],
        denominator: Float[Array, "... T"],
        mask: Bool[Array, "... T"],
        advantages: Float[Array, "... #T"],
        *,
        segments: Int[Array, "... T"] | None = None,
        **bounds: float,
    ) -> PolicyTerms:
        """Terms of every token; `denominator` are the log-probabilities that the ratio divides by.

        `bounds` are `clip_low`, `clip_high` and `dual_clip`; those of sapo `tau_positive` and `tau_negative`.
        """
        ...


def reinforce(logprobs: Array, denominator: Array, mask: Array, advantages: Array, **_unused: Any) -> PolicyTerms:
    """`reinforce_loss`: the ratio is reported and not used, and nothing is clipped."""
    ratio = masked_ratio(logprobs, denominator, mask)
    return PolicyTerms(reinforce_loss(logprobs, advantages), ratio, jnp.zeros_like(mask))


def clipped(
    logprobs: Array,
    denominator: Array,
    mask: Array,
    advantages: Array,
    *,
    segments: Array | None = None,
    **clips: float,
) -> PolicyTerms:
    """`clipped_loss` of each token's own ratio (PPO, GRPO, DAPO)."""
    ratio = masked_ratio(logprobs, denominator, mask)
    return PolicyTerms(clipped_loss(ratio, advantages, **clips), ratio, clip_binds(ratio, advantages, **clips))


def gspo(
    logprobs: Array,
    denominator: Array,
    mask: Array,
    advantages: Array,
    *,
    segments: Array | None = None,
    **clips: float,
) -> PolicyTerms:
    """`clipped_loss` of the rollout's ratio (GSPO): a rollout is clipped whole."""
    ratio = sequence_ratio(logprobs, denominator, mask, segments)
    return PolicyTerms(clipped_loss(ratio, advantages, **clips), ratio, clip_binds(ratio, advantages, **clips))


def cispo(
    logprobs: Array,
    denominator: Array,
    mask: Array,
    advantages: Array,
    *,
    segments: Array | None = None,
    dual_clip: float = math.inf,
    **clips: float,
) -> PolicyTerms:
    """`cispo_loss`: no token is lost, ratios are capped whatever the sign; a dual clip has nothing left to bound."""
    ratio = masked_ratio(logprobs, denominator, mask)
    return PolicyTerms(cispo_loss(logprobs, ratio, advantages, **clips), ratio, cap_binds(ratio, advantages, **clips))


def dppo_tv(logprobs: Array, denominator: Array, mask: Array, advantages: Array, **bounds: Any) -> PolicyTerms:
    """-rho A, no gradient from what moves away where total variation is above a bound (DPPO, arXiv 2602.04879).

    The bounds are `clip_high` where A > 0 and `clip_low` where A < 0, 0.15 in the paper. A token moves away whose rho
    is above 1 with A > 0, or below 1 with A < 0. The paper's rho is to the sampler's policy: ratio_from=sampler.
    """
    return _within_divergence(binary_tv, logprobs, denominator, mask, advantages, **bounds)


def dppo_kl(logprobs: Array, denominator: Array, mask: Array, advantages: Array, **bounds: Any) -> PolicyTerms:
    """The same with `binary_kl(old, new)`, 0.05 in the paper."""
    return _within_divergence(lambda new, old: binary_kl(old, new), logprobs, denominator, mask, advantages, **bounds)


def _within_divergence(
    divergence: Callable[[Array, Array], Array],
    logprobs: Array,
    denominator: Array,
    mask: Array,
    advantages: Array,
    *,
    clip_low: float,
    clip_high: float,
    **_unused: Any,
) -> PolicyTerms:
    ratio = masked_ratio(logprobs, denominator, mask)
    new, old = (jax.lax.stop_gradient(jnp.where(mask, x, 0.0)) for x in (logprobs, denominator))
    far = divergence(new, old) > jnp.where(advantages > 0, clip_high, clip_low)
    cut = far & (jnp.sign(new - old) == jnp.sign(advantages)) & (advantages != 0)
    return PolicyTerms(-jnp.where(cut, jax.lax.stop_gradient(ratio), ratio) * advantages, ratio, cut)


def sapo(
    logprobs: Array,
    denominator: Array,
    mask: Array,
    advantages: Array,
    *,
    tau_positive: float,
    tau_negative: float,
    **_unused: Any,
) -> PolicyTerms:
    """-(4 / tau) sigmoid(tau (rho - 1)) A: a soft gate in place of a clip (SAPO, arXiv 2511.20347).

    tau is `tau_positive` where A > 0, else `tau_negative`; 1 and 1.05 in the paper. At rho = 1 the gradient is that of
    -rho A, and it fades as rho leaves 1 on either side.
    """
    ratio = masked_ratio(logprobs, denominator, mask)
    tau = jnp.where(advantages > 0, tau_positive, tau_negative)
    return PolicyTerms(-4.0 / tau * jax.nn.sigmoid(tau * (ratio - 1.0)) * advantages, ratio, jnp.zeros_like(mask))


def no_policy_gradient(
    logprobs: Array, denominator: Array, mask: Array, advantages: Array, **_unused: Any
) -> PolicyTerms:
    """0: rewards do nothing, and the KL term is all that is learned from (distillation)."""
    ratio = masked_ratio(logprobs, denominator, mask)
    return PolicyTerms(jnp.zeros_like(ratio), ratio, jnp.zeros_like(mask))


POLICY_LOSSES: Mapping[PolicyLoss, PolicyGradient] = {
    "reinforce": reinforce,
    "clipped": clipped,
    "gspo": gspo,
    "cispo": cispo,
    "dppo_tv": dppo_tv,
    "dppo_kl": dppo_kl,
    "sapo": sapo,
    "none": no_policy_gradient,
}


# --- the mismatch of sampler and learner


def sampler_correction(
    old_logprobs: Float[Array, "... T"],
    sampler_logprobs: Float[Array, "... T"],
    mask: Bool[Array, "... T"],
    *,
    segments: Int[Array, "... T"] | None = None,
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
      segments: rollouts that share a row; None where each has its own.
      level: `token` weighs each token by its own ratio; `sequence` a whole rollout by the ratio of its summed
        log-probabilities.
      mode: `truncate` is min(w, high) (truncated importance sampling, TIS; cap 2 is usual); `mask` drops what lies
        outside [low, high] (of tokens IcePop, 2510.18855, with 0.5 and 5); `kpop` drops tokens whose `binary_kl` is
        above high in either direction (KPop, Ring team 2026, with 0.1); `off` is 1.
      low: lower end of the kept range, read by `mask` alone.
      high: the cap, the upper end of the kept range, or the most that kpop lets a token diverge.

    Raises:
      InputError: an unknown level or mode.
    """
    level_of, corrected = named(CORRECTION_LEVELS, level, "level"), named(CORRECTION_MODES, mode, "mode")
    weights = bounded_exp(level_of(jnp.where(mask, old_logprobs - sampler_logprobs, 0.0), segments))
    old, sampler = (jnp.where(mask, x, 0.0) for x in (old_logprobs, sampler_logprobs))
    divergence = jnp.maximum(binary_kl(old, sampler), binary_kl(sampler, old))
    return jax.lax.stop_gradient(corrected(weights, divergence, low, high))


CORRECTION_LEVELS: Mapping[CorrectionLevel, Callable[[Array, Array | None], Array]] = {
    "token": lambda difference, _segments: difference,
    "sequence": rollout_total,
}
"""The log-weight of each token, from masked differences of log-probabilities [..., T]."""

CORRECTION_MODES: Mapping[CorrectionMode, Callable[[Array, Array, float, float], Array]] = {
    "truncate": lambda weights, _divergence, _low, high: jnp.minimum(weights, high),
    "mask": lambda weights, _divergence, low, high: jnp.where((weights >= low) & (weights <= high), weights, 0.0),
    "kpop": lambda weights, divergence, _low, high: jnp.where(divergence <= high, weights, 0.0),
    "off": lambda weights, _divergence, _low, _high: jnp.ones_like(weights),
}
"""What becomes of importance weights, given (weights, divergence of each token, low, high)."""


# --- the distance from a reference policy


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

    Times the ratio rho = exp(lp - old), gradient included, k1 and k3 have the gradient of the reverse KL, and both are
    unbiased on samples of the old policy too; DeepSeek-V3.2 (2512.02556, section 3.1) uses rho k3, which has the
    smaller variance near the reference.

    Raises:
      InputError: an unknown estimator.
    """
    return named(KL_ESTIMATORS, estimator, "estimator")(jnp.where(mask, reference_logprobs - logprobs, 0.0))


KL_ESTIMATORS: Mapping[KLEstimator, Callable[[Array], Array]] = {
    "k1": lambda x: -x,
    "k2": lambda x: x * x / 2.0,
    "k3": lambda x: bounded_exp(x) - x - 1.0,
}
"""Terms from x = ref - lp."""
