"""What the page is told of run directories, as they grow, end and are cut back."""

import fcntl
import json
import math
import os
import time

import pytest

from isocompute_jax.records import run_files
from isocompute_jax.records.errors import InputError
from isocompute_jax.watching import watched_runs
from isocompute_jax.watching.growing_logs import Columns, GrowingFile
from isocompute_jax.watching.watched_run import WatchedRun, locked_inodes
from isocompute_jax.watching.watched_runs import UnknownRun, WatchedRuns, thinned
from tests.watching.builders import HOSTILE, PHASES, ledger, make_fleet, make_run


@pytest.fixture(autouse=True)
def always_fresh(monkeypatch):
    monkeypatch.setattr(watched_runs, "FRESH_S", -1.0)


# --- logs


def test_a_log_is_read_as_it_grows(tmp_path):
    path = tmp_path / "log.jsonl"
    log = GrowingFile(path)
    assert log.lines() == (False, [])
    path.write_text('{"step": 1}\n{"step": 2, "a')
    anew, [(offset, line)] = log.lines()
    assert (anew, offset, line) == (True, 0, {"step": 1})
    with open(path, "a") as file:
        file.write('": 3}\nnot JSON\n[4]\n{"step": 5}\n')
    anew, lines = log.lines()
    assert not anew and [line for _, line in lines] == [{"step": 2, "a": 3}, {"step": 5}]
    assert json.loads(path.read_bytes()[lines[1][0] :]) == {"step": 5}
    assert log.lines() == (False, [])


def test_a_log_that_was_cut_back_is_read_anew(tmp_path):
    path = tmp_path / run_files.METRICS
    for step in range(1, 5):
        run_files.append_line(path, ledger(step, 8))
    log = GrowingFile(path)
    assert len(log.lines()[1]) == 4
    run_files.cut_back(path, step=2)
    run_files.append_line(path, ledger(3, 8))
    anew, lines = log.lines()
    assert anew and [line["step"] for _, line in lines] == [1, 2, 3]
    path.unlink()
    assert log.lines() == (True, [])


def test_columns_have_a_number_or_nan_in_each_line():
    columns = Columns()
    for line in ({"a": 1, "b": {"c": 2.5}}, {"a": None, "d": [1]}, {"b": {"c": True}, "e": "x"}):
        columns.add(line)
    assert columns.names == ["a", "b/c"] and columns.last == {"b": {"c": True}, "e": "x"}
    assert [str(value) for value in columns.column("a")] == ["1.0", "nan", "nan"]
    assert [str(value) for value in columns.column("b/c")] == ["2.5", "nan", "1.0"]
    assert len(columns.column("z")) == 3 and all(map(math.isnan, columns.column("z")))


def test_curves_are_thinned_to_means_of_neighbours():
    found = thinned({"y": [1.0, math.nan, 3.0, 5.0, 7.0, 9.0], "x": [0.0, 1.0, 2.0, 3.0, 4.0, math.nan]}, 2)
    assert found == {"y": [3.0, 8.0], "x": [pytest.approx(5 / 3, abs=1e-5), 4.0]}
    assert thinned({"y": [1.0, 2.0], "x": [3.0, 4.0]}, 10) == {"y": [1.0, 2.0], "x": [3.0, 4.0]}
    assert thinned({"y": [math.nan], "x": [1.0]}, 10) == {"y": [], "x": []}


# --- runs


def test_runs_are_found_and_models_in_them_are_not(tmp_path):
    make_run(tmp_path / "b" / "run", steps=4)
    make_run(tmp_path / "a", steps=4)
    model = tmp_path / "a" / "model"
    model.mkdir()
    (model / "config.json").write_text('{"model_type": "qwen3"}')
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "config.json").write_text('{"model_type": "qwen3"}')
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text('{"group_si')
    runs = WatchedRuns(tmp_path)
    assert [run["name"] for run in runs.overview()["runs"]] == ["a", "b/run"]
    [alone] = WatchedRuns(tmp_path / "b" / "run").overview()["runs"]
    assert alone["name"] == "run"


def test_a_directory_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"--runs=.* is no directory"):
        WatchedRuns(tmp_path / "nowhere")


def test_the_overview_says_how_far_each_run_is(tmp_path):
    make_run(tmp_path / "run", steps=40, alarm=30)
    make_fleet(tmp_path / "run", written=time.time())
    overview = WatchedRuns(tmp_path).overview()
    [run] = overview["runs"]
    assert (run["step"], run["compute"], run["num_steps"], run["max_compute"]) == (40, 40 * 64, 100, 6400)
    assert run["step_s"] == 7.0 and run["alarms"] == ["kl"] and run["servers"] == [2, 3] and run["rollouts"] == 40
    assert 0.3 < run["scores"]["validation"] < 0.5
    (tmp_path / "run" / run_files.DONE).touch()
    assert WatchedRuns(tmp_path).overview()["runs"][0]["servers"] is None  # what it last knew of them is over
    assert overview["metrics"][:2] == ["eval/validation/avg@4", "eval/validation/best@4"]
    assert "train/speed/sampled_tokens_per_s" in overview["metrics"] and "train/compute" not in overview["metrics"]


def test_without_evaluations_the_first_metric_is_the_reward(tmp_path):
    """A run books the hours of its learner's devices before it knows its rewards."""
    path = make_run(tmp_path / "n8")
    (path / run_files.EVAL).unlink()
    lines = [json.loads(line) for line in (path / run_files.METRICS).read_text().splitlines()]
    booked = [{**ledger(line["step"], 64), "learner_device_hours": {"cpu": 0.1}, **line} for line in lines]
    (path / run_files.METRICS).write_text("".join(json.dumps(line) + "\n" for line in booked))
    metrics = WatchedRuns(tmp_path).overview()["metrics"]
    assert metrics[0] == "train/reward" and "train/learner_device_hours/cpu" in metrics[1:]


def test_curves_stand_against_every_axis(tmp_path):
    make_run(tmp_path / "run", steps=40)
    runs = WatchedRuns(tmp_path)
    found = runs.curves("eval/validation/avg@4")["runs"]["run"]
    assert found["step"] == list(range(0, 41, 4)) and found["compute"] == [64 * step for step in found["step"]]
    assert found["wall_s"] == [7 * step for step in found["step"]] and len(found["y"]) == 11
    assert runs.curves("train/phase_s/update")["runs"]["run"]["y"] == [2.0] * 40
    assert runs.curves("train/nothing")["runs"] == runs.curves("eval/other/avg@4")["runs"] == {}


def test_a_run_in_detail(tmp_path):
    make_run(tmp_path / "run", steps=40, alarm=30)
    runs = WatchedRuns(tmp_path)
    found = runs.detail("run")
    assert found["alarms_raised"] == [(30, "kl")] and found["fleet"] is None
    assert found["series"]["phase_s/sampling"] == [3.0] * 40 and found["phase_s"] == PHASES
    assert found["rollout_lines"][4] == [5, ["p5"]]
    line = runs.rollouts("run", 4)
    assert line["step"] == 5 and line["groups"][0]["completions"][1]["text"] == HOSTILE
    assert runs.rollouts("run", 99) == {}
    for name in ("", "other", "../run", "/etc"):
        with pytest.raises(UnknownRun):
            runs.detail(name)


def test_an_alarm_that_comes_twice_is_listed_twice(tmp_path):
    make_run(tmp_path / "run", steps=2)
    for step, on in ((3, ["kl"]), (4, ["kl", "ratio"]), (5, []), (6, ["kl"])):
        run_files.append_line(tmp_path / "run" / run_files.METRICS, ledger(step, 64) | {"alarms": on})
    assert WatchedRuns(tmp_path).detail("run")["alarms_raised"] == [(3, "kl"), (4, "ratio"), (6, "kl")]


# --- states


def watched(path) -> WatchedRun:
    run = WatchedRun(path, "run", json.loads((path / run_files.CONFIG).read_text()))
    run.refresh()
    return run


def aged(path, seconds: float) -> None:
    for file in path.iterdir():
        os.utime(file, (time.time() - seconds, time.time() - seconds))


@pytest.mark.skipif(not os.path.exists("/proc/locks"), reason="the system does not list locks")
def test_a_lock_that_a_process_holds_is_seen_and_not_taken(tmp_path):
    with open(tmp_path / run_files.LOCK, "w") as file:
        inode = os.fstat(file.fileno()).st_ino
        assert inode not in locked_inodes()
        fcntl.flock(file, fcntl.LOCK_EX)
        assert inode in locked_inodes()
        fcntl.flock(file, fcntl.LOCK_UN)
        assert inode not in locked_inodes()


def test_states_by_lock_and_times(tmp_path):
    path = make_run(tmp_path / "run", steps=4)
    (path / run_files.LOCK).touch()
    run, held, now = watched(path), {(path / run_files.LOCK).stat().st_ino}, time.time()
    assert run.state(held, now) == run.state(set(), now) == "running"  # the lock may be another machine's
    aged(path, 50)
    assert run.state(set(), now) == "running"
    aged(path, 71)  # ten steps of 7 s
    assert (run.state(held, now), run.state(set(), now)) == ("waiting", "dead")
    make_fleet(path, written=now)  # by a learner on another machine, which waits for its servers
    assert run.state(set(), now) == "waiting"
    (path / run_files.DONE).touch()
    assert run.state(set(), now) == "done"


def test_a_run_that_has_logged_nothing_is_waiting(tmp_path):
    path = make_run(tmp_path / "run", steps=0)
    (path / run_files.EVAL).unlink()
    run = watched(path)
    assert run.state(set(), time.time()) == "waiting"
    aged(path, 600)
    assert run.state(set(), time.time()) == "dead"
