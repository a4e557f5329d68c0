"""What a step computes: batches of tokens, cut into micro-batches, in one of three layouts.

`layout` reads a prompt once for all of its rollouts, and pads completions to one length. `trees` read whatever rollouts
of a prompt have in common once. `packing` puts whole rollouts of any length side by side. Here stands what holds for
all of them: where a batch's arrays lie, how a micro-batch is cut from them, and what is asked of its rollouts on the
host. A rollout lies whole in one row, in the order of its tokens, and knows its number (`Batch.rollout`), so its k-th
trained token is the same in every layout.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int

from isocompute_jax import sharding
from isocompute_jax.learner.layout import TokenBatch
from isocompute_jax.learner.packing import PackedBatch
from isocompute_jax.learner.trees import TreeBatch

LOG = logging.getLogger(__name__)

Batch = TokenBatch | PackedBatch | TreeBatch
AnyBatch = TypeVar("AnyBatch", bound=TokenBatch | PackedBatch | TreeBatch)


class CompiledShapes:
    """Counts the shapes that batches came in; a program is compiled once for each.

    Args:
      what: names the program in the log.
    """

    def __init__(self, what: str = "the step") -> None:
        self._what = what
        self._seen: set[tuple[int, ...]] = set()

    def __len__(self) -> int:
        return len(self._seen)

    def note(self, batch: Batch) -> None:
        """Logs the shape of a batch if it is a new one."""
        shape = (batch.nodes if isinstance(batch, TreeBatch) else batch.tokens).shape
        if shape not in self._seen:
            self._seen.add(shape)
            LOG.info("%s is compiled for %d x %d rows of %d tokens (its shape %d)", self._what, *shape, len(self))


def place_batch(batch: AnyBatch, mesh: Mesh | None) -> AnyBatch:
    """Puts a host batch on the devices, sharded along its axes: of several processes each puts its own rows there."""
    if mesh is None:
        return batch
    return jax.tree.map(sharding.placed, batch, batch_shardings(batch, mesh))


def batch_shardings(batch: AnyBatch, mesh: Mesh) -> AnyBatch:
    """`NamedSharding` of every array of a batch, which may be abstract."""
    return jax.tree.map(lambda x: sharding.named_sharding(mesh, x.shape, _padded((None, *batch.axes), x.ndim)), batch)


def _padded(axes: tuple[str | None, ...], rank: int) -> tuple[str | None, ...]:
    return (*axes, *[None] * rank)[:rank]


def microbatch_of(batch: AnyBatch, index: Array, mesh: Mesh | None) -> AnyBatch:
    """Micro-batch `index`, without the leading M; it stays sharded along its axes."""

    def cut(x: Array) -> Array:
        if x.ndim == 0:  # how many there are
            return jnp.ones_like(x)
        part = jax.lax.dynamic_index_in_dim(x, index, keepdims=False)
        if mesh is None:
            return part
        where = sharding.named_sharding(mesh, part.shape, _padded(batch.axes, part.ndim))
        return jax.lax.with_sharding_constraint(part, where)

    return jax.tree.map(cut, batch)


def trained_tokens(batch: Batch) -> tuple[Int[np.ndarray, "K"], Int[np.ndarray, "K"]]:
    """Where the trained tokens of a batch lie in its flattened arrays, and whose they are, in the order of rollouts."""
    mask, rollout = np.asarray(batch.mask), np.asarray(batch.rollout)
    numbers = np.broadcast_to(rollout if rollout.ndim == mask.ndim else rollout[..., None], mask.shape)
    places = np.flatnonzero(mask)
    owners = np.ravel(numbers)[places]
    order = np.argsort(owners, kind="stable")
    return places[order], owners[order]


def rollout_sums(batch: Batch, values: Float[Array | np.ndarray, "..."], rollouts: int) -> Float[np.ndarray, "N"]:
    """Sums over the trained tokens of each of so many rollouts, in float64; 0 for those that are not in the batch.

    Args:
      batch: of any layout.
      values: of its tokens, shaped as they are.
      rollouts: how many `credit` saw.
    """
    places, owners = trained_tokens(batch)
    found = np.ravel(np.asarray(values, np.float64))[places]
    # Without tokens the counts would be integers.
    return np.bincount(owners, weights=found, minlength=rollouts).astype(np.float64)


def moved(
    batches: Sequence[Batch], values: Sequence[Float[Array | np.ndarray, "..."]], to: Batch
) -> Float[np.ndarray, "..."]:
    """Values of the trained tokens of some batches, as another batch lays the same rollouts out; 0 elsewhere.

    Args:
      batches: each with rollouts of its own.
      values: of the tokens of each, shaped as they are.
      to: has no rollout that is in none of them.
    """
    found = [trained_tokens(batch) for batch in batches]
    owners = np.concatenate([owners for _, owners in found])
    flat = np.concatenate([np.ravel(np.asarray(of))[places] for of, (places, _) in zip(values, found, strict=True)])
    order = np.argsort(owners, kind="stable")
    places, wanted = trained_tokens(to)
    chosen = order[np.isin(owners[order], wanted)]
    if not np.array_equal(owners[chosen], wanted):
        raise ValueError("the batches do not hold the rollouts that are asked for")
    out = np.zeros(np.shape(to.mask), flat.dtype)
    out.flat[places] = flat[chosen]
    return out
