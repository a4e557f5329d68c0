"""What a server's devices have cost so far."""

from __future__ import annotations

import collections
import time
from collections.abc import Iterable, Mapping


class Meter:
    """Seconds x devices of one server, by kind, from its first answer on until it leaves the fleet.

    A server that is down counts with the devices that it had: they are still lent to the run. It may be read in any
    thread.
    """

    def __init__(self) -> None:
        # One value, which is replaced and never changed: when it was made, what had come together, what is held since.
        self._known: tuple[float, Mapping[str, float], tuple[str, int]] = 0.0, {}, ("", 0)

    @property
    def devices(self) -> tuple[str, int]:
        """Kind and number of what it holds; `("", 0)` before the first answer."""
        return self._known[2]

    def hold(self, kind: str, count: int) -> None:
        """It has answered, and says so many devices."""
        if self.devices != (kind, count):
            self._known = time.monotonic(), self.seconds(), (kind, count)

    def seconds(self) -> dict[str, float]:
        """Kind -> seconds x devices."""
        since, before, (kind, count) = self._known
        found = dict(before)
        if count:
            found[kind] = found.get(kind, 0.0) + count * (time.monotonic() - since)
        return found


def together(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """The sum of several, kind by kind."""
    total: collections.Counter[str] = collections.Counter()
    for part in parts:
        total.update(part)
    return dict(total)
