"""Runs of a sweep, each in a worker process of its own on this machine (see `workers`), resumable as a whole.

Each worker runs on one core where the system can pin processes (Linux) and JAX computes on CPUs: XLA then takes one
thread, which makes more of two cores than two threads do on small models, and results do not depend on how many
cores there are. A single worker has all cores. Elsewhere (macOS, accelerators) nothing is pinned, and with accelerators
one run has them all.

Runs that sample from a service share its endpoints out: each worker has some to itself, for a server serves one
learner at a time.

Compiled programs are shared as those of all runs are (see `compiling`), in the user's cache directory unless
JAX_COMPILATION_CACHE_DIR names another place: they are code, and no part of what is handed on.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
import sys
import time
from collections.abc import Sequence

from rich.console import Console

from isocompute_jax.experiment.config import override
from isocompute_jax.experiment.progress import Interrupt
from isocompute_jax.experiment.workdir import check_same_run, locked
from isocompute_jax.records import run_files
from isocompute_jax.records.errors import InputError
from isocompute_jax.records.identity import identity
from isocompute_jax.sweeps import books, status, workers
from isocompute_jax.sweeps.books import SweepState
from isocompute_jax.sweeps.grid import PlannedRun
from isocompute_jax.sweeps.status import Show
from isocompute_jax.sweeps.watch import NO_LIMITS, Limits, Watch
from isocompute_jax.sweeps.workers import Worker

POLL_S = 0.1


def run_sweep(
    runs: Sequence[PlannedRun],
    root: str | os.PathLike[str],
    *,
    num_workers: int | None = None,
    cores: Sequence[int] | None = None,
    console: Console | None = None,
    limits: Limits = NO_LIMITS,
) -> SweepState:
    """Runs what is not finished yet; a run that fails never stops the others.

    Finished runs start no process, broken ones resume from their last checkpoint. Ctrl-C (or SIGTERM) lets every
    worker end between two steps with a checkpoint; a second one kills them, which loses the steps since their last
    checkpoint and nothing else.

    Args:
      runs: what `grid` planned, or any other runs with names of their own.
      root: the sweep's directory.
      num_workers: runs at a time; by default one per core, one with accelerators, and no more than there are
        endpoints.
      cores: cores to pin the workers to, by default all that this process may use. Workers beyond them share; one
        worker is not pinned.
      console: where to show the status, by default stderr.
      limits: what ends the sweep early.

    Raises:
      InputError: a run directory belongs to another config, another sweep is at work in `root`, or there are more
        workers than endpoints.
      KeyboardInterrupt: interrupted twice; all workers are dead.
    """
    root = pathlib.Path(root)
    root.mkdir(parents=True, exist_ok=True)
    with locked(root, "sweep"):
        check_directories(runs, root)
        books.prepare(runs, root)
        cores = workers.default_cores() if cores is None else cores
        endpoints = shared_endpoints(runs)
        if num_workers is None:
            num_workers = len(cores) if cores else 1 if workers.has_accelerator() else os.cpu_count() or 1
            num_workers = min(num_workers, len(endpoints) or num_workers)
        if endpoints and num_workers > len(endpoints):
            raise InputError(
                f"{num_workers} workers cannot share {len(endpoints)} endpoints of config.service.endpoints: a server "
                "serves one run at a time. Start more servers, or use fewer workers"
            )
        state = open_state(runs, root, num_workers=num_workers)
        if num_workers == 1:
            cores = None  # one run has them all
        with Interrupt() as interrupt, status.display(state, console) as show:
            sweep = _Sweep(runs, state, Watch(state, limits), cores=cores, endpoints=endpoints)
            sweep.work(interrupt, show)
    return state


def open_state(runs: Sequence[PlannedRun], root: str | os.PathLike[str], *, num_workers: int = 1) -> SweepState:
    """Returns which runs are done already and which wait."""
    state = books.read_state(runs, pathlib.Path(root), num_workers=num_workers)
    state.reopen()
    return state


def start_order(runs: Sequence[PlannedRun]) -> list[PlannedRun]:
    """One seed of every configuration first, and among them those with the most steps.

    Runs that differ in nothing but the seed compile the same programs: started together, each would compile them.
    The whole grid is also seen early in this way. At equal compute the steps decide how long a run takes, and short
    runs at the end leave fewer cores idle.
    """
    seen: dict[str, int] = {}
    keys = []
    for run in runs:
        shape = repr(identity(run.config))
        seen[shape] = seen.get(shape, -1) + 1
        keys.append((seen[shape], -run.config.num_steps))
    return [run for _, run in sorted(zip(keys, runs, strict=True), key=lambda pair: pair[0])]


def check_directories(runs: Sequence[PlannedRun], root: str | os.PathLike[str]) -> None:
    """Raises InputError when names repeat, or when a run directory holds a run of another config.

    Workers check this too, but finished runs start none, and their curves must not pass for those of another config.
    """
    root = pathlib.Path(root)
    names = [run.name for run in runs]
    if len(set(names)) < len(names):
        raise InputError(f"two runs are named {max(names, key=names.count)!r}: names are directories")
    for run in runs:
        if (root / run.name / run_files.CONFIG).exists():
            check_same_run(root / run.name, run.config.resolved())


class _Sweep:
    """The workers of a sweep, and the books on them."""

    def __init__(
        self,
        runs: Sequence[PlannedRun],
        state: SweepState,
        watch: Watch,
        *,
        cores: Sequence[int] | None,
        endpoints: Sequence[str],
    ):
        self.state = state
        self._watch = watch
        self._endpoints = [",".join(endpoints[i :: state.num_workers]) for i in range(state.num_workers)]
        self._endpoints_of: dict[str, str] = {}
        self._environment = dict(os.environ)
        self._cores = list(cores) if cores else [None]
        self._waiting = [run for run in start_order(runs) if state.states[run.name] == "waiting"]
        self._running: dict[str, Worker] = {}
        self._logs_at_start: dict[str, list[int]] = {}

    def work(self, interrupt: Interrupt, show: Show) -> None:
        """Until every run has ended, or every worker after an interrupt."""
        try:
            while self._running or (self._waiting and not (interrupt.requested or self.state.halted)):
                self._watch.look()
                if interrupt.requested or self.state.halted:
                    for name, worker in self._running.items():
                        self._interrupt(name, worker)
                elif self._waiting and len(self._running) < self.state.num_workers:
                    self._start(self._waiting.pop(0))
                    continue
                time.sleep(POLL_S)
                ended = [name for name, worker in self._running.items() if worker.poll() is not None]
                for name in ended:
                    self._book(name, self._running.pop(name))
                show(ended)
        finally:
            for worker in self._running.values():
                worker.kill()

    def _record(self, name: str, state: books.State, reason: str = "") -> None:
        self.state.record(name, books.Record(state, reason=reason))

    def _start(self, run: PlannedRun) -> None:
        """Starts a worker on the core that has the fewest, with endpoints that nobody has."""
        used = [self._endpoints_of[name] for name in self._running]
        self._endpoints_of[run.name] = min(self._endpoints, key=used.count)
        config = override(run.config, "service.endpoints", self._endpoints_of[run.name])
        path = books.write_config(dataclasses.replace(run, config=config), self.state.root)
        taken = [worker.core for worker in self._running.values()]
        self._record(run.name, "running")
        self._logs_at_start[run.name] = self._logs(run.name)
        self._running[run.name] = Worker(
            [
                *(sys.executable, "-m", "isocompute_jax.train"),
                *(f"--resolved_config={path}", "--trust_config", f"--workdir={self.state.root / run.name}"),
            ],
            self.state.root / books.LOGS / f"{run.name}.log",
            core=min(self._cores, key=taken.count),
            environment=self._environment,
        )

    def _interrupt(self, name: str, worker: Worker) -> None:
        """Lets a worker end between two steps; one that is still starting up has nothing to lose and is killed.

        Python drops a Ctrl-C that falls into a callback without a caller, and JAX's start-up has many. From the first
        line in a log on, the run's own handler is in place.
        """
        if self._logs(name) == self._logs_at_start[name]:
            worker.kill()
        worker.interrupt()

    def _logs(self, name: str) -> list[int]:
        """When the run's logs were last written."""
        paths = [self.state.root / name / file for file in (run_files.METRICS, run_files.EVAL)]
        return [path.stat().st_mtime_ns for path in paths if path.exists()]

    def _book(self, name: str, worker: Worker) -> None:
        """Files an ended run: done, interrupted or failed."""
        if worker.poll() == 0 and (self.state.root / name / run_files.DONE).exists():
            self._record(name, "done")
        elif worker.interrupted:
            self._record(name, "interrupted", self.state.halted)
        else:
            self._record(name, "failed", worker.reason())


def shared_endpoints(runs: Sequence[PlannedRun]) -> list[str]:
    """The endpoints that runs sample from, all the same ones; none for runs that sample in their own process."""
    if any(run.config.service.endpoints_file for run in runs):
        raise InputError(
            "config.service.endpoints_file lists the servers of one run, and a sweep has several at a time: list them "
            "in config.service.endpoints, which its runs share out"
        )
    named = {run.config.service.targets for run in runs}
    if len(named) > 1:
        raise InputError("the runs of a sweep must have the same config.service.endpoints, which they share out")
    return [target for targets in named for target in targets]
