"""What commit d6f90a3 wrote (see `make.py`) is resumed, fitted and reported by today's code."""

import csv
import dataclasses
import json
import os
import pathlib
import shutil

import pytest

from isocompute_jax.allocation.schedule import optimal_group_sizes
from isocompute_jax.experiment.config import EvaluationConfig, from_dict, override
from isocompute_jax.experiment.curation.config import CurationConfig
from isocompute_jax.experiment.loop import train
from isocompute_jax.fit import ReadOptions, analyze
from isocompute_jax.fit.read import read_curves
from isocompute_jax.records import run_files
from isocompute_jax.records.errors import Field, InputError
from isocompute_jax.records.identity import IDENTITY, identity, identity_of
from isocompute_jax.study import stages
from isocompute_jax.study.base_model import BaseModelConfig
from isocompute_jax.study.presets import SMOKE
from isocompute_jax.study.report_sections import title_of
from isocompute_jax.sweeps.executor import check_directories, open_state, run_sweep
from isocompute_jax.sweeps.grid import grid

INTERRUPTED = pathlib.Path("sweep/group_size=16,seed=1")
AXES = {"group_size": (4, 8, 16), "seed": (0, 1)}
STUDY = dataclasses.replace(
    SMOKE,
    num_problems=96,
    base=BaseModelConfig(steps=60, batch_size=64, warmup_steps=10),
    curation=CurationConfig(samples=8, sets=("hard",), validation_size=16),
    run=dataclasses.replace(
        SMOKE.run, max_compute=256, evaluation=EvaluationConfig(samples=4, points=3, first_compute=64)
    ),
    slices=(dataclasses.replace(SMOKE.slices[0], axes={"group_size": (4, 8), "seed": (0,)}),),
)


@pytest.fixture(autouse=True)
def old(tmp_path, monkeypatch):
    """The artefacts, in a working directory of their own; the paths in them are relative to it."""
    shutil.unpack_archive(pathlib.Path(__file__).with_name("d6f90a3.tar.gz"), tmp_path, filter="data")
    monkeypatch.chdir(tmp_path)


def config_of(run: pathlib.Path):
    return from_dict(json.loads((run / run_files.CONFIG).read_text())["config"])


def times(root: str) -> dict[pathlib.Path, int]:
    return {path: path.stat().st_mtime_ns for path in pathlib.Path(root).rglob("*") if path.is_file()}


@pytest.mark.slow
def test_an_interrupted_run_resumes_from_its_checkpoint():
    before = {name: (INTERRUPTED / name).read_bytes() for name in (run_files.METRICS, run_files.EVAL)}
    train(config_of(INTERRUPTED), INTERRUPTED)
    assert (INTERRUPTED / run_files.DONE).read_text() == "512 rollouts\n"
    for name, content in before.items():
        assert (INTERRUPTED / name).read_bytes().startswith(content)
    metrics, evaluations = (run_files.read_lines(INTERRUPTED / name) for name in before)
    assert [line["step"] for line in metrics] == list(range(1, 9))
    assert [line["compute"] for line in metrics] == [64 * step for step in range(1, 9)]
    assert evaluations[-1]["step"] == 8 and evaluations[-1]["evaluation_rollouts"] == 32 * len(evaluations)
    assert metrics[-1]["tokens"] > metrics[4]["tokens"] and metrics[-1]["wall_s"] > metrics[4]["wall_s"]
    assert set(metrics[4]) <= set(metrics[-1]) and set(evaluations[0]) <= set(evaluations[-1])
    # The optimizer continues with its moments and its warm-up: no step is as in a run that starts.
    assert metrics[5]["learning_rate"] == metrics[4]["learning_rate"] > metrics[0]["learning_rate"]
    assert (INTERRUPTED / "model" / "model.safetensors").exists()


@pytest.mark.slow
def test_a_run_of_today_is_a_replicate_of_the_old_ones(tmp_path):
    config = dataclasses.replace(config_of(INTERRUPTED), seed=2)
    train(config, tmp_path / "today")
    ours, theirs = (json.loads((run / run_files.CONFIG).read_text()) for run in (tmp_path / "today", INTERRUPTED))
    assert IDENTITY in ours and IDENTITY not in theirs
    assert identity_of(ours) == identity_of(theirs)


@pytest.mark.slow
def test_a_sweep_resumes_and_leaves_finished_runs_alone():
    runs = grid(config_of(INTERRUPTED), AXES)
    check_directories(runs, "sweep")
    assert open_state(runs, "sweep").names("waiting") == (INTERRUPTED.name,)
    finished = {path: time for path, time in times("sweep").items() if INTERRUPTED not in path.parents}
    result = run_sweep(runs, "sweep", num_workers=1)
    assert not result.failed and len(result.done) == len(runs)
    assert finished.items() <= times("sweep").items()
    other = grid(override(config_of(INTERRUPTED), "optimizer.base_lr", 1e-3), AXES)
    with pytest.raises(InputError, match=r"config\.optimizer\.base_lr: 0\.02 there, 0\.001 here"):
        check_directories(other, "sweep")


def test_a_seed_of_today_is_pooled_with_the_old_ones():
    for number in (2, 3):  # as today's code would have written it
        run = pathlib.Path(f"sweep/group_size=8,seed={number}")
        shutil.copytree("sweep/group_size=8,seed=1", run)
        content = json.loads((run / run_files.CONFIG).read_text())
        config = dataclasses.replace(config_of(run), seed=number)
        content |= {"seed": number, "config": dataclasses.asdict(config), IDENTITY: identity(config)}
        (run / run_files.CONFIG).write_text(json.dumps(content))
    curves, notes = read_curves(["sweep"], ReadOptions())
    assert len(curves) == 8 and not any("configuration" in text for text in notes.texts)
    assert len({repr(sorted(curve.identity.items())) for curve in curves}) == 3


@pytest.mark.slow
def test_its_runs_are_fitted_seeds_together():
    result = analyze(["sweep"], questions=False)
    with open("fit/fits.csv") as old:
        expected = {(row["run"], int(row["group_size"]), int(row["num_seeds"])) for row in csv.DictReader(old)}
    configurations = [(band.configuration, len(band.seeds)) for band in result.curves]
    assert {(each.name, each.group_size, seeds) for each, seeds in configurations} == expected
    assert {seeds for _, seeds in configurations} == {2}


def test_its_fit_is_a_schedule():
    found = optimal_group_sizes("fit/summary.json", Field("group_size", "config.schedule."), problem_set_size=12)
    with open("fit/frontier.csv") as old:
        leaders = [int(row["group_size"]) for row in csv.DictReader(old)]
    assert found.values[0] == leaders[0] and set(found.values) <= set(leaders)


def test_a_finished_study_is_left_alone_and_its_summary_is_read():
    before = times("study")
    [report] = stages.run_study(STUDY, "study", workers=1)
    assert report == pathlib.Path("study/report/report.html")
    assert times("study") == before
    assert title_of(report) == STUDY.slices[0].question


@pytest.mark.slow
def test_the_report_of_an_old_study_is_made_anew():
    pathlib.Path("study/curated/histogram.svg").write_text('<svg xmlns="http://www.w3.org/2000/svg"/>')
    os.remove("study/report/inputs.json")
    [report] = stages.run_study(STUDY, "study", workers=1)
    text = report.read_text()
    for title in ("The base model and its problems", "What was run", "What it cost", "How far to trust it"):
        assert title in text
