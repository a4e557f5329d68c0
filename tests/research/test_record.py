"""What a sweep leaves in the gallery, and the command that keeps it."""

import json
import pathlib
from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from isocompute_jax.fit.read import Notes, ReadOptions, read_curves
from isocompute_jax.records import run_files
from isocompute_jax.records.errors import InputError
from research.record import Facts, Sweep, curves_of, read_sweep, record
from tests import mains

SET = [
    {"id": "a", "prompt": "1=", "answer": "1", "avg@16": 0.0},
    {"id": "b", "prompt": "2=", "answer": "2", "avg@16": 0.0625},
]


def write_set(path: pathlib.Path, rows=SET) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def write_run(
    sweep: pathlib.Path,
    *,
    n: int,
    seed: int = 0,
    done: bool = True,
    steps: int = 4,
    fields: Mapping[str, str] | None = None,
) -> pathlib.Path:
    """A run directory of `steps` steps, evaluated before the first, after the second and after the last."""
    path = sweep / f"n={n},seed={seed}"
    path.mkdir(parents=True)
    facts = {"group_size": n, "problems_per_batch": 2, "num_steps": steps, "problem_set_size": 2, "model_params": 100}
    identity = {"train_set": write_set(sweep.parent / "train.jsonl"), "recipe.healthy": "hard", **(fields or {})}
    (path / run_files.CONFIG).write_text(json.dumps({**facts, "seed": seed, "identity": identity}))
    for step in range(steps + 1):
        line = {"step": step, "compute": 2 * n * step, "tokens": 9 * step, "wall_s": 1.0, "device_hours": step / 8}
        if step:
            run_files.append_line(path / run_files.METRICS, {**line, "reward": step / 4, "kl": None})
        if step in (0, 2, steps):
            found = {"eval_set": "validation", "samples": 4, "avg@4": 0.5, "best@4": 1.0, "solve_counts": [step, 0, 4]}
            run_files.append_line(path / run_files.EVAL, {**line, **found})
    if done:
        (path / run_files.DONE).touch()
    return path


@pytest.fixture
def sweep(tmp_path):
    for n in (4, 8):
        write_run(tmp_path / "hard", n=n)
    return tmp_path / "hard"


def test_a_row_for_each_evaluation_with_the_means_since_the_last(sweep, tmp_path):
    record(sweep, tmp_path / "gallery")
    rows = [row for row in read_sweep(tmp_path / "gallery/hard.parquet").table.to_pylist() if row["group_size"] == 8]
    assert [(row["run"], row["seed"], row["step"], row["compute"]) for row in rows] == [
        ("n=8,seed=0", 0, step, 16 * step) for step in (0, 2, 4)
    ]
    assert [row["train/reward"] for row in rows] == [None, pytest.approx((1 + 2) / 8), pytest.approx((3 + 4) / 8)]
    assert [row["train/kl"] for row in rows] == [None] * 3
    assert [row["solve_counts"] for row in rows] == [[0, 0, 4], [2, 0, 4], [4, 0, 4]]


def test_what_runs_share_and_how_they_differ(sweep, tmp_path):
    write_run(sweep, n=16, fields={"recipe.healthy": "easy"})
    record(sweep, tmp_path / "gallery")
    found = read_sweep(tmp_path / "gallery/hard.parquet")
    (digest,) = found.facts.pass_rates
    assert found.facts.pass_rates[digest] == {"0.0": 1, "0.0625": 1}
    assert found.facts.shared["train_set"] == digest and found.facts.shared["seed"] == 0
    assert {run: fields["recipe.healthy"] for run, fields in found.facts.runs.items()} == {
        "n=4,seed=0": "hard", "n=8,seed=0": "hard", "n=16,seed=0": "easy"
    }  # fmt: skip
    assert set(found.table["recipe.healthy"].to_pylist()) == {"hard", "easy"}


def test_sittings_add_up_to_one(sweep, tmp_path):
    """Recorded in two sittings, with a run that was not done in the first and directories removed in between."""
    late = write_run(sweep, n=2, done=False)
    whole = tmp_path / "whole"
    first = record(sweep, tmp_path / "gallery")
    assert first == {"n=4,seed=0": "added", "n=8,seed=0": "added", "n=2,seed=0": "unfinished"}
    (late / run_files.DONE).touch()
    again = record(sweep, tmp_path / "gallery")
    assert again == {"n=4,seed=0": "known", "n=8,seed=0": "known", "n=2,seed=0": "added"}
    before = (tmp_path / "gallery/hard.parquet").read_bytes()
    assert "added" not in record(sweep, tmp_path / "gallery").values()
    assert (tmp_path / "gallery/hard.parquet").read_bytes() == before
    record(sweep, whole)
    kept, anew = read_sweep(tmp_path / "gallery/hard.parquet"), read_sweep(whole / "hard.parquet")
    assert kept.facts == anew.facts

    def ordered(rows):
        return sorted(rows, key=lambda row: (row["run"], row["step"]))

    assert ordered(kept.table.to_pylist()) == ordered(anew.table.to_pylist())


def test_fit_reads_it(sweep, tmp_path):
    for n in (16, 32):
        write_run(sweep, n=n, steps=40)
    record(sweep, tmp_path / "gallery")
    curves, notes = read_curves([str(tmp_path / "gallery/hard.parquet")], ReadOptions())
    assert (sorted(curve.facts.group_size for curve in curves), notes) == ([4, 8, 16, 32], Notes())


def test_bad_input_leaves_the_file_as_it_was(sweep, tmp_path, monkeypatch):
    gallery = tmp_path / "gallery"
    with pytest.raises(InputError, match="has no runs"):
        record(tmp_path / "nowhere", gallery)
    record(sweep, gallery)
    before = (gallery / "hard.parquet").read_bytes()
    write_run(tmp_path / "other", n=4, fields={"recipe.healthy": "easy"})
    with pytest.raises(InputError, match=r"recipe\.healthy = 'hard' in place of 'easy'; give --name"):
        record(tmp_path / "other", gallery, name="hard")
    write_run(sweep, n=32, fields={"model": "gone/base"})
    with pytest.raises(InputError, match="there is no gone/base"):
        record(sweep, gallery)
    monkeypatch.setattr("research.record.LARGEST", 100)
    write_run(tmp_path / "third", n=4)
    with pytest.raises(InputError, match="100 is the most that is kept"):
        record(tmp_path / "third", gallery)
    assert (gallery / "hard.parquet").read_bytes() == before
    assert [path.name for path in gallery.iterdir()] == ["hard.parquet"]


def test_files_that_are_none_of_ours(tmp_path):
    with pytest.raises(InputError, match="does not exist; sweeps beside it: none"):
        read_sweep(tmp_path / "easy.parquet")
    (tmp_path / "text.parquet").write_text("text")
    with pytest.raises(InputError, match="not a Parquet file"):
        read_sweep(tmp_path / "text.parquet")
    pq.write_table(pa.table({"run": ["a"]}), tmp_path / "theirs.parquet")
    with pytest.raises(InputError, match="a table of something else"):
        read_sweep(tmp_path / "theirs.parquet")


def test_curves_are_read_by_size_seed_and_set():
    rows = [
        {"group_size": n, "seed": seed, "eval_set": name, "compute": c, "avg@4": n + seed + c / 1000, "best@4": 1.0}
        for n in (4, 8)
        for seed in (0, 1)
        for name in ("easy", "validation")
        for c in (2000, 0, 1000)
    ]
    sweep = Sweep("made", pa.Table.from_pylist(rows), Facts({}, {}, {}))
    found = curves_of(sweep, "avg@4", "best@4")
    assert sorted(found) == [4, 8]
    np.testing.assert_array_equal(found[8].compute, [1000, 2000])
    np.testing.assert_allclose(found[8].values[1], [[10, 1], [11, 1]])


def test_the_command(sweep, tmp_path):
    done = mains.run("research.gallery", ["record", f"--sweep={sweep}", f"--gallery={tmp_path / 'gallery'}"])
    assert (done.returncode, done.stdout) == (0, "2 runs recorded, 0 there already, 0 not done yet\n")
    done = mains.run("research.gallery", [f"--sweep={sweep}"])
    assert done.returncode == 2 and "gallery record --sweep=DIR" in done.stderr


def test_a_schedule_is_kept_and_reads_back_the_same(sweep, tmp_path):
    path = write_run(sweep, n=2)
    config = json.loads((path / run_files.CONFIG).read_text())
    (path / run_files.CONFIG).write_text(json.dumps(config | {"schedule": "n auto"}))
    lines = run_files.read_lines(path / run_files.METRICS)
    (path / run_files.METRICS).unlink()
    for line in lines:
        run_files.append_line(path / run_files.METRICS, line | {"group_size": 2 * line["step"]})
    record(sweep, tmp_path / "gallery")
    found = read_sweep(tmp_path / "gallery/hard.parquet")
    rows = [row for row in found.table.to_pylist() if row["schedule"]]
    assert [(row["schedule"], row["train/group_size"]) for row in rows] == [
        ("n auto", None),
        ("n auto", 3),
        ("n auto", 7),
    ]
    assert [(row["avg@4_even"], row["avg@4_odd"]) for row in rows] == [(0.5, 0.0), (0.75, 0.0), (1.0, 0.0)]
    assert sorted(curves_of(found, "avg@4")) == [4, 8]
    runs, _ = read_curves([str(tmp_path / "gallery/hard.parquet")], ReadOptions())
    assert {run.run: run.schedule for run in runs} == {"n=4,seed=0": "", "n=8,seed=0": "", "n=2,seed=0": "n auto"}
    assert record(sweep, tmp_path / "gallery")["n=2,seed=0"] == "known"
    (path / run_files.CONFIG).write_text(json.dumps(config))
    with pytest.raises(InputError, match="schedule = 'n auto' in place of None"):
        record(sweep, tmp_path / "gallery")


def test_where_a_frontier_lay_is_not_kept(sweep, tmp_path):
    path = write_run(sweep, n=2)
    config = json.loads((path / run_files.CONFIG).read_text())
    source = f"frontier:{tmp_path}/report/summary.json"
    config["identity"] = config["identity"] | {"schedule.group_size": "4@0,8@64", "schedule.source": source}
    (path / run_files.CONFIG).write_text(json.dumps(config | {"schedule": f"n {source}; rate cosine"}))
    record(sweep, tmp_path / "gallery")
    found = read_sweep(tmp_path / "gallery/hard.parquet")
    assert {row["schedule"] for row in found.table.to_pylist()} == {None, "n frontier; rate cosine"}
    assert found.facts.runs["n=2,seed=0"]["schedule.source"] == "frontier"
