"""Weights that are NaN or infinite: found as they arrive, while their bytes are in the processor's cache."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from isocompute_jax.records.tensors import DTYPE_BYTES, Box
from isocompute_jax.service.proto.refusal import NOT_FINITE, Refusal, invalid

_EXPONENT = {"float32": 0x7F800000, "bfloat16": 0x7F80, "float16": 0x7C00}
"""Bits of the exponent: where all are set, the number is none. Larger patterns, without the sign, are not finite."""


def is_finite(data: bytes | memoryview, dtype: str) -> bool:
    """Whether all numbers in `data` are, of a key of `DTYPE_BYTES`; it copies nothing, and reads them twice."""
    size, exponent = DTYPE_BYTES[dtype], _EXPONENT[dtype]
    signed = np.frombuffer(data, f"<i{size}")
    if not signed.size:
        return True
    # As a signed number a pattern of sign 0 is positive; as an unsigned one those of sign 1 are the largest.
    sign = 1 << (8 * size - 1)
    return int(signed.max()) < exponent and int(signed.view(f"<u{size}").max()) < sign | exponent


def not_finite(name: str) -> Refusal:
    """Of an update with such a tensor."""
    return invalid(f"tensor {name!r} {NOT_FINITE}: the weights were not taken")


class FiniteSpans:
    """The boxes of a file, looked at while the file is read from its beginning to its end.

    Args:
      boxes: what lies in it.
      starts: the byte at which each begins, a multiple of its dtype's size.
    """

    def __init__(self, boxes: Sequence[Box], starts: Iterable[int]):
        spans = zip(starts, boxes, strict=True)
        self._ahead = sorted(((start, start + box.nbytes, box.dtype, box.name) for start, box in spans), reverse=True)
        self._here: list[tuple[int, int, str, str]] = []

    def check(self, start: int, block: memoryview) -> None:
        """Looks at the file's bytes from `start` on; blocks follow each other, each a multiple of 4 but the last.

        Raises:
          Refusal: names a tensor with a number that is not finite.
        """
        end = start + len(block)
        while self._ahead and self._ahead[-1][0] < end:
            self._here.append(self._ahead.pop())
        for low, high, dtype, name in self._here:
            if not is_finite(block[max(low, start) - start : min(high, end) - start], dtype):
                raise not_finite(name)
        self._here = [span for span in self._here if span[1] > end]
