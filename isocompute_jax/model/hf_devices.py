"""Which part of which Hugging Face tensor each device of a mesh holds, once `to_hf_layout` has laid parameters out."""

from __future__ import annotations

import dataclasses

import numpy as np
from jax.sharding import Mesh

from isocompute_jax import sharding
from isocompute_jax.model.config import ModelConfig
from isocompute_jax.model.params import spec_leaves
from isocompute_jax.records.tensors import Box


@dataclasses.dataclass(frozen=True)
class HeldBox:
    """A box that a device holds.

    Attributes:
      box: part of a Hugging Face tensor.
      leaf: which of the leaves of `to_hf_layout` it is of.
      index: where in the device's shard of that leaf: along its stacked dimensions (layers, experts).
    """

    box: Box
    leaf: int
    index: tuple[int, ...]


def device_boxes(config: ModelConfig, mesh: Mesh | None) -> list[tuple[HeldBox, ...]]:
    """What each device of a mesh holds, in the order of `mesh.devices.flat`; of one device without a mesh.

    Copies of one part are held by several; all that a device holds is listed. Nothing is computed.
    """
    devices = [None] if mesh is None else list(mesh.devices.flat)
    found: list[list[HeldBox]] = [[] for _ in devices]
    for leaf, spec in enumerate(spec_leaves(config)):
        shape = (*spec.shape[: spec.lead], *spec.hf_shape)
        axes = (*spec.axes[: spec.lead], *spec.hf_axes)
        places = {} if mesh is None else sharding.named_sharding(mesh, shape, axes).devices_indices_map(shape)
        for device, boxes in zip(devices, found, strict=True):
            index = places.get(device, (slice(None),) * len(shape))
            bounds = [each.indices(size)[:2] for each, size in zip(index, shape, strict=True)]
            stacked, within = bounds[: spec.lead], bounds[spec.lead :]
            own = tuple(high - low for low, high in within)
            *first, last = (low for low, _ in within)
            for at in np.ndindex(*(high - low for low, high in stacked)):
                name = spec.named(tuple(low + i for (low, _), i in zip(stacked, at, strict=True)))
                boxes.append(HeldBox(Box(name, config.dtype, own, (*first, last + spec.hf_offset)), leaf, at))
    return [tuple(boxes) for boxes in found]
