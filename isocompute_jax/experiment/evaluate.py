"""Evaluation on named problem sets, at log-spaced compute."""

from __future__ import annotations

import dataclasses
import hashlib
import logging
from collections.abc import Sequence
from typing import Any

import numpy as np

from isocompute_jax.experiment.config import RunConfig
from isocompute_jax.experiment.inputs import Inputs
from isocompute_jax.experiment.rollouts import by_id, make_requests, sample
from isocompute_jax.experiment.step_metrics import interruption_rate, reward_metrics, truncation_rate
from isocompute_jax.learner import rewards_of
from isocompute_jax.records import metrics
from isocompute_jax.records.rollout import Problem, RolloutGroup
from isocompute_jax.sampling import Sampler
from isocompute_jax.tasks import Grades, Prompts, graded

LOG = logging.getLogger(__name__)

LANE = "evaluation"


def settled(config: RunConfig, inputs: Inputs) -> tuple[RunConfig, Inputs]:
    """The run with what its config leaves open of evaluation said, and its sets cut to that; said in the log, too.

    Settled by `max_compute` and the sizes of the sets, so that the runs of a sweep are measured alike.
    """
    sizes = [len(problems) for problems in inputs.evaluation_sets.values()]
    found = config.evaluation.settled(sizes, config.max_compute)
    most = found.max_problems or None
    sets = {name: problems[:most] for name, problems in inputs.evaluation_sets.items()}
    if sizes and config.evaluation.is_open:
        times = len(dataclasses.replace(config, evaluation=found).evaluation_points)
        problems = sum(map(len, sets.values()))
        drawn = times * problems * found.samples
        LOG.info(
            "evaluation: %d times %d problems, %d samples each: %d rollouts, %.0f%% beside those of training "
            "(config.evaluation.share = %g; evaluation.points, samples and max_problems choose)",
            *(times, problems, found.samples, drawn, 100 * drawn / config.max_compute, found.share),
        )
    return dataclasses.replace(config, evaluation=found), dataclasses.replace(inputs, evaluation_sets=sets)


def evaluate_set(
    name: str,
    problems: Sequence[Problem],
    *,
    config: RunConfig,
    step: int,
    sampler: Sampler,
    grading: Grades,
    prompts: Prompts,
) -> tuple[dict[str, Any], int]:
    """Samples `evaluation.samples` completions of each problem under the weights of `step`.

    Training rollouts in flight meanwhile continue in their own lane; no update is made while this one is read. A
    completion solves its problem if its reward is at least `evaluation.solved_at`; one whose reward failed does not.

    Returns:
      The columns of eval.jsonl, and how many tokens were sampled.
    """
    samples, k = config.evaluation.samples, config.evaluation.k
    seed = evaluation_seed(config.seed, name)
    requests = make_requests(problems, prompts, config.sampling, group_size=samples, seed=seed, step=step)
    known = by_id(problems)
    groups = sample(sampler, requests, lane=LANE, version=step, grade=lambda arriving: graded(arriving, known, grading))
    correct = np.array([int(np.sum(rewards_of(group) >= config.evaluation.solved_at)) for group in groups])
    completions = [completion for group in groups for completion in group.completions]
    tokens = sum(completion.drawn_tokens for completion in completions)
    logprobs = sum(float(completion.logprobs.sum()) for completion in completions)
    columns = {
        "eval_set": name,
        f"avg@{k}": metrics.avg_at_k(correct, samples),
        f"best@{k}": metrics.best_at_k(correct, samples, k),
        f"worst@{k}": metrics.worst_at_k(correct, samples, k),
        **_by_task(groups, correct, samples, k),
        **reward_metrics(groups),
        "entropy": -logprobs / tokens,  # per token, estimated from the drawn tokens
        "truncation_rate": truncation_rate(completions),
        "interruption_rate": interruption_rate(completions),
        "completion_length": tokens / len(completions),
        "mean_reward": float(np.mean([rewards_of(group).mean() for group in groups])),
        "reward_failures": sum(group.reward_failures for group in groups),
        "samples": samples,
        "problems": len(groups),
        "solve_rate_histogram": metrics.solve_rate_histogram(correct, samples),
        "solve_counts": correct.tolist(),
    }
    return columns, tokens


def _by_task(groups: Sequence[RolloutGroup], correct: np.ndarray, samples: int, k: int) -> dict[str, float]:
    """`avg@k/TASK` of each task, where there are several."""
    tasks = np.array([group.task for group in groups])
    names = sorted(set(tasks.tolist()))
    if len(names) < 2:
        return {}
    return {f"avg@{k}/{name}": metrics.avg_at_k(correct[tasks == name], samples) for name in names}


def evaluation_seed(seed: int, name: str) -> int:
    """A seed of its own for each run and set, so that evaluation never replays training's random numbers."""
    digest = hashlib.blake2b(f"evaluation/{seed}/{name}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little")
