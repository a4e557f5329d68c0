"""The study: every stage does its work once, resumes where it was, and keeps to one preset per directory."""

import dataclasses
import json
import pathlib
import re
import shutil
import typing

import pytest

from isocompute_jax.experiment.config import EvaluationConfig
from isocompute_jax.experiment.curation.config import CurationConfig
from isocompute_jax.experiment.loop import train
from isocompute_jax.records import run_files
from isocompute_jax.records.errors import InputError, RunError
from isocompute_jax.study import stages
from isocompute_jax.study.base_model import BaseModelConfig
from isocompute_jax.study.presets import SMOKE
from isocompute_jax.sweeps.executor import open_state

pytestmark = pytest.mark.slow  # CI's smoke study walks the same stages, and `make test-slow` runs these

BASE = BaseModelConfig(steps=60, batch_size=64, warmup_steps=10)
MICRO = dataclasses.replace(
    SMOKE,
    num_problems=96,
    base=BASE,
    curation=CurationConfig(samples=8, sets=("hard",), validation_size=16),
    run=dataclasses.replace(
        SMOKE.run, max_compute=256, evaluation=EvaluationConfig(samples=4, points=3, first_compute=64)
    ),
    slices=(dataclasses.replace(SMOKE.slices[0], axes={"group_size": (4, 8), "seed": (0,)}),),
)


def times(root: pathlib.Path) -> dict[pathlib.Path, int]:
    """When each file was last written; a sweep's own lock and the compile cache aside."""
    return {path: path.stat().st_mtime_ns for path in root.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def study(tmp_path_factory) -> tuple[pathlib.Path, dict[str, int]]:
    """A finished study, broken off once after every stage, and how often each stage worked."""
    root = tmp_path_factory.mktemp("study") / "micro"
    worked: dict[str, int] = dict.fromkeys(("train_base_model", "curate", "run_sweep", "analyse"), 0)

    class Stop(BaseException):
        pass

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stages, "run_sweep", run_in_this_process)
        for owner, name in ((stages, "train_base_model"), (stages, "curate"), (stages, "run_sweep")):
            patch.setattr(owner, name, counted(getattr(owner, name), name, worked))
        patch.setattr(stages.outputs, "analyse", counted(stages.outputs.analyse, "analyse", worked))
        for following in ("make_problem_sets", "train_slice", "make_report"):
            with patch.context() as broken:
                broken.setattr(stages, following, raises(Stop))
                with pytest.raises(Stop):
                    stages.run_study(MICRO, root, workers=1)
        stages.run_study(MICRO, root, workers=1)
    return root, worked


def run_in_this_process(runs, root, *, num_workers, limits):
    """A sweep without worker processes, which have tests of their own and start slowly."""
    for run in runs:
        train(run.config, root / run.name)
    return open_state(runs, root)


def counted(function, name, counts):
    def call(*args, **kwargs):
        counts[name] += 1
        return function(*args, **kwargs)

    return call


def raises(error):
    def call(*args, **kwargs):
        raise error

    return call


def test_broken_off_after_every_stage_each_stage_works_once(study):
    root, worked = study
    assert worked == {"train_base_model": 1, "curate": 1, "run_sweep": 1, "analyse": 1}
    runs = run_files.find_runs(root / "runs")
    assert [run.name for run in runs] == ["group_size=4,seed=0", "group_size=8,seed=0"]
    assert all(run_files.read_run(run).done for run in runs)


def test_finished_it_does_nothing_again(study):
    root, _ = study
    before = times(root)
    assert stages.run_study(MICRO, root, workers=1) == [root / "report" / "report.html"]
    assert times(root) == before


def test_the_report_and_its_data_are_there(study):
    root, _ = study
    report = (root / "report" / "report.html").read_text()
    assert MICRO.slices[0].question in report
    for title in ("The base model and its problems", "What was run", "What it cost", "How far to trust it"):
        assert title in report
    assert "<svg" in report and not re.search(r"""<link|<script[^>]* src|(src|href)=["']?http""", report)
    summary = json.loads((root / "report" / "summary.json").read_text())
    assert summary["options"]["title"] == MICRO.slices[0].question
    for name in ("answers.csv", "optimal_n.csv"):
        assert (root / "report" / name).exists()


def test_the_problem_sets_are_the_base_models(study):
    root, _ = study
    curation = json.loads((root / "curated" / "curation.json").read_text())
    assert curation["problems"] == MICRO.num_problems
    assert curation["train"]["hard"] + curation["validation"]["hard"] == curation["in_range"]["hard"]
    facts = json.loads((root / "base" / "base_model.json").read_text())
    assert facts["steps"] == 60 and facts["final_loss"] > 0


def test_another_preset_in_the_same_directory_is_refused(study):
    root, _ = study
    before = times(root)
    with pytest.raises(InputError, match=r"holds another study \(study\.base\.steps: 60 there, 61 here\)"):
        stages.run_study(dataclasses.replace(MICRO, base=dataclasses.replace(BASE, steps=61)), root, workers=1)
    assert times(root) == before


def test_a_log_that_changed_makes_the_report_anew(study, monkeypatch, tmp_path):
    root, _ = study
    copy, analysed = tmp_path / "copy", []
    shutil.copytree(root, copy)
    monkeypatch.setattr(stages.outputs, "analyse", lambda runs, *_, **__: analysed.append(runs))
    stages.run_study(MICRO, copy, workers=1)
    assert analysed == []
    log = next((copy / "runs").rglob(run_files.EVAL))
    log.write_text(log.read_text() + "\n")
    stages.run_study(MICRO, copy, workers=1)
    stages.run_study(MICRO, copy, workers=1)
    assert analysed == [[copy / "runs" / "hard"]]


def test_a_failed_run_fails_the_study_and_an_interrupted_sweep_interrupts_it(study, monkeypatch, tmp_path):
    root, _ = study
    for name in ("base", "curated"):
        (tmp_path / name).symlink_to(root / name)

    class Result:
        halted = ""
        interrupted: tuple[str, ...] = ()
        failed: typing.ClassVar = {"group_size=4,seed=0": "exit code 1"}

    monkeypatch.setattr(stages, "run_sweep", lambda *_, **__: Result)
    with pytest.raises(RunError, match="slice hard: 1 of 2 runs failed: group_size=4,seed=0: exit code 1"):
        stages.run_study(MICRO, tmp_path, workers=1)
    Result.interrupted = ("group_size=4,seed=0",)
    with pytest.raises(KeyboardInterrupt):
        stages.run_study(MICRO, tmp_path, workers=1)
