"""Who is told of a run's lines: each tracker against its own reader, over restarts, and when it fails."""
# protobuf makes its messages when they are imported:
# pyright: reportAttributeAccessIssue=false

import importlib.util
import json
import os
import pathlib
import pty
import struct
import subprocess
import sys
import threading
import time

import pytest
from tensorboardX.proto.event_pb2 import Event

from isocompute_jax.experiment import loop, tracking
from isocompute_jax.experiment.config import TrackConfig, override
from isocompute_jax.experiment.tracking import Trackers, numbers
from isocompute_jax.experiment.tracking.tensorboard import TensorBoard
from isocompute_jax.records import run_files
from isocompute_jax.records.errors import InputError
from tests.experiment import builders

ROOT = pathlib.Path(__file__).parents[3]


def line(step: int, **columns) -> dict:
    return {"step": step, "compute": 8 * step, "reward": step / 10, "phase_s": {"update": 0.5}, **columns}


def test_numbers_are_named_by_log_set_and_column():
    columns = {"kl": None, "alarms": ["kl"], "staleness_histogram": [1, 2]}
    assert numbers(run_files.METRICS, line(3, **columns)) == {
        "train/compute": 24.0,
        "train/reward": 0.3,
        "train/phase_s/update": 0.5,
    }
    assert numbers(run_files.EVAL, {"step": 3, "eval_set": "aime", "avg@4": 0.25}) == {"eval/aime/avg@4": 0.25}
    assert numbers(run_files.ROLLOUTS, line(3)) == {}


# --- TensorBoard


def events(folder: pathlib.Path) -> list[Event]:
    """Every event of a folder, file by file: records of a length, its checksum, the event and its checksum."""
    found = []
    for path in sorted(folder.iterdir()):
        data, at = path.read_bytes(), 0
        while at < len(data):
            (length,) = struct.unpack_from("<Q", data, at)
            found.append(Event.FromString(data[at + 12 : at + 12 + length]))
            at += 16 + length
    return found


def shown(folder: pathlib.Path) -> dict[str, list[tuple[int, float]]]:
    """tag -> points, as TensorBoard shows them: where a start says so, it forgets what came from that step on."""
    points: dict[str, list[tuple[int, float]]] = {}
    for event in events(folder):
        if event.HasField("session_log"):
            assert event.session_log.status == event.session_log.START
            points = {tag: [point for point in old if point[0] < event.step] for tag, old in points.items()}
        for value in event.summary.value:
            points.setdefault(value.tag, []).append((event.step, round(value.simple_value, 5)))
    return points


def test_tensorboard_shows_every_step_of_a_resumed_run_once(tmp_path):
    for resumed_from, last in ((-1, 4), (2, 6)):  # killed after step 4, with a checkpoint of step 2
        board = TensorBoard(tmp_path)
        board.start(resumed_from)
        for step in range(max(resumed_from, 0) + 1, last + 1):
            board.log(run_files.METRICS, line(step))
        board.log(run_files.EVAL, {"step": last, "eval_set": "validation", "avg@4": 0.5})
        board.close()
    found = shown(tmp_path / "tensorboard")
    assert found["train/reward"] == [(step, step / 10) for step in range(1, 7)]
    assert found["eval/validation/avg@4"] == [(6, 0.5)]


# --- Weights & Biases


def wandb_rows(folder: pathlib.Path) -> list[tuple[str, dict]]:
    """(run id, row) of every row of history in a folder of offline runs, by W&B's own reader."""
    from wandb.proto import wandb_internal_pb2
    from wandb.sdk.internal.datastore import DataStore

    found = []
    for path in sorted(folder.glob("offline-run-*/*.wandb")):
        store = DataStore()
        store.open_for_scan(str(path))
        run_id = ""
        while (data := store.scan_data()) is not None:
            record = wandb_internal_pb2.Record.FromString(data)
            if record.HasField("run"):
                run_id = record.run.run_id
            if record.HasField("history"):
                items = record.history.item
                row = {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in items}
                found.append((run_id, row))
        store.close()
    return found


@pytest.mark.slow
def test_wandb_offline_has_every_line_of_a_resumed_run_once(tmp_path, monkeypatch):
    from isocompute_jax.experiment.tracking.weights_and_biases import WeightsAndBiases

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB__SERVICE_WAIT", "120")  # its service may be slow to start where tests share few cores
    (tmp_path / run_files.CONFIG).write_text(json.dumps({"group_size": 8}))
    for first, last in ((1, 4), (3, 6)):
        client = WeightsAndBiases(tmp_path, project="tests")
        client.start(first - 1)
        for step in range(first, last + 1):
            client.log(run_files.METRICS, line(step))
            client.log(run_files.EVAL, {"step": step, "eval_set": "validation", "avg@4": step / 10})
        client.log(run_files.ROLLOUTS, line(last))
        client.close()
        time.sleep(1.0)  # of two runs that begin within a second W&B may lose one's lines
    rows = wandb_rows(tmp_path / "wandb")
    assert len({run_id for run_id, _ in rows}) == 1
    for name in ("train/reward", "eval/validation/avg@4"):
        points = [(row["step"], row[name]) for _, row in rows if name in row]
        assert points == [(step, step / 10) for step in range(1, 7)]


@pytest.mark.slow
def test_wandb_without_an_account_is_said_and_asks_for_none(tmp_path):
    """In a process of its own, at a terminal: there W&B's own way is to ask."""
    script = f"""
import json, logging, pathlib
logging.basicConfig()
from isocompute_jax.experiment.config import TrackConfig
from isocompute_jax.experiment.tracking import make_trackers
path = pathlib.Path({str(tmp_path)!r})
(path / "config.json").write_text("{{}}")
trackers = make_trackers(TrackConfig(wandb="tests"), path)
trackers.log("metrics.jsonl", {{"step": 1, "reward": 0.5}})
trackers.close()
print("the run goes on")
"""
    terminal, inside = pty.openpty()
    env = {name: value for name, value in os.environ.items() if not name.startswith("WANDB")} | {"NETRC": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=env,
        cwd=ROOT,
        stdin=inside,
        stdout=subprocess.PIPE,
        stderr=inside,
        timeout=120,
    )
    os.close(inside)
    said = os.read(terminal, 1 << 16).decode()
    os.close(terminal)
    assert (done.returncode, done.stdout) == (0, b"the run goes on\n")
    assert "no account: `wandb login`, WANDB_API_KEY, or WANDB_MODE=offline" in said and "Enter your choice" not in said


# --- what fails


class Failing:
    """Takes two lines, and then fails as a full disk does."""

    def __init__(self):
        self.told = 0

    def start(self, step):
        pass

    def log(self, name, line):
        self.told += 1
        if self.told > 2:
            raise OSError(28, "No space left on device")

    def close(self):
        raise AssertionError("it is told no more")


class Listing:
    """Keeps what it is told, and waits at first."""

    def __init__(self):
        self.told, self.go = [], threading.Event()

    def start(self, step):
        self.go.wait(10)
        self.told.append(step)

    def log(self, name, line):
        self.told.append((name, line["step"]))

    def close(self):
        self.told.append("closed")


def test_a_tracker_that_fails_is_said_once_and_left_alone(caplog):
    failing, listing = Failing(), Listing()
    listing.go.set()
    trackers = Trackers({"one": lambda: failing, "other": lambda: listing})
    trackers.start(-1)
    for step in range(10):
        trackers.log(run_files.METRICS, line(step))
    trackers.close()
    assert failing.told == 3
    assert listing.told == [-1, *((run_files.METRICS, step) for step in range(10)), "closed"]
    [warning] = [record.getMessage() for record in caplog.records]
    assert warning.startswith("one fails and is told no more") and "No space left on device" in warning


def test_a_tracker_that_cannot_be_made_is_said_once(caplog):
    def refused():
        raise SystemExit("no API key")

    trackers = Trackers({"one": refused})
    trackers.log(run_files.METRICS, line(1))
    trackers.close()
    assert ["no API key" in record.getMessage() for record in caplog.records] == [True]


def test_a_tracker_that_hangs_holds_nobody_up(caplog, monkeypatch):
    monkeypatch.setattr(tracking, "WAITING", 4)
    monkeypatch.setattr(tracking, "CLOSE_S", 0.05)
    hanging = Listing()
    trackers = Trackers({"one": lambda: hanging})
    trackers.start(-1)
    for step in range(20):
        trackers.log(run_files.METRICS, line(step))
    trackers.close()
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2 and "does not keep up" in said[0] and "has not finished" in said[1]
    hanging.go.set()


@pytest.mark.parametrize(
    ("field", "value", "extra"),
    [("tensorboard", True, "track"), ("wandb", "p", "wandb")],
)
def test_a_missing_package_is_named_before_anything_is_made(base_run, tmp_path, monkeypatch, field, value, extra):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    config = override(base_run, f"track.{field}", value)
    with pytest.raises(InputError, match=rf"config\.track\.{field} needs .*isocompute-jax\[{extra}\]"):
        loop.train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_nothing_is_tracked_unless_asked_for(tmp_path):
    tracking.check_installed(TrackConfig())
    trackers = tracking.make_trackers(TrackConfig(), tmp_path)
    trackers.log(run_files.METRICS, line(1))
    trackers.close()
    assert list(tmp_path.iterdir()) == []


# --- in a run


@pytest.mark.slow
def test_a_run_that_dies_and_resumes_is_tracked_as_the_undisturbed_one(base_run, tmp_path):
    """Killed just before its sixth step, with a checkpoint of the third: steps four and five are made again."""
    config = override(override(base_run, "max_compute", 8 * base_run.rollouts_per_step), "track.tensorboard", True)
    seldom, workdir = override(config, "checkpoint_every_s", 1e9), tmp_path / "run"

    def die():
        raise Killed

    class Killed(BaseException):
        pass

    with builders.interrupted_in_step(3), pytest.raises(KeyboardInterrupt):
        loop.train(seldom, workdir)
    with builders.before_step(6, die), pytest.raises(Killed):
        loop.train(seldom, workdir)
    loop.train(seldom, workdir)
    logged = [(line["step"], round(line["reward"], 5)) for line in run_files.read_lines(workdir / run_files.METRICS)]
    found = shown(workdir / "tensorboard")
    assert [step for step, _ in found["train/reward"]] == list(range(1, 9))
    assert found["train/reward"] == logged
    evaluated = [
        line["step"] for line in run_files.read_lines(workdir / run_files.EVAL) if line["eval_set"] == "validation"
    ]
    assert [step for step, _ in found["eval/validation/avg@2"]] == evaluated
