"""The files of checkpoints: which there are, whether they are whole, and what is read of them without a run."""

from __future__ import annotations

import json
import logging
import pathlib
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from isocompute_jax.learner.retention import Mark
from isocompute_jax.records import checksums
from isocompute_jax.records.errors import InputError, RunError

LOG = logging.getLogger(__name__)

MARK = "mark"
"""Key of `Mark` in a checkpoint's JSON. Checkpoints of releases before it have no checksums either."""
CORRUPT = ".corrupt"
"""What is appended to the name of a damaged checkpoint."""


def newest_whole(directory: pathlib.Path) -> int | None:
    """The name of the last checkpoint that is whole; damaged ones after it are warned of and set aside.

    Raises:
      InputError: there are only damaged ones.
    """
    for step in sorted(names(directory), reverse=True):
        why = damage(directory / str(step))
        if why is None:
            return step
        aside = set_aside(directory / str(step))
        LOG.warning("checkpoint %s is damaged: %s. It is %s now, and the one before is tried", step, why, aside)
    damaged = sorted(path.name for path in directory.glob(f"*{CORRUPT}*"))
    if damaged:
        raise InputError(
            f"{directory}: no checkpoint is whole ({', '.join(damaged)}). Bring one back from a copy, named by its "
            "number alone; or remove the directory, and the run begins again"
        )
    return None


def read_params(path: pathlib.Path, like: Any) -> Any:
    """The parameters of a checkpoint, in the host's memory.

    Args:
      path: of the checkpoint.
      like: their shapes and dtypes.

    Raises:
      RunError: they are others, or the checkpoint is gone meanwhile.
    """
    wanted = {"params": like}
    kinds = jax.tree.map(lambda x: ocp.RestoreArgs(restore_type=np.ndarray, dtype=x.dtype), wanted)
    arguments = ocp.args.PyTreeRestore(item=wanted, restore_args=kinds, partial_restore=True)
    try:
        with ocp.PyTreeCheckpointer() as reader:
            params = reader.restore(path.absolute() / "state", args=arguments)["params"]
    except Exception as error:
        raise RunError(f"{path} cannot be read: {first_line(error)}") from error
    pairs = zip(jax.tree.leaves(params), jax.tree.leaves(like), strict=True)
    wrong = [f"{a.shape} there, {b.shape} of the model" for a, b in pairs if a.shape != b.shape]
    if wrong:
        raise RunError(f"{path} holds parameters of another model: {wrong[0]}")
    return params


def names(directory: pathlib.Path) -> list[int]:
    """The checkpoints of a directory, by name, in no order."""
    return [int(path.name) for path in directory.glob("*") if path.name.isdigit()]


def damage(path: pathlib.Path) -> str | None:
    """What is wrong with a checkpoint, in a few words; None where nothing is.

    Of checkpoints without checksums, from earlier releases, only the JSON is read.
    """
    if not (path / checksums.SUMS).exists():
        try:
            return f"{checksums.SUMS} is missing" if MARK in read_loop(path) else None
        except (OSError, ValueError) as error:
            return f"loop/metadata cannot be read ({error})"
    return checksums.damage(path)


def read_loop(path: pathlib.Path) -> dict[str, Any]:
    """The JSON of a checkpoint.

    Raises:
      OSError, ValueError: it is missing, or broken.
    """
    return json.loads((path / "loop" / "metadata").read_text(encoding="utf-8"))


def marks(directory: pathlib.Path) -> list[tuple[int, bool, float | None]]:
    """Name, milestone and score of all checkpoints; those that cannot be read are left out."""
    found = []
    for step in names(directory):
        try:
            mark = Mark(**read_loop(directory / str(step)).get(MARK, {}))
        except (OSError, ValueError, TypeError):
            continue
        found.append((step, mark.milestone, mark.score))
    return found


def set_aside(path: pathlib.Path) -> pathlib.Path:
    """Renames a damaged checkpoint, so that its step can be saved again; returns its new path."""
    aside, number = path.with_name(path.name + CORRUPT), 1
    while aside.exists():
        aside, number = path.with_name(f"{path.name}{CORRUPT}.{number}"), number + 1
    return path.rename(aside)


def first_line(error: BaseException) -> str:
    """Of what an exception says: tensorstore's texts are long."""
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
