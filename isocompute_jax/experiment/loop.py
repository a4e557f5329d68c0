"""One training run: sample, grade, lay out, update, book, evaluate, checkpoint.

`step` reads as the walk of one step. Everything that a step needs is in the checkpoint (state, position in the data,
ledger) or keyed by (seed, step, problem, rollout), so a run that is killed and started again repeats the undisturbed
run exactly, on the same machine with the same versions and thread count.

Asynchronous training is the same walk with a window (see `pipeline`). There the moment at which new weights reach a
rollout depends on the clock: what was in flight is sampled again after a restart, and such runs are reproducible in
distribution, not bit for bit. Runs in phases are exact.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import pathlib
import time
from collections.abc import Sequence
from typing import Any

from isocompute_jax import learner
from isocompute_jax.distributed import Team, alone
from isocompute_jax.experiment import build, checkpoints, evaluation, memory, samplers, schedules, tracking, workdir
from isocompute_jax.experiment.ahead import Ahead, compiles_ahead, next_size
from isocompute_jax.experiment.build import MakeSampler, Parts
from isocompute_jax.experiment.config import RunConfig, how_to_hold_out
from isocompute_jax.experiment.inputs import contents_of, introduce, read_inputs
from isocompute_jax.experiment.loop_state import LoopState
from isocompute_jax.experiment.metrics import (
    Phases,
    curriculum_metrics,
    is_kept,
    kept_columns,
    reward_metrics,
    rollout_metrics,
    size_columns,
    staleness_metrics,
    step_speed,
    what_was_not_measured,
)
from isocompute_jax.experiment.noise import noise_columns
from isocompute_jax.experiment.progress import NO_STEPS, Interrupt, Profiler, Report, check_steps, progress
from isocompute_jax.experiment.updates import lay_out, make_updates, shared_of
from isocompute_jax.records import run_files
from isocompute_jax.records.errors import InputError, Interrupted, RunError
from isocompute_jax.records.rollout import RolloutGroup

LOG = logging.getLogger(__name__)


def train(
    config: RunConfig,
    directory: str | os.PathLike[str],
    *,
    make_sampler: MakeSampler = samplers.make_sampler,
    team: Team | None = None,
    profile: range = NO_STEPS,
) -> None:
    """Runs one training run in `directory`, or resumes it.

    A finished run is left alone before anything is loaded. A new one is in nobody's way until its inputs have been
    read, and its rewards tried: then its directory is locked, config.json written, the model loaded and the sampler
    reached, in this order.

    Args:
      config: the run.
      directory: made if absent.
      make_sampler: makes what draws the rollouts, which by default the config decides.
      team: the processes of the run, each of which calls this (`distributed.start`); None for this one alone.
      profile: steps that are traced.

    Raises:
      InputError: bad config, problem set, checkpoint or directory, or a service refuses the run; nothing was lost.
      RunError: it cannot continue; unless it diverged, a checkpoint was written (in phases: at the end of the last
        one), and the same command resumes it.
      KeyboardInterrupt: the user stopped it; a checkpoint was written.
    """
    began, config, path, team = time.monotonic(), config.resolved(), pathlib.Path(directory), team or alone()
    if team.broadcast(lambda: workdir.is_done(path, config)):
        gone = not (path / run_files.MODEL).exists()
        remedy = f"; its model/ is gone: python -m isocompute_jax.export --run={path} --out={path / run_files.MODEL}"
        LOG.info("%s is done already%s", path, remedy if gone else "")
        return
    tracking.check_installed(config.track)
    check_steps(profile, config)
    config = config.as_recorded(team.broadcast(lambda: workdir.recorded(path)))
    inputs = team.everywhere(lambda: read_inputs(config, processes=team.count))
    config, inputs = evaluation.settled(schedules.settled(config, inputs), inputs)
    introduce(team, inputs.mesh)
    if not config.evaluation.sets:
        LOG.info(how_to_hold_out(config, len(inputs.problems)))
    interrupt = Interrupt()
    team.raise_flag_if(lambda: interrupt.requested)
    with (
        contextlib.closing(
            build.make_grading(
                config.reward, inputs.tokenizer, inputs.all_problems, team, environment=config.environment
            )
        ) as grading,
        workdir.opened(path, config, build.facts_of(config, inputs), team, lambda: contents_of(config, inputs)),
    ):
        parts, state = build.build(
            config,
            inputs,
            path,
            grading=grading,
            make_sampler=make_sampler,
            interrupted=lambda: team.flagged,
            team=team,
        )
        total = config.planned_compute
        with (
            contextlib.closing(parts.pipeline),
            contextlib.closing(parts.sampler),
            contextlib.closing(parts.trackers),
            contextlib.closing(Ahead(compiles_ahead(parts))) as ahead,
            contextlib.closing(Profiler(profile, path, team.index if team.count > 1 else None)) as profiler,
            progress(path.name, total, silent=not team.leads) as report,
            interrupt,
            parts.checkpointer,
        ):
            state = dataclasses.replace(checkpoints.resume(parts, state), clock=began)
            state = walk(parts, state, report, profiler, ahead)
            checkpoints.finish(parts, state)
            LOG.info(
                "%s: done, %d steps and %d rollouts; the model is in model/", path, state.step, state.ledger.compute
            )


def walk(parts: Parts, state: LoopState, report: Report, profiler: Profiler, ahead: Ahead) -> LoopState:
    """The steps of a run, and what lies between them; returns the last state.

    Raises as `train` does, after a checkpoint.
    """
    try:
        state = evaluation.check_if_due(parts, state)
        state = evaluation.evaluate_if_due(parts, state)
        parts.team.broadcast(lambda: checkpoints.score(parts, state))  # a metric that is not there shows now
        while state.ready or parts.pipeline.has(state.step, state.history, state.group_size):
            if state.between_phases and parts.team.broadcast(lambda: parts.team.flagged):
                checkpoints.save(parts, state)
                raise KeyboardInterrupt
            size = next_size(parts, state)
            ahead.wait(size)
            with profiler.step(state.step + 1), memory.named(parts.config, parts.path, state.step + 1, size):
                state = step(parts, state)
            ahead.follow(parts, state)
            state = evaluation.check_if_due(parts, state)
            state = evaluation.evaluate_if_due(parts, state)
            state = checkpoints.save_if_due(parts, state)
            report(state.ledger.compute, f"step {state.step}, {shown_column(parts.config)} {state.shown:.3f}")
            parts.team.steady()
        if parts.pipeline.exhausted(state.history):
            LOG.warning(
                "%s: every problem is retired (config.curriculum.retire_rate = %g): the run ends at %d of %d rollouts",
                parts.path,
                parts.config.curriculum.retire_rate,
                state.ledger.compute,
                parts.config.max_compute,
            )
        if state.evaluated != state.step:  # at the end, wherever that is, unless the log has it
            state = evaluation.evaluate(parts, state)
    except (workdir.Diverged, memory.OutOfMemory):
        raise
    except (InputError, RunError, Interrupted) as error:  # of a service that is gone, or that refuses what it gets
        # Bad input that shows before anything was logged leaves no run behind that the corrected command would meet.
        worth_it = state.logged or not isinstance(error, InputError)
        if state.between_phases and worth_it and parts.team.shares(error):
            checkpoints.save(parts, state)
        raise
    return state


def step(parts: Parts, state: LoopState) -> LoopState:
    """One step, from problems to new weights: one update on a sampled batch, or several."""
    config, phases, now = parts.config, Phases(state.spent), state.step
    if not state.ready:
        state = sample(parts, state, phases)
    batch, *later = state.ready
    learning_rate = parts.learning_rate(now, state.ledger.compute, batch.sampled.size)
    groups, turns = batch.sampled.groups, config.environment.credited_turns
    columns: dict[str, Any] = {**rollout_metrics(groups, turns), **reward_metrics(groups)}
    columns |= measured_noise(parts, state, groups)
    phases.end("noise")
    state, entropy_coef = adapt_entropy_coef(parts, state, columns["sampler_entropy"])
    parts.checkpointer.wait_before_donation()
    updated, metrics = make_updates(parts, state.learner, batch, learning_rate, entropy_coef)
    phases.end("update")
    ledger, history = state.ledger.charge_training(groups), state.history.updated(groups, parts.inputs.stream.places)
    columns |= {**metrics, "learning_rate": learning_rate}
    columns |= size_columns(config, batch.sampled)
    if state.controller and state.controller.decision:
        LOG.info("%s: %s", parts.path, state.controller.decision)
        columns["decision"] = state.controller.decision
    columns |= curriculum_metrics(config.curriculum, batch.sampled, history, parts.inputs.stream, turns)
    columns |= staleness_metrics(groups, step=now, window=config.window)
    columns |= what_was_not_measured(config)
    columns |= {} if entropy_coef is None else {"entropy_coef": entropy_coef}
    columns["phase_s"] = phases.seconds
    columns["speed"] = step_speed(parts, batch, phases.seconds)
    state = dataclasses.replace(
        state,
        learner=updated,
        ledger=ledger,
        history=history,
        drawn=state.drawn + len(groups),
        ready=tuple(later),
        shown=columns[shown_column(config)],
        spent={},
    )
    if not now and parts.team.leads:
        LOG.info("%s: step 1: %.1f%% of completions were cut off", parts.path, 100 * columns["truncation_rate"])
    state = workdir.append(parts, state, run_files.METRICS, columns)
    if is_kept(config, now + 1):
        state = workdir.append(parts, state, run_files.ROLLOUTS, kept_columns(config, groups, parts.inputs.tokenizer))
    return state


def shown_column(config: RunConfig) -> str:
    """What of a step's metrics the progress line shows: texts that are shown to a model have no rewards."""
    return "loss" if config.supervised else "reward"


def measured_noise(parts: Parts, state: LoopState, groups: Sequence[RolloutGroup]) -> dict[str, float]:
    """The noise of the gradient at these weights, on one step in `schedule.noise_every`."""
    every = parts.config.schedule.noise_every
    return (
        noise_columns(parts, state.learner, groups, step=state.step) if every and (state.step + 1) % every == 0 else {}
    )


def adapt_entropy_coef(parts: Parts, state: LoopState, entropy: float) -> tuple[LoopState, float | None]:
    """The weight of this step's entropy bonus, given the entropy of its rollouts; None for the config's."""
    if not parts.config.loss.entropy_target:
        return state, None
    coef, used = learner.adapted_entropy_coef(state.entropy_coef, entropy, parts.config.loss)
    return dataclasses.replace(state, entropy_coef=coef), used


def sample(parts: Parts, state: LoopState, phases: Phases) -> LoopState:
    """Makes ready what the next updates train on: one batch, or those of a sampling phase."""
    state = parts.send_weights(state)
    phases.end("weights")
    batches, position = parts.pipeline.next(state.step, state.history, state.group_size)
    phases.end("waiting" if parts.sampler.concurrent else "sampling", grading=parts.pipeline.grading_s())
    ready = tuple(lay_out(parts, state, sampled, state.step + later) for later, sampled in enumerate(batches))
    if parts.team.count > 1:
        parts.team.agree(f"what step {state.step + 1} computes", shared_of(ready))
    phases.end("packing", logprobs=sum(batch.scoring_s for batch in ready))
    return dataclasses.replace(state, ready=ready, stream=position)
