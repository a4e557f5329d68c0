"""A progress bar on a terminal, plain lines in a log."""

from __future__ import annotations

import datetime
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from isocompute_jax.records.printing import printable

LOG = logging.getLogger(__name__)

LINE_EVERY_S = 15.0
BURST_S = 1.0
"""What comes so soon after the first unit came with it."""


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

    Both say how much time is left, at the pace since the first unit came: what is compiled or loaded before it would
    mislead.

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
    if console.is_terminal:
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}", markup=False),
        )
        with Progress(*columns, console=console) as bar:
            task = bar.add_task(printable(title), total=total, completed=done, note="")
            yield lambda completed, note="": bar.update(task, completed=completed, note=printable(note))
        return
    last = time.monotonic()
    first: float | None = None  # when the first unit came
    start = last  # when all of these `done` were there

    def report(completed: int, note: str = "") -> None:
        nonlocal last, first, start, done
        now = time.monotonic()
        if completed > done and first is None:
            first = now
        if first is not None and now - first < BURST_S:
            done, start = completed, now
        if completed >= total or now - last >= LINE_EVERY_S:
            last = now
            parts = (note, pace(completed - done, total - completed, now - start, unit))
            LOG.info("%s: %d/%d %s", title, completed, total, ", ".join(filter(None, parts)))

    yield report


def pace(completed: int, left: int, seconds: float, unit: str) -> str:
    """How fast it goes, where a unit has a name, and how long the rest takes so; empty before anything is done."""
    if completed <= 0 or seconds <= 0:
        return ""
    said = [f"{completed / seconds:,.1f} {unit}/s"] if unit else []
    if left > 0:
        said.append(f"{datetime.timedelta(seconds=round(left * seconds / completed))} left")
    return ", ".join(said)
