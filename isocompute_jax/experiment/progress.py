"""What a run shows while it goes on: progress, and a trace of some steps; and how its user ends it."""

from __future__ import annotations

import contextlib
import datetime
import logging
import math
import pathlib
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import NamedTuple, Protocol

import jax
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from isocompute_jax.compiling import compiled_s
from isocompute_jax.experiment.config import RunConfig
from isocompute_jax.records.errors import InputError
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


@contextlib.contextmanager
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
    parts = [f"{completed / seconds:,.1f} {unit}/s"] if unit else []
    if left > 0:
        parts.append(f"{datetime.timedelta(seconds=round(left * seconds / completed))} left")
    return ", ".join(parts)


SIGNALS = (signal.SIGINT, signal.SIGTERM)
WARNINGS = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP)
"""What schedulers send some time before the end (`--signal` of SLURM), and a terminal that is closed."""

APART_S = 0.5
"""Signals closer together are one: that of a whole process group comes once from its sender, and once more from a
launcher in the group, which cannot know."""
AGAIN_S = 0.01
"""After so long a signal is sent again whose KeyboardInterrupt Python dropped."""


class Interrupt:
    """Ctrl-C and SIGTERM end a run between two sampling phases, with a checkpoint; a second one, later, at once.

    A context in which `requested` turns True on the first signal, and a second, later one raises KeyboardInterrupt.
    SIGUSR1, SIGUSR2 and SIGHUP ask as the first does, any number of times; one that is ignored (nohup) stays so.

    Outside the main thread Python delivers no signals; the context then does nothing.
    """

    def __init__(self) -> None:
        self.requested = False
        self._first = -math.inf
        self._warned = False  # nothing but a warning has come
        self._previous: dict[signal.Signals, object] = {}
        self._report_unraisable = sys.unraisablehook
        self._within_hook = False

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            self._previous = {number: signal.signal(number, self._handle) for number in SIGNALS}
            for number in WARNINGS:
                if signal.getsignal(number) != signal.SIG_IGN:
                    self._previous[number] = signal.signal(number, self._handle)
            self._report_unraisable, sys.unraisablehook = sys.unraisablehook, self._unraisable
        return self

    def __exit__(self, kind: type | None, value: BaseException | None, trace: TracebackType | None) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # pyright: ignore[reportArgumentType]
        if self._previous:
            sys.unraisablehook = self._report_unraisable
            self._previous = {}

    def _handle(self, number: int, frame: FrameType | None) -> None:
        asked, self.requested = self.requested, True
        if number in WARNINGS:
            self._warned = self._warned or not asked
        elif asked and not self._warned:
            if time.monotonic() - self._first < APART_S:
                return
            raise KeyboardInterrupt
        else:
            self._warned, self._first = False, time.monotonic()
        if asked:
            return
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


NO_STEPS = range(0)


def parse_steps(text: str) -> range:
    """The steps that `10:12` (both included) or `10` names.

    Raises:
      InputError: it is neither, or ends before it begins.
    """
    found = re.fullmatch(r"([1-9]\d*)(?::([1-9]\d*))?", text)
    if not found:
        raise InputError(f"--profile_steps={text}: not FIRST:LAST, two steps of the run, as 10:12; steps count from 1")
    first, last = int(found[1]), int(found[2] or found[1])
    if last < first:
        raise InputError(f"--profile_steps={text} ends before it begins: FIRST:LAST, as {last}:{first}")
    return range(first, last + 1)


def check_steps(steps: range, config: RunConfig) -> None:
    """Raises InputError where the run has no such steps."""
    if steps and steps[-1] > config.num_steps:
        raise InputError(
            f"--profile_steps={steps[0]}:{steps[-1]}: the run has {config.num_steps} steps (config.max_compute over "
            "rollouts per step); steps count from 1"
        )


class Profiler:
    """Traces steps of a run, with whatever lies between them, into its folder profile/, for xprof or Perfetto.

    Args:
      steps: which, from 1 on.
      path: the run's directory.
      process: which of several this is; each of them has a folder of its own in profile/.
    """

    def __init__(self, steps: range, path: pathlib.Path, process: int | None = None):
        self._steps = steps
        self._folder = path / "profile" if process is None else path / "profile" / f"process-{process}"
        self._on = self._done = False

    @contextlib.contextmanager
    def step(self, number: int) -> Iterator[None]:
        """Around step `number`, which the trace then shows as one."""
        if number in self._steps and not self._on:
            jax.profiler.start_trace(self._folder)
            self._on = self._done = True
        if not self._on:
            yield
            return
        with jax.profiler.StepTraceAnnotation("step", step_num=number):
            yield
        if number >= self._steps[-1]:
            self.close()

    def close(self) -> None:
        """Ends the trace, if one goes on, and writes it; says where none was made."""
        if self._on:
            self._on = False
            jax.profiler.stop_trace()
            LOG.info("%s: a trace of steps, for xprof or Perfetto (docs/watch.md)", self._folder)
        elif self._steps and not self._done:
            LOG.warning("--profile_steps=%d:%d: none of them was made by this start", self._steps[0], self._steps[-1])
