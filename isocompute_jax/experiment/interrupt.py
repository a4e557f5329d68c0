"""Ctrl-C and SIGTERM end a run between two sampling phases, with a checkpoint; a second one ends it at once."""

from __future__ import annotations

import logging
import signal
import threading
from types import FrameType, TracebackType

LOG = logging.getLogger(__name__)


SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupt:
    """A context in which `requested` turns True on the first signal, and the second raises KeyboardInterrupt.

    Outside the main thread Python delivers no signals; the context then does nothing.
    """

    def __init__(self) -> None:
        self.requested = False
        self._previous: dict[signal.Signals, object] = {}

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            self._previous = {number: signal.signal(number, self._handle) for number in SIGNALS}
        return self

    def __exit__(self, kind: type | None, value: BaseException | None, trace: TracebackType | None) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # pyright: ignore[reportArgumentType]

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
        LOG.warning(
            "Interrupted: ending after this step (of phases: this phase) with a checkpoint; once more ends it at once."
        )
