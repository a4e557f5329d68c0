"""The copy of the parameters that is sampled with: as the model computes, gathered, layers apart, adapters merged.

Made once for each update, it spares the loop over tokens what it would do again for every token: gather what is cut
along `embed`, and copy a layer's weights out of the stack before a product reads them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from isocompute_jax import sharding
from isocompute_jax.model.config import ModelConfig
from isocompute_jax.model.lora import is_adapted, merged
from isocompute_jax.model.params import Params, ParamSpec, cast_params, map_specs, param_shardings

MOST_APART = 128
"""Layers: a program of more of them, one after the other, takes long to compile."""


def are_apart(config: ModelConfig) -> bool:
    """Whether decoding has the layers apart, and a cache of each."""
    return config.num_layers <= MOST_APART


def split_layers(config: ModelConfig, params: Params) -> Params:
    """`params`, with the layers apart where `are_apart` says so; nothing happens to what is apart already."""
    if not are_apart(config) or isinstance(params["layers"], tuple):
        return params
    layers = tuple(jax.tree.map(lambda x, i=i: x[i], params["layers"]) for i in range(config.num_layers))
    return {**params, "layers": layers}


def abstract_sampling_params(config: ModelConfig, mesh: Mesh) -> Params:
    """Shapes, dtypes and shardings of the copy: as the parameters, but whole along `embed`."""

    def of(spec: ParamSpec) -> Any:
        axes = tuple(None if axis == "embed" else axis for axis in spec.axes)
        where = sharding.named_sharding(mesh, spec.shape, axes)
        return jax.ShapeDtypeStruct(spec.shape, jnp.dtype(config.dtype), sharding=where)

    params = map_specs(of, config)
    if not are_apart(config):
        return params

    def layer(x: jax.ShapeDtypeStruct) -> Any:
        where = sharding.without_leading(x.sharding)
        return jax.ShapeDtypeStruct(x.shape[1:], x.dtype, sharding=where)

    return {**params, "layers": (jax.tree.map(layer, params["layers"]),) * config.num_layers}


def is_copied(config: ModelConfig, mesh: Mesh | None) -> bool:
    """Whether there is such a copy of plain weights: not of float32 ones on one device, which are read in place."""
    return config.dtype != "float32" or mesh is not None


def sampling_params(config: ModelConfig, params: Params, mesh: Mesh | None) -> Params:
    """The copy of `params`, or `params` themselves where there is none."""
    return _copying(config, mesh)(params) if is_copied(config, mesh) or is_adapted(params) else params


@functools.lru_cache(maxsize=16)
def _copying(config: ModelConfig, mesh: Mesh | None) -> Callable[[Params], Params]:
    def copy(params: Params) -> Params:
        params = cast_params(merged(params), config.dtype)
        if mesh is not None:  # each device casts what it has: half as much is gathered
            params = jax.lax.with_sharding_constraint(params, param_shardings(config, mesh))
        return split_layers(config, params)

    if mesh is None:
        return jax.jit(copy)
    return jax.jit(copy, out_shardings=jax.tree.map(lambda x: x.sharding, abstract_sampling_params(config, mesh)))
