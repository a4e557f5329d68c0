"""Runs a program again with storage that is slow: a small library delays its calls on files of one directory."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import tempfile
from collections.abc import Sequence

from isocompute_jax.records.errors import InputError, RunError

SOURCE = pathlib.Path(__file__).with_suffix(".c")
DIRECTORY = "SLOW_DIR"


def is_slow() -> bool:
    """Whether this process is one that `run` started."""
    return bool(os.environ.get(DIRECTORY))


def run(command: Sequence[str], directory: str, *, mib_per_s: float, trip_ms: float) -> int:
    """Runs a command whose files below a directory are on slow storage, and returns its exit code.

    Args:
      command: program and arguments; it must be linked to the C library dynamically, as Python is.
      directory: what is slow.
      mib_per_s: MiB a second that can be written, by all threads together; 0 for no limit.
      trip_ms: milliseconds that each opening to write, mkdir, rename and fsync waits.

    Raises:
      InputError: there is no C compiler.
      RunError: the library cannot be built.
    """
    compiler = shutil.which("cc")
    if compiler is None:
        raise InputError("slow storage needs a C compiler: there is no program cc")
    with tempfile.TemporaryDirectory() as built:
        library = pathlib.Path(built) / "slow_storage.so"
        arguments = ["-O1", "-shared", "-fPIC", "-o", str(library), str(SOURCE), "-ldl", "-lpthread"]
        done = subprocess.run([compiler, *arguments], capture_output=True, text=True, check=False)
        if done.returncode:
            raise RunError(f"{SOURCE.name} cannot be compiled:\n{done.stderr}")
        environment = {
            **os.environ,
            "LD_PRELOAD": str(library),
            DIRECTORY: os.path.realpath(directory),
            "SLOW_MIB_PER_S": str(mib_per_s),
            "SLOW_MS": str(trip_ms),
        }
        return subprocess.run(command, env=environment, check=False).returncode
