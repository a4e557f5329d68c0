"""A model's tensors by name, and rectangular parts of them: what weights are laid down, sent and checked in."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Dtypes that travel, by the bytes of one number."""


@dataclasses.dataclass(frozen=True)
class TensorSpec:
    """One tensor as Hugging Face checkpoints store it."""

    name: str  # e.g. `model.layers.0.self_attn.q_proj.weight`.
    dtype: str  # a key of `DTYPE_BYTES`.
    shape: tuple[int, ...]  # global shape; linear layers are [out, in].

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return math.prod(self.shape) * DTYPE_BYTES[self.dtype]

    @property
    def box(self) -> Box:
        """All of it."""
        return Box(self.name, self.dtype, self.shape, (0,) * len(self.shape))


@dataclasses.dataclass(frozen=True)
class Box:
    """`shape` numbers of the tensor `name` from `offset` on, in row-major order."""

    name: str  # the tensor's Hugging Face name.
    dtype: str  # its dtype's name, such as `bfloat16`.
    shape: tuple[int, ...]  # of the box, one entry a dimension of the tensor.
    offset: tuple[int, ...]  # where the box begins in the tensor.

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return math.prod(self.shape) * DTYPE_BYTES[self.dtype]

    @property
    def slices(self) -> tuple[slice, ...]:
        """The box as an index of its tensor."""
        return tuple(slice(low, low + size) for low, size in zip(self.offset, self.shape, strict=True))

    def cut(self, limit: int) -> Iterator[tuple[Box, int]]:
        """Cuts it into boxes that follow each other in its bytes, and says at which byte each begins.

        Along its first axis where one of its rows fits the limit, else each row by itself.

        Args:
          limit: most bytes of one of them; room for one number at least.
        """
        if self.nbytes <= limit:
            if self.nbytes:
                yield self, 0
            return
        row = self.nbytes // self.shape[0]
        step = max(1, limit // row)
        for low in range(0, self.shape[0], step):
            first = self.offset[0] + low
            if row <= limit:
                size = min(step, self.shape[0] - low)
                yield (
                    dataclasses.replace(self, shape=(size, *self.shape[1:]), offset=(first, *self.offset[1:])),
                    low * row,
                )
                continue
            inside = dataclasses.replace(self, shape=self.shape[1:], offset=self.offset[1:])
            for part, start in inside.cut(limit):
                cut = dataclasses.replace(part, shape=(1, *part.shape), offset=(first, *part.offset))
                yield cut, low * row + start
