"""Mesh and logical-axis rules: where each dimension of each array lives, and how it gets there and back.

Arrays name their dimensions logically (`vocab`, `embed`, `heads`, `batch`, ...); `RULES` maps each name to mesh axes.
The mesh always has all of `MESH_AXES`, so one program serves a laptop, where each is 1, and a pod.
"""

from __future__ import annotations

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


def to_host(tree: Any) -> Any:
    """Arrays on the host, whole, though other processes hold parts of them: then all of them must ask for it."""

    def gathered(x: Any) -> Any:
        whole = not isinstance(x, jax.Array) or x.is_fully_addressable or x.is_fully_replicated
        return x if whole else multihost_utils.process_allgather(x, tiled=True)

    return jax.device_get(jax.tree.map(gathered, tree))


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
