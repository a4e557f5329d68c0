"""Checkpoints of the learner: orbax for the sharded state, JSON for what the loop needs to resume exactly."""

from __future__ import annotations

import errno
import os
import pathlib
import shutil
from typing import Any

import jax
import orbax.checkpoint as ocp

from isocompute_jax.learner.state import TrainState

SPARE_BYTES = 1 << 20
"""What a checkpoint takes beside its arrays, at most: indices, shardings, metadata."""


class Checkpointer:
    """Keeps the last two checkpoints of a run; a checkpoint is whole or absent (orbax renames when all is written).

    Args:
      directory: where checkpoints live; made on the first save.
      like: a state, `init_state`'s say: a restored one has its shapes and types, and is put where it lies, which may
        be another mesh than the one that saved it.
    """

    def __init__(self, directory: str | os.PathLike[str], like: TrainState):
        # Synchronous: the loop continues only once the checkpoint is whole, so logs and checkpoints never cross.
        options = ocp.CheckpointManagerOptions(max_to_keep=2, enable_async_checkpointing=False)
        self._manager = ocp.CheckpointManager(pathlib.Path(directory).absolute(), options=options)
        self._abstract = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), like)

    def save(self, state: TrainState, loop: dict[str, Any]) -> None:
        """Saves `state` and the JSON-able `loop` under the state's step, if that step is not saved already.

        Raises:
          OSError: the disk is full; earlier checkpoints are kept.
        """
        step = int(state.step)
        if step == self._manager.latest_step():
            return
        self._check_space(state)
        self._manager.save(
            step, args=ocp.args.Composite(state=ocp.args.StandardSave(state), loop=ocp.args.JsonSave(loop))
        )

    def _check_space(self, state: TrainState) -> None:
        """Raises before orbax meets a full disk: its threads would each print a traceback of their own."""
        directory = self._manager.directory
        needed = sum(x.nbytes for x in jax.tree.leaves(state)) + SPARE_BYTES
        if shutil.disk_usage(directory).free < needed:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(directory))

    def restore(self) -> tuple[TrainState, dict[str, Any]] | None:
        """The last whole checkpoint, or None when there is none."""
        step = self._manager.latest_step()
        if step is None:
            return None
        args = ocp.args.Composite(state=ocp.args.StandardRestore(self._abstract), loop=ocp.args.JsonRestore())
        restored = self._manager.restore(step, args=args)
        return restored["state"], restored["loop"]

    def close(self) -> None:
        """Waits for background work of the manager."""
        self._manager.close()
