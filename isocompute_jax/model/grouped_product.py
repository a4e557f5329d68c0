"""x[i] @ w[group of i] for rows that are sorted by group: the work of one product, not of one for each group.

On TPU this is `jax.lax.ragged_dot`, which its matrix unit has. Elsewhere XLA would compute it for every group and mask,
so rows are laid into blocks, each of one group (the last of a group is filled up), and the blocks that are in use are
worked through one by one: compute grows with the rows, and no copy of the weights is made.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

SMALLEST_BLOCK, LARGEST_BLOCK = 8, 128
"""Rows of a block: an eighth of the mean group, between these, so that filling up costs about a sixteenth."""


def grouped_product(x: Float[Array, "M D"], w: Float[Array, "E D F"], sizes: Int[Array, "E"]) -> Float[Array, "M F"]:
    """Each row of x by the matrix of its group.

    Args:
      x: rows, sorted by group.
      w: a matrix for each of E groups.
      sizes: rows of each group, M in all; groups may be empty.
    """
    return jax.lax.platform_dependent(x, w, sizes, tpu=jax.lax.ragged_dot, default=_blockwise)


def block_rows(rows: int, groups: int) -> int:
    """Rows of a block, a power of two."""
    wanted = max(rows // (8 * groups), 1)
    return min(max(1 << (wanted.bit_length() - 1), SMALLEST_BLOCK), LARGEST_BLOCK)


class _Blocks(NamedTuple):
    """Where rows lie: `place` [M] of each, block by block; `group` [N] of each block; how many blocks are `used`."""

    place: Array
    group: Array
    used: Array


def _blocks(count: int, sizes: Array) -> _Blocks:
    """N blocks, which hold `count` rows however they fall into groups."""
    rows, groups = block_rows(count, len(sizes)), len(sizes)
    blocks = (sizes + rows - 1) // rows
    row_ends, block_ends = jnp.cumsum(sizes), jnp.cumsum(blocks)
    group = jnp.searchsorted(row_ends, jnp.arange(count), side="right")
    place = (block_ends - blocks)[group] * rows + jnp.arange(count) - (row_ends - sizes)[group]
    of_block = jnp.searchsorted(block_ends, jnp.arange(count // rows + groups), side="right")
    return _Blocks(place, jnp.minimum(of_block, groups - 1), block_ends[-1])


def _laid_out(x: Array, blocks: _Blocks, rows: int) -> Array:
    """[N, rows, D] the rows of x in their blocks, zeros between."""
    flat = jnp.zeros((len(blocks.group) * rows, x.shape[-1]), x.dtype)
    return flat.at[blocks.place].set(x, unique_indices=True).reshape(len(blocks.group), rows, x.shape[-1])


def _taken(laid_out: Array, blocks: _Blocks) -> Array:
    """[M, D] the rows from their blocks: the inverse of `_laid_out`."""
    return laid_out.reshape(math.prod(laid_out.shape[:2]), laid_out.shape[-1]).at[blocks.place].get(unique_indices=True)


@jax.custom_vjp
def _blockwise(x: Array, w: Array, sizes: Array) -> Array:
    rows, blocks = block_rows(len(x), len(w)), _blocks(len(x), sizes)
    inputs = _laid_out(x, blocks, rows)

    def one(block: Array, out: Array) -> Array:
        return out.at[block].set(inputs[block] @ w[blocks.group[block]])

    out = jnp.zeros((*inputs.shape[:2], w.shape[-1]), x.dtype)
    return _taken(jax.lax.fori_loop(0, blocks.used, one, out), blocks)


def _forward(x: Array, w: Array, sizes: Array) -> tuple[Array, tuple[Array, Array, Array]]:
    return _blockwise(x, w, sizes), (x, w, sizes)


def _backward(kept: tuple[Array, Array, Array], gradient: Array) -> tuple[Array, Array, None]:
    """Block by block too; each adds to its own group's matrix, in place."""
    x, w, sizes = kept
    rows, blocks = block_rows(len(x), len(w)), _blocks(len(x), sizes)
    inputs, outputs = _laid_out(x, blocks, rows), _laid_out(gradient, blocks, rows)
    wide = jnp.promote_types(w.dtype, jnp.float32)

    def one(block: Array, total: tuple[Array, Array]) -> tuple[Array, Array]:
        dx, dw = total
        group = blocks.group[block]
        added = jnp.matmul(inputs[block].T, outputs[block], preferred_element_type=wide)
        return dx.at[block].set(outputs[block] @ w[group].T), dw.at[group].add(added)

    zeros = jnp.zeros_like(inputs), jnp.zeros(w.shape, wide)
    dx, dw = jax.lax.fori_loop(0, blocks.used, one, zeros)
    return _taken(dx, blocks), dw.astype(w.dtype), None


_blockwise.defvjp(_forward, _backward)
