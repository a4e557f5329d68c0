"""What a sweep asks of a cluster's scheduler (`slurm` or `jobsets`), and the flags of its SLURM jobs.

Imports nothing heavy: each job does so too.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Collection, Sequence
from typing import Any, Literal, Protocol

from isocompute_jax.options import check, described, option
from isocompute_jax.records.errors import InputError

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


ENDS_S = 120
"""SLURM says so many seconds before the time limit that the run should write a checkpoint."""


@described
@dataclasses.dataclass(frozen=True)
class SlurmOptions:
    """What each run's job asks SLURM for, and how its servers are started; each is a flag `--slurm_NAME`."""

    partition: str = option("", "Partition; the cluster's default if absent.", flag="slurm_partition")
    account: str = option("", "Account that is charged.", flag="slurm_account")
    qos: str = option("", "Quality of service.", flag="slurm_qos")
    constraint: str = option("", "Features that the nodes must have.", flag="slurm_constraint")
    time_min: int = option(
        720,
        "Time limit of a job in minutes; a longer run writes a checkpoint and goes back into the queue.",
        low=5,
        flag="slurm_time_min",
    )
    nodes: int = option(1, "Nodes of a job, those of its servers included.", low=1, flag="slurm_nodes")
    gpus_per_node: int = option(0, "GPUs of each node; 0 asks for none.", low=0, flag="slurm_gpus_per_node")
    cpus_per_node: int = option(1, "CPUs of each node.", low=1, flag="slurm_cpus_per_node")
    mem_gb: int = option(0, "Memory of each node; 0 leaves it to the cluster.", low=0, flag="slurm_mem_gb")
    after: str = option("", "Job, such as a curation, that must have succeeded before any run starts.", flag="after")
    more: str = option("", "Other options of sbatch, as name=value,name=value.", flag="slurm_more")
    run: str = option(
        "",
        "Flags of launch/slurm/run.sh, as on a command line: --server_nodes, --servers_per_node, --engine, ...",
        flag="slurm_run",
    )

    def __post_init__(self) -> None:
        check(self, "--")

    def parameters(self) -> dict[str, Any]:
        """As submitit's executor takes them. Raises InputError for `more`."""
        more = {}
        for pair in filter(None, self.more.split(",")):
            name, _, value = pair.partition("=")
            if not (name and value):
                raise InputError(f"--slurm_more={self.more}: {pair!r} is no name=value")
            more[name] = value
        named = {
            "partition": self.partition, "account": self.account, "qos": self.qos,
            "constraint": self.constraint, "gpus_per_node": self.gpus_per_node,
            "mem": f"{self.mem_gb}GB" if self.mem_gb else "",
            "dependency": f"afterok:{self.after}" if self.after else "",
        }  # fmt: skip
        return {
            **{name: value for name, value in named.items() if value},
            "job_name": "isocompute",
            "time": self.time_min,
            "nodes": self.nodes,
            "ntasks_per_node": 1,
            "cpus_per_task": self.cpus_per_node,
            "use_srun": False,
            "stderr_to_stdout": True,
            "additional_parameters": {"signal": f"B:USR2@{ENDS_S}", "requeue": True, **more},
        }


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
