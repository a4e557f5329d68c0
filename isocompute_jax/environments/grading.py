"""Rewards of rollouts that an environment has answered: the sum of what it gave turn by turn."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import threading
from collections.abc import Sequence

import numpy as np

from isocompute_jax.records.errors import CONFIG, RunError
from isocompute_jax.records.rollout import Episode, Problem, RolloutGroup
from isocompute_jax.tasks.grading import FailureLog, OnFailure, RewardConfig, metric_columns

GIVEN_UP = 32
"""So many groups in a row, of which every rollout failed, end the run."""
TURNS = "turns"
"""Metric: turns of the policy in a rollout."""


class EpisodeGrades:
    """Implements `tasks.Grades` by what completions say of their episodes.

    Args:
      config: what becomes of rollouts whose environment failed (`on_failure`).
    """

    def __init__(self, config: RewardConfig):
        self._config = config
        self._failures = FailureLog()
        self._lost = 0  # groups in a row of which nothing is known
        self._lock = threading.Lock()

    @property
    def stops(self) -> bool:
        """Whether an environment that fails ends the run."""
        return self._config.on_failure == "stop"

    def submit(
        self, group: RolloutGroup, problem: Problem, *, on_failure: OnFailure | None = None
    ) -> concurrent.futures.Future[RolloutGroup]:
        """As in `Grades`: a future that is done."""
        done: concurrent.futures.Future[RolloutGroup] = concurrent.futures.Future()
        try:
            done.set_result(self._graded(group, problem, on_failure or self._config.on_failure))
        except RunError as error:
            done.set_exception(error)
        return done

    def close(self) -> None:
        """Nothing is held."""

    def _graded(self, group: RolloutGroup, problem: Problem, policy: OnFailure) -> RolloutGroup:
        episodes = [completion.episode or Episode() for completion in group.completions]
        failures = {place: episode.failure for place, episode in enumerate(episodes) if episode.failure}
        for failure in failures.values():
            self._failures.note("", f"problem {problem.id!r}: {failure}")
        if failures and policy == "stop":
            raise RunError(
                f"problem {problem.id!r}: {next(iter(failures.values()))} ({CONFIG.reward.on_failure} = 'stop')"
            )
        self._give_up_if_lost(list(failures.values()), len(episodes))
        metrics = [{TURNS: float(len(episode.ends)), **episode.metrics} for episode in episodes]
        rewards = [0.0 if episode.failure else float(np.sum(episode.rewards)) for episode in episodes]
        return dataclasses.replace(
            group,
            rewards=np.array(rewards, np.float32),
            task=problem.task,
            reward_metrics=metric_columns(metrics),
            failures=failures,
            dropped=bool(failures) and policy == "drop_group",
        )

    def _give_up_if_lost(self, failures: Sequence[str], rollouts: int) -> None:
        """Raises RunError where the environment answers nobody any more: the rest would be paid for nothing."""
        with self._lock:
            self._lost = self._lost + 1 if len(failures) == rollouts else 0
            if self._lost == GIVEN_UP:
                raise RunError(
                    f"every rollout of {GIVEN_UP} groups in a row failed, the last because {failures[-1]}: see to "
                    f"{CONFIG.environment.name}; the same command goes on from the last checkpoint"
                )
