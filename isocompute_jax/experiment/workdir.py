"""Opening and closing a run directory: one config per directory, logs and checkpoint in step, DONE written last."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import importlib.metadata
import json
import os
import pathlib
import subprocess
from collections.abc import Iterator, Mapping
from typing import Any

import jax

import isocompute_jax
from isocompute_jax.experiment.config import RunConfig, differences
from isocompute_jax.records import run_files
from isocompute_jax.records.errors import InputError

PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "transformers", "numpy")


def open_workdir(workdir: str | os.PathLike[str], config: RunConfig, facts: run_files.RunFacts) -> pathlib.Path:
    """Makes the directory and its config.json, or checks that it belongs to this very config.

    Raises:
      InputError: the directory holds a run of another config, or something that is no run.
    """
    path = pathlib.Path(workdir)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise InputError(f"--workdir={path}: there is a file in its place; choose another --workdir") from None
    config_path = path / run_files.CONFIG
    if config_path.exists():
        try:
            theirs = json.loads(config_path.read_text(encoding="utf-8"))["config"]
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"{config_path}: not a run's config ({error!r}); choose another --workdir") from error
        ours = json.loads(json.dumps(dataclasses.asdict(config)))
        changed = differences(comparable(ours), comparable(theirs))
        if changed:
            raise InputError(
                f"--workdir={path} holds a run of another config ({'; '.join(changed[:5])}). Choose another --workdir, "
                "or remove it to start anew"
            )
        return path
    if any(not entry.name.startswith(".") for entry in path.iterdir()):
        raise InputError(f"--workdir={path} is not empty and holds no run: choose another --workdir")
    content = {
        **dataclasses.asdict(facts),
        "config": dataclasses.asdict(config),
        "versions": versions(),
        "commit": commit(),
        "devices": [str(device) for device in jax.devices()],
    }
    run_files.write_atomic(config_path, json.dumps(content, indent=2) + "\n")
    return path


@contextlib.contextmanager
def locked(path: pathlib.Path, what: str) -> Iterator[None]:
    """Holds a directory: two processes at work in one would write to the same files. A killed holder lets go.

    Raises:
      InputError: another process holds it.
    """
    with open(path / ".lock", "w", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(f"another {what} is at work in {path}: wait for it, or choose another directory") from None
        yield


def comparable(config: dict[str, Any]) -> dict[str, Any]:
    """What must agree for a run to go on: all but the checkpoint interval and where the samplers are."""
    kept = {name: value for name, value in config.items() if name != "checkpoint_every_s"}
    if "service" in kept:
        kept["service"] = {"recompute_cache": kept["service"]["recompute_cache"]}
    return kept


def cut_logs_back(path: pathlib.Path, last: Mapping[str, int]) -> None:
    """Drops, from each log of `last`, the lines after the step that the restored checkpoint knows of (-1: all)."""
    for name, step in last.items():
        run_files.cut_back(path / name, step=step)


def versions() -> dict[str, str]:
    """Versions of this package and of what its numbers depend on."""
    found = {name: importlib.metadata.version(name) for name in PACKAGES}
    return {"isocompute_jax": isocompute_jax.__version__, **found}


def commit() -> str:
    """The git commit of the source tree, with `+` when it has changes; empty outside a checkout."""
    root = pathlib.Path(__file__).parent

    def git(*arguments: str) -> str:
        try:
            done = subprocess.run(["git", "-C", root, *arguments], capture_output=True, text=True, timeout=10)
        except (OSError, subprocess.TimeoutExpired):
            return ""
        return done.stdout.strip() if done.returncode == 0 else ""

    head = git("rev-parse", "HEAD")
    return head + ("+" if head and git("status", "--porcelain", "--untracked-files=no") else "")
