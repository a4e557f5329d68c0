"""What a learner sends, checked: the tensors it lists, the boxes it names, and that they cover the model."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from isocompute_jax.records.tensors import Box, TensorSpec
from isocompute_jax.service.proto import sampler_pb2 as pb
from isocompute_jax.service.proto.refusal import invalid, lost

MOST_BOXES = 1 << 14
"""Parts that a tensor may come in, and one more for each `BYTES_A_BOX` of it: those of a thousand devices are fewer."""
BYTES_A_BOX = 1 << 16


def most_boxes(tensor: TensorSpec) -> int:
    """The most parts that a tensor may come in: looking for overlaps takes time with their square."""
    return MOST_BOXES + tensor.nbytes // BYTES_A_BOX


class Coverage:
    """Which boxes of which tensors have arrived."""

    def __init__(self, tensors: Sequence[TensorSpec]):
        self._sizes = {tensor.name: math.prod(tensor.shape) for tensor in tensors}
        self._most = {tensor.name: most_boxes(tensor) for tensor in tensors}
        self._boxes: dict[str, list[Box]] = {tensor.name: [] for tensor in tensors}
        self._counts = dict.fromkeys(self._sizes, 0)

    def add(self, box: Box) -> None:
        """Books a box; refuses it when more arrives than its tensor has."""
        self._boxes[box.name].append(box)
        self._counts[box.name] += math.prod(box.shape)
        if self._counts[box.name] > self._sizes[box.name]:
            raise invalid(f"tensor {box.name!r}: parts of it overlap; more numbers arrived than it has")
        if len(self._boxes[box.name]) > self._most[box.name]:
            raise invalid(f"tensor {box.name!r} comes in more than {self._most[box.name]} parts: send larger ones")

    def check_complete(self) -> None:
        """Refuses weights of which a number is missing, or was sent twice."""
        for name, boxes in self._boxes.items():
            if overlap(boxes):
                raise invalid(f"tensor {name!r}: parts of it overlap")
            if self._counts[name] < self._sizes[name]:
                raise lost(f"tensor {name!r}: {self._counts[name]} of its {self._sizes[name]} numbers arrived")


def overlap(boxes: Sequence[Box]) -> bool:
    """Whether any two boxes of one tensor share a number."""
    if len(boxes) < 2:
        return False
    low = np.array([box.offset for box in boxes], np.int64)
    high = low + np.array([box.shape for box in boxes], np.int64)
    return any(
        np.any(np.all((low[i] < high[i + 1 :]) & (low[i + 1 :] < high[i]), axis=1)) for i in range(len(boxes) - 1)
    )


def listed_tensors(given: Sequence[pb.Tensor], expected: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
    """The tensors that a header lists: those that the engine expects, in any order.

    Raises:
      Refusal: names the first tensor that is wrong, unknown, repeated or missing.
    """
    if len(given) > 2 * len(expected):
        raise invalid(f"the header lists {len(given)} tensors; the model has {len(expected)}")
    missing = {tensor.name: tensor for tensor in expected}
    listed: dict[str, TensorSpec] = {}
    for tensor in given:
        ours = missing.pop(tensor.name, None)
        if ours is None:
            wrong = "is listed twice" if tensor.name in listed else "is not one of the model's"
            raise invalid(f"tensor {tensor.name!r} {wrong}")
        if tensor.dtype != ours.dtype:
            raise invalid(f"tensor {tensor.name!r} has dtype {tensor.dtype!r}; the model's is {ours.dtype!r}")
        if tuple(tensor.shape) != ours.shape:
            raise invalid(f"tensor {tensor.name!r} has shape {list(tensor.shape)}; the model's is {list(ours.shape)}")
        listed[tensor.name] = ours
    if missing:
        raise invalid(f"tensor {next(iter(missing))!r} is missing from the header")
    return tuple(listed.values())


def checked_box(box: pb.Box, listed: Sequence[TensorSpec]) -> Box:
    """A box as it was sent, checked to lie in its tensor and to hold something.

    Args:
      box: as it was sent.
      listed: the tensors of the header, in its order.

    Raises:
      Refusal: it does not.
    """
    if box.tensor >= len(listed):
        raise invalid(f"a box names tensor {box.tensor}; the header lists {len(listed)}")
    tensor, offset, shape = listed[box.tensor], tuple(box.offset), tuple(box.shape)
    if not len(offset) == len(shape) == len(tensor.shape) or any(
        low < 0 or size < 1 or low + size > whole for low, size, whole in zip(offset, shape, tensor.shape, strict=True)
    ):
        raise invalid(
            f"tensor {tensor.name!r} of shape {list(tensor.shape)}: the box at {list(offset)} of shape {list(shape)} "
            "is empty or lies outside it"
        )
    return Box(tensor.name, tensor.dtype, shape, offset)
