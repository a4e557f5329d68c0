"""One pool of problems, epoch after epoch."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping
from typing import Any

import grain
import numpy as np


class Source:
    """Gives the problems of a set, or of a pool of it, each once an epoch; the order depends on the seed alone.

    Args:
      members: [N] places of its problems.
      ranks: [D] by which an epoch is sorted, equals by chance; None for chance alone.
      seed: of the order, anew in every epoch.
    """

    def __init__(self, members: np.ndarray, *, ranks: np.ndarray | None, seed: int):
        self.members = members
        self._ranks = ranks
        self._seed = seed
        self._epoch = 0
        self._position = 0
        self._rested: set[int] = set()  # retired problems that sit this epoch out, or the one before
        self._order: tuple[int, np.ndarray] | None = None  # an epoch, and its places in order

    def take(
        self, count: int, *, retired: np.ndarray, rests: bool, taken: Collection[int], whole: bool
    ) -> tuple[list[int], list[int]]:
        """The next problems.

        Args:
          count: how many; at most those that are left for `taken` and, unless it `rests`, `retired`.
          retired: [D] bool, problems that are passed over,
          rests: every other time; otherwise always.
          taken: places of the step's other problems, which are passed over: drawn twice in a step, a problem would get
            the same random numbers.
          whole: from one epoch. What it leaves over is left out of it, another remainder in every epoch.

        Returns:
          Places, and those that were passed over because they were taken.
        """
        drawn: list[int] = []
        passed: list[int] = []
        while len(drawn) < count:
            if self._position == len(self.members):
                self._epoch, self._position = self._epoch + 1, 0
                if whole:  # once: of retired problems that rest, one epoch may have too few
                    drawn, whole = [], False
            place = self._at(self._position)
            self._position += 1
            if retired[place] and not (rests and self._is_back(place)):
                continue
            (passed if place in taken or place in drawn else drawn).append(place)
        return drawn, passed

    def _is_back(self, place: int) -> bool:
        """Whether a retired problem sat out the last time."""
        if place in self._rested:
            self._rested.remove(place)
            return True
        self._rested.add(place)
        return False

    def _at(self, position: int) -> int:
        """The place of the problem at a position of this epoch."""
        if self._order is None or self._order[0] != self._epoch:
            places = self.members[shuffled(len(self.members), self._seed, self._epoch)]
            if self._ranks is not None:
                places = places[np.argsort(self._ranks[places], kind="stable")]
            self._order = self._epoch, places
        return int(self._order[1][position])

    def get_state(self) -> dict[str, Any]:
        """JSON-able position."""
        return {"epoch": self._epoch, "position": self._position, "rested": sorted(self._rested)}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continues from a position that `get_state` gave."""
        self._epoch, self._position, self._rested = state["epoch"], state["position"], set(state["rested"])


@functools.lru_cache(maxsize=64)
def shuffled(size: int, seed: int, epoch: int) -> np.ndarray:
    """[size] the order of an epoch: that of grain's `shuffle`, which runs had before there were curricula.

    Whole epochs, for grain takes 50 ms and more for one of any size (0.8 s of 50,000): streams that are alike share it.
    """
    dataset = grain.MapDataset.source(range(size)).seed(seed).shuffle()
    order = np.array([dataset[epoch * size + i] for i in range(size)])
    order.flags.writeable = False
    return order
