"""A rectangular part of a named tensor: what weights are laid down, sent and checked in."""

from __future__ import annotations

import dataclasses


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
