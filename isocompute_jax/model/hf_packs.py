"""Parameters of a mesh as vLLM's receiver wants them: whole tensors one behind the other, layer by layer."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from isocompute_jax.model.config import ModelConfig
from isocompute_jax.model.hf_layout import joined_tensors, to_hf_layout
from isocompute_jax.model.params import Params, ParamSpec, spec_leaves
from isocompute_jax.records.tensors import TensorSpec

BUCKET_BYTES = 256 << 20
"""Layers, or tensors beside the layers, go together as long as they have no more bytes; a larger one goes alone."""

Joined = tuple[tuple[ParamSpec, tuple[int, ...]], ...]
"""Tensors, stacked or not: the spec of each and the leaves that it joins."""


@dataclasses.dataclass(frozen=True)
class Bucket:
    """Tensors that travel together: some of those beside the layers, or all tensors of some layers."""

    tensors: tuple[TensorSpec, ...]  # in the order of their bytes
    joined: Joined  # what they are made of
    first: int  # the first layer
    layers: int  # how many; 0 for tensors beside the layers


def buckets(config: ModelConfig) -> tuple[Bucket, ...]:
    """All tensors of a model: those beside the layers, then layer by layer."""
    beside, stacked = [], []
    for spec, leaves in joined_tensors(spec_leaves(config)):
        (stacked if spec.lead else beside).append((spec, tuple(leaves)))
    found: list[Bucket] = []
    for each in beside:
        tensors = tuple(_named(config, each[0], 0))
        if found and sum(tensor.nbytes for tensor in (*found[-1].tensors, *tensors)) <= BUCKET_BYTES:
            found[-1] = Bucket((*found[-1].tensors, *tensors), (*found[-1].joined, each), 0, 0)
        else:
            found.append(Bucket(tensors, (each,), 0, 0))
    layer = sum(tensor.nbytes for spec, _ in stacked for tensor in _named(config, spec, 0))
    together = max(1, BUCKET_BYTES // layer)
    for first in range(0, config.num_layers, together):
        layers = min(together, config.num_layers - first)
        names = [each for i in range(first, first + layers) for spec, _ in stacked for each in _named(config, spec, i)]
        found.append(Bucket(tuple(names), tuple(stacked), first, layers))
    return tuple(found)


def _named(config: ModelConfig, spec: ParamSpec, layer: int) -> Iterator[TensorSpec]:
    """The tensors of one parameter in one layer: one, or one for each expert."""
    for index in np.ndindex(*spec.shape[1 : spec.lead]):
        yield TensorSpec(spec.named((layer, *index)), config.dtype, spec.hf_whole_shape)


def lay_out(config: ModelConfig, params: Params) -> list[jax.Array]:
    """A copy in Hugging Face layout and `config.dtype` that outlives the parameters; every process must make it."""
    return jax.tree.leaves(jax.block_until_ready(to_hf_layout(config, params)))


def packed(found: Sequence[Bucket], leaves: Sequence[jax.Array]) -> Iterator[jax.Array]:
    """The numbers of each bucket, [numbers of all its tensors], on `first_device`.

    They are gathered to every device of the mesh, one ahead of the one that is used: each needs room for two. Every
    process must run through all of them, as the devices compute together.

    Args:
      found: of `buckets`.
      leaves: of `lay_out`.
    """
    mesh, device = _mesh(leaves), first_device(leaves)
    ahead: jax.Array | None = None
    for bucket in found:
        pack = _packer(bucket.joined, bucket.layers, mesh)
        indices = dict.fromkeys(index for _, joined in bucket.joined for index in joined)
        current = pack({str(index): leaves[index] for index in indices}, bucket.first)
        if ahead is not None:
            yield _ready(ahead, device)
        ahead = current
    if ahead is not None:
        yield _ready(ahead, device)


def first_device(leaves: Sequence[jax.Array]) -> Any:
    """The first device of the mesh that this process has."""
    mesh = _mesh(leaves)
    devices = list(leaves[0].devices()) if mesh is None else mesh.devices.flat
    return next(device for device in devices if device.process_index == jax.process_index())


def _mesh(leaves: Sequence[jax.Array]) -> Any:
    sharding = leaves[0].sharding
    return sharding.mesh if isinstance(sharding, NamedSharding) else None


def _ready(pack: jax.Array, device: Any) -> jax.Array:
    return jax.block_until_ready(next(shard.data for shard in pack.addressable_shards if shard.device == device))


@functools.lru_cache(maxsize=16)
def _packer(joined: Joined, layers: int, mesh: Any) -> Any:
    """Compiled for buckets of one kind."""

    def pack(leaves: dict[str, jax.Array], first: jax.Array) -> jax.Array:
        parts = []
        for layer in range(max(layers, 1)):
            for _, indices in joined:
                each = [leaves[str(index)] for index in indices]
                if layers:
                    each = [jax.lax.dynamic_index_in_dim(leaf, first + layer, keepdims=False) for leaf in each]
                whole = each[0] if len(each) == 1 else jnp.concatenate(each, axis=-1)
                parts.append(whole.reshape(-1))
        return jnp.concatenate(parts)

    return jax.jit(pack, out_shardings=None if mesh is None else NamedSharding(mesh, PartitionSpec()))
