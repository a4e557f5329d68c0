"""Traces of steps: which steps, and that the files are what xprof and Perfetto read."""

import gzip
import json

import jax
import pytest

from isocompute_jax.experiment import loop
from isocompute_jax.experiment.config import override
from isocompute_jax.experiment.progress import Profiler, ProfileSteps, parse_steps
from isocompute_jax.records.errors import InputError


def test_steps_are_read():
    assert parse_steps("10:12") == ProfileSteps(10, 12)
    assert parse_steps("7") == ProfileSteps(7, 7)


@pytest.mark.parametrize("text", ["0:3", "a", "3:", ":3", "-1:2", "1:2:3", "1.5:2"])
def test_what_is_no_range_of_steps_is_refused(text):
    with pytest.raises(InputError, match=rf"--profile_steps={text}: not FIRST:LAST"):
        parse_steps(text)


def test_a_range_that_ends_before_it_begins_is_refused():
    with pytest.raises(InputError, match="--profile_steps=12:10 ends before it begins: FIRST:LAST, as 10:12"):
        parse_steps("12:10")


def test_steps_that_the_run_does_not_have_are_refused_before_anything_is_made(base_run, tmp_path):
    with pytest.raises(InputError, match=r"--profile_steps=20:25: the run has 24 steps"):
        loop.train(base_run, tmp_path / "run", profile=ProfileSteps(20, 25))
    assert not (tmp_path / "run").exists()


def test_each_of_several_processes_has_a_folder_of_its_own(tmp_path, monkeypatch):
    folders = []
    monkeypatch.setattr(jax.profiler, "start_trace", folders.append)
    monkeypatch.setattr(jax.profiler, "stop_trace", lambda: None)
    for process in (None, 0, 1):
        with Profiler(ProfileSteps(1, 1), tmp_path, process).step(1):
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
    profiler = Profiler(ProfileSteps(3, 5), tmp_path)
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
    loop.train(config, tmp_path / "run", profile=ProfileSteps(2, 3))
    [trace] = (tmp_path / "run" / "profile").rglob("*.trace.json.gz")
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    steps = {event["args"]["step_num"] for event in events if event.get("name") == "step"}
    assert steps == {"2", "3"}
    assert sum("ThunkExecutor" in event.get("name", "") for event in events) > 0  # what XLA ran
    [xplane] = (tmp_path / "run" / "profile").rglob("*.xplane.pb")
    planes = jax.profiler.ProfileData.from_file(str(xplane)).planes
    assert any(event.name == "step" for plane in planes for line in plane.lines for event in line.events)
