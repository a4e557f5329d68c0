"""What a checkpoint holds beside arrays, and the books: hours by hand, and what a killed run had spent."""

import dataclasses
import json
from typing import Any

import numpy as np
import pytest

from isocompute_jax.experiment import checkpoints, loop
from isocompute_jax.experiment.config import override
from isocompute_jax.experiment.loop_state import Ledger, LoopState, from_checkpoint
from isocompute_jax.experiment.memory import OutOfMemory
from isocompute_jax.experiment.problem_history import History
from isocompute_jax.records import run_files
from tests.experiment import builders

LEARNER: Any = object()
LEDGER = Ledger(step=5, compute=90, learner_device_hours={"cpu": 2.0}, sampler_device_hours={"H200": 8.0, "cpu": 1.0})


def old_ledger(**fields) -> dict[str, Any]:
    """As releases wrote it that counted the learner's devices alone."""
    new = ("learner_device_hours", "sampler_device_hours", "lost_device_hours")
    ledger = {name: value for name, value in dataclasses.asdict(Ledger(**fields)).items() if name not in new}
    return {**ledger, "device_hours": 1.5}


def test_a_state_and_back():
    history = dataclasses.replace(History.empty(3), attempts=np.array([4, 0, 8], np.int32))
    state = LoopState(LEARNER, {"sources": {}}, history, LEDGER, 4, 70, 3)
    back = from_checkpoint(LEARNER, json.loads(json.dumps(state.to_json())), problems=3, group_size=4)
    assert back.to_json() == state.to_json()
    assert (back.step, back.evaluated, back.evaluated_compute, back.checked) == (5, 4, 70, 3)


def test_a_checkpoint_of_a_release_without_history():
    """Its steps all cost the same, 64 rollouts each, which says at which C it was evaluated last."""
    for evaluated, compute in ((-1, -1), (0, 0), (4, 256)):
        ledger = old_ledger(step=5, compute=320)
        loop = {"ledger": ledger, "stream": {"next_index": 5}, "evaluated": evaluated, "checked": -1}
        back = from_checkpoint(LEARNER, loop, problems=3, group_size=4)
        assert (back.evaluated, back.evaluated_compute) == (evaluated, compute)
        assert back.history.attempts.tolist() == [0, 0, 0]
        assert back.ledger.device_hours == 1.5 and back.ledger.learner_device_hours == {"unknown": 1.5}
    first = {"ledger": old_ledger(), "stream": {"next_index": 0}, "evaluated": 0, "checked": 0}
    assert from_checkpoint(LEARNER, first, problems=3, group_size=4).evaluated_compute == 0


def test_hours_of_learner_and_samplers_by_kind():
    ledger = Ledger().charge_time(1800.0, {"TPU v5p": 4 * 1800.0}, {})
    ledger = ledger.charge_time(1800.0, {"TPU v5p": 4 * 1800.0}, {"NVIDIA H200": 16 * 1800.0})
    ledger = ledger.charge_time(360.0, {"TPU v5p": 4 * 360.0}, {"NVIDIA H200": 8 * 360.0, "cpu": 360.0})
    assert ledger.learner_device_hours == {"TPU v5p": pytest.approx(4.4)}
    assert ledger.sampler_device_hours == {"NVIDIA H200": pytest.approx(8.8), "cpu": pytest.approx(0.1)}
    columns = ledger.columns()
    assert (columns["wall_s"], columns["device_hours"], columns["lost_device_hours"]) == (3960.0, 13.3, 0.0)
    assert columns["sampler_device_hours"] == {"NVIDIA H200": 8.8, "cpu": 0.1}
    assert set(run_files.LINE_KEYS) <= columns.keys()
    hours = {name for name in columns if name.endswith("device_hours")}
    assert len(hours) == 4 and hours <= run_files.WALL_CLOCK_KEYS


def test_what_a_killed_run_did_again_is_spent_once_more():
    """A checkpoint after 10 hours; killed at 12, and again an hour after it was resumed there."""
    saved = Ledger(step=5, compute=50, wall_s=100.0, learner_device_hours={"cpu": 4.0}, sampler_device_hours={"g": 6.0})
    first = Ledger(step=6, compute=60, wall_s=120.0, learner_device_hours={"cpu": 5.0}, sampler_device_hours={"g": 7.0})
    resumed = saved.charge_lost(first.columns())
    assert (resumed.step, resumed.compute, resumed.wall_s) == (5, 50, 120.0)
    assert (resumed.device_hours, resumed.lost_device_hours) == (12.0, 2.0)
    later = resumed.charge_time(10.0, {"cpu": 1800.0}, {"g": 900.0, "h": 900.0})
    again = saved.charge_lost(later.columns())  # from the same checkpoint
    assert (again.device_hours, again.lost_device_hours, again.wall_s) == (13.0, 3.0, 130.0)
    assert again.sampler_device_hours == {"g": 7.25, "h": 0.25}


def test_a_line_of_an_earlier_release_counts_what_it_has():
    line = {"wall_s": 50.0, "device_hours": 3.0}
    resumed = Ledger(wall_s=20.0, learner_device_hours={"unknown": 1.0}).charge_lost(line)
    assert (resumed.device_hours, resumed.lost_device_hours) == (3.0, 2.0)


def test_the_last_line_that_is_dropped_tells_what_was_lost(tmp_path):
    """Of whichever log; a line that was not whole tells nothing."""
    hours = {"wall_s": 1.0, "device_hours": 1.0, "tokens": 1, "compute": 1}
    path = tmp_path / run_files.METRICS
    for step in (1, 2, 3, 4):
        spent = {"wall_s": 10.0 * step, "device_hours": step, "learner_device_hours": {"c": step}}
        run_files.append_line(path, {**hours, "step": step, **spent})
    with open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps({**hours, "step": 5})[:-3])
    dropped = run_files.cut_back(path, step=2)
    assert dropped is not None and dropped["step"] == 4
    assert [line["step"] for line in run_files.read_lines(path)] == [1, 2]
    assert run_files.cut_back(path, step=2) is None
    assert run_files.cut_back(tmp_path / "nothing", step=2) is None
    state = LoopState(object(), {}, History.empty(1), Ledger(wall_s=20.0, learner_device_hours={"c": 2.0}))  # pyright: ignore[reportArgumentType]
    other = {**hours, "wall_s": 35.0, "device_hours": 3.5, "learner_device_hours": {"c": 3.5}}
    charged = checkpoints.charge_lost(state, [other, dropped]).ledger
    assert (charged.device_hours, charged.lost_device_hours, charged.wall_s) == (4.0, 2.0, 40.0)
    assert checkpoints.charge_lost(state, []) is state


@pytest.mark.slow
def test_a_run_that_dies_pays_for_what_it_does_again(base_run, tmp_path):
    """It dies without a checkpoint and begins again; its logs are those of one that did not, but for what was spent."""
    config = override(override(base_run, "max_compute", 64 * 6), "checkpoint_every_s", 1e9)
    loop.train(config, tmp_path / "undisturbed")

    def die():
        raise MemoryError("the host has none left")

    with builders.before_step(5, die), pytest.raises(OutOfMemory, match="step 5, of 4 x 16 rollouts"):
        loop.train(config, tmp_path / "run")
    logs = [run_files.read_lines(tmp_path / "run" / name) for name in (run_files.METRICS, run_files.EVAL)]
    assert len(logs[0]) == 4
    last = max((lines[-1] for lines in logs), key=lambda line: line["device_hours"])
    loop.train(config, tmp_path / "run")
    builders.assert_same_run(tmp_path / "run", tmp_path / "undisturbed")
    lines = run_files.read_lines(tmp_path / "run" / run_files.METRICS)
    assert {line["lost_device_hours"] for line in lines} == {last["device_hours"]}
    assert lines[0]["device_hours"] > last["device_hours"] > 0 and lines[0]["wall_s"] > last["wall_s"]
