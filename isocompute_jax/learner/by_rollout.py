"""What a batch's layout says of each rollout, whichever layout it is: sums over tokens, and numbers moved to another.

On the host. A rollout lies whole in one row, in the order of its tokens, and knows its number (`Batch.rollout`), so
its k-th trained token is the same in every layout.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Array, Float, Int

from isocompute_jax.learner.batches import Batch


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
      rollouts: how many `credit` saw, P x G.
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
