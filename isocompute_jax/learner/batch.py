"""From graded rollout groups to the fixed-shape arrays of one update.

A row is one prompt with R of its rollouts, so that the prompt is read once for all of them. A group larger than a
micro-batch is cut into several rows. Groups without signal are left out before anything is computed; rows are filled
up to whole micro-batches, and only the micro-batches that hold a row are run.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

import flax.struct
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from isocompute_jax.learner.advantages import AdvantageScale, group_advantages, zero_variance
from isocompute_jax.learner.losses import Aggregation, aggregation_weights
from isocompute_jax.records.rollout import RolloutGroup

ZeroVariance = Literal["drop", "drop_regularizers", "keep"]


@flax.struct.dataclass
class TrainBatch:
    """One batch, cut into M micro-batches of N rows of R rollouts of T tokens; S prompt tokens.

    Attributes:
      prompt_tokens: [M, N, S] left-padded.
      prompt_mask: [M, N, S] False on padding.
      tokens: [M, N, R, T] completion tokens, right-padded.
      mask: [M, N, R, T] True on trained tokens.
      sampler_logprobs: [M, N, R, T] float32; zero on padding.
      advantages: [M, N, R].
      policy_weights: [M, N, R] weight of a rollout's policy-gradient terms (`aggregation_weights`); 0 leaves it out.
      regularizer_weights: [M, N, R] the same for the KL and entropy terms.
      num_microbatches: [] int32, how many of the M hold rows; the others are not computed.
      old_logprobs: [M, N, R, T] of the learner before the update; None when the batch is used once, on-policy.
    """

    prompt_tokens: Int[Array, "M N S"]
    prompt_mask: Bool[Array, "M N S"]
    tokens: Int[Array, "M N R T"]
    mask: Bool[Array, "M N R T"]
    sampler_logprobs: Float[Array, "M N R T"]
    advantages: Float[Array, "M N R"]
    policy_weights: Float[Array, "M N R"]
    regularizer_weights: Float[Array, "M N R"]
    num_microbatches: Int[Array, ""]
    old_logprobs: Float[Array, "M N R T"] | None = None


@dataclasses.dataclass(frozen=True)
class BatchShape:
    """The compiled shape: `microbatches` x `rows` x `rollouts` completions of `tokens`, `prompt` tokens before them."""

    microbatches: int
    rows: int
    rollouts: int
    tokens: int
    prompt: int


def batch_shape(
    *,
    problems_per_batch: int,
    group_size: int,
    max_prompt_tokens: int,
    max_tokens: int,
    microbatch_tokens: int,
    batch_shards: int = 1,
) -> BatchShape:
    """Cuts a batch of problems x group_size rollouts into micro-batches of about `microbatch_tokens` tokens.

    Whole groups where they fit; a larger group is cut into its largest equal parts that do. Rows are a multiple of
    `batch_shards`, the number of parts the batch axis is sharded into.
    """
    budget = max(1, microbatch_tokens // (max_tokens * batch_shards))
    rollouts = max(part for part in range(1, min(group_size, budget) + 1) if group_size % part == 0)
    total_rows = problems_per_batch * (group_size // rollouts)
    # No more rows than the batch has: a micro-batch of padding would be computed for nothing.
    rows = min(max(1, budget // rollouts), -(-total_rows // batch_shards)) * batch_shards
    return BatchShape(-(-total_rows // rows), rows, rollouts, max_tokens, max_prompt_tokens)


def single_batch(
    *,
    prompt_tokens: Int[Array, "N S"],
    prompt_mask: Bool[Array, "N S"],
    tokens: Int[Array, "N R T"],
    mask: Bool[Array, "N R T"],
    sampler_logprobs: Float[Array, "N R T"],
    advantages: Float[Array, "N R"],
    weights: Float[Array, "N R"],
    old_logprobs: Float[Array, "N R T"] | None = None,
) -> TrainBatch:
    """A batch of one micro-batch from arrays of your own; fields as in `TrainBatch`, without their leading M.

    `weights` (from `aggregation_weights`) weigh policy-gradient, KL and entropy terms alike.
    """
    arrays = {
        "prompt_tokens": prompt_tokens,
        "prompt_mask": prompt_mask,
        "tokens": tokens,
        "mask": mask,
        "sampler_logprobs": sampler_logprobs,
        "advantages": advantages,
        "policy_weights": weights,
        "regularizer_weights": weights,
    }
    old = None if old_logprobs is None else old_logprobs[None]
    folded: dict[str, Any] = {name: x[None] for name, x in arrays.items()}
    return TrainBatch(num_microbatches=jnp.int32(1), old_logprobs=old, **folded)


def pack(
    groups: Sequence[RolloutGroup],
    *,
    shape: BatchShape,
    advantage_scale: AdvantageScale,
    aggregation: Aggregation,
    zero_variance_groups: ZeroVariance,
) -> TrainBatch:
    """Packs the graded groups of one step, with advantages and aggregation weights over the whole of them.

    Args:
      groups: graded groups of equal size.
      shape: the compiled shape.
      advantage_scale: see `group_advantages`.
      aggregation: see `aggregation_weights`.
      zero_variance_groups: groups whose rewards are all equal leave the loss and its denominators (`drop`), leave
        the KL and entropy terms only (`drop_regularizers`), or stay (`keep`).
    """
    rewards = np.stack([rewards_of(group) for group in groups])
    signal = ~np.asarray(zero_variance(rewards))
    keep_policy = signal if zero_variance_groups == "drop" else np.ones_like(signal)
    keep_regularizer = np.ones_like(signal) if zero_variance_groups == "keep" else signal
    lengths = np.array([[int(completion.mask.sum()) for completion in group.completions] for group in groups])
    advantages = np.asarray(group_advantages(rewards, keep_policy, scale=advantage_scale))
    policy, regularizer = (
        np.asarray(aggregation_weights(lengths, keep, aggregation=aggregation, max_tokens=shape.tokens))
        for keep in (keep_policy, keep_regularizer)
    )
    kept = np.flatnonzero(keep_policy | keep_regularizer)
    parts = rewards.shape[1] // shape.rollouts
    total = shape.microbatches * shape.rows
    batch = _empty(shape)
    for place, index in enumerate(kept.tolist()):
        rows = slice(place * parts, (place + 1) * parts)
        fill(batch, rows, groups[index])
        batch["advantages"][rows] = advantages[index].reshape(parts, -1)
        batch["policy_weights"][rows] = policy[index].reshape(parts, -1)
        batch["regularizer_weights"][rows] = regularizer[index].reshape(parts, -1)
    used = len(kept) * parts
    assert used <= total, (used, total)
    # Host arrays: they travel with the call of the step, or before it, sharded, by `place_batch`.
    folded: dict[str, Any] = {
        name: x.reshape(shape.microbatches, shape.rows, *x.shape[1:]) for name, x in batch.items()
    }
    folded["num_microbatches"] = np.int32(-(-used // shape.rows))
    return TrainBatch(**folded)


def rewards_of(group: RolloutGroup) -> np.ndarray:
    """[G] rewards of a graded group."""
    if group.rewards is None:
        raise ValueError(f"problem {group.problem_id!r}: its group has not been graded")
    return group.rewards


def _empty(shape: BatchShape) -> dict[str, np.ndarray]:
    """A batch of padding rows, not yet folded into micro-batches."""
    rows, rollouts, tokens = shape.microbatches * shape.rows, shape.rollouts, shape.tokens
    prompt_mask = np.zeros((rows, shape.prompt), bool)
    prompt_mask[:, -1] = True  # padding rows still need one visible token
    return {
        "prompt_tokens": np.zeros((rows, shape.prompt), np.int32),
        "prompt_mask": prompt_mask,
        "tokens": np.zeros((rows, rollouts, tokens), np.int32),
        "mask": np.zeros((rows, rollouts, tokens), bool),
        "sampler_logprobs": np.zeros((rows, rollouts, tokens), np.float32),
        "advantages": np.zeros((rows, rollouts), np.float32),
        "policy_weights": np.zeros((rows, rollouts), np.float32),
        "regularizer_weights": np.zeros((rows, rollouts), np.float32),
    }


def fill(batch: dict[str, np.ndarray], rows: slice, group: RolloutGroup) -> None:
    """Writes the prompt and the completions of one group into `rows` of a batch that is not yet folded."""
    length = len(group.prompt_tokens)
    batch["prompt_tokens"][rows, -length:] = group.prompt_tokens
    batch["prompt_mask"][rows, -length:] = True
    rollouts = batch["tokens"].shape[1]
    for i, completion in enumerate(group.completions):
        place = (rows.start + i // rollouts, i % rollouts, slice(len(completion.tokens)))
        batch["tokens"][place] = completion.tokens
        batch["mask"][place] = completion.mask
        batch["sampler_logprobs"][place] = completion.logprobs
