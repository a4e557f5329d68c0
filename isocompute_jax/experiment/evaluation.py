"""What is measured between two steps: how good the weights are, and whether sampler and learner agree.

Two engines never agree exactly on the log-probabilities of the same tokens, and training corrects for small
differences. Large ones mean that the two do not compute the same policy (another head dtype, temperature, stale weights
or a stale prefix cache), and training would go on for a long time on wrong gradients.
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from isocompute_jax import sharding
from isocompute_jax.experiment import workdir
from isocompute_jax.experiment.build import Parts
from isocompute_jax.experiment.config import AgreementConfig, RunConfig
from isocompute_jax.experiment.inputs import Inputs
from isocompute_jax.experiment.layouts import LayOut
from isocompute_jax.experiment.loop_state import LoopState
from isocompute_jax.experiment.metrics import interruption_rate, reward_metrics, truncation_rate
from isocompute_jax.experiment.rollouts import EVALUATION, by_id, evaluation_seed, make_requests, sample, seed_of
from isocompute_jax.learner import Batch, rewards_of
from isocompute_jax.records import metrics, run_files
from isocompute_jax.records.errors import RunError
from isocompute_jax.records.requests import SampleRequest
from isocompute_jax.records.rollout import Problem, RolloutGroup
from isocompute_jax.tasks import Prompts, graded

LOG = logging.getLogger(__name__)


def settled(config: RunConfig, inputs: Inputs) -> tuple[RunConfig, Inputs]:
    """The run with numbers for all that its config leaves open of evaluation, logged, and its sets cut to them.

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


def evaluate_set(parts: Parts, name: str, *, step: int) -> tuple[dict[str, Any], int]:
    """Samples `evaluation.samples` completions of each problem of a set under the weights of `step`.

    Training rollouts in flight meanwhile continue in their own lane; no update is made while this one is read. A
    completion solves its problem if its reward is at least `evaluation.solved_at`; one whose reward failed does not.

    Returns:
      The columns of eval.jsonl, and how many tokens were sampled.
    """
    config, inputs, problems = parts.config, parts.inputs, parts.inputs.evaluation_sets[name]
    samples, k = config.evaluation.samples, config.evaluation.k
    seed = evaluation_seed(config.seed, name)
    known = by_id(problems)
    requests = make_requests(problems, inputs.prompts, config.sampling, group_size=samples, seed=seed, step=step)
    groups = sample(
        parts.sampler,
        requests,
        lane=EVALUATION,
        version=step,
        grade=lambda arriving: graded(arriving, known, parts.grading),
    )
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


def check_if_due(parts: Parts, state: LoopState) -> LoopState:
    """Compares sampler and learner: every so many updates, unless the log has it, and whenever a process starts."""
    every = parts.config.check_every
    if every and state.step % every == 0 and state.checked != state.step:
        return check_agreement(parts, state)
    return check_agreement(parts, state, logged=False) if every and state.served < 0 else state


def check_agreement(parts: Parts, state: LoopState, *, logged: bool = True) -> LoopState:
    """Compares sampler and learner, logs it and charges it as evaluation.

    The check of a process that starts is not `logged`: an undisturbed run has none, so what it samples counts as
    redrawn.

    Raises:
      RunError: they differ too much.
    """
    config, inputs = parts.config, parts.inputs
    state = parts.send_weights(state)
    requests = probes(inputs.problems, inputs.prompts, config, step=state.step)
    groups = parts.team.broadcast(lambda: sample(parts.sampler, requests, lane=AGREEMENT, version=state.step))
    found = compare(
        groups,
        lambda tokens: sharding.to_host(parts.score(parts.weights(state), tokens, as_sampled=True)),
        parts.lay_out_probes,
    )
    rollouts, tokens = sum(len(group.completions) for group in groups), sum(group.num_tokens for group in groups)
    if logged and math.isfinite(found["logprob_difference"]):
        state = dataclasses.replace(state, ledger=state.ledger.charge_evaluation(rollouts, tokens))
        state = workdir.append(parts, state, run_files.AGREEMENT, dict(found))
    judge(found, config.agreement, step=state.step)
    if logged:
        return dataclasses.replace(state, checked=state.step)
    return dataclasses.replace(state, ledger=state.ledger.charge_redrawn(rollouts))


def evaluate_if_due(parts: Parts, state: LoopState) -> LoopState:
    """Evaluates whenever C has passed a point that the config spaces out since the last time."""
    points = parts.config.evaluation_points
    passed = bisect.bisect_right(points, state.ledger.compute)
    return evaluate(parts, state) if passed > bisect.bisect_right(points, state.evaluated_compute) else state


def evaluate(parts: Parts, state: LoopState) -> LoopState:
    """Evaluates every named set with the current weights, then logs one line for each."""
    inputs = parts.inputs
    state = parts.send_weights(state)
    measure = functools.partial(evaluate_set, parts, step=state.step)
    results = [parts.team.broadcast(functools.partial(measure, name)) for name in inputs.evaluation_sets]
    lines = []
    for columns, tokens in results:
        ledger = state.ledger.charge_evaluation(columns["problems"] * columns["samples"], tokens)
        epochs = state.drawn / len(inputs.problems)
        state = dataclasses.replace(state, ledger=ledger)
        state = workdir.append(parts, state, run_files.EVAL, {**columns, "epochs": epochs})
        lines.append({**columns, "compute": ledger.compute})
        average = f"avg@{parts.config.evaluation.k}"
        LOG.info("C = %d: %s %s %.3f", ledger.compute, columns["eval_set"], average, columns[average])
    if state.controller and lines:
        state = dataclasses.replace(state, controller=state.controller.after_evaluation(lines))
    return dataclasses.replace(state, evaluated=state.step, evaluated_compute=state.ledger.compute)


LOOK_AT = (
    "Look at the dtype of the head on both sides (float32 in vLLM: hf_overrides={'head_dtype': 'float32'}), at the "
    "temperature (the sampler must report log-probabilities of the tempered distribution: vLLM's "
    "logprobs_mode='processed_logprobs'), at the prefix cache (every update must empty it), and at the weights (is "
    "it the same model, and did every tensor arrive?)"
)
"""What to do where sampler and learner differ."""
AGREEMENT = "agreement"
"""Lane of the rollouts that checks sample."""


def probes(problems: Sequence[Problem], prompts: Prompts, config: RunConfig, *, step: int) -> list[SampleRequest]:
    """What is sampled: the same prompts at every check, with random numbers that nothing else uses."""
    return make_requests(
        problems[: config.agreement.problems],
        prompts,
        config.sampling,
        group_size=config.agreement.samples,
        seed=seed_of(f"agreement/{config.seed}"),
        step=step,
    )


def compare(
    groups: Sequence[RolloutGroup], score: Callable[[Batch], np.ndarray], lay_out: LayOut
) -> dict[str, float | int]:
    """Compares what the sampler reported of the groups' tokens with the learner's `score` of them, same weights.

    Returns:
      The columns of agreement.jsonl: mean and largest absolute difference of log-probabilities, in nats per token, and
      how many tokens were compared.
    """
    batch = lay_out(groups, None)
    differences = np.abs(score(batch) - np.asarray(batch.sampler_logprobs))[np.asarray(batch.mask)]
    return {
        "logprob_difference": float(differences.mean()),
        "logprob_difference_max": float(differences.max()),
        "compared_tokens": differences.size,
    }


def judge(difference: Mapping[str, float | int], config: AgreementConfig, *, step: int) -> None:
    """Warns where the mean difference, as `compare` found it, is above `config.warn`.

    Raises:
      RunError: it is above `config.stop`, or not a number.
    """
    mean = difference["logprob_difference"]
    found = (
        f"sampler and learner differ by {mean:.3g} nats per token on average, by "
        f"{difference['logprob_difference_max']:.3g} at most (weights of step {step}, {difference['compared_tokens']} "
        "tokens)"
    )
    if not mean <= config.stop:
        raise RunError(f"{found}; config.agreement.stop = {config.stop}. {LOOK_AT}")
    if mean > config.warn:
        LOG.warning("%s; config.agreement.warn = %s. %s", found, config.warn, LOOK_AT)
