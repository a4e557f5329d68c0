"""Device-hours of a sweep before it starts: each distinct shape compiled once, or what runs of its kind have taken.

Compiled (`plan`): for accelerators that need not be there; an estimate from published peaks, as a range. Measured: from
the logs of this very sweep's runs, of the same configuration or of another budget. Nothing is guessed where neither is.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import pathlib
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from isocompute_jax.experiment.config import RunConfig
from isocompute_jax.plan.courses import price_again
from isocompute_jax.records import run_files
from isocompute_jax.records.errors import BAD_INPUT, InputError, RunError
from isocompute_jax.sweeps import books
from isocompute_jax.sweeps.grid import PlannedRun

LOG = logging.getLogger(__name__)
PLANS = "plans"
NO_SHAPE = ("seed", "max_compute", "evaluation", "service", "train_set", "checkpoint_every_s")
"""Fields of a run that neither its compiled step nor the time of a step depends on."""
LEAST_STEPS = 5
FIGURES = 3
"""Which figures of a plan are kept: those of earlier releases are made anew."""


@dataclasses.dataclass(frozen=True)
class DeviceHours:
    """Device-hours of one whole run."""

    low: float  # at the quick end of the estimate; 0 where the compiler refused the step for memory
    high: float  # at the slow end
    fits: bool | None = None  # whether the step fits on the devices; None where it was measured, and not compiled


def estimates(runs: Sequence[PlannedRun], root: pathlib.Path, topology: str = "") -> dict[str, DeviceHours | None]:
    """What each run takes in all, what it has taken already included; None where nothing tells.

    Args:
      runs: the sweep.
      root: its directory, in which plans are kept: each shape is compiled once.
      topology: accelerators to compile for; those that configs name (`plan.topology`) if empty.

    Raises:
      InputError: a config cannot be planned.
      RunError: the compiler failed.
    """
    measured = measured_per_step(runs, root)
    found: dict[str, DeviceHours | None] = {}
    for run in runs:
        steps, place = run.config.num_steps, topology or run.config.plan.topology
        if place:
            plan, low, high = planned(run, root, place), 0.0, 0.0
            if plan["fits"]:
                hours = price_again(run.config, plan).device_hours
                low, high = hours.low, hours.high
            found[run.name] = DeviceHours(low, high, plan["fits"])
        elif (hours := measured.get(shape_of(run.config))) is not None:
            found[run.name] = DeviceHours(steps * hours, steps * hours)
        else:
            found[run.name] = None
    return found


def shape_of(config: RunConfig) -> str:
    """Equal for runs whose steps are the same program and take the same time."""
    fields = {name: value for name, value in dataclasses.asdict(config).items() if name not in NO_SHAPE}
    if config.schedule.group_size or config.schedule.problems_per_batch:  # how far it comes says which sizes it has
        fields["max_compute"] = config.max_compute
    return hashlib.blake2b(json.dumps(fields, sort_keys=True).encode(), digest_size=8).hexdigest()


def measured_per_step(runs: Sequence[PlannedRun], root: pathlib.Path) -> dict[str, float]:
    """Shape -> device-hours of a step, with the evaluations that fell between: of a finished run, or of one under way.

    Of a run under way the last steps in its log count, `LEAST_STEPS` at least: compiling is in the first.
    """
    best: dict[str, tuple[bool, int, float]] = {}
    for run in runs:
        lines = books.tail(root / run.name / run_files.METRICS)
        if len(lines) <= LEAST_STEPS:
            continue
        done, steps = (root / run.name / run_files.DONE).exists(), lines[-1]["step"]
        if not done and len(run.config.batch_sizes) > 1:
            continue  # its last steps say nothing of larger ones
        if done:
            hours = books.device_hours_of(root / run.name) / steps
        else:
            hours = (lines[-1]["device_hours"] - lines[0]["device_hours"]) / (steps - lines[0]["step"])
        best[shape_of(run.config)] = max(best.get(shape_of(run.config), (False, 0, 0.0)), (done, steps, hours))
    return {shape: hours for shape, (_, _, hours) in best.items()}


def planned(run: PlannedRun, root: pathlib.Path, topology: str) -> Mapping[str, Any]:
    """The figures of a dry run of the config for a topology, by a process of its own; compiled once, then read."""
    folder = root / PLANS
    key = hashlib.blake2b(f"{shape_of(run.config)} {topology} {FIGURES}".encode(), digest_size=8).hexdigest()
    out = folder / f"{key}.json"
    if out.exists():
        return json.loads(out.read_text(encoding="utf-8"))
    LOG.info("compiling the step of %s for %s", run.name, topology)
    folder.mkdir(parents=True, exist_ok=True)
    config, figures = folder / f"{key}.config.json", folder / f"{key}.figures.json"
    run_files.write_atomic(config, json.dumps({"config": dataclasses.asdict(run.config)}) + "\n")
    command = [sys.executable, "-m", "isocompute_jax.train", f"--resolved_config={config}"]
    command += ["--trust_config", "--dry_run", f"--topology={topology}", f"--plan_out={figures}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == BAD_INPUT or not figures.exists():
        error = InputError if done.returncode == BAD_INPUT else RunError
        last = done.stderr.strip().rpartition("\n")[2].removeprefix("error: ")
        raise error(f"run {run.name} cannot be planned for {topology}: {last}")
    found = json.loads(figures.read_text(encoding="utf-8"))
    figures.unlink()
    run_files.write_atomic(out, json.dumps(found, indent=1) + "\n")
    return found


def as_text(found: DeviceHours | None) -> str:
    """`12 to 20`, `3.4`, `unknown` or `does not fit`."""
    if found is None:
        return "unknown"
    if found.fits is False:
        return "does not fit"
    return span(found.low, found.high)


def span(low: float, high: float) -> str:
    """Both ends, or one where they are the same."""
    return f"{low:.3g}" if low == high else f"{low:.3g} to {high:.3g}"


def summary(found: Mapping[str, DeviceHours | None], spent: float, budget: float | None) -> str:
    """What all runs take, what they have taken, and whether the budget is enough."""
    known = [each for each in found.values() if each is not None]
    low, high = sum(each.low for each in known), sum(each.high for each in known)
    parts = [f"{span(low, high)} device-hours" if known else "device-hours unknown"]
    if unknown := len(found) - len(known):
        parts[0] += f" without {unknown} runs of which nothing is known" if known else ""
        parts.append("--topology says which accelerators to estimate for, or start a run of each kind and plan again")
    if spent:
        parts.append(f"{spent:.3g} spent")
    if budget is not None and known:
        enough = "enough" if high <= budget else "perhaps too little" if low <= budget else "too little"
        parts.append(f"--max_device_hours={budget:g} is {enough}")
    return "; ".join(parts)
