"""Runs as SLURM jobs, through submitit: an array of one batch job per run, each of which is launch/slurm/run.sh.

submitit's process is the batch shell of the job (`exec`, no srun), so that it gets what SLURM sends there: USR2 before
the time limit and on preemption, after which the run has written a checkpoint and the job waits in the queue again.
"""

from __future__ import annotations

import logging
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Sequence
from types import FrameType
from typing import Literal

import submitit
from submitit.core.utils import FailedJobError, FailedSubmissionError

from isocompute_jax.records import run_files
from isocompute_jax.records.errors import InputError
from isocompute_jax.sweeps import books, workers
from isocompute_jax.sweeps.jobs import Active, Job, SlurmOptions, Unreachable

LOG = logging.getLogger(__name__)
SLURM = "slurm"
SCRIPT = pathlib.Path(__file__).parents[2] / "launch" / "slurm" / "run.sh"
POLL_S = 0.2
WAITING = (
    "PENDING",
    "CONFIGURING",
    "REQUEUED",
    "REQUEUE_HOLD",
    "REQUEUE_FED",
    "SUSPENDED",
    "RESV_DEL_HOLD",
    "SPECIAL_EXIT",
)
"""States of squeue in which a job will run, or run on, but does not now."""

AT_FAULT = {
    "account": "account", "partition": "partition", "qos": "qos", "time": "time_min", "feature": "constraint",
    "gres": "gpus_per_node", "gpu": "gpus_per_node", "memory": "mem_gb", "cpu": "cpus_per_node", "node": "nodes",
    "dependency": "after", "job id": "after",
}  # fmt: skip
"""A word of sbatch's message -> the field that it is about; the first that fits."""


class BatchRun:
    """What a job does, in the batch shell's place: starts run.sh, passes signals on, and keeps the books."""

    def __init__(self, job: Job, options: SlurmOptions, script: pathlib.Path):
        self._job = job
        self._command = [
            *("bash", str(script), f"--main={job.main}", f"--workdir={job.workdir}", f"--python={sys.executable}"),
            *(f"--model={job.model}", *shlex.split(options.run), "--", *job.flags),
        ]
        self._pid = 0

    def __call__(self) -> None:
        """Runs it to its end; the exit code of the job is the run's."""
        self._record("running")
        log = self._job.root / books.LOGS / f"{self._job.name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        with open(log, "ab") as output:
            output.write(f"{time.strftime('%F %T')} $ {shlex.join(self._command)}\n".encode())
            output.flush()
            start = output.tell()
            process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
        self._pid = process.pid
        stopping = False

        def end(number: int, frame: FrameType | None) -> None:
            nonlocal stopping
            stopping = True
            process.send_signal(signal.SIGTERM)

        before = signal.signal(signal.SIGTERM, end)
        while process.poll() is None:  # no wait: `checkpoint`, which is called from a signal, would wait for its lock
            time.sleep(POLL_S)
        signal.signal(signal.SIGTERM, before)
        if process.returncode == 0:
            self._record("done")
        elif stopping:
            self._record("interrupted", "told to stop")
        else:
            self._record("failed", workers.reason_of(process.returncode, log, start))
        if process.returncode:
            sys.exit(process.returncode)

    def checkpoint(self) -> submitit.helpers.DelayedSubmission | None:
        """Before the time limit: the run writes a checkpoint and ends; what is left of it is put into the queue."""
        if self._pid:
            os.kill(self._pid, signal.SIGTERM)
            while os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                time.sleep(POLL_S)
        if (self._job.workdir / run_files.DONE).exists():
            self._record("done")
            return None
        self._pid = 0
        self._record("queued", "out of time, or preempted: it goes on when its turn comes again")
        return submitit.helpers.DelayedSubmission(self)

    def _record(self, state: books.State, reason: str = "") -> None:
        job = submitit.JobEnvironment().job_id
        books.write_record(self._job.root, self._job.name, books.Record(state, SLURM, job, reason))


class SlurmScheduler:
    """SLURM, by its programs on PATH."""

    name: Literal["slurm"] = SLURM

    def __init__(self, root: pathlib.Path, options: SlurmOptions, script: pathlib.Path = SCRIPT):
        """Submitit's files lie in `root`, on storage that every node sees; `script` is what each job runs."""
        for program in ("sbatch", "squeue", "scancel"):
            if shutil.which(program) is None:
                raise InputError(f"--executor=slurm: there is no {program} on PATH; run it where jobs are submitted")
        if not script.exists():
            raise InputError(f"--executor=slurm: {script} is missing: install from a checkout (pip install -e .)")
        self._options, self._script = options, script
        self._folder = root.absolute() / books.JOBS / SLURM

    def submit(self, jobs: Sequence[Job], *, at_once: int | None) -> list[str]:
        """An array, one task for each job."""
        executor = submitit.SlurmExecutor(
            self._folder, max_num_timeout=10**6, python=f"exec {shlex.quote(sys.executable)}"
        )
        parallelism = {} if at_once is None else {"array_parallelism": at_once}
        executor.update_parameters(**self._options.parameters(), **parallelism)
        try:
            with executor.batch():
                submitted = [executor.submit(BatchRun(job, self._options, self._script)) for job in jobs]
        except (FailedJobError, FailedSubmissionError) as error:
            raise InputError(refusal(str(error), self._options)) from error
        return [job.job_id for job in submitted]

    def active(self, jobs: Collection[str]) -> dict[str, Active]:
        """By one call of squeue for all of the user's jobs."""
        command = ["squeue", "--noheader", "--array", f"--user={os.environ.get('USER', os.getuid())}", "--format=%i|%T"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise Unreachable(done.stderr.strip() or f"squeue ended with exit code {done.returncode}")
        states = dict(line.strip().split("|", 1) for line in done.stdout.splitlines() if "|" in line)
        return {job: "queued" if states[job] in WAITING else "running" for job in jobs if job in states}

    def why(self, job: str) -> str:
        """A job keeps the books itself unless it is killed."""
        return f"job {job} is gone without a word: cancelled, killed, or its node failed (`sacct -j {job}`)"

    def stop(self, jobs: Collection[str]) -> None:
        """TERM to the batch shell, which passes it on; what has not started is cancelled."""
        if jobs:
            _scancel("--state=PENDING", *jobs)
            _scancel("--batch", "--signal=TERM", *jobs)

    def requeue(self, jobs: Collection[str]) -> None:
        """What SLURM sends before the time limit."""
        if jobs:
            _scancel("--batch", "--signal=USR2", *jobs)


def _scancel(*arguments: str) -> None:
    """A job that has ended meanwhile is nothing to complain of."""
    done = subprocess.run(["scancel", *arguments], capture_output=True, text=True, check=False)
    if done.returncode and not re.search("invalid job|already|not running", done.stderr, re.IGNORECASE):
        LOG.warning("scancel %s: %s", " ".join(arguments), done.stderr.strip())


def refusal(message: str, options: SlurmOptions) -> str:
    """What sbatch said, and the flag that it is about."""
    lines = [line.removeprefix("sbatch: error: ") for line in message.strip().splitlines() if line.strip()]
    words = "; ".join(dict.fromkeys(lines)) or "no reason given"
    field = next((field for word, field in AT_FAULT.items() if word in words.lower()), None)
    if field is None:
        return f"sbatch refused the jobs: {words}"
    flag = "after" if field == "after" else f"slurm_{field}"
    return f"sbatch refused the jobs: {words}; see --{flag}={getattr(options, field)}"
