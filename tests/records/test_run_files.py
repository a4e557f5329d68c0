"""Run directories: atomic writes, logs cut back byte for byte, and errors that name the place."""

import dataclasses
import json
import os

import pytest

from isocompute_jax.records import run_files
from isocompute_jax.records.errors import InputError


def log_line(step: int, **values) -> dict:
    return dict(step=step, compute=64 * step, tokens=100 * step, wall_s=0.5, device_hours=0.1, **values)


FACTS = dict(group_size=8, problems_per_batch=4, num_steps=3, problem_set_size=100, model_params=12, seed=7)


def write_run(path, *, config=None, done=True):
    path.mkdir(parents=True, exist_ok=True)
    (path / run_files.CONFIG).write_text(json.dumps(FACTS | {"extra": "kept"} if config is None else config))
    for step in (1, 2):
        run_files.append_line(path / run_files.METRICS, log_line(step, reward=step / 4))
        run_files.append_line(path / run_files.EVAL, log_line(step, eval_set="hard"))
    if done:
        (path / run_files.DONE).write_text("")
    return path


@pytest.mark.parametrize("data", ["text with ü", b"\x00bytes"])
def test_write_atomic_replaces_and_leaves_nothing_else(tmp_path, data):
    path = tmp_path / "file"
    run_files.write_atomic(path, "old")
    run_files.write_atomic(path, data)
    assert path.read_bytes() == (data.encode() if isinstance(data, str) else data)
    assert os.listdir(tmp_path) == ["file"]
    assert path.stat().st_mode & 0o777 == 0o644  # others of the cluster may read it


@pytest.mark.parametrize("broken", ["fsync", "replace"])
def test_write_atomic_keeps_the_old_file_when_writing_fails(tmp_path, monkeypatch, broken):
    path = tmp_path / "file"
    run_files.write_atomic(path, "old")

    def disk_full(*_args, **_kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(run_files.os, broken, disk_full)
    with pytest.raises(OSError, match="No space"):
        run_files.write_atomic(path, "new")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]


def test_what_killed_writers_left_is_removed_and_nothing_else(tmp_path):
    kept = ("metrics.jsonl", ".lock", ".mine", ".model", "exports/step-4/config.json", "checkpoints/.hidden")
    left = (".metrics.jsonl.x1y2", ".DONE.0", ".model.abc/model.safetensors", "exports/.step-8.abc/config.json")
    for name in (*kept, *left):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    run_files.remove_unfinished(tmp_path)
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()) == sorted(kept)


def test_appended_lines_are_read_back(tmp_path):
    path = tmp_path / "metrics.jsonl"
    assert run_files.read_lines(path) == []
    lines = [log_line(step, reward=0.1 * step, note="ü") for step in range(3)]
    for line in lines:
        run_files.append_line(path, line)
    assert run_files.read_lines(path) == lines


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_append_line_refuses_what_json_lacks(tmp_path, value):
    path = tmp_path / "log"
    with pytest.raises(ValueError, match="JSON"):
        run_files.append_line(path, log_line(1, reward=value))
    assert not path.exists()


@pytest.mark.parametrize("key", run_files.LINE_KEYS)
def test_append_line_refuses_a_line_without_its_keys(tmp_path, key):
    line = log_line(1)
    del line[key]
    with pytest.raises(ValueError, match=key):
        run_files.append_line(tmp_path / "log", line)
    assert not (tmp_path / "log").exists()


@pytest.mark.parametrize("bad", ["{half", "[1, 2]", "17", '"text"'])
def test_read_lines_names_file_and_line(tmp_path, bad):
    path = tmp_path / "eval.jsonl"
    path.write_text(f'{{"step": 1}}\n{bad}\n{{"step": 3}}\n')
    with pytest.raises(InputError, match=r"eval\.jsonl:2: "):
        run_files.read_lines(path)
    with pytest.raises(InputError, match=r"eval\.jsonl:2: "):  # it is not the last line: no killed writer did this
        run_files.read_lines(path, partial_last_line=True)


def test_only_an_unfinished_last_line_may_be_dropped(tmp_path):
    path = tmp_path / "log"
    path.write_text('{"step": 1}\n{"step": 2, "rew')
    assert run_files.read_lines(path, partial_last_line=True) == [{"step": 1}]
    with pytest.raises(InputError, match=":2: "):
        run_files.read_lines(path)
    path.write_text('{"step": 1}\n{"step": 2, "rew\n')  # with its newline the line was written whole, and is broken
    with pytest.raises(InputError, match=":2: "):
        run_files.read_lines(path, partial_last_line=True)


def test_cut_back_keeps_lines_byte_for_byte(tmp_path):
    """Odd spacing and number formats of the kept lines survive; later steps and a half line go."""
    path = tmp_path / "metrics.jsonl"
    kept = b'{"step":0,  "reward": 1.0e-1}\n{"step": 2, "note": "a\\nb"}\n{"step": 2}\n'
    for surplus in (b"", b'{"step": 3}\n{"step": 4}\n', b'{"step": 3}\n{"st', b'{"st', b'{"step": 2}'):
        path.write_bytes(kept + surplus)
        run_files.cut_back(path, step=2)
        assert path.read_bytes() == kept
    run_files.cut_back(path, step=-1)
    assert path.read_bytes() == b""
    run_files.cut_back(tmp_path / "absent", step=1)
    assert os.listdir(tmp_path) == ["metrics.jsonl"]


def test_read_run(tmp_path):
    run = run_files.read_run(write_run(tmp_path / "run"))
    assert run.done
    assert dataclasses.asdict(run.facts) == FACTS
    assert run.config["extra"] == "kept"
    assert [line["reward"] for line in run.metrics] == [0.25, 0.5]
    assert [line["eval_set"] for line in run.evaluations] == ["hard", "hard"]


def test_read_run_tolerates_a_half_line_only_while_unfinished(tmp_path):
    path = write_run(tmp_path / "run", done=False)
    with open(path / run_files.METRICS, "a") as file:
        file.write('{"step": 3, ')
    run = run_files.read_run(path)
    assert not run.done and [line["step"] for line in run.metrics] == [1, 2]
    (path / run_files.DONE).write_text("")
    with pytest.raises(InputError, match=r"metrics\.jsonl:3: "):
        run_files.read_run(path)


def test_read_run_errors_name_the_place(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"empty is not a run directory: it has no config\.json"):
        run_files.read_run(tmp_path / "empty")
    (write_run(tmp_path / "torn") / run_files.CONFIG).write_text('{"seed": ')
    with pytest.raises(InputError, match=r"torn/config\.json: not JSON"):
        run_files.read_run(tmp_path / "torn")
    lacking = {name: value for name, value in FACTS.items() if name not in ("seed", "num_steps")}
    with pytest.raises(InputError, match=r"lacks num_steps, seed"):
        run_files.read_run(write_run(tmp_path / "lacking", config=lacking))


def test_find_runs(tmp_path):
    write_run(tmp_path / "b" / "n8")
    write_run(tmp_path / "a")
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / run_files.CONFIG).write_text("{}")  # a config without evaluations has no curve
    assert run_files.find_runs(tmp_path) == [tmp_path / "a", tmp_path / "b" / "n8"]
    assert run_files.find_runs(tmp_path / "a") == [tmp_path / "a"]
