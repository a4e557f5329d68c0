"""Compiling: programs kept on disk between calls, and how long this process has compiled.

A first call compiles for seconds what the next one only loads. JAX writes an entry of its cache in place, so that
another process can read half of it. Here each process has a folder of its own, with hard links to what is known
already, and links what it has compiled into the common one when it is whole.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import os
import pathlib
import platform
import shutil
import tempfile
import threading
import time
from typing import Any

from isocompute_jax.records.run_files import user_cache

OFF = "off"
HELP = (
    "Directory that keeps compiled programs between calls; off: none. Left alone it is isocompute_jax/train in "
    "XDG_CACHE_HOME or ~/.cache, of at most 1 GB, or JAX_COMPILATION_CACHE_DIR where that is set."
)
"""Of the flag --compile_cache of what trains and samples."""
MOST_BYTES = 200e6
"""The oldest entries of a folder are dropped when all of them together are larger than this."""
OF_TRAINING = 1e9
"""The same of the folder of training, sampling and curation, whose programs are those of real models too."""
_OWN = "process-"
_ABANDONED_S = 86_400.0  # a process that was killed leaves its folder; nobody compiles for a day
WRITTEN = "/jax/core/compile/backend_compile_duration"
"""What JAX tells its listeners when a program was compiled, or read, and its entry written."""
COUNTED = (WRITTEN, "/jax/core/compile/jaxpr_to_mlir_module_duration")


def this_processor() -> str:
    """A name for processors that can run each other's programs: of what they know, where the system says it."""
    known = platform.machine() + platform.processor()
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as file:
        known += next((line for line in file if line.startswith(("flags", "Features"))), "")
    return f"{platform.machine()}-{hashlib.blake2b(known.encode(), digest_size=4).hexdigest()}"


def use_compile_cache(place: str = "", *, folder: str = "fit", most_bytes: float = MOST_BYTES) -> None:
    """Makes this process load compiled programs from `place`, and leave there what it compiles.

    Nothing happens where JAX was given a cache of its own (JAX_COMPILATION_CACHE_DIR) and no other place is asked for.
    A directory that cannot be written is done without: the cache saves time and nothing else.

    Args:
      place: directory; empty for the user's cache directory, `off` for none.
      folder: of the package's, in that directory.
      most_bytes: how large it may get.
    """
    import jax  # here, so that mains can say their --help without it

    if place == OFF:
        jax.config.update("jax_enable_compilation_cache", False)
        return
    if not place and jax.config.values.get("jax_compilation_cache_dir"):
        return
    try:
        root = pathlib.Path(place).expanduser() if place else user_cache(folder)
        if root is None:
            return
        root.mkdir(parents=True, exist_ok=True)
        own = pathlib.Path(tempfile.mkdtemp(prefix=_OWN, dir=root))
        known = set()
        for entry in _entries(root):
            with contextlib.suppress(FileNotFoundError):  # dropped by a process that ends now
                os.link(entry, own / entry.name)
                known.add(entry.name)
    except (OSError, RuntimeError):  # RuntimeError: a `~` without a home
        return
    atexit.register(_tidy_up, own, root, known, most_bytes)
    jax.monitoring.register_event_duration_secs_listener(functools.partial(_after, own, root, known))
    jax.config.update("jax_compilation_cache_dir", str(own))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    jax.config.update("jax_persistent_cache_enable_xla_caches", "none")  # they put the folder's name into the keys


def use_training_cache(place: str = "") -> None:
    """`use_compile_cache` of what trains and samples, apart for each kind of processor: homes are shared by many."""
    use_compile_cache(place, folder=f"train/{this_processor()}", most_bytes=OF_TRAINING)


def _after(own: pathlib.Path, root: pathlib.Path, known: set[str], event: str, duration_secs: float, **_: Any) -> None:
    """A program was compiled, and its entry written: whoever starts now finds it, and a kill loses nothing."""
    if event != WRITTEN:
        return
    for entry in _entries(own):
        if entry.name in known:
            continue
        with contextlib.suppress(OSError):  # no hard links here: it is handed over at the end
            with contextlib.suppress(FileExistsError):
                os.link(entry, root / entry.name)
            known.add(entry.name)


def _tidy_up(own: pathlib.Path, root: pathlib.Path, known: set[str], most_bytes: float) -> None:
    """Hands over what could not be linked, and drops what is too old, or too much."""
    try:
        for entry in _entries(own):
            if entry.name not in known:
                entry.replace(root / entry.name)
        entries = sorted(_entries(root), key=lambda entry: entry.stat().st_mtime)
        size = sum(entry.stat().st_size for entry in entries)
        for entry in entries:
            if size <= most_bytes:
                break
            size -= entry.stat().st_size
            entry.unlink(missing_ok=True)
        for folder in root.glob(f"{_OWN}*"):
            if folder == own or folder.stat().st_mtime < time.time() - _ABANDONED_S:
                shutil.rmtree(folder, ignore_errors=True)
    except OSError:  # another process tidies up too, or the disk is full
        shutil.rmtree(own, ignore_errors=True)


def _entries(root: pathlib.Path) -> list[pathlib.Path]:
    return [entry for entry in root.iterdir() if entry.is_file()]


class _Clock:
    """Adds up what JAX says of its compilations, in whatever thread they are."""

    def __init__(self) -> None:
        import jax

        self.seconds = 0.0
        self._lock = threading.Lock()
        jax.monitoring.register_event_duration_secs_listener(self._add)

    def _add(self, event: str, duration_secs: float, **_: Any) -> None:
        if event in COUNTED:
            with self._lock:
                self.seconds += duration_secs


_clock = functools.cache(_Clock)


def compiled_s() -> float:
    """Seconds that this process has compiled programs, or read them, since this was first asked."""
    return _clock().seconds
