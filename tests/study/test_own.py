"""A study of a model and problems that are given."""

import dataclasses
import json
import pathlib

import pytest

from isocompute_jax.experiment.config import EvaluationConfig
from isocompute_jax.experiment.curation.config import CurationConfig
from isocompute_jax.records import run_files
from isocompute_jax.records.errors import InputError, RunError
from isocompute_jax.study import stages
from isocompute_jax.study.plan import print_study
from isocompute_jax.study.presets import HARD, OwnStudy, Preset, default_run, own_preset
from isocompute_jax.sweeps import slurm
from isocompute_jax.sweeps.jobs import SlurmOptions
from isocompute_jax.sweeps.watch import Limits
from tests import mains
from tests.experiment import builders
from tests.launch import processes, slurm_programs

ALL = CurationConfig(samples=4, sets=(), ranges={"all": (0.0, 1.0)}, validation_size=8)


def make_preset(folder: pathlib.Path) -> Preset:
    """A random model on 24 problems, all of which are one set."""
    run = builders.make_inputs(folder)
    run = dataclasses.replace(
        run, max_compute=256, evaluation=EvaluationConfig(samples=4, k=4, points=3, first_compute=64)
    )
    problems = folder / "problems.jsonl"
    problems.write_text((folder / "train.jsonl").read_text() + (folder / "validation.jsonl").read_text())
    own = OwnStudy(group_sizes=(4, 8), seeds=1)
    return own_preset(run, model=run.model, problems=str(problems), own=own, curation=ALL)


def test_the_preset_sweeps_n_on_each_set_with_its_healthy_recipe(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "p.jsonl").touch()
    given = {"model": str(tmp_path / "model"), "problems": str(tmp_path / "p.jsonl")}
    found = own_preset(default_run(), own=OwnStudy(), curation=CurationConfig(), **given)
    assert [part.name for part in found.slices] == ["easy", "hard"]
    assert found.slices[1].overrides == {"recipe.healthy": "hard"}
    runs = stages.planned_runs(found, found.slices[0], tmp_path / "study")
    assert len(runs) == 10 and {run.config.model for run in runs} == {given["model"]}
    assert runs[0].config.train_set == str(tmp_path / "study" / "curated" / "easy" / "train.jsonl")
    made = given | {"problems": "words:20,gym:chain_sum:5"}
    assert own_preset(default_run(), own=OwnStudy(), curation=CurationConfig(), **made).problems == made["problems"]
    with pytest.raises(InputError, match="--problems=/none: there is no such file"):
        own_preset(default_run(), own=OwnStudy(), curation=CurationConfig(), **(given | {"problems": "/none"}))
    with pytest.raises(InputError, match="--model=/none: there is no such directory"):
        own_preset(default_run(), own=OwnStudy(), curation=CurationConfig(), **(given | {"model": "/none"}))
    with pytest.raises(InputError, match="--group_sizes=8: a study compares two or more"):
        OwnStudy(group_sizes=(8,))


def test_the_budget_is_that_of_all_slices(tmp_path, monkeypatch):
    preset = dataclasses.replace(
        make_preset(tmp_path), slices=(dataclasses.replace(HARD, name="easy", problem_set="easy"), HARD)
    )
    monkeypatch.setattr(stages, "spent_device_hours", lambda directory, _: {"easy": 3.0, "hard": 9.0}[directory.name])
    assert stages.left_of(Limits(max_device_hours=10.0), preset, HARD, tmp_path) == Limits(max_device_hours=7.0)
    assert stages.left_of(Limits(max_device_hours=2.0), preset, HARD, tmp_path).max_device_hours == 0.0
    assert stages.left_of(Limits(), preset, HARD, tmp_path) == Limits()


def test_a_curation_as_a_job_is_the_same_curation(tmp_path):
    """Its flags are ones that the main takes, and say what the config says."""
    curation = CurationConfig(
        sets=("easy", "hard"), mixtures={"half": {"easy": 0.5, "hard": 0.5}}, ranges={"r": (0.2, 0.5)}
    )
    flags = stages.curation_flags(curation)
    assert {"--sets=easy,hard", "--mixture=half=easy:0.5,hard:0.5", "--set=r=0.2:0.5", "--samples=16"} <= set(flags)
    job = stages.curation_job(make_preset(tmp_path), tmp_path)
    written = json.loads((tmp_path / "curation.config.json").read_text())["config"]
    assert written["sampling"]["max_tokens"] == 2
    assert f"--resolved_config={tmp_path / 'curation.config.json'}" in job.flags
    done = mains.run("isocompute_jax.curate", [*job.flags, *flags, "--out=o", "--only_check_args"])
    assert done.returncode == 0, done.stderr


def test_the_plan_says_what_is_drawn_and_run(tmp_path, capsys):
    print_study(make_preset(tmp_path), tmp_path / "study", "")
    text = capsys.readouterr().out
    assert "Curation: 24 problems x 4 samples = 96 rollouts" in text
    assert "Slice all" in text and "group_size=8,seed=0" in text and "device-hours unknown" in text
    assert not (tmp_path / "study").exists()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--model=m"], "give both --model and --problems"),
        (["--model=m", "--problems=p"], "--workdir is missing"),
        (["--model=m", "--problems=p", "--workdir=w", "--preset=full"], "--preset is no flag of a study of --model"),
        (["--group_sizes=4,8"], "--group_sizes is no flag of a preset"),
        (["--executor=slurm"], "--executor=slurm is for studies of --model and --problems"),
    ],
)
def test_flags_that_do_not_go_together(flags, message):
    done = mains.run("isocompute_jax.study", flags)
    assert done.returncode == 2 and message in done.stderr, done.stderr


@pytest.mark.slow
def test_on_slurm_curation_and_runs_are_jobs(tmp_path, monkeypatch):
    """With the real batch script and real processes; the runs sample in the learner."""
    preset, root = make_preset(tmp_path), tmp_path / "study"
    for name, value in (
        slurm_programs.install(tmp_path / "slurm") | builders.compile_cache(tmp_path / "cache")
    ).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PYTHONPATH", str(processes.ROOT))
    monkeypatch.setattr("isocompute_jax.sweeps.scheduled.LOOK_S", 0.2)

    def cluster(folder):
        return slurm.SlurmScheduler(folder, SlurmOptions())

    [report] = stages.run_study(preset, root, workers=None, cluster=cluster)
    assert preset.run.model in report.read_text() and "All problems: how many rollouts" in report.read_text()
    assert len(run_files.find_runs(root / "runs" / "all")) == 2 and not (root / "base").exists()
    assert all(run_files.read_run(run).done for run in run_files.find_runs(root / "runs" / "all"))
    jobs = sorted(path.name for path in (tmp_path / "slurm" / "jobs").iterdir())
    assert jobs == ["101", "102_0", "102_1"]
    (root / "curated" / "curation.json").unlink()
    broken = dataclasses.replace(preset, problems=str(tmp_path / "none.jsonl"))
    with pytest.raises(RunError, match=r"the curation is not done \(failed: exit code 2"):
        stages.make_problem_sets(broken, root, cluster=cluster)
