"""Compiled programs kept on disk between calls: a first call compiles for seconds what the next one only loads.

JAX writes an entry of its cache in place, so that another process can read half of it. Here each process has a folder
of its own, with hard links to what is known already, and hands over what it compiled when it ends, by renaming.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import pathlib
import shutil
import tempfile
import time

import jax

from isocompute_jax.records.run_files import user_cache

OFF = "off"
MOST_BYTES = 200e6
"""The oldest entries are dropped when all of them together are larger than this."""
_OWN = "process-"
_ABANDONED_S = 86_400.0  # a process that was killed leaves its folder; nobody compiles for a day


def use_compile_cache(place: str = "") -> None:
    """Makes this process load compiled programs from `place`, and leave there what it compiles.

    Nothing happens where JAX was given a cache of its own (JAX_COMPILATION_CACHE_DIR) and no other place is asked for.
    A directory that cannot be written is done without: the cache saves time and nothing else.

    Args:
      place: directory; empty for the user's cache directory, `off` for none.
    """
    if place == OFF:
        jax.config.update("jax_enable_compilation_cache", False)
        return
    if not place and jax.config.values.get("jax_compilation_cache_dir"):
        return
    try:
        root = pathlib.Path(place).expanduser() if place else user_cache("fit")
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
    atexit.register(_hand_over, own, root, known)
    jax.config.update("jax_compilation_cache_dir", str(own))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    jax.config.update("jax_persistent_cache_enable_xla_caches", "none")  # they put the folder's name into the keys


def _hand_over(own: pathlib.Path, root: pathlib.Path, known: set[str]) -> None:
    """Moves what this process compiled into `root`, and tidies up."""
    try:
        for entry in _entries(own):
            if entry.name not in known:
                entry.replace(root / entry.name)
        entries = sorted(_entries(root), key=lambda entry: entry.stat().st_mtime)
        size = sum(entry.stat().st_size for entry in entries)
        for entry in entries:
            if size <= MOST_BYTES:
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
