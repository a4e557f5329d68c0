"""Parameters in Hugging Face layout and back, as each `ParamSpec` says: one encoder, one decoder.

Both are transposes and reshapes that numpy and JAX know, so the same lines serve files on the host and shards on the
devices. `hf_boxes` takes parameters off the devices shard by shard: no host ever holds more than its own part.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

from isocompute_jax import sharding
from isocompute_jax.model.config import ModelConfig
from isocompute_jax.model.params import Params, ParamSpec, map_specs, map_table, param_specs, spec_leaves
from isocompute_jax.records.tensors import Box

Tensor = TypeVar("Tensor", np.ndarray, jax.Array)


def encode(spec: ParamSpec, value: Tensor) -> Tensor:
    """Our layout to Hugging Face's, of one tensor or of all stacked ones at once (L, or L and E, stay in front).

    Of a tensor that joins several parameters, it is the part that is ours.
    """
    lead = value.shape[: value.ndim - len(spec.tensor_shape)]
    if spec.interleaved:
        value = _with_halves(value, 2, value.shape[-1] // 2)
    order = [len(lead) + dim for joined in spec.hf_dims for dim in joined]
    return value.transpose(*range(len(lead)), *order).reshape(*lead, *spec.hf_shape)


def decode(spec: ParamSpec, tensor: Tensor) -> Tensor:
    """Hugging Face's layout to ours: the inverse of `encode`."""
    lead = tensor.shape[: tensor.ndim - len(spec.hf_shape)]
    order = [dim for joined in spec.hf_dims for dim in joined]
    split = tensor.reshape(*lead, *(spec.tensor_shape[dim] for dim in order))
    value = split.transpose(*range(len(lead)), *(len(lead) + order.index(dim) for dim in range(len(order))))
    return _with_halves(value, value.shape[-1] // 2, 2) if spec.interleaved else value


def _with_halves(value: Tensor, rows: int, columns: int) -> Tensor:
    """The last dimension read as [rows, columns], transposed: two halves become pairs, or H / 2 pairs halves."""
    return value.reshape(*value.shape[:-1], rows, columns).swapaxes(-1, -2).reshape(value.shape)


def hf_tensor_shapes(config: ModelConfig) -> list[tuple[str, tuple[int, ...]]]:
    """Name and shape of every tensor, in the order of `hf_tensors`; all are in `config.dtype`."""
    return [(name, spec.hf_whole_shape) for spec, _ in joined_tensors(spec_leaves(config)) for name in spec.hf_names]


def joined_tensors(specs: Sequence[ParamSpec]) -> list[tuple[ParamSpec, list[int]]]:
    """The parameters that tensors begin with, and the indices of all those that they join, among the leaves."""
    joined: dict[str, list[int]] = {}
    for index, spec in enumerate(specs):
        joined.setdefault(spec.hf_name, []).append(index)
    return [(specs[indices[0]], sorted(indices, key=lambda i: specs[i].part)) for indices in joined.values()]


def hf_tensors(
    config: ModelConfig, params: Params, *, dtype: Any = None, table: Any = None
) -> Iterator[tuple[str, np.ndarray]]:
    """Every tensor under its Hugging Face name, as C-contiguous host arrays, one at a time.

    Parameters are cast, and gathered where several processes hold parts of them, one layer after the other: beyond
    them a device needs room for less than a layer in `dtype`. Each of those processes must run through all of it.

    Args:
      config: model shape.
      params: parameters, on the host, on one device or sharded over a mesh.
      dtype: of the tensors; None for that of each parameter.
      table: of the parameters' specs; None for the model's.
    """
    specs, leaves = spec_leaves(table or config), jax.tree.leaves(params)
    most = layer_size(config) // 4  # of a table: what comes of a gather is copied once more
    for spec, joined in joined_tensors(specs):
        for layer in range(spec.shape[0]) if spec.lead else [None]:
            parts = [(specs[i], sharding.part_to_host(leaves[i], layer, dtype=dtype, most=most)) for i in joined]
            lead = () if layer is None else (layer,)
            for index in np.ndindex(*spec.shape[len(lead) : spec.lead]):
                tensors = [encode(part, host[index]) for part, host in parts]
                whole = tensors[0] if len(tensors) == 1 else np.concatenate(tensors, axis=-1)
                yield spec.named((*lead, *index)), np.ascontiguousarray(whole)


def layer_size(config: ModelConfig) -> int:
    """Numbers in one layer."""
    return sum(math.prod(spec.shape[1:]) for spec in spec_leaves(config) if spec.lead)


Index = tuple[slice, ...]


def params_from_tensors(
    config: ModelConfig,
    read: Callable[[str, Index], np.ndarray],
    *,
    shardings: Params,
    table: Any = None,
    dtype: Any = None,
) -> Params:
    """The parameters made of tensors in Hugging Face layout, in `config.dtype`: each device's part, read for it.

    Args:
      config: model shape.
      read: (a name of `hf_tensor_shapes`, which part of it) -> that part. It may be a view of memory that goes away:
        it is copied.
      shardings: where each parameter goes.
      table: of their specs; None for the model's.
      dtype: None for the model's.
    """
    dtype = jnp.dtype(dtype or config.dtype)

    def build(spec: ParamSpec, sharding: Any) -> jax.Array:
        @functools.lru_cache(maxsize=1)  # devices that hold the same part follow each other
        def part(bounds: tuple[tuple[int, int], ...]) -> np.ndarray:
            stacked, within = bounds[: spec.lead], bounds[spec.lead :]
            own = dataclasses.replace(spec, shape=tuple(stop - start for start, stop in bounds))
            index = _hf_index(spec, within)
            names = map(spec.named, itertools.product(*(range(*each) for each in stacked)))
            # `np.stack` copies: what JAX makes of the result may refer to it for as long as it lives.
            stack = np.stack([decode(own, read(name, index)) for name in names]).reshape(own.shape)
            return stack.astype(dtype, copy=False)

        def callback(index: Index | None) -> np.ndarray:
            assert index is not None
            bounds = tuple(each.indices(size)[:2] for each, size in zip(index, spec.shape, strict=True))
            return part(bounds)

        return jax.make_array_from_callback(spec.shape, sharding, callback)

    return map_table(build, table or param_specs(config), shardings)


def _hf_index(spec: ParamSpec, bounds: Sequence[tuple[int, int]]) -> Index:
    """Where a part of one of our tensors lies in Hugging Face's: of joined dimensions only the first is ever cut."""
    found = []
    for first, *rest in spec.hf_dims:
        assert all(bounds[dim] == (0, spec.tensor_shape[dim]) for dim in rest), spec
        size = math.prod(spec.tensor_shape[dim] for dim in rest)
        found.append(slice(bounds[first][0] * size, bounds[first][1] * size))
    last = found[-1]
    return (*found[:-1], slice(spec.hf_offset + last.start, spec.hf_offset + last.stop))


def to_hf_layout(config: ModelConfig, params: Params) -> Params:
    """The parameters as Hugging Face stores them, stacked still: linear weights [L, out, in], biases [L, out].

    Transposed and cast to `config.dtype` on the devices. An axis stays sharded over the mesh axes it was sharded over.

    Args:
      config: model shape.
      params: parameters, on one device or sharded over a mesh.
    """
    return map_specs(functools.partial(_on_devices, config.dtype), config, params)


def hf_boxes(
    config: ModelConfig, params: Params, *, table: Any = None, dtype: str | None = None
) -> Iterator[tuple[Box, np.ndarray]]:
    """This process's share of every tensor; the shares of all processes hold every number exactly once.

    One parameter is laid out ahead of the one that is read, so that devices need room for two more, not for the
    model. Each process of a mesh must run through all of it, as the devices compute together.

    Args:
      config: model shape.
      params: parameters, on one device or sharded over a mesh; not to be donated before the iterator has ended.
      table: of their specs; None for the model's.
      dtype: None for the model's.

    Yields:
      a box and its numbers, C-contiguous, in `dtype`; they may share memory with `params`.
    """
    ahead: tuple[ParamSpec, jax.Array] | None = None
    for spec, value in zip(spec_leaves(table or config), jax.tree.leaves(params), strict=True):
        laid_out = _on_devices(dtype or config.dtype, spec, value)
        for shard in _own_shards(laid_out):
            shard.data.copy_to_host_async()
        if ahead is not None:
            yield from _boxes(*ahead)
        ahead = spec, laid_out
    if ahead is not None:
        yield from _boxes(*ahead)


def boxes_of_layout(config: ModelConfig, leaves: Sequence[jax.Array]) -> Iterator[tuple[Box, np.ndarray]]:
    """As `hf_boxes`, of parameters that are laid out already: the leaves of `to_hf_layout`."""
    for spec, value in zip(spec_leaves(config), leaves, strict=True):
        yield from _boxes(spec, value)


def _boxes(spec: ParamSpec, value: jax.Array) -> Iterator[tuple[Box, np.ndarray]]:
    """The boxes of one parameter in Hugging Face layout; layers and experts apart."""
    for shard in _own_shards(value):
        host = np.ascontiguousarray(shard.data)
        offset = tuple(axis.start or 0 for axis in shard.index)
        for index in np.ndindex(*host.shape[: spec.lead]):
            name = spec.named(tuple(first + i for first, i in zip(offset, index, strict=False)))
            *within, last = offset[spec.lead :]
            yield Box(name, host.dtype.name, host[index].shape, (*within, last + spec.hf_offset)), host[index]


def _own_shards(value: jax.Array) -> list[Any]:
    """The shards of this process, of each set of copies only the first."""
    return [shard for shard in value.addressable_shards if shard.replica_id == 0]


def _on_devices(dtype: str, spec: ParamSpec, value: jax.Array) -> jax.Array:
    """One parameter in Hugging Face layout, its mesh kept."""
    mesh = value.sharding.mesh if isinstance(value.sharding, NamedSharding) else None
    return _compiled_encoder(spec, dtype, mesh)(value)


@functools.cache
def _compiled_encoder(spec: ParamSpec, dtype: str, mesh: Any) -> Any:
    """`encode` of one kind of parameter, then the cast."""
    shape = (*spec.shape[: spec.lead], *spec.hf_shape)
    axes = (*spec.axes[: spec.lead], *spec.hf_axes)

    def layout(value: jax.Array) -> jax.Array:
        return encode(spec, value).astype(jnp.dtype(dtype))

    return jax.jit(layout, out_shardings=None if mesh is None else sharding.named_sharding(mesh, shape, axes))
