"""What changed in a box of weights: where, a byte for each number, and the numbers.

In bfloat16 most weights do not change at the rates of reinforcement learning: a step is a thousandth of what the format
resolves. A gap of more than 256 numbers is filled with some that did not change.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

FARTHEST = 256
"""Numbers from one to the next, at most."""


class Changes(NamedTuple):
    """Of a box with so many numbers."""

    gaps: np.ndarray  # [k] uint8, numbers that lie between one and the one before it
    numbers: np.ndarray  # [k], what stands there now, as bits

    @property
    def nbytes(self) -> int:
        """What travels."""
        return self.gaps.nbytes + self.numbers.nbytes


def changes(old: np.ndarray, new: np.ndarray) -> Changes | None:
    """What makes `new` [n] of `old` [n], both as bits; None where the whole is no larger."""
    at = np.flatnonzero(old != new)
    if len(at) * (1 + new.itemsize) >= new.nbytes:
        return None
    before = np.concatenate([[-1], at]).astype(np.int64)[:-1]
    between = (at - before - 1) // FARTHEST  # numbers put in before each
    first = np.repeat(before, between)
    nth = np.arange(len(first)) - np.repeat(np.cumsum(between) - between, between)
    at = np.sort(np.concatenate([at, first + FARTHEST * (nth + 1)])).astype(np.int64)
    found = Changes((np.diff(at, prepend=-1) - 1).astype(np.uint8), new[at])
    return found if found.nbytes < new.nbytes else None


def changed(old: np.ndarray, gaps: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """A copy of `old` [n] with `Changes` in it.

    Raises:
      ValueError: there are not as many numbers as gaps, or they lead beyond the end.
    """
    at = np.cumsum(gaps.astype(np.int64) + 1) - 1
    if len(gaps) != len(numbers) or (len(at) and at[-1] >= len(old)):
        raise ValueError(f"{len(gaps)} gaps and {len(numbers)} numbers do not fit a box of {len(old)}")
    new = old.copy()
    new[at] = numbers
    return new
