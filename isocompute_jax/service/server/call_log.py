"""What a server writes down of its calls: who was refused and why, who began, updated or took over.

Whoever can reach a port can be refused as often as he likes, so lines of one kind are few a minute, and those that are
left out are counted and said. What callers chose (names, paths) is cut, and stands there without control characters.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging

import grpc

from isocompute_jax.records.printing import printable

LINES, PERIOD_S = 5, 60.0
"""Of one kind so many lines are written in so many seconds, and then how many were not."""
MOST = 400
"""Characters of what a caller may have chosen."""

log = logging.getLogger(__name__)


@dataclasses.dataclass
class _Period:
    """One kind's: lines that were written, lines that were not, and what ends it."""

    written: int
    end: asyncio.TimerHandle
    left_out: int = 0


class CallLog:
    """Writes lines with rate limits; used on one event loop."""

    def __init__(self):
        self._periods: dict[str, _Period] = {}

    def refused(self, method: str, code: grpc.StatusCode, peer: str, why: str) -> None:
        """A call was not answered as it asked.

        Args:
          method: the method's name; of one that is unknown not what the caller called it, for kinds are kept apart.
          code: the status that it ended with.
          peer: the caller's address.
          why: the message that it got.
        """
        kind = f"{method} refused with {code.name}"
        self._write(kind, logging.WARNING, f"{kind}, from {quoted(peer)}: {quoted(why)}")

    def happened(self, kind: str, text: str, *, warn: bool = False) -> None:
        """Something that its caller was allowed to do."""
        self._write(kind, logging.WARNING if warn else logging.INFO, f"{kind}: {quoted(text)}")

    def close(self) -> None:
        """Says now what was left out."""
        for kind in list(self._periods):
            self._periods[kind].end.cancel()
            self._ended(kind)

    def _write(self, kind: str, level: int, line: str) -> None:
        period = self._periods.get(kind)
        if period is None:
            end = asyncio.get_running_loop().call_later(PERIOD_S, self._ended, kind)
            period = self._periods[kind] = _Period(0, end)
        if period.written < LINES:
            period.written += 1
            log.log(level, "%s", line)
        else:
            period.left_out += 1

    def _ended(self, kind: str) -> None:
        left_out = self._periods.pop(kind).left_out
        if left_out:
            log.warning("%s: %d more within %.0f s, which are not written down one by one", kind, left_out, PERIOD_S)


def quoted(text: str) -> str:
    """Text of one line that a terminal shows as it stands; of a long one the middle is left out."""
    if len(text) > MOST:
        text = f"{text[: MOST // 2]} ... {text[-MOST // 4 :]}"
    return printable(text)
