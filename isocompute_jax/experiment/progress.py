"""A progress bar on a terminal, plain lines in a log."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

LOG = logging.getLogger(__name__)

LINE_EVERY_S = 15.0


class Report(Protocol):
    """Says how far something has come."""

    def __call__(self, completed: int, note: str = "") -> None:
        """`completed` units are done; `note` is shown beside them."""
        ...


@contextmanager
def progress(title: str, total: int, *, console: Console | None = None) -> Iterator[Report]:
    """Yields `report(completed, note)`: a bar on a terminal, elsewhere a line every 15 seconds and one at the end."""
    console = Console(stderr=True) if console is None else console
    if console.is_terminal:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
        )
        with Progress(*columns, console=console) as bar:
            task = bar.add_task(title, total=total, note="")
            yield lambda completed, note="": bar.update(task, completed=completed, note=note)
        return
    last = time.monotonic()

    def report(completed: int, note: str = "") -> None:
        nonlocal last
        if completed >= total or time.monotonic() - last >= LINE_EVERY_S:
            last = time.monotonic()
            LOG.info("%s: %d/%d %s", title, completed, total, note)

    yield report
