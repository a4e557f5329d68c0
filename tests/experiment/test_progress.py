"""Progress in a log: how far, how fast, and how long the rest takes."""

import io

import jax
import pytest
from rich.console import Console

from isocompute_jax.compiling import compiled_s
from isocompute_jax.experiment import progress as room


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
