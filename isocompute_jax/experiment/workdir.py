"""Opening and closing a run directory: one config per directory, logs and checkpoint in step, DONE written last."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import errno
import fcntl
import importlib.metadata
import json
import logging
import os
import pathlib
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import jax

import isocompute_jax
from isocompute_jax.distributed import Team
from isocompute_jax.experiment.config import RunConfig
from isocompute_jax.records import run_files
from isocompute_jax.records.errors import InputError
from isocompute_jax.records.identity import IDENTITY, differences, flatten, identity

LOG = logging.getLogger(__name__)

SEEN_S = 10.0
"""Shared storage may show what another host wrote a little later."""
NOTHING_DONE = (run_files.LOCK, run_files.CONFIG, run_files.FLEET)
"""Files of a run that has done nothing yet."""
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "transformers", "numpy")


def is_done(path: pathlib.Path, config: RunConfig) -> bool:
    """Whether the directory holds this run, finished; nothing is written.

    Raises:
      InputError: the directory holds a run of another config, or something that is no run.
    """
    if (path / run_files.CONFIG).exists():
        check_same_run(path, config)
        return (path / run_files.DONE).exists()
    if path.exists() and not path.is_dir():
        raise _in_its_place(path)
    if path.exists() and any(not entry.name.startswith(".") for entry in path.iterdir()):
        raise InputError(f"--workdir={path} is not empty and holds no run: choose another --workdir")
    return False


def recorded_evaluation(path: pathlib.Path) -> dict[str, Any]:
    """How the run in a directory is evaluated, as its config.json has it; empty where there is none yet."""
    return _recorded(path).get("evaluation", {}) if (path / run_files.CONFIG).exists() else {}


def _recorded(path: pathlib.Path) -> dict[str, Any]:
    """The config of the run in a directory.

    Raises:
      InputError: its config.json is none of a run.
    """
    config_path = path / run_files.CONFIG
    try:
        found = json.loads(config_path.read_text(encoding="utf-8"))["config"]
        if not isinstance(found, dict) or not isinstance(found.get("evaluation", {}), dict):
            raise TypeError("it has no fields")
        collections.deque(flatten(found), maxlen=0)  # raises RecursionError where it is too deep to be compared
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(f"{config_path}: not a run's config ({error!r}); choose another --workdir") from error
    return found


@contextlib.contextmanager
def opened(path: pathlib.Path, config: RunConfig, facts: run_files.RunFacts, team: Team) -> Iterator[None]:
    """Makes the directory, locks it, and writes its config.json unless it is there: process 0 does, for all.

    A new directory in which bad input was found before anything was done is removed again, so that the corrected
    command does not meet the config of the first one.

    Raises:
      InputError: another process is at work in it, or it holds a run of another config; or another host does not see
        it, and could not write its share of checkpoints there.
    """
    with contextlib.ExitStack() as held:
        new = team.broadcast(lambda: _open(path, config, facts, held))
        try:
            team.everywhere(lambda: _check_seen(path))
            yield
        except InputError:
            if new and team.leads:
                remove_unused(path)
            raise


def _open(path: pathlib.Path, config: RunConfig, facts: run_files.RunFacts, held: contextlib.ExitStack) -> bool:
    """Makes and locks a run's directory, and says whether it is a new one."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        held.enter_context(locked(path, "run"))
    except (FileExistsError, NotADirectoryError):
        raise _in_its_place(path) from None
    except OSError as error:
        raise InputError(
            f"--workdir={path} cannot be written ({error.strerror}): choose another --workdir, or make room there"
        ) from error
    new = not (path / run_files.CONFIG).exists()
    if new:
        write_config(path, config, facts)
    else:
        check_same_run(path, config)
    return new


def _check_seen(path: pathlib.Path) -> None:
    """Raises InputError where the directory that process 0 opened is not to be seen, after a while."""
    deadline = time.monotonic() + SEEN_S
    while not (path / run_files.CONFIG).exists():
        if time.monotonic() > deadline:
            raise InputError(
                f"--workdir={path} is not what process 0 sees there: every host writes its share of checkpoints, so it "
                "must lie on storage that all hosts share"
            )
        time.sleep(SEEN_S / 50)


def write_config(path: pathlib.Path, config: RunConfig, facts: run_files.RunFacts) -> None:
    """Writes config.json: what repeats the run, and what it is compared by."""
    content = {
        **dataclasses.asdict(facts),
        "config": dataclasses.asdict(config),
        IDENTITY: identity(config),
        "versions": versions(),
        "commit": commit(),
        "devices": [str(device) for device in jax.devices()],
    }
    run_files.write_atomic(path / run_files.CONFIG, json.dumps(content, indent=2) + "\n")


def _in_its_place(path: pathlib.Path) -> InputError:
    return InputError(f"--workdir={path}: there is a file in its place; choose another --workdir")


def remove_unused(path: pathlib.Path) -> None:
    """Removes a directory in which nothing was logged and no checkpoint written."""
    used = [file for file in path.rglob("*") if file.is_file() and file.name not in NOTHING_DONE]
    if not used:
        shutil.rmtree(path)


def check_same_run(path: pathlib.Path, config: RunConfig) -> None:
    """Holds a run directory to the run that is to be resumed in it.

    Raises:
      InputError: it holds a run of another config, or its config.json cannot be read.
    """
    theirs = _recorded(path)
    evaluation = config.evaluation.as_recorded(theirs.get("evaluation", {}))
    changed = differences(dataclasses.replace(config, evaluation=evaluation), theirs)
    if changed:
        raise InputError(
            f"{path} holds a run of another config ({'; '.join(changed[:5])}). Choose another --workdir, "
            "or remove it to start anew"
        )


@contextlib.contextmanager
def locked(path: pathlib.Path, what: str) -> Iterator[None]:
    """Holds a directory: two processes at work in one would write to the same files. A killed holder lets go.

    It is held to `run_files.check_links` first.

    Storage that knows no locks (Lustre mounted with noflock, NFS without its lock daemon) is warned of.

    Raises:
      InputError: another process holds it; who, is read from the lock's file. Or a link in it leads elsewhere.
    """
    run_files.check_links(path)
    with open(path / run_files.LOCK, "a+b", buffering=0) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read().decode(errors="replace")
            where = f"{path} ({holder})" if holder else str(path)
            message = f"another {what} is at work in {where}: wait for it, or choose another directory"
            raise InputError(message) from None
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            LOG.warning("%s cannot be locked (%s): see to it that no other %s works there", path, error.strerror, what)
        with contextlib.suppress(OSError):  # of a full disk, say: it is but a courtesy
            file.truncate(0)
            file.write(f"{socket.gethostname()}, pid {os.getpid()}".encode())
        yield


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
