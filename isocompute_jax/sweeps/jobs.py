"""What became of each run of a sweep, as jobs/NAME.json in its directory.

Imports nothing heavy: on a cluster the job itself writes it, beside the run that it starts.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import pathlib
import time
from typing import Literal

from isocompute_jax.records import run_files

JOBS, LOGS = "jobs", "logs"
LOCAL = "local"

State = Literal["queued", "running", "done", "failed", "interrupted", "stopped"]


@dataclasses.dataclass(frozen=True)
class Record:
    """What became of a run last."""

    state: State  # `interrupted`: told to end, or cut off; it resumes. `stopped`: it could not matter any more.
    scheduler: str = LOCAL  # who has, or had, it: `local`, `slurm` or `kubernetes`
    job: str = ""  # what the scheduler calls it; empty for `local`
    reason: str = ""  # why it failed, was interrupted or was stopped
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
