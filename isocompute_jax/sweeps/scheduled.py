"""Runs of a sweep as jobs of a cluster's scheduler, which decides when and where they run.

This process hands in what is neither done nor with the scheduler already, and then watches: it keeps the books where a
job was lost without a word, and ends runs once the budget is spent. The jobs need it for nothing else: it may be
interrupted, and started again, at any time.
"""

from __future__ import annotations

import logging
import os
import pathlib
import time
from collections.abc import Collection, Sequence

from rich.console import Console

from isocompute_jax.experiment.progress import Interrupt
from isocompute_jax.experiment.workdir import locked
from isocompute_jax.records import run_files
from isocompute_jax.records.errors import InputError
from isocompute_jax.sweeps import books, status
from isocompute_jax.sweeps.books import SweepState
from isocompute_jax.sweeps.executor import check_directories, start_order
from isocompute_jax.sweeps.grid import PlannedRun
from isocompute_jax.sweeps.jobs import Job, Scheduler, Unreachable
from isocompute_jax.sweeps.status import Show
from isocompute_jax.sweeps.watch import NO_LIMITS, Limits, Watch

LOG = logging.getLogger(__name__)
LOOK_S = 5.0
"""Between two looks at the scheduler."""


def run_scheduled(
    runs: Sequence[PlannedRun],
    root: str | os.PathLike[str],
    scheduler: Scheduler,
    *,
    at_once: int | None = None,
    wait: bool = True,
    console: Console | None = None,
    limits: Limits = NO_LIMITS,
) -> SweepState:
    """Hands in what is to be run, and watches it to the end.

    Args:
      runs: what `grid` planned, or any other runs with names of their own.
      root: the sweep's directory, on storage that every node sees.
      scheduler: who runs them.
      at_once: runs at a time; None leaves it to the scheduler.
      wait: watch until every run has ended. Limits need it.
      console: where to show the status, by default stderr.
      limits: what ends the sweep early.

    Raises:
      InputError: a run directory belongs to another config, another sweep is at work in `root`, the runs name
        endpoints, or the scheduler refuses.
      KeyboardInterrupt: interrupted; the jobs stay with the scheduler.
    """
    root = pathlib.Path(root).absolute()
    if any(run.config.service.remote for run in runs):
        raise InputError(
            "config.service.endpoints, config.service.endpoints_file: "
            f"with --executor={scheduler.name} every run starts servers of its own, since a "
            "server serves one run at a time; leave it out"
        )
    if not wait and limits != NO_LIMITS:
        raise InputError("--nowait goes without --max_device_hours, which needs a process that watches")
    root.mkdir(parents=True, exist_ok=True)
    with locked(root, "sweep"):
        check_directories(runs, root)
        books.prepare(runs, root)
        state = books.read_state(runs, root, num_workers=at_once or len(runs))
        with Interrupt() as interrupt, status.display(state, console) as show:
            sweep, watch = _Scheduled(state, scheduler), Watch(state, limits)
            watch.look()
            sweep.hand_in(runs, at_once)
            if wait:
                sweep.watch(watch, interrupt, show)
        if interrupt.requested and sweep.jobs:
            LOG.warning("%d jobs stay with %s: `sweep status` shows them, `sweep cancel` ends them", len(sweep.jobs),
                        scheduler.name)  # fmt: skip
            raise KeyboardInterrupt
    return state


class _Scheduled:
    """A sweep whose runs a scheduler has; `jobs` are those that have not ended, by name."""

    def __init__(self, state: SweepState, scheduler: Scheduler):
        self.state, self.scheduler = state, scheduler
        self.jobs = active_jobs(state.root, list(state.runs), scheduler)
        self._stopping: set[str] = set()
        state.reopen(active=self.jobs)

    def hand_in(self, runs: Sequence[PlannedRun], at_once: int | None) -> None:
        """Submits what waits, one seed of everything first, unless the budget is spent."""
        waiting = [run for run in start_order(runs) if self.state.states[run.name] == "waiting"]
        if self.state.halted or not waiting:
            return
        root = self.state.root
        given = [
            Job(
                name=run.name,
                main="train",
                workdir=root / run.name,
                flags=(f"--resolved_config={root / books.CONFIGS / f'{run.name}.json'}", "--trust_config"),
                model=os.path.abspath(run.config.model),
                root=root,
            )
            for run in waiting
        ]
        started = time.time()
        for job, number in zip(given, self.scheduler.submit(given, at_once=at_once), strict=True):
            self.jobs[job.name] = number
            found = books.read_record(root, job.name)
            if found is None or found.since < started:  # it may run already, and have said so
                self._record(job.name, "queued")
        LOG.info(
            "%d runs handed to %s, %d were there already", len(given), self.scheduler.name, len(self.jobs) - len(given)
        )

    def watch(self, watch: Watch, interrupt: Interrupt, show: Show) -> None:
        """Until no job is left, or the user interrupts."""
        looked = 0.0
        while self.jobs and not interrupt.requested:
            watch.look()
            self._stop_if_halted()
            if time.monotonic() - looked >= LOOK_S:
                looked = time.monotonic()
                show(self.look())
            time.sleep(min(LOOK_S, 0.2))

    def look(self) -> list[str]:
        """Brings the state up to date; returns the names of runs that have ended."""
        try:
            active = self.scheduler.active(self.jobs.values())
        except Unreachable as error:
            LOG.warning("%s does not answer (%s); asking again", self.scheduler.name, error)
            return []
        ended = [name for name, job in self.jobs.items() if job not in active]
        for name, job in self.jobs.items():
            if job in active and active[job] != self.state.states[name]:
                record = books.read_record(self.state.root, name)
                if record is None or record.state in ("queued", "running"):  # it may have said its end meanwhile
                    self._record(name, active[job])
        for name in ended:
            self._book(name, self.jobs.pop(name))
        return ended

    def _book(self, name: str, job: str) -> None:
        """Files a job that has ended; one that was killed has not done so itself."""
        record = books.read_record(self.state.root, name)
        if (self.state.root / name / run_files.DONE).exists():
            self._record(name, "done", job=job)
        elif name in self._stopping:
            self._record(name, "interrupted", self.state.halted, job)
        elif record is None or record.state in ("queued", "running"):
            reason = self.scheduler.why(job)
            if not reason and name in self.state.runs:
                reason = f"job {job} ended well, and yet there is no {run_files.DONE}"
            self._record(name, "failed" if reason else "done", reason, job)
        elif record.state == "done" and name in self.state.runs:
            self._record(name, "failed", f"job {job} ended well, and yet there is no {run_files.DONE}", job)
        else:
            self.state.states[name] = record.state
            self.state.reasons[name] = record.reason

    def _stop_if_halted(self) -> None:
        """Stops all jobs, once each, when the budget is spent."""
        fresh = [name for name in self.jobs if self.state.halted and name not in self._stopping]
        if fresh:
            self._stopping.update(fresh)
            self.scheduler.stop([self.jobs[name] for name in fresh])

    def _record(self, name: str, state: books.State, reason: str = "", job: str = "") -> None:
        self.state.record(name, books.Record(state, self.scheduler.name, job or self.jobs.get(name, ""), reason))


def run_job(job: Job, scheduler: Scheduler) -> books.Record:
    """Hands one job in, unless the scheduler has it, and waits for its end.

    Returns:
      What became of it: `done`, or why not.

    Raises:
      InputError: the scheduler refuses it.
      KeyboardInterrupt: interrupted; the job stays with the scheduler.
    """
    state = SweepState(job.root, {}, {}, {}, 1)
    watched = _Scheduled(state, scheduler)
    watched.jobs = active_jobs(job.root, [job.name], scheduler)
    state.states[job.name] = "queued"
    if not watched.jobs:
        [number] = scheduler.submit([job], at_once=None)
        watched.jobs[job.name] = number
        books.write_record(job.root, job.name, books.Record("queued", scheduler.name, number))
        LOG.info("%s handed to %s as job %s", job.name, scheduler.name, number)
    with Interrupt() as interrupt:
        while watched.jobs and not interrupt.requested:
            watched.look()
            time.sleep(LOOK_S)
    if interrupt.requested and watched.jobs:
        raise KeyboardInterrupt
    record = books.read_record(job.root, job.name)
    assert record is not None
    return record


def active_jobs(root: pathlib.Path, names: Collection[str], scheduler: Scheduler) -> dict[str, str]:
    """Name -> job, of the runs that the books give to this scheduler and that it has.

    Raises:
      InputError: another executor has some of them, or the scheduler does not answer: handed in again, a run would be
        there twice.
    """
    records = {name: books.read_record(root, name) for name in names}
    found: dict[str, str] = {}
    for name, record in records.items():
        if record is None or record.scheduler == books.LOCAL:
            continue
        if record.scheduler == scheduler.name:  # whatever it says: the last that a job told to stop does is to end
            found[name] = record.job
        elif record.state in ("queued", "running"):
            raise InputError(f"run {name} is with {record.scheduler} (job {record.job}): cancel it there first")
    if not found:
        return {}
    try:
        active = scheduler.active(found.values())
    except Unreachable as error:
        raise InputError(f"--executor={scheduler.name} does not answer ({error}): try again when it does") from error
    return {name: job for name, job in found.items() if job in active}


def cancel(root: pathlib.Path, scheduler: Scheduler, only: Collection[str] = ()) -> list[str]:
    """Ends runs, each with its servers and a checkpoint; returns their names.

    Args:
      root: the sweep's directory.
      scheduler: who has them.
      only: names of the runs; all that the scheduler has if empty.

    Raises:
      InputError: a name is no run of the sweep.
    """
    chosen = _chosen(root, scheduler, only)
    scheduler.stop(list(chosen.values()))
    for name, job in chosen.items():
        books.write_record(root, name, books.Record("interrupted", scheduler.name, job, "cancelled by the user"))
    return list(chosen)


def requeue(root: pathlib.Path, scheduler: Scheduler, only: Collection[str] = ()) -> list[str]:
    """Puts running runs back into the queue, each with its servers and a checkpoint; as `cancel` otherwise."""
    chosen = _chosen(root, scheduler, only)
    scheduler.requeue(list(chosen.values()))
    return list(chosen)


def _chosen(root: pathlib.Path, scheduler: Scheduler, only: Collection[str]) -> dict[str, str]:
    names = books.names_of(root)
    if unknown := [name for name in only if name not in names]:
        raise InputError(f"--only: {unknown[0]!r} is no run of {root}; `sweep status` lists them")
    return active_jobs(root, list(only) or names, scheduler)
