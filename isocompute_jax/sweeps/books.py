"""A sweep's directory: which runs it plans and what became of each, in files of that directory alone.

    sweep.json          names of the runs, in plan order
    configs/NAME.json   the config of each
    jobs/NAME.json      a `Record`: what became of it last
    logs/NAME.log       what its worker or job printed, all its starts
    NAME/               its run directory; DONE in it counts more than any record

So whoever can read the directory sees the state of the sweep, wherever its runs are. Imports nothing heavy: on a
cluster the job itself writes jobs/NAME.json beside the run that it starts.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import pathlib
import time
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from isocompute_jax.records import run_files
from isocompute_jax.records.errors import InputError

if TYPE_CHECKING:
    from isocompute_jax.experiment.config import RunConfig
    from isocompute_jax.sweeps.grid import PlannedRun

SWEEP, CONFIGS, JOBS, LOGS = "sweep.json", "configs", "jobs", "logs"
LOCAL = "local"
TAIL_BYTES = 32 * 1024
"""Enough for about 40 steps: the rate shown is that of the last few seconds."""

State = Literal["queued", "running", "done", "failed", "interrupted"]


@dataclasses.dataclass(frozen=True)
class Record:
    """What became of a run last."""

    state: State  # `interrupted`: told to end, or cut off; it resumes
    scheduler: str = LOCAL  # who has, or had, it: `local`, `slurm` or `kubernetes`
    job: str = ""  # what the scheduler calls it; empty for `local`
    reason: str = ""  # why it failed or was interrupted
    since: float = dataclasses.field(default_factory=time.time)  # seconds since the epoch


def write_record(root: pathlib.Path, name: str, record: Record) -> None:
    """Writes what became of a run."""
    path = root / JOBS / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    run_files.write_atomic(path, json.dumps(dataclasses.asdict(record), indent=1) + "\n")


def read_record(root: pathlib.Path, name: str) -> Record | None:
    """What became of a run last; None where nothing is written."""
    with contextlib.suppress(FileNotFoundError):
        return Record(**json.loads((root / JOBS / f"{name}.json").read_text(encoding="utf-8")))
    return None


@dataclasses.dataclass
class SweepState:
    """How far the runs of a sweep are, or how it ended."""

    root: pathlib.Path  # the sweep's directory
    runs: Mapping[str, RunConfig]  # config by name, in plan order
    # `waiting`, `queued` (with a scheduler), `running`, `done`, `failed` or `interrupted` (it resumes), by name
    states: dict[str, str]
    reasons: dict[str, str]  # name -> why it failed or was interrupted
    num_workers: int  # runs at a time
    halted: str = ""  # why the budget ended it; empty where it did not

    @property
    def done(self) -> tuple[str, ...]:
        """Names of the finished runs, those included that had finished before."""
        return self.names("done")

    @property
    def interrupted(self) -> tuple[str, ...]:
        """Names of those that the user's Ctrl-C, or the budget, stopped or kept from starting; they can be resumed."""
        return self.names("waiting", "interrupted")

    @property
    def failed(self) -> dict[str, str]:
        """Name -> the reason, of the failed runs."""
        return {name: self.reasons.get(name, "") for name in self.names("failed")}

    def record(self, name: str, record: Record) -> None:
        """Notes what became of a run, here and in the sweep's directory."""
        self.states[name] = record.state
        self.reasons.pop(name, None)
        if record.reason:
            self.reasons[name] = record.reason
        write_record(self.root, name, record)

    def reopen(self, *, active: Collection[str] = ()) -> None:
        """Sets every run that is neither done nor `active` to `waiting`."""
        for name in self.runs:
            if self.states[name] != "done" and name not in active:
                self.states[name] = "waiting"
                self.reasons.pop(name, None)

    def names(self, *states: str) -> tuple[str, ...]:
        """Names of the runs in these states, in plan order."""
        return tuple(name for name in self.runs if self.states[name] in states)


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
    from isocompute_jax.experiment.config import from_dict
    from isocompute_jax.sweeps.grid import PlannedRun

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
    lines = (tail(directory / file) for file in (run_files.METRICS, run_files.EVAL))
    return max((line["device_hours"] for found in lines for line in found), default=0.0)


def tail(path: pathlib.Path) -> list[dict[str, Any]]:
    """The last whole lines of a JSONL log, those within its last `TAIL_BYTES`."""
    try:
        with open(path, "rb") as file:
            start = max(0, file.seek(0, 2) - TAIL_BYTES)
            file.seek(start)
            lines = file.read().split(b"\n")
    except FileNotFoundError:
        return []
    # What precedes the first line break may be the end of a line, and what follows the last one its beginning.
    found = []
    for line in lines[1 if start else 0 : -1]:
        with contextlib.suppress(ValueError):  # a broken line is the reader's of the run to report, not the display's
            found.append(json.loads(line))
    return [line for line in found if isinstance(line, dict) and all(key in line for key in run_files.LINE_KEYS)]
