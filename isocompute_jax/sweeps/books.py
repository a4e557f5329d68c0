"""The books of a sweep: which runs it plans and what became of each, in files of its directory alone.

    sweep.json          names of the runs, in plan order
    configs/NAME.json   the config of each
    jobs/NAME.json      a `jobs.Record`: what became of it last
    NAME/               its run directory; DONE in it counts more than any record

So whoever can read the directory sees the state of the sweep, wherever its runs are.
"""

from __future__ import annotations

import dataclasses
import fcntl
import json
import pathlib
from collections.abc import Sequence

from isocompute_jax.experiment.config import from_dict
from isocompute_jax.records import run_files
from isocompute_jax.records.errors import InputError
from isocompute_jax.sweeps import status
from isocompute_jax.sweeps.grid import PlannedRun
from isocompute_jax.sweeps.jobs import JOBS, LOCAL, LOGS, read_record
from isocompute_jax.sweeps.status import SweepState

SWEEP, CONFIGS = "sweep.json", "configs"


def prepare(runs: Sequence[PlannedRun], root: pathlib.Path) -> None:
    """Makes the sweep's directory and writes down what it plans; runs of earlier grids stay in its books.

    A run that is done keeps the config that it was done with, as an earlier release wrote it.
    """
    for directory in (root, root / LOGS, root / CONFIGS, root / JOBS):
        directory.mkdir(parents=True, exist_ok=True)
    names = list(dict.fromkeys([*names_of(root), *(run.name for run in runs)]))
    for run in runs:
        if not ((root / run.name / run_files.DONE).exists() and (root / CONFIGS / f"{run.name}.json").exists()):
            write_config(run, root)
    run_files.write_atomic(root / SWEEP, json.dumps({"runs": names}, indent=1) + "\n")


def write_config(run: PlannedRun, root: pathlib.Path) -> pathlib.Path:
    """Writes the config that a run is started with; returns its path."""
    path = root / CONFIGS / f"{run.name}.json"
    run_files.write_atomic(path, json.dumps({"config": dataclasses.asdict(run.config)}, indent=2) + "\n")
    return path


def names_of(root: pathlib.Path) -> list[str]:
    """Names of the planned runs, in plan order; of a sweep without sweep.json (of an earlier release), sorted."""
    path = root / SWEEP
    if path.exists():
        return list(json.loads(path.read_text(encoding="utf-8"))["runs"])
    return sorted(file.name.removesuffix(".json") for file in (root / CONFIGS).glob("*.json"))


def planned_runs(root: pathlib.Path) -> list[PlannedRun]:
    """The runs of a sweep, from its directory.

    Raises:
      InputError: it is no sweep's directory, or a config in it cannot be read.
    """
    names = names_of(root)
    if not names:
        raise InputError(f"--workdir={root} is no sweep's directory: it has no {SWEEP} and no {CONFIGS}")
    runs = []
    for name in names:
        path = root / CONFIGS / f"{name}.json"
        try:
            runs.append(PlannedRun(name, from_dict(json.loads(path.read_text(encoding="utf-8"))["config"])))
        except (OSError, ValueError, KeyError, InputError) as error:
            raise InputError(f"{path}: cannot be read ({error}); start the sweep again, which writes it") from error
    return runs


def read_state(runs: Sequence[PlannedRun], root: pathlib.Path, *, num_workers: int = 1) -> SweepState:
    """The state of a sweep from its files.

    A record of this machine's workers that says they run counts only while the sweep that started them holds the
    directory: they end with it. Of a scheduler's jobs the record counts; who asks the scheduler knows better.
    """
    states, reasons = {}, {}
    alive = is_held(root)
    for run in runs:
        record = read_record(root, run.name)
        if (root / run.name / run_files.DONE).exists():
            states[run.name] = "done"
        elif record is None or (record.state == "done"):  # the run directory was removed
            states[run.name] = "waiting"
        elif record.state in ("queued", "running") and record.scheduler == LOCAL and not alive:
            states[run.name], reasons[run.name] = "interrupted", "the sweep that ran it is gone"
        else:
            states[run.name] = record.state
            if record.reason:
                reasons[run.name] = record.reason
    return SweepState(
        root=root,
        runs={run.name: run.config for run in runs},
        states=states,
        reasons=reasons,
        num_workers=num_workers,
    )


def is_held(root: pathlib.Path) -> bool:
    """Whether a sweep is at work in the directory."""
    try:
        with open(root / run_files.LOCK, encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # it is not there, or nothing can be locked there
        return False
    return False


def spent_device_hours(root: pathlib.Path, names: Sequence[str]) -> float:
    """Device-hours of the runs so far, by the ends of their logs."""
    return sum(device_hours_of(root / name) for name in names)


def device_hours_of(directory: pathlib.Path) -> float:
    """Device-hours of a run so far; what was done since its last log line is not in it."""
    lines = (status.tail(directory / file) for file in (run_files.METRICS, run_files.EVAL))
    return max((line["device_hours"] for found in lines for line in found), default=0.0)
