"""A progress bar on a terminal, plain lines in a log."""

from __future__ import annotations

import datetime
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from isocompute_jax.compiling import compiled_s
from isocompute_jax.records.printing import printable

LOG = logging.getLogger(__name__)

LINE_EVERY_S = 15.0
BURST_S = 1.0
"""What comes so soon after another came with it."""


class Report(Protocol):
    """Says how far something has come."""

    def __call__(self, completed: int, note: str = "") -> None:
        """`completed` units are done; `note` is shown beside them."""
        ...


@contextmanager
def progress(
    title: str, total: int, *, done: int = 0, unit: str = "", console: Console | None = None, silent: bool = False
) -> Iterator[Report]:
    """Yields `report(completed, note)`: a bar on a terminal, elsewhere a line every 15 seconds and one at the end.

    Both say how much time is left, at the pace of `Pace`.

    Args:
      title: of what.
      total: units there are in all.
      done: of these, those of an earlier start.
      unit: name of a unit; given, lines say how many are done in a second.
      console: standard error when None.
      silent: says nothing: somebody else does.
    """
    if silent:
        yield lambda completed, note="": None
        return
    console = Console(stderr=True) if console is None else console
    counted = Pace(done)
    if console.is_terminal:
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}", markup=False),
        )
        with Progress(*columns, console=console) as bar:
            task = bar.add_task(printable(title), total=total, completed=done, note="")

            def show(completed: int, note: str = "") -> None:
                counted.note(completed)
                parts = (pace(*counted.lately(completed < total), total - completed, ""), printable(note))
                bar.update(task, completed=completed, note=", ".join(filter(None, parts)))

            yield show
        return
    last = time.monotonic()

    def report(completed: int, note: str = "") -> None:
        nonlocal last
        counted.note(completed)
        now = time.monotonic()
        if completed >= total or now - last >= LINE_EVERY_S:
            last = now
            parts = (note, pace(*counted.lately(completed < total), total - completed, unit))
            LOG.info("%s: %d/%d %s", title, completed, total, ", ".join(filter(None, parts)))

    yield report


class _Moment(NamedTuple):
    """When so many units were done, and for how long this process had compiled by then."""

    done: int
    time: float
    compiled: float


class Pace:
    """How many units were done in how many seconds, from the end of the first burst of them to that of the last.

    Units come in bursts (groups of one dispatch, say): the first one of a burst has taken the time of all of it, so
    that it tells nothing yet. What is compiled or loaded before the first burst is not counted, nor what this process
    compiles later.

    Args:
      done: units of an earlier start.
    """

    def __init__(self, done: int = 0):
        compiled_s()  # the clock starts
        self._known = done
        self._first: _Moment | None = None  # the end of the first burst
        self._begun = 0.0  # when the burst that is coming in began
        self._before: _Moment | None = None  # the end of the burst before it
        self._last: _Moment | None = None

    def note(self, completed: int) -> None:
        """So many units are done now."""
        now = _Moment(completed, time.monotonic(), compiled_s())
        if completed <= self._known and self._last is None:
            return
        if self._last is None or now.time - self._last.time >= BURST_S:
            self._before, self._begun = self._last, now.time
        if self._before is None and now.time - self._begun < BURST_S:
            self._first = now
        self._last = now

    def lately(self, more: bool) -> tuple[int, float]:
        """Units and seconds; none before there are two bursts.

        Args:
          more: whether units are still to come: a burst that has just begun then does not count yet.
        """
        if self._first is None or self._last is None:
            return 0, 0.0
        whole = not more or self._last.time - self._begun >= BURST_S
        end = self._last if whole else self._before
        if end is None:
            return 0, 0.0
        seconds = end.time - self._first.time - (end.compiled - self._first.compiled)
        return end.done - self._first.done, seconds


def pace(completed: int, seconds: float, left: int, unit: str) -> str:
    """How fast it goes, where a unit has a name, and how long the rest takes so; empty before anything is done."""
    if completed <= 0 or seconds <= 0:
        return ""
    said = [f"{completed / seconds:,.1f} {unit}/s"] if unit else []
    if left > 0:
        said.append(f"{datetime.timedelta(seconds=round(left * seconds / completed))} left")
    return ", ".join(said)
