"""What vLLM's build for GPUs needs of a machine, looked for before minutes go by: driver, compiler, headers."""

from __future__ import annotations

import importlib.metadata
import os
import pathlib
import shlex
import shutil
import sys
import sysconfig

from isocompute_jax import drivers
from isocompute_jax.records.errors import InputError

COMPILERS = ("gcc", "clang")
"""In the order in which Triton looks for them, without CC."""


def check_machine() -> None:
    """Nothing happens where vLLM is its build for CPUs.

    Raises:
      InputError: something is missing; it says how to get it.
    """
    try:
        importlib.metadata.version("vllm")
    except importlib.metadata.PackageNotFoundError:
        return
    drivers.check_driver("vLLM", otherwise="--engine=vllm on CPUs is the environment of `make vllm-env`")
    python = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for what, found in (("a C compiler", _compiler()), (f"Python.h of {python}", _headers())):
        if not found:
            raise InputError(
                f"--engine=vllm: {what} is not here, and vLLM's kernels are compiled as it starts: install gcc, g++ "
                f"and {python}-dev (Debian's names)"
            )


def _compiler() -> bool:
    named = shlex.split(os.environ.get("CC", ""))[:1]
    return any(shutil.which(name) for name in named or COMPILERS)


def _headers() -> bool:
    return (pathlib.Path(sysconfig.get_paths(scheme="posix_prefix")["include"]) / "Python.h").exists()
