"""The lines that a run appends to its logs."""

from __future__ import annotations

import dataclasses
import logging
import math
import time
from typing import Any

import jax

from isocompute_jax.experiment import alarms
from isocompute_jax.experiment.build import Parts
from isocompute_jax.experiment.loop_state import LoopState
from isocompute_jax.records import run_files
from isocompute_jax.records.errors import RunError

LOG = logging.getLogger(__name__)


class Diverged(RunError):
    """Numbers are no longer finite: what would be checkpointed is worthless."""

    def __init__(self, parts: Parts, state: LoopState, what: str):
        why = (
            f"nothing was trained yet: look at the weights of {parts.config.model}, and at what the sampler reports"
            if state.step == 0
            else "the learning rate is probably too high. The last checkpoint is kept"
        )
        super().__init__(f"{parts.path}: {what} not finite at step {state.step}: {why}")


def append(parts: Parts, state: LoopState, name: str, columns: dict[str, Any]) -> LoopState:
    """Charges the time that passed and what was redrawn, then appends a line to the log `name`, ledger first.

    A line of metrics.jsonl ends with the alarms that are on; those that it turned on are said.

    Raises:
      Diverged: a number is not finite.
    """
    broken = [key for key, value in columns.items() if isinstance(value, float) and not math.isfinite(value)]
    if broken:
        raise Diverged(parts, state, ", ".join(broken))
    now, redrawn = time.monotonic(), parts.sampler.redrawn_rollouts
    sampler, seconds = parts.sampler.device_seconds, now - state.clock
    ledger = state.ledger.charge_time(
        seconds,
        {jax.devices()[0].device_kind: seconds * (1 if parts.inputs.mesh is None else len(jax.devices()))},
        {kind: held - state.held.get(kind, 0.0) for kind, held in sampler.items()},
    ).charge_redrawn(redrawn - state.redrawn)
    line = {**ledger.columns(), **columns}
    limit = alarms.limit_of(parts.config.sampling)
    watch, new = alarms.after(state.watch, parts.config.alarms, name, line, limit=limit)
    if name == run_files.METRICS:
        line["alarms"] = list(watch.active)
    if parts.team.leads:
        run_files.append_line(parts.path / name, line)
        parts.trackers.log(name, line)
        for alarm, said in new.items():
            LOG.warning("step %d: alarm %s: %s", ledger.step, alarm, said)
    return dataclasses.replace(state, ledger=ledger, clock=now, held=sampler, redrawn=redrawn, watch=watch)
