"""The GPUs of this host, and which process of a run gets which. CUDA is not started: that would take the device."""

from __future__ import annotations

import dataclasses
import glob
import math
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence

from isocompute_jax.accelerators import SHARE, SHARE_VARIABLES, memory_share
from isocompute_jax.records.errors import InputError

LEARNER_MEMORY, SERVER_MEMORY = 0.6, 0.3
"""Shares of the memory of a GPU that a learner and a server have in common; what is left is for CUDA's contexts."""
MESH_FLAGS = ("mesh_data", "mesh_fsdp", "mesh_expert", "mesh_tensor")
_LISTED = re.compile(r"^(?:GPU (?P<index>\d+): (?P<name>.*)|\s+MIG .*?) \(UUID: (?P<uuid>[^)]+)\)", re.MULTILINE)
LIST_S = 60.0
"""Without persistence mode the driver may take many seconds to wake eight GPUs."""


@dataclasses.dataclass(frozen=True)
class Gpu:
    """A device as nvidia-smi lists it; a MIG slice has neither an index nor a name."""

    index: int | None
    name: str
    uuid: str


@dataclasses.dataclass(frozen=True)
class Pool:
    """GPUs that may be given out, in order, as CUDA_VISIBLE_DEVICES names them; how many those are, in words."""

    devices: tuple[str, ...]
    says: str = ""


@dataclasses.dataclass(frozen=True)
class GpuShare:
    """What one process gets."""

    devices: tuple[str, ...]  # entries of CUDA_VISIBLE_DEVICES
    # the share of their memory that is its own, from 0 to 1; None: all of it, or what its flags say
    memory: float | None = None

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """`environ` as this process is to see it."""
        own = {**environ, "CUDA_VISIBLE_DEVICES": ",".join(self.devices)}
        own.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")  # nvidia-smi's: CUDA's own begins with the fastest
        if not self.devices:
            own.setdefault("JAX_PLATFORMS", "cpu")  # with CUDA installed, JAX would look for a GPU and fail
        if self.memory is not None:
            for name in SHARE_VARIABLES:
                own.pop(name, None)
            own[SHARE_VARIABLES[0]] = f"{self.memory:g}"
        return own

    def __str__(self) -> str:
        if not self.devices:
            return "none"
        part = "" if self.memory is None else f" ({self.memory:g} of its memory)"
        return f"GPU {', '.join(self.devices)}{part}"


@dataclasses.dataclass(frozen=True)
class Shares:
    """Who gets what: learner processes, servers, and what is left to nobody."""

    learners: tuple[GpuShare, ...]
    servers: tuple[GpuShare, ...]
    unused: tuple[str, ...] = ()

    @property
    def common(self) -> bool:
        """Whether a learner and a server are on one GPU."""
        return bool(self.servers) and self.learners[0].devices == self.servers[0].devices != ()

    def __str__(self) -> str:
        parts = [f"learner {number}: {share}" for number, share in enumerate(self.learners)]
        parts += [f"server {number}: {share}" for number, share in enumerate(self.servers)]
        return "; ".join([*parts, *([f"unused: {', '.join(self.unused)}"] if self.unused else [])])


def listed() -> list[Gpu]:
    """The GPUs of this host, by `nvidia-smi -L`.

    Raises:
      InputError: there is no nvidia-smi, or it finds no driver.
    """
    program = shutil.which("nvidia-smi")
    if program is None:
        raise InputError(
            "nvidia-smi, which says what GPUs this host has, is not on PATH: install NVIDIA's driver (in a container, "
            "NVIDIA_DRIVER_CAPABILITIES=compute,utility brings it)"
        )
    try:
        done = subprocess.run([program, "-L"], capture_output=True, text=True, timeout=LIST_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InputError(f"nvidia-smi -L: {error}; mend the driver first") from error
    if done.returncode:
        output = " ".join((done.stdout + done.stderr).split())
        raise InputError(f"nvidia-smi -L: {output or f'exit code {done.returncode}'}; mend the driver first")
    return parse(done.stdout)


def parse(text: str) -> list[Gpu]:
    """What `nvidia-smi -L` prints, GPU by GPU; each one's MIG slices follow it."""
    return [
        Gpu(None if found["index"] is None else int(found["index"]), found["name"] or "", found["uuid"])
        for found in _LISTED.finditer(text)
    ]


def visible(environ: Mapping[str, str]) -> int:
    """How many GPUs a process of this environment sees, by nvidia-smi or else by their device files; 0 without any."""
    try:
        return len(pool_of(environ).devices)
    except InputError:
        return len(glob.glob("/dev/nvidia[0-9]*"))


def pool_of(environ: Mapping[str, str]) -> Pool:
    """What of this host's GPUs may be given out.

    Raises:
      InputError: nvidia-smi cannot be asked, or CUDA_VISIBLE_DEVICES names what the host has not.
    """
    return pool(listed(), environ.get("CUDA_VISIBLE_DEVICES"))


def pool(gpus: Sequence[Gpu], visible: str | None) -> Pool:
    """What may be given out.

    Args:
      gpus: of this host.
      visible: the user's own CUDA_VISIBLE_DEVICES, where it is set: numbers, or UUIDs and unique beginnings of them,
        of GPUs or MIG slices. What follows -1 does not count, as in CUDA.

    Returns:
      numbers as they are and UUIDs in full (vLLM wants them so); all numbers where `visible` is None.

    Raises:
      InputError: it names what this host has not, or one twice.
    """
    whole = [gpu for gpu in gpus if gpu.index is not None]
    if visible is None:
        return Pool(tuple(str(gpu.index) for gpu in whole), f"this host has {len(whole)} (nvidia-smi -L)")
    entries = [entry.strip() for entry in visible.split(",")] if visible.strip() else []
    if "-1" in entries:
        entries = entries[: entries.index("-1")]
    found, seen = [], set()
    for entry in entries:
        if entry.isdigit():
            matches = [gpu for gpu in gpus if gpu.index == int(entry)]
        else:
            matches = [gpu for gpu in gpus if entry and gpu.uuid.startswith(entry)]
        if len(matches) != 1:
            what = "the beginning of several" if matches else "none"
            raise InputError(
                f"CUDA_VISIBLE_DEVICES={visible}: {entry!r} is {what} of this host's {len(whole)} GPUs (nvidia-smi "
                "-L); name those that it has, or unset it"
            )
        if matches[0] in seen:
            raise InputError(f"CUDA_VISIBLE_DEVICES={visible} names {entry} twice: name each GPU once")
        seen.add(matches[0])
        found.append(str(int(entry)) if entry.isdigit() else matches[0].uuid)
    return Pool(tuple(found), f"CUDA_VISIBLE_DEVICES={visible} leaves {len(found)} of this host's {len(whole)}")


def divide(pool: Pool, *, learners: int, learner_gpus: int, servers: int, server_gpus: int) -> Shares:
    """Who gets which: the learners first, then the servers in order. One GPU is shared by one learner and one server.

    Args:
      pool: what there is to give.
      learners: learner processes, each with an even share of `learner_gpus`.
      learner_gpus: of all learners together; 0 for none.
      servers: sampler servers.
      server_gpus: of each server; 0 for none.

    Raises:
      InputError: they want more than there is, or learners get no even share.
    """
    if learner_gpus % learners:
        raise InputError(
            f"--learner_gpus={learner_gpus} is no even share for --learners={learners}: start one learner, which uses "
            "all of its GPUs, or give a multiple"
        )
    each, devices = learner_gpus // learners, pool.devices
    if len(devices) == 1 and (each, learners, server_gpus, servers) == (1, 1, 1, 1):
        return Shares((GpuShare(devices, LEARNER_MEMORY),), (GpuShare(devices, SERVER_MEMORY),))
    wanted = learner_gpus + servers * server_gpus
    if wanted > len(devices):
        remedy = "lower one of them"
        if len(devices) == 1:
            remedy = "one GPU is shared by one learner and one server, --learner_gpus=1 --servers=1 --server_gpus=1"
        raise InputError(
            f"--learner_gpus={learner_gpus} and --servers={servers} of --server_gpus={server_gpus} are {wanted} GPUs, "
            f"and {pool.says}: {remedy}"
        )
    cut = [devices[i * each : (i + 1) * each] for i in range(learners)]
    rest = devices[learner_gpus:]
    served = [rest[i * server_gpus : (i + 1) * server_gpus] for i in range(servers)]
    return Shares(
        tuple(GpuShare(part) for part in cut),
        tuple(GpuShare(part) for part in served),
        rest[servers * server_gpus :],
    )


def check_apart(count: int, *, learners: int, servers: int) -> None:
    """Of processes that are not told their GPUs, each takes the first.

    Args:
      count: GPUs that they see.
      learners: learner processes that would use GPUs.
      servers: servers that would.

    Raises:
      InputError: they are several, and there is a GPU.
    """
    if not count or learners + servers < 2:
        return
    raise InputError(
        f"{learners + servers} processes (learners: {learners}, servers: {servers}) would all use the first of {count} "
        f"GPUs: say how many all learners get, --learner_gpus={max(count - servers, 1)}, and each server, "
        "--server_gpus=1; or 0 of both where nothing runs on GPUs"
    )


def settle(
    shares: Shares, *, engine: str, arguments: Sequence[str], environ: Mapping[str, str]
) -> tuple[Shares, list[str]]:
    """On a common GPU, the shares of its memory: the user's own where they are set, ours otherwise.

    Args:
      shares: what `divide` made.
      engine: of the servers, jax or vllm.
      arguments: the servers' flags.
      environ: of the launcher; the learner's share is what it tells JAX.

    Returns:
      the shares, and what joins the servers' flags.

    Raises:
      InputError: together they are more than a GPU has, or one of them is no share.
    """
    if not shares.common:
        return shares, []
    learner, added = LEARNER_MEMORY, []
    if any(environ.get(name) for name in SHARE_VARIABLES):
        learner = memory_share(environ)
    server: float | None = SERVER_MEMORY
    if engine == "vllm" and value(arguments, "kv_cache_bytes"):
        server = None  # weights, activations and that many bytes
    elif engine == "vllm" and (text := value(arguments, "gpu_memory_utilization")):
        server = as_number("--gpu_memory_utilization", text)
    elif engine == "vllm":
        added = [f"--gpu_memory_utilization={SERVER_MEMORY:g}"]
    if round(learner + (server or 0.0), 6) > SHARE:
        raise InputError(
            f"a learner and a server share one GPU: {learner:g} ({SHARE_VARIABLES[0]}) and {server or 0:g} "
            f"(--gpu_memory_utilization in --server_args) of its memory are more than {SHARE:g}; lower one"
        )
    [one], [other] = shares.learners, shares.servers
    one, other = dataclasses.replace(one, memory=learner), dataclasses.replace(other, memory=server)
    return dataclasses.replace(shares, learners=(one,), servers=(other,)), added


def check_parts(engine: str, server_gpus: int, arguments: Sequence[str]) -> None:
    """A server uses as many GPUs as its flags say, and no more.

    Raises:
      InputError: it is given another number.
    """
    names = ("tensor_parallel", "data_parallel") if engine == "vllm" else MESH_FLAGS
    uses = math.prod(int(as_number(f"--{name}", value(arguments, name) or "1")) for name in names)
    if uses != server_gpus:
        listed = " or ".join(f"--{name}={server_gpus}" for name in (names if engine == "vllm" else names[-1:]))
        raise InputError(
            f"--server_gpus={server_gpus}, and by --server_args each server uses {uses}: give --server_args={listed}, "
            f"or --server_gpus={uses}"
        )


def value(arguments: Sequence[str], name: str) -> str | None:
    """Of a flag, as it is given last: `--name=value` or `--name value`; None where it is not."""
    found = None
    for at, argument in enumerate(arguments):
        flag, equals, text = argument.partition("=")
        if flag in (f"--{name}", f"-{name}"):
            found = text if equals else next(iter(arguments[at + 1 :]), "")
    return found


def as_number(what: str, text: str) -> float:
    """The number that `what` is set to.

    Raises:
      InputError: it is none.
    """
    try:
        return float(text)
    except ValueError:
        raise InputError(f"{what}={text}: must be a number") from None
