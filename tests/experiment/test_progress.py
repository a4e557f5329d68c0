"""Progress in a log: how far, how fast, and how long the rest takes."""

import io

import pytest
from rich.console import Console

from isocompute_jax.experiment import progress as room


def test_a_line_says_how_fast_it_goes_since_the_first_unit_and_what_is_left(monkeypatch, caplog):
    """Nothing comes for 84 s, then ten units at once, which say nothing of the pace."""
    caplog.set_level("INFO")
    now = 0.0
    monkeypatch.setattr(room.time, "monotonic", lambda: now)
    with room.progress("x", 1000, done=400, unit="rollouts", console=Console(file=io.StringIO())) as report:
        now = 84.0
        report(400, "compiling")
        now = 100.0
        report(405, "a note")
        now = 100.5
        report(410)  # came with them; too soon for a line
        now = 118.5
        report(500, "a note")
        report(510)
        now = 134.5
        report(580)
        report(1000, "done")
    assert [record.getMessage() for record in caplog.records] == [
        "x: 400/1000 compiling",
        "x: 405/1000 a note",
        "x: 500/1000 a note, 5.0 rollouts/s, 0:01:40 left",
        "x: 580/1000 5.0 rollouts/s, 0:01:24 left",
        "x: 1000/1000 done, 17.4 rollouts/s",
    ]


@pytest.mark.parametrize(
    ("completed", "left", "seconds", "unit", "said"),
    [(0, 9, 1.0, "steps", ""), (3, 9, 0.0, "steps", ""), (2, 4, 9000.0, "", "5:00:00 left"), (2, 0, 1.0, "", "")],
)
def test_pace(completed, left, seconds, unit, said):
    assert room.pace(completed, left, seconds, unit) == said


def test_a_terminal_shows_a_bar():
    file = io.StringIO()
    with room.progress("x", 10, done=4, console=Console(file=file, force_terminal=True, width=100)) as report:
        report(10, "a note")
    assert "10/10" in file.getvalue() and "a note" in file.getvalue()
