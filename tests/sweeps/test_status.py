"""What is shown of a sweep, read from the ends of its logs."""

import dataclasses
import os
import pathlib
import re
import time

from isocompute_jax.allocation.schedule import ScheduleConfig
from isocompute_jax.experiment.config import EvaluationConfig, RunConfig
from isocompute_jax.records import run_files
from isocompute_jax.sweeps import books, status

BASE = RunConfig(model="m", train_set="t.jsonl", group_size=4, problems_per_batch=8, max_compute=1024)


def state_with_logs(root: pathlib.Path) -> books.SweepState:
    """Two runs, one of them at step 100 of 128 at 64 rollouts/s."""
    config = dataclasses.replace(BASE, group_size=2, max_compute=2048, evaluation=EvaluationConfig(sets={"v": "p"}))
    (root / "a").mkdir()
    line = {"tokens": 1, "device_hours": 0.5}
    for step in range(1, 101):
        columns = {"step": step, "compute": 16 * step, "wall_s": step / 4, "reward": 0.25}
        run_files.append_line(root / "a" / run_files.METRICS, {**line, **columns})
    for name, score in (("v", 0.5), ("train", 0.9)):
        columns = {"step": 96, "compute": 1536, "wall_s": 24.0, "eval_set": name, "avg@4": score}
        run_files.append_line(root / "a" / run_files.EVAL, {**line, **columns})
    states = {"a": "running", "b": "waiting"}
    return books.SweepState(root, {"a": config, "b": config}, states, {}, num_workers=1)


def test_status_is_read_from_the_ends_of_the_logs(tmp_path, monkeypatch):
    state = state_with_logs(tmp_path)
    with open(tmp_path / "a" / run_files.METRICS, "a") as file:
        file.write('{"step": 101, "comp')  # a write in progress
    monkeypatch.setattr(books, "TAIL_BYTES", 1000)
    found = status.read_status(tmp_path / "a", state.runs["a"])
    assert found.silent_s is not None and 0 <= found.silent_s < 60
    expected = status.RunStatus(step=100, compute=1600, reward=0.25, score="avg@4 0.500", rate=64.0, device_hours=0.5)
    assert dataclasses.replace(found, silent_s=None) == expected
    assert status.read_status(tmp_path / "b", state.runs["b"]) == status.RunStatus()
    assert 1 < len(books.tail(tmp_path / "a" / run_files.METRICS)) < 20


def test_what_a_run_compiled_is_no_part_of_its_rate(tmp_path):
    """Steps of 0.25 s, of which two compile for 20 s each, and a third in an evaluation before it."""
    config, line = BASE, {"tokens": 1, "device_hours": 0.5, "reward": 0.25}
    compiled = {1: 8.0, 2: 28.0, 3: 48.0, 4: 48.0, 5: 58.0}
    for step, seconds in compiled.items():
        columns = {"step": step, "compute": 32 * step, "wall_s": step / 4 + seconds, "speed": {"compiled_s": seconds}}
        run_files.append_line(tmp_path / run_files.METRICS, {**line, **columns})
    assert status.read_status(tmp_path, config).rate == 128.0
    resumed = {"step": 6, "compute": 192, "wall_s": 59.5, "speed": {"compiled_s": 3.0}}  # by another process
    run_files.append_line(tmp_path / run_files.METRICS, {**line, **resumed})
    rate = status.read_status(tmp_path, config).rate
    assert rate is not None and 0 < rate < 128


def test_headline_says_how_much_is_left(tmp_path):
    # 448 rollouts of one run and 2,048 of the other are left, at 64 a second.
    state = state_with_logs(tmp_path)
    statuses = {name: status.read_status(tmp_path / name, config) for name, config in state.runs.items()}
    text = status.headline(state, statuses)
    assert text == "1 running, 1 waiting; 39% of 4,096 rollouts; 0.5 device-hours; 64 rollouts/s, about 0:00:39 left"


def test_a_long_table_shows_what_runs(tmp_path):
    state = state_with_logs(tmp_path)
    state.runs = {f"r{i}": state.runs["b"] for i in range(50)} | {"a": state.runs["a"]}
    state.states = dict.fromkeys(state.runs, "waiting") | {"a": "running"}
    table = status.status_table(state, max_rows=5)
    assert table.row_count == 5
    assert "a" in list(table.columns[0].cells)
    assert str(table.caption).endswith("46 runs not shown")


def test_a_running_run_whose_logs_are_old_is_shown_as_silent(tmp_path):
    state = state_with_logs(tmp_path)
    for name in (run_files.METRICS, run_files.EVAL):
        os.utime(tmp_path / "a" / name, (time.time() - 3700, time.time() - 3700))
    [cell, _] = status.status_table(state).columns[1].cells
    assert re.fullmatch("running, silent for 1:01:4.", str(cell))


def test_steps_and_compute_of_schedules(tmp_path):
    """4 x 8 up to 320 rollouts, 10 steps, then 16 x 8, 5 steps: 15 steps and 960 of 1,000 rollouts. `auto` guesses."""
    known = dataclasses.replace(BASE, max_compute=1000, schedule=ScheduleConfig(group_size="4@0,16@320"))
    auto = dataclasses.replace(known, schedule=ScheduleConfig(group_size="auto", largest=16))
    (tmp_path / "a").mkdir()
    for step, n in enumerate([4, 4, 16], start=1):
        columns = {
            "step": step,
            "compute": 320 + 128 * (step - 2),
            "wall_s": 2.0 * step,
            "tokens": 1,
            "device_hours": 0,
        }
        run_files.append_line(tmp_path / "a" / run_files.METRICS, {**columns, "group_size": n, "problems_per_batch": 8})
    shown = {}
    for name, config in (("known", known), ("auto", auto)):
        state = books.SweepState(tmp_path, {"a": config}, {"a": "running"}, {}, num_workers=1)
        [cell] = status.status_table(state).columns[2].cells
        shown[name] = cell
    assert shown == {"known": "3/15", "auto": "3/~7"}  # (992 - 448) // 128 more
    state = books.SweepState(tmp_path, {"a": known}, {"a": "running"}, {}, num_workers=1)
    assert "; 47% of 960 rollouts; " in status.headline(state, {"a": status.read_status(tmp_path / "a", known)})
    assert "64 rollouts/s, about 0:00:08 left" in status.headline(
        state, {"a": status.read_status(tmp_path / "a", known)}
    )
