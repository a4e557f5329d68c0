"""What is measured between two steps: whether sampler and learner agree, and how good the weights are."""

from __future__ import annotations

import bisect
import dataclasses
import functools
import math

from isocompute_jax import sharding
from isocompute_jax.experiment import agreement, run_log
from isocompute_jax.experiment.build import Parts
from isocompute_jax.experiment.evaluate import evaluate_set
from isocompute_jax.experiment.loop_state import LoopState
from isocompute_jax.experiment.rollouts import sample
from isocompute_jax.experiment.send_weights import send_weights
from isocompute_jax.records import run_files


def check_if_due(parts: Parts, state: LoopState) -> LoopState:
    """Compares sampler and learner: every so many updates, unless the log has it, and whenever a process starts."""
    every = parts.config.check_every
    due = bool(every) and state.step % every == 0 and state.checked != state.step
    if due:
        return check(parts, state)
    return check_restart(parts, state) if every and state.served < 0 else state


def check(parts: Parts, state: LoopState) -> LoopState:
    """Compares sampler and learner, logs it and charges it as evaluation.

    Raises:
      RunError: they differ too much.
    """
    state, found, rollouts, tokens = _compare(parts, state)
    if math.isfinite(found.mean):
        state = dataclasses.replace(state, ledger=state.ledger.charge_evaluation(rollouts, tokens))
        state = run_log.append(parts, state, run_files.AGREEMENT, found.columns())
    agreement.judge(found, parts.config.agreement, step=state.step)
    return dataclasses.replace(state, checked=state.step)


def check_restart(parts: Parts, state: LoopState) -> LoopState:
    """The check of a process that starts: an undisturbed run has none, so what it samples counts as redrawn.

    Raises:
      RunError: they differ too much.
    """
    state, found, rollouts, _ = _compare(parts, state)
    agreement.judge(found, parts.config.agreement, step=state.step)
    return dataclasses.replace(state, ledger=state.ledger.charge_redrawn(rollouts))


def _compare(parts: Parts, state: LoopState) -> tuple[LoopState, agreement.Agreement, int, int]:
    """The state, what was found, and how many rollouts and tokens that took."""
    config, inputs = parts.config, parts.inputs
    state = send_weights(parts, state)
    requests = agreement.probes(inputs.problems, inputs.prompts, config, step=state.step)
    groups = parts.team.broadcast(lambda: sample(parts.sampler, requests, lane=agreement.LANE, version=state.step))
    found = agreement.compare(
        groups,
        lambda tokens: sharding.to_host(parts.score_as_sampled(state.learner.params, tokens)),
        parts.lay_out_probes,
    )
    rollouts = sum(len(group.completions) for group in groups)
    return state, found, rollouts, sum(group.num_tokens for group in groups)


def evaluate_if_due(parts: Parts, state: LoopState) -> LoopState:
    """Evaluates whenever C has passed a point that the config spaces out since the last time."""
    points = parts.config.evaluation_points
    passed = bisect.bisect_right(points, state.ledger.compute)
    return evaluate(parts, state) if passed > bisect.bisect_right(points, state.evaluated_compute) else state


def evaluate_last(parts: Parts, state: LoopState) -> LoopState:
    """Evaluates at the end of a run, wherever that is, unless the log has it."""
    return evaluate(parts, state) if state.evaluated != state.step else state


def evaluate(parts: Parts, state: LoopState) -> LoopState:
    """Evaluates every named set with the current weights, then logs one line for each."""
    config, inputs = parts.config, parts.inputs
    state = send_weights(parts, state)
    results = [
        parts.team.broadcast(
            functools.partial(
                evaluate_set,
                name,
                problems,
                config=config,
                step=state.step,
                sampler=parts.sampler,
                grading=parts.grading,
                prompts=inputs.prompts,
            )
        )
        for name, problems in inputs.evaluation_sets.items()
    ]
    for columns, tokens in results:
        ledger = state.ledger.charge_evaluation(columns["problems"] * columns["samples"], tokens)
        epochs = ledger.compute / (config.group_size * len(inputs.problems))
        state = dataclasses.replace(state, ledger=ledger)
        state = run_log.append(parts, state, run_files.EVAL, {**columns, "epochs": epochs})
    return dataclasses.replace(state, evaluated=state.step, evaluated_compute=state.ledger.compute)
