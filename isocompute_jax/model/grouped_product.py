"""x[i] @ w[group of i] for rows that are sorted by group: the work of one product, not of one for each group.

`jax.lax.ragged_dot` is not that. On GPU XLA computes it for every group and masks; on TPU it does so for the gradient
of the weights (jaxlib 0.10.2: 128 experts, 43 times the work of forward and backward together). Instead:

- `mosaic` (NVIDIA Hopper): tokamax's kernels, where it is installed, for 16-bit floats and sizes in whole tiles;
- `megablox` (TPU): the kernels that come with JAX;
- `blocks` (everywhere): rows are laid into blocks, each of one group (the last of a group is filled up), and the blocks
  that are in use are worked through one by one: compute grows with the rows, and no copy of the weights is made.
"""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from isocompute_jax.model.kernels.imports import warn_once, why_missing

GroupedKernel = Literal["blocks", "mosaic", "megablox"]

SMALLEST_BLOCK, LARGEST_BLOCK = 8, 128
"""Rows of a block: an eighth of the mean group, between these, so that filling up costs about a sixteenth."""

TILE = 128
"""Sizes of matrices that the kernels take are multiples of it."""

MEGABLOX_ROWS, MEGABLOX_TILE = 512, 1024
"""Largest tiles of rows and of the other sizes."""


MODULES: dict[GroupedKernel, tuple[str, ...]] = {
    "mosaic": tuple(f"tokamax._src.ops.ragged_dot.pallas_mosaic_gpu_{name}" for name in ("common", "kernel_sm90")),
    "megablox": ("jax.experimental.pallas.ops.tpu.megablox.gmm",),
}
"""What a fused kernel is imported from."""


def grouped_kernel(device: Any, dtype: Any, shape: tuple[int, ...]) -> GroupedKernel:
    """The kernel for matrices [D, F] of `dtype` on `device`, which may be one that is only compiled for."""
    fused = _made_for(device, dtype, shape)
    if fused is None:
        return "blocks"
    reason = why_missing(*MODULES[fused])
    if reason is not None:
        warn_once(f"products of experts: computed in blocks, for want of {fused}: {reason}")
        return "blocks"
    return fused


def _made_for(device: Any, dtype: Any, shape: tuple[int, ...]) -> GroupedKernel | None:
    """The fused kernel that is made for these, installed or not."""
    if any(size % TILE for size in shape):
        return None
    if device.platform == "tpu":
        return "megablox"
    hopper = device.platform == "gpu" and str(getattr(device, "compute_capability", "")).startswith("9.")
    return "mosaic" if hopper and jnp.dtype(dtype).itemsize == 2 else None


def grouped_product(
    x: Float[Array, "M D"], w: Float[Array, "E D F"], sizes: Int[Array, "E"], kernel: GroupedKernel
) -> Float[Array, "M F"]:
    """Each row of x by the matrix of its group.

    Args:
      x: rows, sorted by group.
      w: a matrix for each of E groups.
      sizes: rows of each group, M in all or fewer; groups may be empty. Rows that are left over give zeros.
      kernel: from `grouped_kernel`; static.
    """
    product: Any = _grouped_product
    return product(x, w, sizes, kernel)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def _grouped_product(x: Array, w: Array, sizes: Array, kernel: GroupedKernel) -> Array:
    return _of_groups(sizes, _KERNELS[kernel].product(x, w, sizes))


def _forward(x: Array, w: Array, sizes: Array, kernel: GroupedKernel) -> tuple[Any, tuple[Array, Array, Array]]:
    return _grouped_product(x, w, sizes, kernel), (x, w, sizes)


def _backward(kernel: GroupedKernel, kept: tuple[Array, Array, Array], gradient: Array) -> tuple[Array, Array, None]:
    x, w, sizes = kept
    # Kernels read whole tiles: what is left over must be finite even where it has no weight.
    gradient = _of_groups(sizes, gradient)
    product, outer = _KERNELS[kernel]
    dx = product(gradient, w, sizes, transposed=True)
    return _of_groups(sizes, dx), outer(x, gradient, sizes, w.dtype), None


_grouped_product.defvjp(_forward, _backward)


def _of_groups(sizes: Array, rows: Array) -> Array:
    """`rows`, zero where they belong to no group: kernels leave those unwritten."""
    return jnp.where((jnp.arange(len(rows)) < jnp.sum(sizes))[:, None], rows, 0)


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
    """N blocks, which hold `count` rows however they fall into groups; rows of no group lie beyond them all."""
    rows, groups = block_rows(count, len(sizes)), len(sizes)
    blocks = (sizes + rows - 1) // rows
    row_ends, block_ends = jnp.cumsum(sizes), jnp.cumsum(blocks)
    number = count // rows + groups
    row = jnp.arange(count)
    group = jnp.minimum(jnp.searchsorted(row_ends, row, side="right"), groups - 1)
    place = (block_ends - blocks)[group] * rows + row - (row_ends - sizes)[group]
    place = jnp.where(row < row_ends[-1], place, number * rows + row)
    of_block = jnp.searchsorted(block_ends, jnp.arange(number), side="right")
    return _Blocks(place, jnp.minimum(of_block, groups - 1), block_ends[-1])


def _laid_out(x: Array, blocks: _Blocks, rows: int) -> Array:
    """[N, rows, D] the rows of x in their blocks, zeros between."""
    flat = jnp.zeros((len(blocks.group) * rows, x.shape[-1]), x.dtype)
    laid_out = flat.at[blocks.place].set(x, unique_indices=True, mode="drop")
    return laid_out.reshape(len(blocks.group), rows, x.shape[-1])


def _taken(laid_out: Array, blocks: _Blocks) -> Array:
    """[M, D] the rows from their blocks: the inverse of `_laid_out`."""
    flat = laid_out.reshape(math.prod(laid_out.shape[:2]), laid_out.shape[-1])
    return flat.at[blocks.place].get(unique_indices=True, mode="clip")


def _block_product(x: Array, w: Array, sizes: Array, *, transposed: bool = False) -> Array:
    rows, blocks = block_rows(len(x), len(w)), _blocks(len(x), sizes)
    inputs = _laid_out(x, blocks, rows)

    def one(block: Array, out: Array) -> Array:
        matrix = w[blocks.group[block]]
        return out.at[block].set(inputs[block] @ (matrix.T if transposed else matrix))

    out = jnp.zeros((*inputs.shape[:2], w.shape[1 if transposed else 2]), x.dtype)
    return _taken(jax.lax.fori_loop(0, blocks.used, one, out), blocks)


def _block_outer(x: Array, gradient: Array, sizes: Array, dtype: Any) -> Array:
    """Each block adds to its own group's matrix, in place."""
    rows, blocks = block_rows(len(x), len(sizes)), _blocks(len(x), sizes)
    inputs, outputs = _laid_out(x, blocks, rows), _laid_out(gradient, blocks, rows)
    wide = jnp.promote_types(dtype, jnp.float32)

    def one(block: Array, dw: Array) -> Array:
        added = jnp.matmul(inputs[block].T, outputs[block], preferred_element_type=wide)
        return dw.at[blocks.group[block]].add(added)

    dw = jnp.zeros((len(sizes), x.shape[-1], gradient.shape[-1]), wide)
    return jax.lax.fori_loop(0, blocks.used, one, dw).astype(dtype)


def _mosaic() -> tuple[Any, Any]:
    """tokamax's kernels for Hopper, and the shape of their tiles.

    Its public function asks the process's own device what is supported, which need not be the one compiled for.
    """
    common, kernels = map(importlib.import_module, MODULES["mosaic"])
    return kernels, common.Config(
        block_m=64, block_n=64, block_k=TILE, num_stages=4, split_k=1, persistent=False, warp_specialized=False
    )


def _mosaic_product(x: Array, w: Array, sizes: Array, *, transposed: bool = False) -> Array:
    kernels, tiles = _mosaic()
    return kernels.ragged_dot_kernel(x, w.mT if transposed else w, sizes, x.dtype, tiles)


def _mosaic_outer(x: Array, gradient: Array, sizes: Array, dtype: Any) -> Array:
    kernels, tiles = _mosaic()
    return kernels.ragged_contracting_dim_dot_kernel(x, gradient, sizes, jnp.dtype(dtype), tiles)


def _megablox_tiles(x: Array, sizes: tuple[int, int]) -> tuple[tuple[int, int, int], int]:
    """Tiles of rows and of the two other sizes, and how many rows fill up the last; VMEM holds two of each."""
    rows = min(MEGABLOX_ROWS, -(-len(x) // SMALLEST_BLOCK) * SMALLEST_BLOCK)
    return (rows, min(MEGABLOX_TILE, sizes[0]), min(MEGABLOX_TILE, sizes[1])), -len(x) % rows


def megablox_product(x: Array, w: Array, sizes: Array, *, transposed: bool = False, interpret: bool = False) -> Array:
    """`_Products.product` on TPU; `interpret` runs the kernel elsewhere, slowly."""
    from jax.experimental.pallas.ops.tpu.megablox.gmm import gmm

    tiles, pad = _megablox_tiles(x, (w.shape[2], w.shape[1]) if transposed else (w.shape[1], w.shape[2]))
    padded = jnp.pad(x, ((0, pad), (0, 0)))
    out = gmm(padded, w, sizes, x.dtype, tiles, transpose_rhs=transposed, interpret=interpret)
    return out[: len(x)]


def megablox_outer(x: Array, gradient: Array, sizes: Array, dtype: Any, *, interpret: bool = False) -> Array:
    """`_Products.outer` on TPU; `interpret` runs the kernel elsewhere, slowly."""
    from jax.experimental.pallas.ops.tpu.megablox.gmm import tgmm

    tiles, pad = _megablox_tiles(x, (x.shape[1], gradient.shape[1]))
    x, gradient = (jnp.pad(rows, ((0, pad), (0, 0))) for rows in (x, gradient))
    return tgmm(x.T, gradient, sizes, jnp.dtype(dtype), tiles, interpret=interpret)


class _Products(NamedTuple):
    """What a kernel computes."""

    # (x [M, D], w [E, D, F], sizes) -> [M, F]; with `transposed`, x is [M, F] and gives [M, D]
    product: Callable[..., Array]
    outer: Callable[..., Array]  # (x [M, D], y [M, F], sizes, dtype) -> [E, D, F], each group's x^T y


_KERNELS: dict[GroupedKernel, _Products] = {
    "blocks": _Products(_block_product, _block_outer),
    "mosaic": _Products(_mosaic_product, _mosaic_outer),
    "megablox": _Products(megablox_product, megablox_outer),
}
