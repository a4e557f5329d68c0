"""Ctrl-C and SIGTERM end a run between two sampling phases, with a checkpoint; a second one, later, ends it at once."""

from __future__ import annotations

import logging
import math
import signal
import sys
import threading
import time
from types import FrameType, TracebackType

LOG = logging.getLogger(__name__)


SIGNALS = (signal.SIGINT, signal.SIGTERM)

APART_S = 0.5
"""Signals closer together are one: that of a whole process group comes once from its sender, and once more from a
launcher in the group, which cannot know."""
AGAIN_S = 0.01
"""After so long a signal is sent again whose KeyboardInterrupt Python dropped."""


class Interrupt:
    """A context in which `requested` turns True on the first signal, and a second, later one raises KeyboardInterrupt.

    Outside the main thread Python delivers no signals; the context then does nothing.
    """

    def __init__(self) -> None:
        self.requested = False
        self._first = -math.inf
        self._previous: dict[signal.Signals, object] = {}
        self._report_unraisable = sys.unraisablehook
        self._within_hook = False

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            self._previous = {number: signal.signal(number, self._handle) for number in SIGNALS}
            self._report_unraisable, sys.unraisablehook = sys.unraisablehook, self._unraisable
        return self

    def __exit__(self, kind: type | None, value: BaseException | None, trace: TracebackType | None) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # pyright: ignore[reportArgumentType]
        if self._previous:
            sys.unraisablehook = self._report_unraisable
            self._previous = {}

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            if time.monotonic() - self._first < APART_S:
                return
            raise KeyboardInterrupt
        self.requested, self._first = True, time.monotonic()
        LOG.warning(
            "Interrupted: ending with a checkpoint after this step, or this phase of --config.asynchrony=phases; once "
            "more ends it at once."
        )

    def _unraisable(self, dropped: sys.UnraisableHookArgs) -> None:
        """Python drops what is raised within a destructor or a callback of the garbage collector, as JAX has one."""
        if not issubclass(dropped.exc_type, KeyboardInterrupt):
            self._report_unraisable(dropped)
            return
        self._within_hook = True  # what is raised within the hook is dropped too, and for good
        threading.Timer(AGAIN_S, self._again).start()
        self._within_hook = False

    def _again(self) -> None:
        while self._within_hook:  # starting a thread may take longer than the thread waits
            time.sleep(AGAIN_S)
        main = threading.main_thread().ident
        if main and self._previous:
            signal.pthread_kill(main, signal.SIGINT)
