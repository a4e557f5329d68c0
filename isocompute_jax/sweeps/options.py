"""Flags of a sweep: what ends it, or some of its runs, before they are done, and what its SLURM jobs ask for."""

from __future__ import annotations

import dataclasses
from typing import Any

from isocompute_jax.options import check, described, option
from isocompute_jax.records.errors import InputError


@described
@dataclasses.dataclass(frozen=True)
class Limits:
    """When a sweep ends early; each is a flag of its name."""

    max_device_hours: float | None = option(
        None,
        "Device-hours that all runs together may take, those of earlier starts included. Once they are spent nothing "
        "new is started and running ones write a checkpoint and stop; with a higher budget the same command goes on.",
        low=0,
    )
    stop_hopeless: float = option(
        0.0,
        "Stop a run once the chance that its configuration leads at any compute that is left to it, by the fitted "
        "curves and their uncertainty, is below this, such as 0.01; 0 never does. Its curve stays in the fit. "
        "Nothing is stopped in the first quarter of the compute of the longest run.",
        low=0,
        high=0.5,
    )

    def __post_init__(self) -> None:
        check(self, "--")


NO_LIMITS = Limits()


ENDS_S = 120
"""SLURM says so many seconds before the time limit that the run should write a checkpoint."""

AT_FAULT = {
    "account": "account", "partition": "partition", "qos": "qos", "time": "time_min", "feature": "constraint",
    "gres": "gpus_per_node", "gpu": "gpus_per_node", "memory": "mem_gb", "cpu": "cpus_per_node", "node": "nodes",
    "dependency": "after", "job id": "after",
}  # fmt: skip
"""A word of sbatch's message -> the field that it is about; the first that fits."""


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


def refusal(message: str, options: SlurmOptions) -> str:
    """What sbatch said, and the flag that it is about."""
    lines = [line.removeprefix("sbatch: error: ") for line in message.strip().splitlines() if line.strip()]
    words = "; ".join(dict.fromkeys(lines)) or "no reason given"
    field = next((field for word, field in AT_FAULT.items() if word in words.lower()), None)
    if field is None:
        return f"sbatch refused the jobs: {words}"
    flag = "after" if field == "after" else f"slurm_{field}"
    return f"sbatch refused the jobs: {words}; see --{flag}={getattr(options, field)}"
