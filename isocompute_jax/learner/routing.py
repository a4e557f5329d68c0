"""What a mixture of experts reports of itself: how evenly its experts are used, and whether the sampler chose the same.

Everything is counted at the positions that trained tokens are predicted from, summed over micro-batches and layers as
the step sums every metric, and becomes scalars at the end.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from isocompute_jax.model import UNKNOWN, ModelConfig, Routed
from isocompute_jax.records.errors import Field, InputError
from isocompute_jax.records.rollout import Completion

EXPERT_TOKENS, ROUTED, ROUTER_ENTROPY = "expert_tokens", "routed_tokens", "router_entropy"
AGREED, COMPARED = "routing_agreed", "routing_compared"
SUMMED = (EXPERT_TOKENS, ROUTED, ROUTER_ENTROPY, AGREED, COMPARED)
"""Names of the sums: tokens of each layer and expert [L, E]; tokens times layers, and their routers' nats; experts that
the sampler and the router agree on; experts of the sampler that are known."""

Sums = dict[str, Array]


def routing_sums(
    config: ModelConfig,
    routed: Routed,
    mask: Bool[Array | np.ndarray, "..."],
    sampled: Int[Array | np.ndarray, "... L A"] | None = None,
) -> Sums:
    """The sums of one micro-batch.

    Args:
      config: model shape.
      routed: where tokens went, [L, ...].
      mask: positions that count.
      sampled: the sampler's experts there, `UNKNOWN` where it did not say; None when there is nothing to compare.
    """
    routed, mask = jax.lax.stop_gradient(routed), jnp.asarray(mask)

    def tokens_of(experts: Array) -> Array:
        # Compared and summed in one pass: scattered sums would gather every device's tokens first.
        chosen = (experts[..., None] == jnp.arange(config.num_experts)) & mask[..., None, None]
        return jnp.sum(chosen, axis=tuple(range(chosen.ndim - 1)), dtype=jnp.float32)

    sums = {
        EXPERT_TOKENS: jax.vmap(tokens_of)(routed.experts),
        ROUTED: config.num_layers * jnp.sum(mask, dtype=jnp.float32),
        ROUTER_ENTROPY: jnp.sum(jnp.where(mask, routed.entropy, 0.0)),
    }
    if sampled is not None:
        theirs = jnp.moveaxis(jnp.asarray(sampled), -2, 0)
        known = (theirs != UNKNOWN) & mask[..., None]
        same = jnp.any(theirs[..., None] == routed.own[..., None, :], axis=-1)
        sums[AGREED] = jnp.sum(same & known, dtype=jnp.float32)
        sums[COMPARED] = jnp.sum(known, dtype=jnp.float32)
    return sums


def finish_routing(sums: Sums) -> Sums:
    """Scalars from the sums of a batch.

    Returns:
      `expert_load_max`, tokens of the heaviest expert over the mean, in the layer where that is largest;
      `expert_load_cv`, standard deviation over mean of the experts' tokens, mean over layers; `experts_unused`, the
      share of experts without any token; `router_entropy`, nats, mean over tokens and layers; and, where the sampler
      said its experts, `routing_agreement`: the share of them that the learner's router chooses too.
    """
    tokens = sums[EXPERT_TOKENS]
    mean = jnp.mean(tokens, axis=1)
    some = jnp.maximum(mean, jnp.finfo(mean.dtype).tiny)
    scalars = {
        "expert_load_max": jnp.max(jnp.max(tokens, axis=1) / some),
        "expert_load_cv": jnp.mean(jnp.std(tokens, axis=1) / some),
        "experts_unused": jnp.mean((tokens == 0).astype(jnp.float32)),
        "router_entropy": sums[ROUTER_ENTROPY] / jnp.maximum(sums[ROUTED], 1),
    }
    if COMPARED in sums:
        scalars["routing_agreement"] = sums[AGREED] / jnp.maximum(sums[COMPARED], 1)
    return scalars


def experts_of(completion: Completion, prompt: int, routing: tuple[int, ...]) -> Int[np.ndarray, "T L A"]:
    """The experts that the sampler chose for the tokens of a prompt and its completion but the last.

    Args:
      completion: from a sampler that was asked for them.
      prompt: tokens of the prompt.
      routing: layers, and experts per token.

    Raises:
      InputError: there are none, or not of this shape.
    """
    if completion.experts is None:
        raise InputError(
            Field("routing", "LossConfig."),
            ": the sampler does not say which experts it chose; set it to 'own', or take a sampler that says them "
            "(this library's, in process or served with --routing; vLLM does not)",
        )
    shape = (prompt + len(completion.tokens) - 1, *routing)
    if completion.experts.shape != shape:
        raise InputError(f"a completion has experts of shape {completion.experts.shape}, and the model needs {shape}")
    return completion.experts
