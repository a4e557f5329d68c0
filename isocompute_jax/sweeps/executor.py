"""Runs of a sweep, each in a worker process of its own on this machine (see `workers`), resumable as a whole.

A sweep's directory holds

    NAME/               the run directory of each run
    logs/NAME.log       what its worker printed, all its starts
    configs/NAME.json   the config that its worker was given
    .compile_cache/     compiled programs, shared by the workers

Each worker runs on one core where the system can pin processes (Linux) and JAX computes on CPUs: XLA then takes one
thread, which makes more of two cores than two threads do on small models, and results do not depend on how many
cores there are. Elsewhere (macOS, accelerators) nothing is pinned, and with accelerators one run has them all.

Runs that sample from a service share its endpoints out: each worker has some to itself, for a server serves one
learner at a time.

Compiled programs are shared through JAX's persistent cache, in the sweep's directory unless JAX_COMPILATION_CACHE_DIR
names another. Workers may write to it at the same time: JAX checks what it reads, and compiles what it cannot read.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import pathlib
import sys
import time
from collections.abc import Mapping, Sequence

from rich.console import Console

from isocompute_jax.experiment.config import override
from isocompute_jax.experiment.interrupt import Interrupt
from isocompute_jax.experiment.workdir import check_same_run, locked
from isocompute_jax.records import run_files
from isocompute_jax.records.errors import InputError
from isocompute_jax.records.identity import identity
from isocompute_jax.sweeps import status, workers
from isocompute_jax.sweeps.grid import PlannedRun
from isocompute_jax.sweeps.status import Show, SweepState
from isocompute_jax.sweeps.workers import Worker

LOG = logging.getLogger(__name__)
POLL_S = 0.1


@dataclasses.dataclass(frozen=True)
class SweepResult:
    """How a sweep ended.

    Attributes:
      done: names of the finished runs, those included that had finished before.
      failed: name -> the reason, with the last lines of the log.
      interrupted: names of the runs that the user's Ctrl-C stopped or kept from starting; the same sweep resumes
        them.
      state: what `status.print_result` prints.
    """

    done: tuple[str, ...]
    failed: Mapping[str, str]
    interrupted: tuple[str, ...]
    state: SweepState = dataclasses.field(repr=False)


def run_sweep(
    runs: Sequence[PlannedRun],
    root: str | os.PathLike[str],
    *,
    num_workers: int | None = None,
    cores: Sequence[int] | None = None,
    console: Console | None = None,
) -> SweepResult:
    """Runs what is not finished yet; a run that fails never stops the others.

    Finished runs start no process, broken ones resume from their last checkpoint. Ctrl-C (or SIGTERM) lets every
    worker end between two steps with a checkpoint; a second one kills them, which loses the steps since their last
    checkpoint and nothing else.

    Args:
      runs: what `grid` planned, or any other runs with names of their own.
      root: the sweep's directory.
      num_workers: runs at a time; by default one per core, one with accelerators, and no more than there are
        endpoints.
      cores: cores to pin the workers to, by default all that this process may use. Workers beyond them share.
      console: where to show the status, by default stderr.

    Raises:
      InputError: a run directory belongs to another config, another sweep is at work in `root`, or there are more
        workers than endpoints.
      KeyboardInterrupt: interrupted twice; all workers are dead.
    """
    root = pathlib.Path(root)
    for directory in (root, root / "logs", root / "configs"):
        directory.mkdir(parents=True, exist_ok=True)
    with locked(root, "sweep"):
        check_directories(runs, root)
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
        sweep = _Sweep(runs, state, cores=cores, endpoints=endpoints)
        with Interrupt() as interrupt, status.display(state, console) as show:
            sweep.work(interrupt, show)
    return SweepResult(state.names("done"), state.failed, state.names("waiting", "interrupted"), state)


def open_state(runs: Sequence[PlannedRun], root: str | os.PathLike[str], *, num_workers: int = 1) -> SweepState:
    """What is done already and what waits."""
    root = pathlib.Path(root)
    done = {run.name: (root / run.name / run_files.DONE).exists() for run in runs}
    return SweepState(
        root=root,
        runs={run.name: run.config for run in runs},
        states={name: "done" if finished else "waiting" for name, finished in done.items()},
        failed={},
        num_workers=num_workers,
    )


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
        self, runs: Sequence[PlannedRun], state: SweepState, *, cores: Sequence[int] | None, endpoints: Sequence[str]
    ):
        self.state = state
        self._endpoints = [",".join(endpoints[i :: state.num_workers]) for i in range(state.num_workers)]
        self._endpoints_of: dict[str, str] = {}
        self._environment = worker_environment(state.root)
        self._cores = list(cores) if cores else [None]
        self._waiting = [run for run in start_order(runs) if state.states[run.name] == "waiting"]
        self._running: dict[str, Worker] = {}
        self._logs_at_start: dict[str, list[int]] = {}

    def work(self, interrupt: Interrupt, show: Show) -> None:
        """Until every run has ended, or every worker after an interrupt."""
        try:
            while self._running or (self._waiting and not interrupt.requested):
                if interrupt.requested:
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

    def _start(self, run: PlannedRun) -> None:
        """Starts a worker on the core that has the fewest, with endpoints that nobody has."""
        path = self.state.root / "configs" / f"{run.name}.json"
        used = [self._endpoints_of[name] for name in self._running]
        self._endpoints_of[run.name] = min(self._endpoints, key=used.count)
        config = override(run.config, "service.endpoints", self._endpoints_of[run.name])
        run_files.write_atomic(path, json.dumps({"config": dataclasses.asdict(config)}, indent=2) + "\n")
        taken = [worker.core for worker in self._running.values()]
        self.state.states[run.name] = "running"
        self._logs_at_start[run.name] = self._logs(run.name)
        self._running[run.name] = Worker(
            [
                *(sys.executable, "-m", "isocompute_jax.train"),
                *(f"--resolved_config={path}", f"--workdir={self.state.root / run.name}"),
            ],
            self.state.root / "logs" / f"{run.name}.log",
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
            self.state.states[name] = "done"
        elif worker.interrupted:
            self.state.states[name] = "interrupted"
        else:
            self.state.states[name] = "failed"
            self.state.failed[name] = worker.reason()


def shared_endpoints(runs: Sequence[PlannedRun]) -> list[str]:
    """The endpoints that runs sample from, all the same ones; none for runs that sample in their own process."""
    named = {run.config.service.targets for run in runs}
    if len(named) > 1:
        raise InputError("the runs of a sweep must have the same config.service.endpoints, which they share out")
    return [target for targets in named for target in targets]


def worker_environment(root: pathlib.Path) -> dict[str, str]:
    """This process's environment, with a compile cache that takes small programs too; what the user set stays."""
    cache = {
        "JAX_COMPILATION_CACHE_DIR": str((root / ".compile_cache").absolute()),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",  # 0 would leave the choice to the file system
    }
    return {**cache, **os.environ}
