"""How a killed run resumes: what its checkpoints hold, how it is restored, and how a run is finished."""

from __future__ import annotations

import dataclasses
import logging
import time

import jax
import jax.numpy as jnp

from isocompute_jax import model
from isocompute_jax.experiment import alarms
from isocompute_jax.experiment.build import Parts
from isocompute_jax.experiment.loop_state import LoopState, from_checkpoint
from isocompute_jax.experiment.run_log import Diverged
from isocompute_jax.records import run_files

LOG = logging.getLogger(__name__)


def resume(parts: Parts, state: LoopState) -> LoopState:
    """The state of the last checkpoint, or the first one where there is none; logs are cut back to it."""
    restored = parts.checkpointer.restore()
    step, log = -1, parts.path / run_files.METRICS
    if restored is not None:
        state = from_checkpoint(*restored, problems=len(parts.inputs.problems))
        step = state.step
        parts.pipeline.restart(step, state.stream, state.ledger.compute)
        LOG.info("%s: resuming from step %d", parts.path, step)
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
    last = {run_files.METRICS: step, run_files.EVAL: state.evaluated, run_files.AGREEMENT: state.checked}
    for name, known in last.items():
        run_files.cut_back(parts.path / name, step=known)
    logs = (run_files.read_lines(parts.path / name) for name in (run_files.METRICS, run_files.EVAL))
    return dataclasses.replace(state, watch=alarms.replayed(parts.config.alarms, *logs))


def save_if_due(parts: Parts, state: LoopState) -> LoopState:
    """A checkpoint every `checkpoint_every_s` seconds; when it falls changes no result."""
    due = time.monotonic() - state.saved_at >= parts.config.checkpoint_every_s
    return save(parts, state) if due and state.between_phases else state


def save(parts: Parts, state: LoopState) -> LoopState:
    """A checkpoint: parameters, optimizer, position in the data, ledger and what was measured.

    Random numbers are keyed by seed and step; batches that are in flight are drawn again from the position.

    Raises:
      Diverged: a parameter is not finite; the earlier checkpoint is kept.
    """
    if not all_finite(state.learner.params):
        raise Diverged(parts, state, "parameters")
    parts.checkpointer.save(state.learner, state.to_json())
    return dataclasses.replace(state, saved_at=time.monotonic())


def finish(parts: Parts, state: LoopState) -> None:
    """Last checkpoint, the trained model as a Hugging Face directory, what became of each problem, and DONE."""
    save(parts, state)
    parts.checkpointer.close()
    shape = parts.inputs.model_config
    params = model.cast_params(state.learner.params, shape.dtype)
    model.save_checkpoint(parts.path / "model", shape, params, tokenizer_from=parts.config.model)
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


@jax.jit
def all_finite(params: model.Params) -> jax.Array:
    """Whether every parameter is a number."""
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(params)]))
