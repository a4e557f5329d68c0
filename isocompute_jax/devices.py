"""The devices of this process: on a machine without accelerators, its cores (an effect, before JAX has started)."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.util
import os
import pathlib

import jax

ACCELERATORS = ("jax_cuda13_plugin", "jax_cuda12_plugin", "jax_rocm7_plugin", "libtpu")
"""Packages with which JAX may use more than the CPU."""


def cut_cpu(size: int) -> None:
    """Makes `size` devices of the CPU, so that a mesh can use as many cores; does nothing once JAX has started.

    Where there are accelerators this changes nothing that is used. XLA_FLAGS with a number of devices is left to rule.
    """
    if "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", ""):
        return
    if getattr(jax.config, "jax_num_cpu_devices") < size:  # noqa: B009 (its type declares no such attribute)
        with contextlib.suppress(RuntimeError):  # the backend has started
            jax.config.update("jax_num_cpu_devices", size)


def cores_for(size: int) -> None:
    """`cut_cpu`, if this process may use so many cores: a mesh of more devices is a mistake, to be refused as one."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if size <= cores:
        cut_cpu(size)


@functools.cache
def multiplies_bfloat16() -> bool:
    """Whether this processor has tiles for products of bfloat16 (Intel's AMX), which XLA:CPU uses."""
    try:
        return " amx_bf16" in pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:  # no Linux
        return False


def keep_freed_memory() -> None:
    """Where only CPUs are used, tells glibc to keep memory that is freed; to be called before JAX starts.

    A program of XLA:CPU asks for its temporaries as one block, for every call. Given back to Linux, gigabytes of pages
    were cleared again for every update (BENCHMARKS.md, "Beside TRL and tunix"). One arena, for others ask Linux for
    what is large, whatever the threshold. The process may so take up to twice its temporaries; where the environment
    has settings of malloc of its own (MALLOC_*, GLIBC_TUNABLES), these rule.
    """
    if any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ):
        return
    platforms = os.environ.get("JAX_PLATFORMS", "")
    if platforms not in ("", "cpu") or (not platforms and any(map(importlib.util.find_spec, ACCELERATORS))):
        return
    with contextlib.suppress(OSError, AttributeError):  # another C library
        mallopt = ctypes.CDLL("libc.so.6").mallopt
        for option, value in ((_ARENA_MAX, 1), (_MMAP_MAX, 0), (_TRIM_THRESHOLD, -1)):
            mallopt(option, value)


_TRIM_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -4, -8  # malloc.h
