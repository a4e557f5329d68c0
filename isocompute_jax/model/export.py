"""Parameters out of the devices in Hugging Face layout, shard by shard: no host ever holds more than its own part."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

from isocompute_jax import sharding
from isocompute_jax.model.config import ModelConfig
from isocompute_jax.model.params import Params, ParamSpec, param_specs

HFBox = tuple[str, tuple[int, ...], np.ndarray]
"""Part of a tensor: its Hugging Face name, where the part begins in the tensor, and its numbers."""


def to_hf_layout(config: ModelConfig, params: Params) -> Params:
    """The parameters as Hugging Face stores them, layers stacked still: linear weights [L, out, in], biases [L, out].

    Transposed and cast to `config.dtype` on the devices. An axis stays sharded over the mesh axes it was sharded over.

    Args:
      config: model shape.
      params: parameters, on one device or sharded over a mesh.
    """
    return jax.tree.map(
        functools.partial(_to_hf, config.dtype),
        param_specs(config),
        params,
        is_leaf=lambda node: isinstance(node, ParamSpec),
    )


def hf_boxes(config: ModelConfig, params: Params) -> Iterator[HFBox]:
    """This process's share of every tensor; the shares of all processes hold every number exactly once.

    One parameter is laid out ahead of the one that is read, so that devices need room for two more, not for the
    model. Each process of a mesh must run through all of it, as the devices compute together.

    Args:
      config: model shape.
      params: parameters, on one device or sharded over a mesh; not to be donated before the iterator has ended.

    Yields:
      (tensor name, offset, numbers): numbers are C-contiguous, in `config.dtype`, and may share memory with `params`.
    """
    specs = jax.tree.leaves(param_specs(config), is_leaf=lambda node: isinstance(node, ParamSpec))
    ahead: tuple[ParamSpec, jax.Array] | None = None
    for spec, value in zip(specs, jax.tree.leaves(params), strict=True):
        laid_out = _to_hf(config.dtype, spec, value)
        for shard in _own_shards(laid_out):
            shard.data.copy_to_host_async()
        if ahead is not None:
            yield from _boxes(*ahead)
        ahead = spec, laid_out
    if ahead is not None:
        yield from _boxes(*ahead)


def _boxes(spec: ParamSpec, value: jax.Array) -> Iterator[HFBox]:
    """The boxes of one parameter in Hugging Face layout; layers, which are never sharded, apart."""
    for shard in _own_shards(value):
        host = np.ascontiguousarray(shard.data)
        offset = tuple(axis.start or 0 for axis in shard.index)
        if not spec.stacked:
            yield spec.hf_name, offset, host
            continue
        for layer, numbers in enumerate(host, offset[0]):
            yield spec.hf_name.format(layer=layer), offset[1:], numbers


def _own_shards(value: jax.Array) -> list[Any]:
    """The shards of this process, of each set of copies only the first."""
    return [shard for shard in value.addressable_shards if shard.replica_id == 0]


def _to_hf(dtype: str, spec: ParamSpec, value: jax.Array) -> jax.Array:
    """One parameter in Hugging Face layout, its mesh kept."""
    mesh = value.sharding.mesh if isinstance(value.sharding, NamedSharding) else None
    return _layout_function(spec, dtype, mesh)(value)


@functools.cache
def _layout_function(spec: ParamSpec, dtype: str, mesh: Any) -> Any:
    """The compiled layout of one kind of parameter."""
    shape, axes = _hf_shape_and_axes(spec)

    def layout(value: jax.Array) -> jax.Array:
        if spec.hf_linear:
            value = value.reshape(*shape[:-2], shape[-1], shape[-2]).swapaxes(-1, -2)
        return value.reshape(shape).astype(jnp.dtype(dtype))

    return jax.jit(layout, out_shardings=None if mesh is None else sharding.named_sharding(mesh, shape, axes))


def _hf_shape_and_axes(spec: ParamSpec) -> tuple[tuple[int, ...], tuple[str | None, ...]]:
    """Shape in Hugging Face layout and the logical axis of each dimension.

    A dimension that joins (heads, head size) keeps the axis of the heads: the shards are the same numbers.
    """
    lead = int(spec.stacked)
    shape, axes = spec.shape[lead:], spec.axes[lead:]
    if spec.hf_linear:
        # The output projection joins its leading (heads, head size) into the input; others join trailing dimensions.
        split = len(shape) - 1 if "o_proj" in spec.hf_name else 1
        shape = (math.prod(shape[split:]), math.prod(shape[:split]))
        axes = (axes[split], axes[0])
    elif spec.stacked:
        shape, axes = (math.prod(shape),), axes[:1]
    return (*spec.shape[:lead], *shape), (*spec.axes[:lead], *axes)
