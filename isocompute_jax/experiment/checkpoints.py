"""How a killed run resumes: what its checkpoints hold, when they are written, and how a run is finished."""

from __future__ import annotations

import dataclasses
import logging
import pathlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

from isocompute_jax import model
from isocompute_jax.allocation import auto
from isocompute_jax.experiment.build import Parts
from isocompute_jax.experiment.loop_state import LoopState, from_checkpoint
from isocompute_jax.experiment.metrics import replay
from isocompute_jax.experiment.workdir import Diverged
from isocompute_jax.learner.checkpoint import Mark
from isocompute_jax.records import run_files
from isocompute_jax.records.errors import InputError

LOG = logging.getLogger(__name__)


def resume(parts: Parts, state: LoopState) -> LoopState:
    """The state of the last whole checkpoint, or the first one where there is none; process 0 cuts logs back to it.

    Raises:
      InputError: every checkpoint is damaged, or they are of other problems.
      RunError: a checkpoint cannot be read.
    """
    parts.team.broadcast(lambda: run_files.remove_unfinished(parts.path))
    parts.team.arrive()
    restored = parts.checkpointer.restore()
    step, log = -1, parts.path / run_files.METRICS
    if restored is not None:
        saved = from_checkpoint(*restored, problems=len(parts.inputs.problems), group_size=parts.config.group_size)
        state = dataclasses.replace(saved, controller=state.controller)
        step = state.step
        parts.pipeline.restart(step, state.stream, state.ledger.compute)
        LOG.info("%s: resuming from step %d", parts.path, step)
        warn_of_another_mesh(parts, restored[1])
        if parts.config.window > parts.config.updates_per_phase:
            LOG.info(
                "max_staleness = %d: what was in flight is sampled again, under newer weights. Asynchronous runs are "
                "reproducible in distribution, not bit for bit",
                parts.config.max_staleness,
            )
    elif log.exists() and log.stat().st_size:  # its last line may be half written
        LOG.info(
            "%s: killed before its first checkpoint: it begins again (config.checkpoint_every_s = %g)",
            parts.path,
            parts.config.checkpoint_every_s,
        )
    if not parts.team.leads:
        return state
    last = {
        run_files.METRICS: step,
        run_files.ROLLOUTS: step,
        run_files.EVAL: state.evaluated,
        run_files.AGREEMENT: state.checked,
    }
    dropped = [run_files.cut_back(parts.path / name, step=known) for name, known in last.items()]
    state = charge_lost(state, [line for line in dropped if line is not None])
    parts.trackers.start(step)
    logs = [run_files.read_lines(parts.path / name) for name in (run_files.METRICS, run_files.EVAL)]
    # A fork may be evaluated where the run that it comes from was not.
    evaluated = state.evaluated if parts.config.evaluation.sets and not parts.config.fork else -1
    gone = len(logs[0]) < step, all(line["step"] < evaluated for line in logs[1]) and evaluated >= 0
    for name, known, some in zip((run_files.METRICS, run_files.EVAL), (step, evaluated), gone, strict=True):
        if some:
            LOG.warning(
                "%s lacks lines of steps up to %d, which the checkpoint counts: the curve goes on without them, unless "
                "a copy of the file is put back", parts.path / name, known
            )  # fmt: skip
    controller = state.controller and auto.replay(state.controller, *logs)
    return dataclasses.replace(state, watch=replay(parts.config.alarms, *logs), controller=controller)


def charge_lost(state: LoopState, dropped: Sequence[Mapping[str, Any]]) -> LoopState:
    """Books the time that a killed run spent after its checkpoint, by the last lines of its logs."""
    if not dropped:
        return state
    last = max(dropped, key=lambda line: line["device_hours"])
    return dataclasses.replace(state, ledger=state.ledger.charge_lost(last))


def warn_of_another_mesh(parts: Parts, saved: Mapping[str, Any]) -> None:
    """Warns where devices will now sum in another order."""
    here = dataclasses.asdict(parts.config.mesh)
    there = saved.get("mesh", here)  # earlier releases did not say
    if here != there:
        both = ((f"{name} {size}" for name, size in mesh.items() if size > 1) for mesh in (there, here))
        LOG.warning(
            "%s: saved on a mesh of %s, it continues on one of %s. The state is the same; what follows agrees with an "
            "undisturbed run up to rounding, not bit for bit",
            parts.path,
            *(" x ".join(axes) or "one device" for axes in both),
        )


def save_if_due(parts: Parts, state: LoopState) -> LoopState:
    """A checkpoint, and an export, where they are due between two phases; when they fall changes no result."""
    if not state.between_phases:
        return state
    exports, saves = parts.team.broadcast(lambda: (export_is_due(parts, state), checkpoint_is_due(parts, state)))
    if exports:
        export(parts, state, parts.path / run_files.EXPORTS / f"step-{state.step}")
    return save(parts, state) if saves else state


def checkpoint_is_due(parts: Parts, state: LoopState) -> bool:
    """Every `checkpoint_every_s` seconds, and wherever the config may keep one.

    On storage that takes longer to write one than that, as soon as the last one is written: steps go on meanwhile.
    """
    config = parts.config
    if is_milestone(parts, state) or (config.checkpoints.keep_best and state.evaluated == state.step):
        return True
    due = time.monotonic() - state.saved_at >= config.checkpoint_every_s
    return due and not (config.checkpoint_every_s and parts.checkpointer.busy)


def is_milestone(parts: Parts, state: LoopState) -> bool:
    """Whether the checkpoint of this step is kept for good."""
    every = parts.config.checkpoints.keep_every
    return bool(every) and state.step % every == 0


def save(parts: Parts, state: LoopState) -> LoopState:
    """A checkpoint: parameters, optimizer, position in the data, ledger and what was measured.

    It is written in the background. Random numbers are keyed by seed and step; batches that are in flight are drawn
    again from the position.

    Raises:
      Diverged: a parameter is not finite; the earlier checkpoint is kept.
      OSError: the disk is full, now or when the last one was written; what is whole is kept.
      RunError: the last one could not be written.
    """
    began = time.monotonic()
    check_finite(parts, state)
    mark = Mark(is_milestone(parts, state), parts.team.broadcast(lambda: score(parts, state)))
    content = {**state.to_json(), "mesh": dataclasses.asdict(parts.config.mesh)}
    parts.team.arrive()
    parts.checkpointer.save(state.learner, content, mark=mark)
    parts.team.follow()
    now = time.monotonic()
    return dataclasses.replace(state, saved_at=now, spent={"checkpoint": now - began})


def score(parts: Parts, state: LoopState) -> float | None:
    """`checkpoints.best_metric` of these weights; None where they were not evaluated, or nobody asks.

    Raises:
      InputError: the evaluation has no such column.
    """
    config, metric = parts.config.checkpoints, parts.config.checkpoints.best_metric
    if not config.keep_best or state.evaluated != state.step:
        return None
    lines = [line for line in run_files.read_lines(parts.path / run_files.EVAL) if line["step"] == state.step]
    found = {
        f"{line['eval_set']}/{name}": float(value)
        for line in lines
        for name, value in line.items()
        if isinstance(value, int | float) and name not in run_files.LINE_KEYS
    }
    if metric not in found:
        raise InputError(
            f"config.checkpoints.best_metric = {metric!r} is not among what was measured: {', '.join(sorted(found))}"
        )
    return found[metric]


def export_is_due(parts: Parts, state: LoopState) -> bool:
    """After every `export_every` steps, unless it was exported before the run was resumed."""
    every, path = parts.config.export_every, parts.path / run_files.EXPORTS / f"step-{state.step}"
    return bool(every) and state.step % every == 0 and not path.exists()


def export(parts: Parts, state: LoopState, path: pathlib.Path) -> None:
    """The weights as a Hugging Face directory, in the dtype that is trained.

    Raises:
      Diverged: a parameter is not finite.
    """
    check_finite(parts, state)
    shape = parts.inputs.model_config
    parts.team.arrive()
    params, base, lora = model.merged(parts.weights(state)), parts.config.model, parts.config.adapters
    model.save_checkpoint(path, shape, params, tokenizer_from=base, dtype=shape.dtype, writes=parts.team.leads)
    if lora is not None and parts.frozen is not None:
        adapter, mark = path.with_name(f"{path.name}-adapter"), model.fingerprint(parts.frozen)
        trained, writes = state.learner.params, parts.team.leads
        model.save_adapter(adapter, shape, lora, trained, base=base, base_fingerprint=mark, writes=writes)
    parts.team.follow()


def check_finite(parts: Parts, state: LoopState) -> None:
    """Raises Diverged where a parameter is not a number."""
    parts.team.arrive()
    if not model.all_finite(state.learner.params):
        raise Diverged(parts, state, "parameters")


def finish(parts: Parts, state: LoopState) -> None:
    """Last checkpoint, the trained model as a Hugging Face directory, what became of each problem, and DONE."""
    save(parts, state)
    export(parts, state, parts.path / run_files.MODEL)
    parts.checkpointer.wait()
    if not parts.team.leads:
        return
    inputs = parts.inputs
    state.history.write(parts.path / run_files.HISTORY, inputs.problems, inputs.stream.retired(state.history))
    warn_of_nothing_trained(parts)
    run_files.write_atomic(parts.path / run_files.DONE, f"{state.ledger.compute} rollouts\n")


def warn_of_nothing_trained(parts: Parts) -> None:
    """Warns where no step had a group with a signal: the run looks done, and its model is the one it began with.

    Rewards that failed, every one, are said first, whatever else moved the model: no problem is too hard for them.
    """
    lines = run_files.read_lines(parts.path / run_files.METRICS)
    failed = sum(line.get("reward_failures", 0) for line in lines)
    if lines and failed == lines[-1]["compute"]:
        LOG.warning(
            "%s: nothing was learned: every reward failed, of all %d rollouts in %d steps. What the log first says of "
            "rewards tells why; config.reward.on_failure='stop' ends a run at the first that fails",
            parts.path,
            lines[-1]["compute"],
            len(lines),
        )
    elif lines and not any(line["trained_tokens"] for line in lines):
        LOG.warning(
            "%s: nothing was trained: in each of %d steps every group's rewards were all equal "
            "(zero_variance_share 1).%s Take easier problems, a better model or a larger group_size",
            parts.path,
            len(lines),
            f" {failed} of {lines[-1]['compute']} rewards failed: look at these first." if failed else "",
        )
