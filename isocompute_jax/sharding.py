"""Mesh and logical-axis rules: where each dimension of each array lives, and how it gets there and back.

Arrays name their dimensions logically (`vocab`, `embed`, `heads`, `batch`, ...); `RULES` maps each name to mesh axes.
The mesh always has all of `MESH_AXES`, so one program serves a laptop, where each is 1, and a pod.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

MESH_AXES = ("data", "fsdp", "expert", "context", "tensor")

RULES: dict[str, tuple[str, ...]] = {
    "batch": ("data", "fsdp", "expert", "context"),
    "rows": ("data", "fsdp", "expert"),
    "tokens": ("context",),
    "embed": ("fsdp", "context"),
    "experts": ("expert",),
    "vocab": ("tensor",),
    "heads": ("tensor",),
    "kv_heads": ("tensor",),
    "mlp": ("tensor",),
}
"""Logical axis -> mesh axes; names that are absent are replicated.

A `batch` is cut over all devices but those of `tensor`. Packed rows may be longer than a device has room for: their
`tokens` are cut too, and `rows` over what is left.
"""


def make_mesh(
    *,
    data: int = 1,
    fsdp: int = 1,
    expert: int = 1,
    context: int = 1,
    tensor: int = 1,
    devices: Sequence[Any] | None = None,
) -> Mesh:
    """A mesh of `MESH_AXES` over the first of the devices, as many as it needs.

    Raises:
      ValueError: fewer devices are present than the mesh needs.
    """
    devices = jax.devices() if devices is None else devices
    shape = (data, fsdp, expert, context, tensor)
    size = math.prod(shape)
    if size > len(devices):
        given = " x ".join(map(str, shape))
        raise ValueError(f"a {given} mesh needs {size} devices, {len(devices)} are present")
    types = (AxisType.Auto,) * len(shape)
    return jax.make_mesh(shape, MESH_AXES, axis_types=types, devices=list(devices[:size]))


def partition_spec(mesh: Mesh, shape: Sequence[int], axes: Sequence[str | None]) -> PartitionSpec:
    """The spec of an array of `shape` whose dimensions are named `axes`.

    A dimension that its mesh axes do not divide (two kv heads over four devices, say) is replicated.
    """
    if len(shape) != len(axes):
        raise ValueError(f"shape {tuple(shape)} has another rank than axes {tuple(axes)}")
    cut = [mesh_axes(mesh, size, axis) for size, axis in zip(shape, axes, strict=True)]
    return PartitionSpec(*(names or None for names in cut))


def mesh_axes(mesh: Mesh, size: int, axis: str | None) -> tuple[str, ...]:
    """The mesh axes of several devices over which a dimension of `size` named `axis` is cut.

    None where they do not divide it.
    """
    names = tuple(name for name in RULES.get(axis or "", ()) if mesh.shape[name] > 1)
    parts = math.prod(mesh.shape[name] for name in names)
    return names if parts > 1 and size % parts == 0 else ()


def named_sharding(mesh: Mesh, shape: Sequence[int], axes: Sequence[str | None]) -> NamedSharding:
    """`NamedSharding` of an array of `shape` whose dimensions are named `axes`."""
    return NamedSharding(mesh, partition_spec(mesh, shape, axes))


def without_leading(where: Any) -> NamedSharding:
    """Of the parts of an array along its first dimension, which is not cut."""
    return NamedSharding(where.mesh, PartitionSpec(*where.spec[1:]))


def replicated(mesh: Mesh) -> NamedSharding:
    """The sharding that keeps a whole copy on every device of `mesh`."""
    return NamedSharding(mesh, PartitionSpec())


def placed(x: Any, where: NamedSharding) -> jax.Array:
    """An array that every process has whole, put on the devices: of each process those of its own, and what is theirs.

    Nothing travels between processes, and none looks at the parts of others.
    """
    if where.is_fully_addressable or isinstance(x, jax.Array):
        return jax.device_put(x, where)
    return jax.make_array_from_callback(np.shape(x), where, lambda index: np.asarray(x)[index])


def abstract(tree: Any) -> Any:
    """Shapes and dtypes of arrays, and of those that were put somewhere where: a program is compiled for no more."""

    def of(x: Any) -> Any:
        if not isinstance(x, jax.Array):
            return x
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding if x.committed else None)

    return jax.tree.map(of, tree)


def to_host(tree: Any) -> Any:
    """Arrays on the host, whole, though other processes hold parts of them: then all of them must ask for it."""

    def gathered(x: Any) -> Any:
        whole = not isinstance(x, jax.Array) or x.is_fully_addressable or x.is_fully_replicated
        return x if whole else multihost_utils.process_allgather(x, tiled=True)

    return jax.device_get(jax.tree.map(gathered, tree))


def part_to_host(x: Any, index: int | None, *, dtype: Any = None, most: int) -> np.ndarray:
    """`x[index]` on the host, whole, or all of x for None; devices cast it first, and gather what others hold.

    Where several processes hold parts of it, all of them must ask for it.

    Args:
      x: an array.
      index: along the first dimension, which nothing cuts; None where it is no stack.
      dtype: of the result; None for that of x.
      most: numbers of x that are cast and gathered at once, if x is no stack.
    """
    dtype = x.dtype if dtype is None else np.dtype(dtype)
    if not isinstance(x, jax.Array) or (x.dtype == dtype and (x.is_fully_addressable or x.is_fully_replicated)):
        host = np.asarray(x)  # of a jax.Array read once, and kept as long as it
        return (host if index is None else host[index]).astype(dtype, copy=False)

    def fetched(start: int, size: int) -> np.ndarray:
        return jax.device_get(slicer(x, size, dtype, gathered=not x.is_fully_addressable)(x, start))

    if index is not None:
        return fetched(index, 1)[0]
    host = np.empty(x.shape, dtype)
    length, size = slices_of(x, most)
    parts = host.reshape(-1, length, *x.shape[1:])
    for start in range(0, length, size):
        start = min(start, length - size)  # all of one size, so that one program takes them
        parts[:, start : start + size] = fetched(start, size).reshape(len(parts), size, *x.shape[1:])
    return host


def slices_of(x: Any, most: int) -> tuple[int, int]:
    """(what a device holds of x along the first dimension, how much of that makes `most` numbers on all of them)."""
    length = x.sharding.shard_shape(x.shape)[0]
    return length, min(max(most * length // x.size, 1), length)


def slicer(x: Any, size: int, dtype: Any, *, gathered: bool) -> Any:
    """The program (x, start) -> what devices hold along the first dimension, `size` of it from `start` on, in a dtype.

    Where x is cut along that dimension, what comes of it is put together from as many parts.

    Args:
      x: an array, or its shape and sharding.
      size: of what one device holds.
      dtype: of the result.
      gathered: whether each device gets all of the result, not what it holds of it.
    """
    mesh = x.sharding.mesh if isinstance(x.sharding, NamedSharding) else None
    spec = () if mesh is None else tuple(x.sharding.spec)
    return _compiled_slicer(size, np.dtype(dtype), mesh, spec, gathered)


@functools.cache
def _compiled_slicer(size: int, dtype: np.dtype, mesh: Mesh | None, spec: tuple[Any, ...], gathered: bool) -> Any:
    def taken(x: jax.Array, start: jax.Array) -> jax.Array:
        part = jax.lax.dynamic_slice_in_dim(x, start, size).astype(dtype)
        for dim, names in enumerate(spec if gathered else ()):
            part = jax.lax.all_gather(part, names, axis=dim, tiled=True) if names else part
        return part

    if mesh is None:
        return jax.jit(taken)
    # Device by device: the partitioner would gather a table that is cut along the first dimension before it slices it.
    given, result = PartitionSpec(*spec), PartitionSpec(*(() if gathered else spec))
    return jax.jit(
        jax.shard_map(taken, mesh=mesh, in_specs=(given, PartitionSpec()), out_specs=result, check_vma=False)
    )


def own_part(mesh: Mesh, size: int, axis: str) -> np.ndarray:
    """[size] which indices of a dimension named `axis` this process has on its devices."""
    own = np.zeros(size, bool)
    for index in named_sharding(mesh, (size,), (axis,)).addressable_devices_indices_map((size,)).values():
        own[index] = True
    return own


def shards(mesh: Mesh | None, axis: str) -> int:
    """Number of parts that a logical axis is cut into; 1 without a mesh, on one device."""
    return 1 if mesh is None else math.prod(mesh.shape[name] for name in RULES[axis])


def like_params(mesh: Mesh, tree: Any, params: Any, param_shardings: Any) -> Any:
    """Shardings of an optimizer state: every sub-tree shaped like `params` is sharded like it, the rest replicated.

    Without this an Auto mesh leaves the optimizer's moments on one device. `tree` and `params` may be abstract.
    """
    structure = jax.tree.structure(params)

    def shaped_like_params(node: Any) -> bool:
        return jax.tree.structure(node) == structure

    return jax.tree.map(
        lambda node: param_shardings if shaped_like_params(node) else replicated(mesh),
        tree,
        is_leaf=shaped_like_params,
    )
