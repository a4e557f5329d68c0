"""What a line of metrics.jsonl says of the curriculum; nothing of what is off."""

from __future__ import annotations

from typing import Any

import numpy as np

from isocompute_jax.experiment.config import CurriculumConfig
from isocompute_jax.experiment.curriculum.history import History
from isocompute_jax.experiment.curriculum.refill import Sampled
from isocompute_jax.experiment.curriculum.stream import ProblemStream
from isocompute_jax.learner import group_rewards


def curriculum_metrics(
    config: CurriculumConfig, sampled: Sampled, history: History, stream: ProblemStream
) -> dict[str, Any]:
    """Columns of one step.

    Args:
      config: what is on.
      sampled: what the step cost.
      history: after it.
      stream: where its problems came from.

    Returns:
      With dynamic sampling `sampled_groups`, `kept_groups` and `refill_rounds`; with retirement `retired_problems`;
      with an order `measured_rate`, the mean rate of the step's problems; with a mixture `train_sets`: by name the
      `share` of the step's groups, and their mean `reward` as graded (None without groups).
    """
    places = [stream.places[group.problem_id] for group in sampled.groups]
    columns: dict[str, Any] = {}
    if config.dynamic_sampling:
        columns["sampled_groups"] = len(sampled.groups)
        columns["kept_groups"] = len(sampled.kept)
        columns["refill_rounds"] = sampled.rounds
    if config.retire_rate:
        columns["retired_problems"] = int(np.count_nonzero(stream.retired(history)))
    if config.order != "shuffled":
        rates = [stream.sets.problems[place].measured[config.rate_column] for place in places]
        columns["measured_rate"] = float(np.mean(rates))
    if config.train_sets:
        rewards = group_rewards(sampled.groups).mean(axis=1)
        columns["train_sets"] = {}
        for name, members in stream.sets.members.items():
            of_set = np.isin(places, members)
            reward = float(rewards[of_set].mean()) if of_set.any() else None
            columns["train_sets"][name] = {"share": float(of_set.mean()), "reward": reward}
    return columns
