"""Topologies by name (`h200:2x8`, `tpu:v5p:4x4x4`, `fake:8`), the devices to compile for, and Pythons that can."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import pathlib
import re
import subprocess
import sys
from typing import Any, Literal

import jax
from jax.sharding import Mesh

from isocompute_jax.accelerators import CPU, DEVICES, Device, claimed, known_device
from isocompute_jax.devices import cut_cpu
from isocompute_jax.records.errors import InputError

FORMS = "h200:HOSTSx8, tpu:v5e:XxY, tpu:v5p:XxYxZ, tpu:v6e:XxY, fake:DEVICES, or here for this machine's own"
_TARGETS = pathlib.Path(__file__).parent / "targets"


@dataclasses.dataclass(frozen=True)
class Topology:
    """Accelerators to compile for."""

    name: str  # as it was spelled
    device: Device  # what one of them can do
    shape: tuple[int, ...]  # hosts and devices of each; of a TPU slice, chips along its axes
    compiler: CompilerKind | None  # which of XLA's compilers has to be there; None for the one of this process

    @property
    def size(self) -> int:
        """Number of devices."""
        return math.prod(self.shape)

    @property
    def hosts(self) -> int:
        """Hosts of NVLink domains of their own; a TPU slice is one."""
        return self.shape[0] if self.compiler == "gpu" else 1

    @property
    def known(self) -> bool:
        """Whether its devices are accelerators whose memory is known."""
        return self.device is not CPU

    def hosts_of(self, mesh: Mesh) -> list[int]:
        """The host of each device, in the order of a mesh; all of a TPU slice count as one."""
        return [device.process_index if self.compiler == "gpu" else 0 for device in mesh.devices.flat]

    def devices(self) -> list[Any]:
        """The devices, for a mesh: real ones of this process, or descriptions that only a compiler can use.

        Raises:
          InputError: the compiler knows no such slice, or fewer devices are here than `fake` asks for.
        """
        if self.compiler is None:
            return _own_devices(self.name, self.size)
        from jax.experimental import topologies

        try:
            if self.compiler == "tpu":
                name = self.name.removeprefix("tpu:")
                return list(topologies.get_topology_desc(platform="tpu", topology_name=name).devices)
            target = (_TARGETS / f"{self.device.name}.txtpb").read_text(encoding="utf-8")
            hosts, gpus = self.shape
            described = topologies.get_topology_desc("", "cuda", target_config=target, topology=f"1x{hosts}x{gpus}")
            return list(described.devices)
        except Exception as error:  # the plugins raise many types
            raise InputError(f"--topology={self.name}: its compiler refuses it ({error})") from error


def parse_topology(name: str) -> Topology:
    """The topology of a name.

    Raises:
      InputError: it is none of `FORMS`, or the environment has JAX take no share of a GPU's memory.
    """
    if name in ("", "here"):
        devices = jax.devices()
        device = known_device(devices[0].device_kind) or CPU
        return Topology("here", claimed(device), (len(devices),), None)
    if found := re.fullmatch(r"fake:([1-9]\d*)", name):
        return Topology(name, CPU, (int(found[1]),), None)
    if found := re.fullmatch(r"(?:tpu:)?(v\w+):([1-9]\d*(?:x[1-9]\d*)+)", name):
        device, shape = DEVICES.get(found[1]), _numbers(found[2])
        if device is not None and len(shape) == device.axes:
            return Topology(name, device, shape, "tpu")
    if found := re.fullmatch(r"h200:([1-9]\d*)x([1-8])", name):
        return Topology(name, claimed(DEVICES["h200"]), (int(found[1]), int(found[2])), "gpu")
    raise InputError(f"--topology={name!r} is unknown: give {FORMS}")


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("x"))


def _own_devices(name: str, size: int) -> list[Any]:
    """Devices of this process; the CPU is cut into as many as `fake` wants, where none has been used yet."""
    if name == "here":
        return jax.devices()
    cut_cpu(size)
    devices = jax.devices("cpu")
    if len(devices) < size:
        raise InputError(f"--topology={name}: this process has {len(devices)} CPU devices, and started with them")
    return devices[:size]


# --- compilers


CompilerKind = Literal["gpu", "tpu"]

_ROOT = pathlib.Path(__file__).parents[2]
_PROBE = """
import importlib.util, json, sys
found = {name: importlib.util.find_spec(name) for name in sys.argv[1:]}
tools = found.get("nvidia") and list(found["nvidia"].submodule_search_locations)
print(json.dumps({"missing": [name for name, spec in found.items() if spec is None], "tools": tools or []}))
"""
_MODULES: dict[CompilerKind, tuple[str, ...]] = {"gpu": ("jax_cuda13_plugin", "nvidia"), "tpu": ("libtpu",)}


QUIET = {
    "TF_CPP_MIN_LOG_LEVEL": "2",  # XLA's warnings
    "TPU_ACCELERATOR_TYPE": "v5p-8",  # libtpu looks for a host's, and complains; topologies are named anyway
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TRANSFORMERS_VERBOSITY": "error",
}


def variable(kind: CompilerKind) -> str:
    """The environment variable that names a Python with this compiler."""
    return f"ISOCOMPUTE_AOT_{kind.upper()}_PYTHON"


def find_compiler(kind: CompilerKind) -> tuple[str, dict[str, str]]:
    """A Python that compiles for one kind of accelerator, and the environment variables that its process needs.

    It is that of `ISOCOMPUTE_AOT_<KIND>_PYTHON`, of `.venv-aot-<kind>` here or beside the package, or this one.

    Raises:
      InputError: none of them has the compiler; it says how to get it.
    """
    remedy = f"make aot-env AOT={kind} installs it into .venv-aot-{kind}"
    named = os.environ.get(variable(kind))
    if named:
        if not os.access(named, os.X_OK):
            raise InputError(f"{variable(kind)} = {named!r} is no program: {remedy}")
        pythons = [named]
    else:
        own = [str(folder / f".venv-aot-{kind}" / "bin" / "python") for folder in (pathlib.Path.cwd(), _ROOT)]
        pythons = [python for python in dict.fromkeys(own) if os.access(python, os.X_OK)] + [sys.executable]
    missing: list[str] = []
    for python in pythons:
        done = subprocess.run([python, "-c", _PROBE, *_MODULES[kind]], capture_output=True, text=True, check=False)
        if done.returncode:
            raise InputError(f"{python} does not run ({done.stderr.strip()[-300:]}): {remedy}")
        probed = json.loads(done.stdout)
        missing = probed["missing"]
        if not missing:
            return python, _environment(probed["tools"])
    raise InputError(f"the compiler for this topology is not installed ({', '.join(missing)} not found): {remedy}")


def _environment(nvidia: list[str]) -> dict[str, str]:
    """The variables of this process and those that the compilers need."""
    tools = [os.path.join(folder, "cu13", "bin") for folder in nvidia]  # ptxas
    return (
        QUIET
        | os.environ
        | {
            "JAX_PLATFORMS": "cpu",  # no backend but the host's is started; compilers come through topologies
            "JAX_ENABLE_COMPILATION_CACHE": "false",  # it takes programs for attached devices alone
            "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",
            "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # two plans may compile at once: no chip is opened
            "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} --xla_gpu_autotune_level=0".strip(),
            "PATH": os.pathsep.join([*tools, os.environ.get("PATH", os.defpath)]),
            "PYTHONPATH": os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
        }
    )
