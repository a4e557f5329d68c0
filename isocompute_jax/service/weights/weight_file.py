"""A file that holds every tensor of a model."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from isocompute_jax.records.tensors import TensorSpec


@dataclasses.dataclass(frozen=True)
class WeightFile:
    """A file that holds every tensor whole: tensor i begins at byte `starts[i]`, little-endian and row-major."""

    path: str
    tensors: tuple[TensorSpec, ...]
    starts: tuple[int, ...]


ALIGNMENT = 64


def file_layout(tensors: Sequence[TensorSpec]) -> tuple[tuple[int, ...], int]:
    """Where tensors stand in a file that holds all of them: the byte each begins at, and the file's size."""
    starts, end = [], 0
    for tensor in tensors:
        start = -(-end // ALIGNMENT) * ALIGNMENT
        starts.append(start)
        end = start + tensor.nbytes
    return tuple(starts), end
