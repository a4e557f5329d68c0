"""A model's tensors by name, and rectangular parts of them: what weights are laid down, sent and checked in."""

from __future__ import annotations

import dataclasses
import math

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
class Box:
    """`shape` numbers of the tensor `name` from `offset` on, in row-major order.

    Attributes:
      name: the tensor's Hugging Face name.
      dtype: its dtype's name, such as `bfloat16`.
      shape: of the box, one entry a dimension of the tensor.
      offset: where the box begins in the tensor.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: tuple[int, ...]
