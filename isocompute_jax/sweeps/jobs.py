"""What became of each run of a sweep, and what a sweep asks of a cluster's scheduler (`slurm` or `jobsets`).

Imports nothing heavy: on a cluster the job itself writes jobs/NAME.json in the sweep's directory, beside the run that
it starts.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import pathlib
import time
from collections.abc import Collection, Sequence
from typing import Literal, Protocol

from isocompute_jax.records import run_files
from isocompute_jax.sweeps.options import SlurmOptions

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


Main = Literal["train", "curate"]
Active = Literal["queued", "running"]


@dataclasses.dataclass(frozen=True)
class Job:
    """One main of the package, with the servers that it samples from: they live and end together."""

    name: str  # of the run
    main: Main  # what runs
    workdir: pathlib.Path  # its directory: of a run, or what a curation writes to
    flags: tuple[str, ...]  # the main's, but for those that say where the servers and the directory are
    model: str  # Hugging Face directory that the servers load
    root: pathlib.Path  # directory whose books say what became of it (`books.write_record`)


class Scheduler(Protocol):
    """A cluster's scheduler; jobs go by the names that it gives them."""

    @property
    def name(self) -> str:
        """`slurm` or `kubernetes`."""
        ...

    def submit(self, jobs: Sequence[Job], *, at_once: int | None) -> list[str]:
        """Hands jobs over, at most `at_once` of which run at a time; returns their names, in order.

        Raises:
          InputError: they are refused, with the scheduler's words and the flag at fault.
        """
        ...

    def active(self, jobs: Collection[str]) -> dict[str, Active]:
        """Those of the jobs that wait or run; the others have ended.

        Raises:
          Unreachable: the scheduler does not answer now.
        """
        ...

    def why(self, job: str) -> str:
        """Why a job ended that has not said so itself; empty where it ended well."""
        ...

    def stop(self, jobs: Collection[str]) -> None:
        """Jobs that run write a checkpoint and end, servers and all; those that wait are taken out."""
        ...

    def requeue(self, jobs: Collection[str]) -> None:
        """Jobs that run write a checkpoint and wait for their turn again, servers and all."""
        ...


class Unreachable(Exception):
    """A scheduler does not answer; it may in a while."""


def make_scheduler(executor: str, root: pathlib.Path, *, slurm: SlurmOptions, kubernetes: str) -> Scheduler:
    """The scheduler that --executor names, `slurm` or `kubernetes`; its library is imported here.

    Raises:
      InputError: it cannot be used from here.
    """
    if executor == "slurm":
        from isocompute_jax.sweeps.slurm import SlurmScheduler

        return SlurmScheduler(root, slurm)
    from isocompute_jax.sweeps.jobsets import JobSetScheduler

    return JobSetScheduler(root, kubernetes)
