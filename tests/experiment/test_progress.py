"""What a run shows and how it is ended: progress, traces, and signals, with which Python does what it wants."""

import gc
import gzip
import io
import json
import signal
import sys
import threading
import time

import jax
import pytest
from rich.console import Console

from isocompute_jax.compiling import compiled_s
from isocompute_jax.experiment import loop
from isocompute_jax.experiment import progress as module
from isocompute_jax.experiment import progress as room
from isocompute_jax.experiment.config import override
from isocompute_jax.experiment.progress import Interrupt, Profiler, parse_steps
from isocompute_jax.records.errors import InputError


@pytest.fixture
def clocks(monkeypatch):
    """Seconds that have passed, and of these, those of compiling."""
    found = {"now": 0.0, "compiled": 0.0}
    monkeypatch.setattr(room.time, "monotonic", lambda: found["now"])
    monkeypatch.setattr(room, "compiled_s", lambda: found["compiled"])
    return found


def lines(caplog, clocks, events, *, total, done=0):
    """What is said of (time, seconds compiled so far, units done, note)."""
    caplog.set_level("INFO")
    with room.progress("x", total, done=done, unit="rollouts", console=Console(file=io.StringIO())) as report:
        for clocks["now"], clocks["compiled"], completed, note in events:
            report(completed, note)
    return [record.getMessage() for record in caplog.records]


def test_a_line_says_how_fast_it_goes_since_the_first_burst_and_what_is_left(caplog, clocks):
    """Nothing comes for 84 s, then ten units at once, which say nothing of the pace; 100 units in each 18 s after."""
    events = [
        (84.0, 80.0, 400, "compiling"),
        (100.0, 80.0, 405, "a note"),
        (100.5, 80.0, 410, ""),  # came with them; too soon for a line
        (118.5, 80.0, 500, "a note"),  # the first of a second burst, which took the time of all of it
        (118.5, 80.0, 510, ""),
        (136.5, 80.0, 600, "a note"),  # of a third: the second is whole
        (136.5, 80.0, 610, ""),
        (154.5, 80.0, 1000, "done"),
    ]
    assert lines(caplog, clocks, events, total=1000, done=400) == [
        "x: 400/1000 compiling",
        "x: 405/1000 a note",
        "x: 500/1000 a note",
        "x: 600/1000 a note, 5.6 rollouts/s, 0:01:12 left",
        "x: 1000/1000 done, 10.9 rollouts/s",
    ]


def test_what_compiles_later_is_no_work(caplog, clocks):
    """A round of another size is compiled for 280 s, between bursts of 16 units that take 20 s each."""
    events = [(10.0, 9.0, 16, ""), (30.0, 9.0, 32, ""), (330.0, 289.0, 48, ""), (350.0, 289.0, 64, "")]
    assert lines(caplog, clocks, events, total=96) == [
        "x: 32/96 ",
        "x: 48/96 0.8 rollouts/s, 0:01:00 left",
        "x: 64/96 0.8 rollouts/s, 0:00:40 left",
    ]


def test_a_steady_stream_is_no_burst(caplog, clocks):
    """A step each tenth of a second: 10 a second, whatever came in the first one."""
    events = [(5 + 0.1 * step, 4.0, step, "") for step in range(1, 301)]
    assert lines(caplog, clocks, events, total=1000)[0] == "x: 100/1000 10.0 rollouts/s, 0:01:30 left"


def test_what_jax_compiles_is_counted():
    before = compiled_s()
    jax.jit(lambda x: 3 * x + len(str(before)))(1.0)
    assert compiled_s() > before


@pytest.mark.parametrize(
    ("completed", "left", "seconds", "unit", "said"),
    [(0, 9, 1.0, "steps", ""), (3, 9, 0.0, "steps", ""), (2, 4, 9000.0, "", "5:00:00 left"), (2, 0, 1.0, "", "")],
)
def test_pace(completed, left, seconds, unit, said):
    assert room.pace(completed, seconds, left, unit) == said


def test_a_terminal_shows_a_bar():
    file = io.StringIO()
    with room.progress("x", 10, done=4, console=Console(file=file, force_terminal=True, width=100)) as report:
        report(10, "a note")
    assert "10/10" in file.getvalue() and "a note" in file.getvalue()


def test_the_first_signal_asks_and_the_second_raises():
    """Not the same signal, come by two ways."""
    with Interrupt() as interrupt:
        signal.raise_signal(signal.SIGTERM)
        assert interrupt.requested
        signal.raise_signal(signal.SIGINT)
        time.sleep(module.APART_S)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP])
def test_a_scheduler_s_warning_asks_and_what_follows_is_the_first(number):
    with Interrupt() as interrupt:
        signal.raise_signal(number)
        assert interrupt.requested
        signal.raise_signal(number)
        signal.raise_signal(signal.SIGTERM)  # as SLURM sends at the end: the checkpoint may be under way
        time.sleep(module.APART_S)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(number) == signal.SIG_DFL


def test_a_signal_that_is_ignored_stays_so():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # nohup
    try:
        with Interrupt() as interrupt:
            signal.raise_signal(signal.SIGHUP)
            assert not interrupt.requested
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("starts_slowly", [False, True])
def test_a_second_signal_within_a_callback_of_the_garbage_collector_is_not_lost(monkeypatch, starts_slowly):
    """On a busy machine, too: the signal must not come again while Python still reports the first as dropped."""
    start = threading.Timer.start

    def slowly(self) -> None:
        start(self)
        time.sleep(0.2)

    if starts_slowly:
        monkeypatch.setattr(threading.Timer, "start", slowly)

    def second(_phase: str, _info: dict) -> None:
        gc.callbacks.remove(second)
        signal.raise_signal(signal.SIGINT)

    before = sys.unraisablehook
    with Interrupt() as interrupt:
        interrupt.requested = True
        gc.callbacks.append(second)
        with pytest.raises(KeyboardInterrupt):
            gc.collect()  # Python drops what the callback raises
            time.sleep(60)
    assert sys.unraisablehook is before


def test_what_else_is_dropped_is_reported_as_ever(monkeypatch):
    seen = []
    monkeypatch.setattr(sys, "unraisablehook", seen.append)

    def fails(_phase: str, _info: dict) -> None:
        gc.callbacks.remove(fails)
        raise ValueError("of a callback")

    with Interrupt():
        gc.callbacks.append(fails)
        gc.collect()
    assert [dropped.exc_type for dropped in seen] == [ValueError]


def test_handlers_are_put_back():
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with Interrupt():
        assert signal.getsignal(signal.SIGINT) != before[0]
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_steps_are_read():
    assert parse_steps("10:12") == range(10, 13)
    assert parse_steps("7") == range(7, 8)


@pytest.mark.parametrize("text", ["0:3", "a", "3:", ":3", "-1:2", "1:2:3", "1.5:2"])
def test_what_is_no_range_of_steps_is_refused(text):
    with pytest.raises(InputError, match=rf"--profile_steps={text}: not FIRST:LAST"):
        parse_steps(text)


def test_a_range_that_ends_before_it_begins_is_refused():
    with pytest.raises(InputError, match="--profile_steps=12:10 ends before it begins: FIRST:LAST, as 10:12"):
        parse_steps("12:10")


def test_steps_that_the_run_does_not_have_are_refused_before_anything_is_made(base_run, tmp_path):
    with pytest.raises(InputError, match=r"--profile_steps=20:25: the run has 24 steps"):
        loop.train(base_run, tmp_path / "run", profile=range(20, 26))
    assert not (tmp_path / "run").exists()


def test_each_of_several_processes_has_a_folder_of_its_own(tmp_path, monkeypatch):
    folders = []
    monkeypatch.setattr(jax.profiler, "start_trace", folders.append)
    monkeypatch.setattr(jax.profiler, "stop_trace", lambda: None)
    for process in (None, 0, 1):
        with Profiler(range(1, 2), tmp_path, process).step(1):
            pass
    assert folders == [tmp_path / "profile", tmp_path / "profile" / "process-0", tmp_path / "profile" / "process-1"]


@pytest.mark.parametrize(
    ("made", "traced"), [(range(1, 9), [3, 4, 5]), (range(4, 9), [4, 5]), (range(1, 4), [3]), (range(6, 9), [])]
)
def test_the_trace_covers_those_steps_of_them_that_are_made(tmp_path, monkeypatch, caplog, made, traced):
    """Of a run that goes on from its third or fifth step, or that ends in its third, too."""
    said, on = [], False

    def switch(value, folder=None):
        nonlocal on
        assert on is not value and folder in (None, tmp_path / "profile")
        on = value

    monkeypatch.setattr(jax.profiler, "start_trace", lambda folder: switch(True, folder))
    monkeypatch.setattr(jax.profiler, "stop_trace", lambda: switch(False))
    profiler = Profiler(range(3, 6), tmp_path)
    for number in made:
        with profiler.step(number):
            if on:
                said.append(number)
    profiler.close()
    assert said == traced and not on
    assert ("none of them was made by this start" in caplog.text) == (traced == [])


@pytest.mark.slow
def test_a_trace_shows_the_steps_and_what_ran(base_run, tmp_path):
    config = override(base_run, "max_compute", 4 * base_run.rollouts_per_step)
    loop.train(config, tmp_path / "run", profile=range(2, 4))
    [trace] = (tmp_path / "run" / "profile").rglob("*.trace.json.gz")
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    steps = {event["args"]["step_num"] for event in events if event.get("name") == "step"}
    assert steps == {"2", "3"}
    assert sum("ThunkExecutor" in event.get("name", "") for event in events) > 0  # what XLA ran
    [xplane] = (tmp_path / "run" / "profile").rglob("*.xplane.pb")
    planes = jax.profiler.ProfileData.from_file(str(xplane)).planes
    assert any(event.name == "step" for plane in planes for line in plane.lines for event in line.events)
