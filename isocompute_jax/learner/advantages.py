"""Group-relative advantages: how much better a rollout did than its siblings (REFERENCE section 2)."""

from __future__ import annotations

import functools
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

AdvantageScale = Literal["group_std", "batch_std", "none"]

EPSILON = 1e-6


def zero_variance(rewards: Float[Array | np.ndarray, "P G"]) -> Bool[Array, "P"]:
    """Groups whose rewards are all equal: their advantages are zero whatever the scale."""
    rewards = jnp.asarray(rewards)
    return jnp.all(rewards == rewards[:, :1], axis=1)


@functools.partial(jax.jit, static_argnames="scale")
def group_advantages(
    rewards: Float[Array | np.ndarray, "P G"], keep: Bool[Array | np.ndarray, "P"], *, scale: AdvantageScale
) -> Float[Array, "P G"]:
    """A_i = (r_i - mean(group)) / scale.

    Args:
      rewards: [P, G] rewards, one group a row, G >= 2.
      keep: [P] groups that count in the batch's statistics; only `batch_std` looks at it.
      scale:
        `group_std`: sample standard deviation of the group (ddof 1) + 1e-6 (GRPO, arXiv 2402.03300);
        `batch_std`: standard deviation of the centred rewards over the kept rollouts + 1e-6 (ScaleRL, 2510.13786);
        `none`: 1 (Dr. GRPO, 2503.20783).

    Returns:
      [P, G] advantages.
    """
    centred = rewards - jnp.mean(rewards, axis=1, keepdims=True)
    # The mean of equal rewards is rounded, and the rounding error over its own deviation would pass for a signal.
    centred = jnp.where(zero_variance(rewards)[:, None], 0.0, centred)
    if scale == "none":
        return centred
    if scale == "group_std":
        return centred / (jnp.std(rewards, axis=1, ddof=1, keepdims=True) + EPSILON)
    if scale == "batch_std":
        # Centred rewards have mean zero within every group, hence over any set of whole groups.
        kept = keep[:, None]
        rollouts = jnp.maximum(jnp.sum(keep) * rewards.shape[1], 1)
        variance = jnp.sum(jnp.where(kept, centred**2, 0.0)) / rollouts
        return centred / (jnp.sqrt(variance) + EPSILON)
    raise ValueError(f"unknown advantage scale {scale!r}")
