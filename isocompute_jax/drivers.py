"""NVIDIA's driver on this machine, asked before a device is: whether it runs the CUDA that programs here are built for.

An older driver is not said by JAX itself, which goes on without its GPUs.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import pathlib
import re

from isocompute_jax.records.errors import InputError

CUDA, DRIVER = 13, 580
"""The CUDA that constraints.txt and constraints-vllm-cuda.txt install, and the first driver that runs it (NVIDIA's
CUDA Toolkit release notes, table 2)."""

_LIBRARY = "libcuda.so.1"
_KERNEL_MODULE = pathlib.Path("/proc/driver/nvidia/version")


def check_driver_for_jax() -> None:
    """Where JAX would use NVIDIA's GPUs. To be called before JAX starts its backends.

    Raises:
      InputError: the driver is too old.
    """
    platforms = os.environ.get("JAX_PLATFORMS", "")
    wanted = not platforms or {"cuda", "gpu"} & set(platforms.split(","))
    if wanted and importlib.util.find_spec(f"jax_cuda{CUDA}_plugin"):
        check_driver("JAX", otherwise="JAX_PLATFORMS=cpu does without GPUs")


def check_driver(who: str, *, otherwise: str) -> None:
    """Nothing happens where there is no driver: there are no GPUs then, or none that this process may use.

    Args:
      who: is built for CUDA 13.
      otherwise: what can be done without another driver.

    Raises:
      InputError: the driver is too old.
    """
    runs = cuda_of_driver()
    if runs is not None and runs[0] < CUDA:
        version = driver_version()
        name = f" {version}" if version else ""
        raise InputError(
            f"the NVIDIA driver{name} runs CUDA {runs[0]}.{runs[1]} at most, and {who} here is built for CUDA {CUDA}: "
            f"install driver {DRIVER} or later on this machine (nvidia-smi says which there is); {otherwise}"
        )


def cuda_of_driver() -> tuple[int, int] | None:
    """The newest CUDA that the driver runs; None without a driver. No device is started.

    The library is asked and not the kernel's module: a container may bring a newer one (CUDA's compatibility package).
    """
    try:
        library = ctypes.CDLL(_LIBRARY)
    except OSError:
        return None
    number = ctypes.c_int(0)
    if library.cuDriverGetVersion(ctypes.byref(number)) or not number.value:
        return None
    return number.value // 1000, number.value % 1000 // 10


def driver_version() -> str | None:
    """That of the kernel's module, such as 580.65.06."""
    try:
        found = re.search(r"Kernel Module\D*?(?:x86_64|aarch64)?\s+(\d+(?:\.\d+)+)", _KERNEL_MODULE.read_text())
    except OSError:
        return None
    return found[1] if found else None
