"""Weights on their way: what a model's tensors are, and a file that holds all of them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Dtypes that travel, by the bytes of one number."""


@dataclasses.dataclass(frozen=True)
class TensorSpec:
    """One tensor as Hugging Face checkpoints store it.

    Attributes:
      name: e.g. `model.layers.0.self_attn.q_proj.weight`.
      dtype: a key of `DTYPE_BYTES`.
      shape: global shape; linear layers are [out, in].
    """

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return math.prod(self.shape) * DTYPE_BYTES[self.dtype]


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
