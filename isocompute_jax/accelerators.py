"""What accelerators can do, as their makers publish it: the peaks that estimates of time are made from."""

from __future__ import annotations

import dataclasses

GB, TB, TERA = 1e9, 1e12, 1e12
GIB = 2**30


@dataclasses.dataclass(frozen=True)
class Device:
    """One accelerator.

    Attributes:
      name: as in `--topology`.
      flops: bfloat16 products, dense, per second.
      flops_float32: float32 products in full precision, per second.
      memory: bytes.
      memory_bandwidth: bytes per second.
      link: bytes per second that a device sends to its neighbours: NVLink in one direction; all links of a TPU chip.
      network: bytes per second and device between hosts; that of `link` where a slice is one network.
      reserve: bytes that a program should leave free: for the runtime, NCCL's buffers, and scratch of the kernels that
        autotuning chooses on the device.
      axes: of a slice; 0 for GPUs.
      kinds: JAX's names of it (`device_kind`).
      source: where the figures stand.
    """

    name: str
    flops: float
    flops_float32: float
    memory: float
    memory_bandwidth: float
    link: float
    network: float
    reserve: float
    axes: int
    kinds: tuple[str, ...]
    source: str

    def is_kind(self, kind: str) -> bool:
        """Whether JAX calls it so."""
        return kind in self.kinds


def _tpu(
    name: str,
    *,
    flops: float,
    memory: float,
    memory_bandwidth: float,
    link: float,
    reserve: float,
    axes: int,
    kind: str,
) -> Device:
    """A chip whose slices are one network, and whose float32 products are six of bfloat16."""
    return Device(
        name=name,
        flops=flops,
        flops_float32=flops / 6,
        memory=memory,
        memory_bandwidth=memory_bandwidth,
        link=link,
        network=link,
        reserve=reserve,
        axes=axes,
        kinds=(kind, f"TPU {name}"),
        source=f"Google Cloud's TPU {name} page",
    )


H200 = Device(
    name="h200",
    flops=989 * TERA,
    flops_float32=67 * TERA,
    memory=150 * GB,
    memory_bandwidth=4.8 * TB,
    link=450 * GB,
    network=50 * GB,
    reserve=8 * GIB,
    axes=0,
    kinds=("NVIDIA H200",),
    source="NVIDIA's H200 data sheet (SXM); between hosts one 400 Gbit/s adapter a GPU is assumed",
)
V5E = _tpu(
    "v5e",
    flops=197 * TERA,
    memory=16 * GIB,
    memory_bandwidth=819 * GB,
    link=200 * GB,
    reserve=0.75 * GIB,
    axes=2,
    kind="TPU v5 lite",
)
V5P = _tpu(
    "v5p",
    flops=459 * TERA,
    memory=95 * GIB,
    memory_bandwidth=2765 * GB,
    link=600 * GB,
    reserve=2 * GIB,
    axes=3,
    kind="TPU v5",
)
V6E = _tpu(
    "v6e",
    flops=918 * TERA,
    memory=32 * GIB,
    memory_bandwidth=1640 * GB,
    link=448 * GB,
    reserve=1 * GIB,
    axes=2,
    kind="TPU v6 lite",
)
DEVICES = {device.name: device for device in (H200, V5E, V5P, V6E)}
"""By the name that `--topology` gives them."""


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
