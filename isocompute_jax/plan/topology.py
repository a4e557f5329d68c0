"""Topologies by name: `h200:2x8`, `tpu:v5p:4x4x4`, `fake:8`, and the devices to compile for."""

from __future__ import annotations

import dataclasses
import math
import pathlib
import re
from typing import Any

import jax
from jax.sharding import Mesh

from isocompute_jax.accelerators import CPU, DEVICES, Device, claimed, known_device
from isocompute_jax.devices import cut_cpu
from isocompute_jax.plan.compilers import CompilerKind
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
