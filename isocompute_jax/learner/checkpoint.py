"""Checkpoints of the learner: orbax for the sharded state, JSON for what the loop needs to go on exactly."""

from __future__ import annotations

import errno
import os
import pathlib
import shutil
from typing import Any

import jax
import optax
import orbax.checkpoint as ocp
from jax.sharding import Mesh

from isocompute_jax.learner.state import TrainState, state_shardings
from isocompute_jax.model import ModelConfig, abstract_params

SPARE_BYTES = 1 << 20
"""What a checkpoint takes beside its arrays, at most: indices, shardings, metadata."""


class Checkpointer:
    """Keeps the last two checkpoints of a run; a checkpoint is whole or absent (orbax renames when all is written).

    Args:
      directory: where checkpoints live; made on the first save.
      config: model shape.
      optimizer: from `make_optimizer`.
      mesh: where a restored state is put; any mesh, not only the one that saved it.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        config: ModelConfig,
        optimizer: optax.GradientTransformation,
        mesh: Mesh | None,
    ):
        # Synchronous: the loop goes on only once the checkpoint is whole, so logs and checkpoints never cross.
        options = ocp.CheckpointManagerOptions(max_to_keep=2, enable_async_checkpointing=False)
        self._manager = ocp.CheckpointManager(pathlib.Path(directory).absolute(), options=options)
        self._abstract = abstract_state(config, optimizer, mesh)

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


def abstract_state(config: ModelConfig, optimizer: optax.GradientTransformation, mesh: Mesh | None) -> TrainState:
    """Shapes, dtypes and shardings of the state, for restoring it where it belongs."""
    params = abstract_params(config, config.float_dtype)
    shapes = TrainState(jax.ShapeDtypeStruct((), "int32"), params, jax.eval_shape(optimizer.init, params))
    if mesh is None:
        device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=device), shapes)
    shardings = state_shardings(config, mesh, optimizer)
    return jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), shapes, shardings)
