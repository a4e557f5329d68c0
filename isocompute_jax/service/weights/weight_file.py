"""A file that holds every tensor of a model whole."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from isocompute_jax.records.tensors import DTYPE_BYTES, Box, TensorSpec
from isocompute_jax.service.weights.shared_file import SharedFile

ALIGNMENT = 64
BITS = {2: np.dtype("<u2"), 4: np.dtype("<u4")}
"""Numbers are only bits here: float32 is viewed as uint32, bfloat16 and float16 as uint16."""


@dataclasses.dataclass(frozen=True)
class WeightFile:
    """What an engine reads: tensor i begins at byte `starts[i]`, little-endian and row-major."""

    path: str
    tensors: tuple[TensorSpec, ...]
    starts: tuple[int, ...]


class WeightWriter:
    """Puts numbers in their places in a shared file, box by box and in any order.

    Args:
      file: where to.
      tensors: what it is to hold, laid out as `file_layout` says.

    Raises:
      OSError: there is no room for them.
    """

    def __init__(self, file: SharedFile, tensors: Sequence[TensorSpec]):
        starts, size = file_layout(tensors)
        file.reserve(max(size, 1))
        self.file = file
        self.weights = WeightFile(file.path, tuple(tensors), starts)
        data = file.map()
        self._views = {
            tensor.name: np.frombuffer(data, BITS[DTYPE_BYTES[tensor.dtype]], math.prod(tensor.shape), start).reshape(
                tensor.shape
            )
            for tensor, start in zip(tensors, starts, strict=True)
        }

    def write(self, box: Box, numbers: np.ndarray) -> None:
        """Puts the numbers of a box in their place: a C-contiguous array of exactly its bytes, of any dtype."""
        view = self._views[box.name]
        view[box.slices] = numbers.reshape(-1).view(view.dtype).reshape(box.shape)


def file_layout(tensors: Sequence[TensorSpec]) -> tuple[tuple[int, ...], int]:
    """Where tensors stand in a file that holds all of them: the byte each begins at, and the file's size."""
    starts, end = [], 0
    for tensor in tensors:
        start = aligned(end)
        starts.append(start)
        end = start + tensor.nbytes
    return tuple(starts), end


def aligned(byte: int) -> int:
    """The next byte at which a tensor may begin."""
    return -(-byte // ALIGNMENT) * ALIGNMENT
