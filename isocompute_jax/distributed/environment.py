"""Which process of how many this one is: from flags, or from what a cluster puts into the environment (pure).

Where each variable comes from:
- SLURM (srun(1), "output environment variables"): `srun` sets SLURM_STEP_* and SLURM_PROCID for each task of a step.
  The batch script itself has a SLURM_PROCID too, and the counts of the whole job, but no SLURM_STEP_NODELIST.
- JobSet: launch/kubernetes sets `JOBSET_COORDINATOR` (the annotation jobset.sigs.k8s.io/coordinator, by the downward
  API) and `JOBSET_PROCESS_COUNT`; Kubernetes sets JOB_COMPLETION_INDEX in the pods of an Indexed Job.
- TPU pod: GKE sets TPU_WORKER_ID and TPU_WORKER_HOSTNAMES ("localhost" on a slice of one host). On TPU VMs only the
  metadata server knows: launch/tpu asks it, and passes flags.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from isocompute_jax.records.errors import InputError

Cluster = Literal["auto", "none", "slurm", "jobset", "tpu"]
Source = Literal["flags", "slurm", "jobset", "tpu pod", "alone"]

PORT = 28470
"""The coordinator's port where each process has a host, or a pod, of its own; the one above is used too."""

STEP_TASKS, STEP_HOSTS, STEP_INDEX = "SLURM_STEP_NUM_TASKS", "SLURM_STEP_NODELIST", "SLURM_PROCID"
JOBSET_COORDINATOR, JOBSET_COUNT, JOBSET_INDEX = "JOBSET_COORDINATOR", "JOBSET_PROCESS_COUNT", "JOB_COMPLETION_INDEX"
TPU_HOSTS, TPU_INDEX, TPU_SLICES = "TPU_WORKER_HOSTNAMES", "TPU_WORKER_ID", "MEGASCALE_NUM_SLICES"

_LOWEST_STEP_PORT, _STEP_PORTS = 20000, 6000
_NAME = r"(?:[^\s,\[\]]|\[\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*\])+"


@dataclass(frozen=True)
class Place:
    """The place of this process among its learners."""

    index: int  # its number, from 0; process 0 leads
    count: int  # how many processes there are
    coordinator: str  # "host:port" of process 0, "" where there is but one process; the port above it is used too
    source: Source  # who said so


def find_place(
    *,
    cluster: Cluster,
    coordinator: str | None,
    process_count: int | None,
    process_index: int | None,
    environ: Mapping[str, str],
) -> Place:
    """The place of this process: what the flags say, else what the cluster does, else that it is alone.

    The three flags --coordinator, --process_count and --process_index are all given, or none (None). The `cluster`
    "auto" takes them, then a step of several tasks of SLURM, then JobSet, then a TPU pod; a name takes that cluster
    alone, and "none" no cluster.

    Raises:
      InputError: a flag or variable is missing, contradicts another or makes no sense; the message names it.
    """
    given = {"--coordinator": coordinator, "--process_count": process_count, "--process_index": process_index}
    if any(value is not None for value in given.values()):
        if cluster != "auto":
            raise InputError(f"--cluster={cluster} goes without {_names(given, given=True)}: give one or the other")
        if coordinator is None or process_count is None or process_index is None:
            raise InputError(
                f"{_names(given, given=True)} without {_names(given, given=False)}: every process is given all three"
            )
        return _place("flags", process_index, process_count, coordinator, tuple(given))
    if cluster == "slurm" or (cluster == "auto" and _number(environ, STEP_TASKS, absent=1) > 1):
        return _of_slurm(environ)
    if cluster == "jobset" or (cluster == "auto" and JOBSET_COUNT in environ):
        return _of_jobset(environ)
    if cluster == "tpu" or (cluster == "auto" and TPU_HOSTS in environ):
        return _of_tpu_pod(environ)
    return Place(0, 1, "", "alone")


def first_host(nodelist: str) -> str:
    """The first host of a list as SLURM writes it: "gpu[003-004,7]" -> "gpu003", "a-[1,3]-x,b" -> "a-1-x".

    Raises:
      InputError: it is no such list.
    """
    if not re.fullmatch(f"{_NAME}(?:,{_NAME})*", nodelist):
        raise InputError(f"{STEP_HOSTS}={nodelist!r} is no list of hosts: give --coordinator, and the flags beside it")
    first = re.match(_NAME, nodelist)
    assert first
    return re.sub(r"\[(\d+)[^\]]*\]", r"\1", first[0])


def _of_slurm(environ: Mapping[str, str]) -> Place:
    step = "--cluster=slurm holds inside of a step: start every process by one `srun`"
    count, index = _number(environ, STEP_TASKS, remedy=step), _number(environ, STEP_INDEX, remedy=step)
    host = first_host(_value(environ, STEP_HOSTS, remedy=step))
    # The same for all tasks, another for other steps on the same host; below the ports that Linux hands out itself.
    step_number = 37 * _number(environ, "SLURM_JOB_ID", absent=0) + _number(environ, "SLURM_STEP_ID", absent=0)
    port = _LOWEST_STEP_PORT + 2 * (step_number % _STEP_PORTS)
    return _place("slurm", index, count, f"{host}:{port}", (STEP_HOSTS, STEP_TASKS, STEP_INDEX))


def _of_jobset(environ: Mapping[str, str]) -> Place:
    pod = "it is set in the learners' pods that launch/kubernetes describes"
    count, index = _number(environ, JOBSET_COUNT, remedy=pod), _number(environ, JOBSET_INDEX, remedy=pod)
    host = _value(environ, JOBSET_COORDINATOR, remedy=pod)
    return _place("jobset", index, count, f"{host}:{PORT}", (JOBSET_COORDINATOR, JOBSET_COUNT, JOBSET_INDEX))


def _of_tpu_pod(environ: Mapping[str, str]) -> Place:
    pod = "GKE sets it in pods on TPU slices; on TPU VMs launch/tpu passes --coordinator and the flags beside it"
    if _number(environ, TPU_SLICES, absent=1) > 1:
        raise InputError(f"{TPU_SLICES}={environ[TPU_SLICES]}: a learner takes one slice; give it one of that size")
    hosts = _value(environ, TPU_HOSTS, remedy=pod).split(",")
    index = _number(environ, TPU_INDEX, remedy=pod, absent=0 if len(hosts) == 1 else None)
    return _place("tpu pod", index, len(hosts), f"{hosts[0]}:{PORT}", (TPU_HOSTS, TPU_HOSTS, TPU_INDEX))


def _place(source: Source, index: int, count: int, coordinator: str, names: tuple[str, ...]) -> Place:
    """The place, once it makes sense; `names` are what said coordinator, count and index."""
    if count < 1:
        raise InputError(f"{names[1]}={count}: at least one process trains")
    if not 0 <= index < count:
        raise InputError(f"{names[2]}={index} is outside of 0..{count - 1}, for {names[1]} says {count} processes")
    address = re.fullmatch(r"(?:[\w.-]+|\[[0-9A-Fa-f:.]+\]):(\d{1,5})", coordinator)
    if not address:
        raise InputError(f"{names[0]}: {coordinator!r} is no host:port, as in --coordinator=10.0.0.2:{PORT}")
    if not 0 < int(address[1]) < 65535:
        raise InputError(f"{names[0]}: port {address[1]} is not in 1..65534 (the one above it is used too)")
    return Place(index, count, coordinator if count > 1 else "", source)


def _names(flags: Mapping[str, object], *, given: bool) -> str:
    return " and ".join(name for name, value in flags.items() if (value is not None) == given)


def _value(environ: Mapping[str, str], name: str, *, remedy: str) -> str:
    if not environ.get(name):
        raise InputError(f"{name} is not set: {remedy}")
    return environ[name]


def _number(environ: Mapping[str, str], name: str, *, remedy: str = "", absent: int | None = None) -> int:
    if absent is not None and name not in environ:
        return absent
    text = _value(environ, name, remedy=remedy or "unset it, or give --cluster=none")
    if not (text.isascii() and text.isdigit()):
        raise InputError(f"{name}={text!r} is no number: give --coordinator, and the flags beside it")
    return int(text)
