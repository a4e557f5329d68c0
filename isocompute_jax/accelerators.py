"""What accelerators can do, as their makers publish it: the peaks that estimates of time are made from.

And how much of a GPU's memory JAX takes: the mains say so before it starts (`claim_memory`), plans count on no more.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, MutableMapping
from typing import Any

from isocompute_jax.records.errors import InputError

GB, TB, TERA = 1e9, 1e12, 1e12
GIB = 2**30

SHARE = 0.95
"""Of a GPU's memory, what JAX takes as it starts. By itself it takes 0.75; the rest is for CUDA and NCCL's buffers."""
SHARE_VARIABLES = ("XLA_PYTHON_CLIENT_MEM_FRACTION", "XLA_CLIENT_MEM_FRACTION")
"""What tells JAX so: the name that every version reads, and the one that newer versions want; never both."""


def claim_memory(environment: MutableMapping[str, str] = os.environ) -> None:
    """Has JAX take `SHARE` of each GPU, unless the environment says how much; to be called before it starts.

    Raises:
      InputError: what the environment says is no share.
    """
    environment[_share_variable(environment)] = str(memory_share(environment))


def memory_share(environment: Mapping[str, str] = os.environ) -> float:
    """The share of a GPU's memory that JAX takes in this environment, once a main has started.

    Raises:
      InputError: it is no number above 0, or is said twice.
    """
    variable = _share_variable(environment)
    text = environment.get(variable) or str(SHARE)
    try:
        share = float(text)
    except ValueError:
        share = 0.0
    if not 0 < share < float("inf"):
        raise InputError(
            f"{variable} = {text!r} is no share of a GPU's memory: give a number such as {SHARE}, or unset it"
        )
    return share


def _share_variable(environment: Mapping[str, str]) -> str:
    """The variable that says the share, or would."""
    given = [name for name in SHARE_VARIABLES if environment.get(name)]
    if len(given) > 1:
        raise InputError(f"{' and '.join(given)} are both set, and JAX refuses that: unset one of them")
    return (given or SHARE_VARIABLES)[0]


@dataclasses.dataclass(frozen=True)
class Device:
    """One accelerator."""

    name: str  # as in `--topology`.
    flops: float  # bfloat16 products, dense, per second.
    flops_float32: float  # float32 products in full precision, per second.
    memory: float  # bytes.
    memory_bandwidth: float  # bytes per second.
    # bytes per second that a device sends to its neighbours: NVLink in one direction; all links of a TPU chip.
    link: float
    network: float  # bytes per second and device between hosts; that of `link` where a slice is one network.
    # bytes of what JAX takes that a program should leave free: on GPUs for scratch of the kernels that autotuning
    # chooses on the device, elsewhere for the runtime too.
    reserve: float
    axes: int  # of a slice; 0 for GPUs.
    kinds: tuple[str, ...]  # JAX's names of it (`device_kind`).
    source: str  # where the figures stand.
    share: float = 1.0  # of its memory, what JAX takes.

    @property
    def usable(self) -> float:
        """Bytes that a program may need."""
        return self.share * self.memory - self.reserve

    def is_kind(self, kind: str) -> bool:
        """Whether JAX calls it so."""
        return kind in self.kinds


def _tpu(name: str, kind: str, *, flops: float, link: float, **figures: Any) -> Device:
    """A chip whose slices are one network, and whose float32 products are six of bfloat16."""
    source = f"Google Cloud's TPU {name} page"
    speeds = {"flops": flops, "flops_float32": flops / 6, "link": link, "network": link}
    return Device(name=name, kinds=(kind, f"TPU {name}"), source=source, **speeds, **figures)


H200 = Device(
    name="h200",
    flops=989 * TERA,
    flops_float32=67 * TERA,
    memory=150 * GB,
    memory_bandwidth=4.8 * TB,
    link=450 * GB,
    network=50 * GB,
    reserve=1 * GIB,
    axes=0,
    kinds=("NVIDIA H200",),
    source="NVIDIA's H200 data sheet (SXM); between hosts one 400 Gbit/s adapter a GPU is assumed",
    share=SHARE,
)
V5E = _tpu(
    "v5e", "TPU v5 lite", axes=2, flops=197 * TERA, link=200 * GB,
    memory=16 * GIB, memory_bandwidth=819 * GB, reserve=0.75 * GIB,
)  # fmt: skip
V5P = _tpu(
    "v5p", "TPU v5", axes=3, flops=459 * TERA, link=600 * GB,
    memory=95 * GIB, memory_bandwidth=2765 * GB, reserve=2 * GIB,
)  # fmt: skip
V6E = _tpu(
    "v6e", "TPU v6 lite", axes=2, flops=918 * TERA, link=448 * GB,
    memory=32 * GIB, memory_bandwidth=1640 * GB, reserve=1 * GIB,
)  # fmt: skip
DEVICES = {device.name: device for device in (H200, V5E, V5P, V6E)}
"""By the name that `--topology` gives them."""


def claimed(device: Device, environment: Mapping[str, str] = os.environ) -> Device:
    """The device, of which JAX takes the share that the environment says; what is no GPU it takes whole.

    Raises:
      InputError: what the environment says is no share.
    """
    return dataclasses.replace(device, share=memory_share(environment)) if device.share < 1 else device


def known_device(kind: str) -> Device | None:
    """The accelerator that JAX calls `kind` (`device_kind`); None for one that is not in the table, as CPUs are not."""
    return next((device for device in DEVICES.values() if device.is_kind(kind)), None)


CPU = Device(
    name="cpu",
    flops=0.1 * TERA,
    flops_float32=0.1 * TERA,
    memory=16 * GIB,
    memory_bandwidth=20 * GB,
    link=10 * GB,
    network=10 * GB,
    reserve=1 * GIB,
    axes=0,
    kinds=("cpu",),
    source="no published figures: one core and 16 GiB are assumed, and nothing is meant by the times",
)
