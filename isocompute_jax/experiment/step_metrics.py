"""What a line of metrics.jsonl says of the rollouts of a step, and how long its parts took."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from isocompute_jax import learner
from isocompute_jax.experiment.config import RunConfig
from isocompute_jax.records.rollout import Completion, RolloutGroup

PHASES = ("weights", "sampling", "waiting", "grading", "logprobs", "packing", "update", "checkpoint")
"""What a step's time goes to.

    weights     new weights on their way to the sampler
    sampling    drawing, in this process; what servers draw costs the learner nothing but waiting
    waiting     for rollouts of servers
    grading     in this process, or waiting for the last graders
    logprobs    scores before the updates (old policy, reference in the reward)
    packing     laying tokens out and what they are worth
    update      the updates; scores of a reference in the loss are part of them
    checkpoint  the one written after the step before
"""


class Phases:
    """Seconds spent in each phase of a step.

    Args:
      before: seconds that were spent on phases since the last step was logged.
    """

    def __init__(self, before: Mapping[str, float]) -> None:
        self.seconds: dict[str, float] = {**dict.fromkeys(PHASES, 0.0), **before}
        self._last = time.perf_counter()

    def end(self, name: str, **within: float) -> None:
        """The phase `name` ends now; `within` are seconds of it that were spent on something else."""
        now = time.perf_counter()
        for phase, seconds in {name: now - self._last - sum(within.values()), **within}.items():
            self.seconds[phase] = round(self.seconds[phase] + seconds, 6)
        self._last = now


def rollout_metrics(groups: Sequence[RolloutGroup]) -> dict[str, float]:
    """What the sampled rollouts say before any update: reward, lengths, truncation, groups without signal.

    Rewards are those of the groups that were not dropped, if there are any.
    """
    rewards = learner.group_rewards([group for group in groups if not group.dropped] or groups)
    completions = [completion for group in groups for completion in group.completions]
    tokens = sum(completion.drawn_tokens for completion in completions)
    return {
        "reward": float(rewards.mean()),
        "zero_variance_share": float(np.mean(learner.zero_variance(rewards))),
        "reward_failures": sum(group.reward_failures for group in groups),
        "completion_length": tokens / len(completions),
        "truncation_rate": truncation_rate(completions),
        "interruption_rate": interruption_rate(completions),
        "sampler_entropy": -float(sum(completion.logprobs.sum() for completion in completions)) / tokens,
    }


def truncation_rate(completions: Sequence[Completion]) -> float:
    """Share of rollouts whose last segment was cut."""
    return sum(completion.finish_reason == "length" for completion in completions) / len(completions)


def interruption_rate(completions: Sequence[Completion]) -> float:
    """Share of rollouts that something was put into: the end of their thinking, or the answer of a tool."""
    return sum(completion.drawn_tokens < len(completion.tokens) for completion in completions) / len(completions)


def reward_metrics(groups: Sequence[RolloutGroup]) -> dict[str, float]:
    """What graders say beside one reward.

    Returns:
      `reward/TASK`, the mean reward of each task where there are several; and `metric/NAME`, the mean of each number
      that graders measured, over the completions that have one of this name.
    """
    counted = [group for group in groups if not group.dropped] or groups
    tasks = sorted({group.task for group in counted})
    columns = {}
    if len(tasks) > 1:
        for task in tasks:
            rewards = learner.group_rewards([group for group in counted if group.task == task])
            columns[f"reward/{task}"] = float(rewards.mean())
    for name in sorted({name for group in counted for name in group.reward_metrics}):
        values = np.concatenate([group.reward_metrics[name] for group in counted if name in group.reward_metrics])
        if not np.isnan(values).all():
            columns[f"metric/{name}"] = float(np.nanmean(values))
    return columns


def staleness_metrics(groups: Sequence[RolloutGroup], *, step: int, window: int) -> dict[str, Any]:
    """How many updates old the weights behind a batch were, when update `step` used it.

    Args:
      groups: the batch, groups without signal included.
      step: updates made before this one.
      window: ages lie in [0, window).

    Returns:
      `staleness`, the age of the oldest token; `staleness_mean`, of trained tokens; and `staleness_histogram`: how many
      trained tokens are 0, 1, ... window - 1 updates old.
    """
    completions = [completion for group in groups for completion in group.completions]
    oldest = min(int(completion.policy_versions.min()) for completion in completions)
    ages = step - np.concatenate([completion.policy_versions[completion.mask] for completion in completions])
    return {
        "staleness": step - oldest,
        "staleness_mean": float(ages.mean()),
        "staleness_histogram": np.bincount(ages, minlength=window).tolist(),
    }


def what_was_not_measured(config: RunConfig) -> dict[str, None]:
    """Columns that say nothing under this config, as null.

    Without a KL term no reference policy is scored. At two temperatures sampler and learner report different
    distributions: how far they differ is no sign of a fault (agreement checks compare at the sampler's).
    """
    columns = () if config.loss.kl_coef else ("kl",)
    if config.temperature != config.sampling.temperature:
        columns += ("logprob_difference", "logprob_difference_max")
    return dict.fromkeys(columns)
