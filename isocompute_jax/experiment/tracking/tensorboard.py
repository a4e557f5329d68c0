"""What a run logs, as TensorBoard reads it."""
# protobuf makes its messages when they are imported:
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import pathlib
import time
from collections.abc import Mapping
from typing import Any

from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.summary_pb2 import Summary

from isocompute_jax.experiment.tracking import numbers

FOLDER = "tensorboard"


class TensorBoard:
    """Writes an event file for each start of a run.

    Events are written in the caller's thread, not in one of tensorboardX's: there a full disk would go unseen, and the
    run would wait for ever for a queue that nobody empties.

    Args:
      path: the run's directory.
    """

    def __init__(self, path: pathlib.Path):
        self._folder = path / FOLDER
        self._writer: EventsWriter | None = None
        self._first = 0

    def start(self, step: int) -> None:
        """From here on: TensorBoard forgets the points after `step` that an earlier start wrote."""
        self._first = step + 1

    def log(self, name: str, line: Mapping[str, Any]) -> None:
        """One event with every number of the line."""
        found = numbers(name, line)
        if not found:
            return
        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in found.items()]
        self._write(Event(step=line["step"], summary=Summary(value=values)))

    def close(self) -> None:
        """Closes the file."""
        if self._writer is not None:
            self._writer.close()

    def _write(self, event: Event) -> None:
        if self._writer is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._writer = EventsWriter(str(self._folder / "events"), f".{time.time_ns()}")
            begins = SessionLog(status=SessionLog.START)
            self._write(Event(step=self._first, session_log=begins))
        event.wall_time = time.time()
        self._writer.write_event(event)
        self._writer.flush()
