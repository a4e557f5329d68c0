"""What a run's config does about length: penalties and masks of a batch, and what the log says of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from isocompute_jax import learner
from isocompute_jax.experiment.config import RunConfig
from isocompute_jax.records.rollout import RolloutGroup


def length_penalties(config: RunConfig, groups: Sequence[RolloutGroup], rewards: np.ndarray) -> np.ndarray | None:
    """[P, G] what completions lose for their length; None where they lose nothing for it."""
    length = config.length
    if length.overlong == "off":
        return None
    limit = length.overlong_limit or config.sampling.max_tokens
    penalties = learner.overlong_penalty(
        learner.completion_lengths(groups),
        limit=limit,
        buffer=length.overlong_tokens or max(limit // 5, 1),
        penalty=length.overlong_penalty,
    )
    return penalties if length.overlong == "all" else np.where(rewards >= 1.0, penalties, 0.0)


def masked_rollouts(config: RunConfig, groups: Sequence[RolloutGroup]) -> np.ndarray | None:
    """[P, G] bool, completions that leave the loss; None for none."""
    return learner.truncated(groups) if config.length.truncated == "mask" else None


def length_metrics(penalties: np.ndarray | None, masked: np.ndarray | None) -> dict[str, float]:
    """Columns of metrics.jsonl: the mean penalty, and the share of rollouts that was masked, of what was trained on."""
    columns = {}
    if penalties is not None:
        columns["length_penalty"] = float(penalties.mean())
    if masked is not None:
        columns["masked_share"] = float(masked.mean())
    return columns
