"""Sweeps on SLURM through submitit, with a stand-in for SLURM's programs and a script in place of a run's."""

import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import sys

import pytest
import submitit

from isocompute_jax.experiment.config import RunConfig
from isocompute_jax.records import run_files
from isocompute_jax.records.errors import InputError
from isocompute_jax.sweeps import books, grid, scheduled, slurm
from isocompute_jax.sweeps.jobs import Job, SlurmOptions, Unreachable
from isocompute_jax.sweeps.slurm import refusal
from isocompute_jax.sweeps.watch import Limits
from tests.launch import processes, slurm_programs

BASE = RunConfig(model="m", train_set="t.jsonl", group_size=4, problems_per_batch=8, max_compute=1024)
RUN = """#!/bin/bash
# In place of launch/slurm/run.sh: a run goes on until its folder says DONE or it is told to end.
for flag in "$@"; do [[ $flag == --workdir=* ]] && workdir=${flag#*=}; done
mkdir -p "$workdir"
echo "$*" >>"$workdir/calls"
trap 'echo TERM >>"$workdir/calls"; exit 130' TERM
[[ -e $workdir/code ]] && echo "what went wrong" && exit "$(cat "$workdir/code")"
until [[ -e $workdir/DONE || -e $workdir/../all.done ]]; do sleep 0.05; done
touch "$workdir/DONE"
"""


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """A sweep's directory and its scheduler."""
    for name, value in slurm_programs.install(tmp_path / "slurm").items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PYTHONPATH", str(processes.ROOT))
    monkeypatch.setattr(scheduled, "LOOK_S", 0.2)
    script = tmp_path / "run.sh"
    script.write_text(RUN)
    root = tmp_path / "sweep"
    yield root, slurm.SlurmScheduler(root, SlurmOptions(partition="main", run="--restarts=3"), script)
    numbers = [path.name for path in (tmp_path / "slurm" / "jobs").glob("*")]
    subprocess.run(["scancel", *numbers], check=False)
    processes.wait_until(lambda: not processes.find(str(tmp_path)), "something is left behind", seconds=20)


def runs_of(*seeds: int) -> list[grid.PlannedRun]:
    return grid.grid(BASE, {"seed": seeds})


def state(root: pathlib.Path, name: str) -> str:
    record = books.read_record(root, name)
    return record.state if record else ""


def job_of(root: pathlib.Path, name: str) -> str:
    record = books.read_record(root, name)
    return record.job if record else ""


@pytest.mark.slow
def test_an_array_runs_two_at_a_time_and_what_died_alone_is_handed_in_again(cluster):
    root, scheduler = cluster
    (root / "seed=1").mkdir(parents=True)
    (root / "seed=1" / "code").write_text("1")
    (root / "all.done").touch()
    result = scheduled.run_scheduled(runs_of(0, 1, 2), root, scheduler, at_once=2)
    assert result.done == ("seed=0", "seed=2") and list(result.failed) == ["seed=1"]
    assert "exit code 1, failed\n  what went wrong\n" in result.failed["seed=1"]
    calls = {path.parent.name: path.read_text().splitlines() for path in root.glob("*/calls")}
    assert {name: len(lines) for name, lines in calls.items()} == dict.fromkeys(("seed=0", "seed=1", "seed=2"), 1)
    config = root / "configs" / "seed=0.json"
    flags = f"--model={os.path.abspath('m')} --restarts=3 -- --resolved_config={config} --trust_config"
    assert calls["seed=0"] == [f"--main=train --workdir={root / 'seed=0'} --python={sys.executable} {flags}"]
    text = next((root / "jobs" / "slurm").glob("*_submission.sh")).read_text()
    for line in ("--array=0-2%2", "--partition=main", "--requeue", "--signal=B:USR2@120", "--open-mode=append"):
        assert f"#SBATCH {line}\n" in text
    (root / "seed=1" / "code").unlink()
    again = scheduled.run_scheduled(runs_of(0, 1, 2), root, scheduler)
    assert again.done == ("seed=0", "seed=1", "seed=2") and not again.failed
    assert [len(path.read_text().splitlines()) for path in sorted(root.glob("*/calls"))] == [1, 2, 1]


CURATION = """#!/bin/bash
until [[ -e "$1" ]]; do sleep 0.05; done
"""


@pytest.mark.slow
def test_no_run_starts_before_the_curation_has_succeeded(cluster, tmp_path):
    root, scheduler = cluster
    root.mkdir()
    (root / "all.done").touch()
    script, curated = tmp_path / "curate.sh", tmp_path / "curated"
    script.write_text(CURATION)
    command = ["sbatch", "--parsable", f"--output={tmp_path}/log", str(script), str(curated)]
    curation = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    after = slurm.SlurmScheduler(root, SlurmOptions(after=curation), scheduler._script)
    scheduled.run_scheduled(runs_of(0, 1), root, after, wait=False)
    text = next((root / "jobs" / "slurm").glob("*_submission.sh")).read_text()
    assert f"#SBATCH --dependency=afterok:{curation}\n" in text
    waiting = scheduled.run_scheduled(runs_of(0, 1), root, after, wait=False)
    assert waiting.names("queued") == ("seed=0", "seed=1")
    folder = tmp_path / "slurm" / "jobs"
    processes.wait_until(lambda: (folder / curation / "state").read_text() == "RUNNING", "the curation starts")
    assert {path.name: (path / "state").read_text() for path in folder.iterdir() if path.name != curation} == {
        job_of(root, name): "PENDING" for name in ("seed=0", "seed=1")
    }
    assert not list(root.glob("*/calls"))
    curated.touch()
    result = scheduled.run_scheduled(runs_of(0, 1), root, after)
    assert result.done == ("seed=0", "seed=1") and (folder / curation / "state").read_text() == "COMPLETED"


@pytest.mark.slow
def test_what_is_with_the_scheduler_is_not_handed_in_twice_and_cancel_and_requeue_end_whole_runs(cluster):
    root, scheduler = cluster
    scheduled.run_scheduled(runs_of(0, 1), root, scheduler, wait=False)
    calls = {seed: root / f"seed={seed}" / "calls" for seed in (0, 1)}
    processes.wait_until(lambda: all(path.exists() for path in calls.values()), "both start", seconds=30)
    result = scheduled.run_scheduled(runs_of(0, 1), root, scheduler, wait=False)
    assert result.names("running") == ("seed=0", "seed=1")
    found = books.read_state(books.planned_runs(root), root)  # what `status` shows
    assert found.states == {"seed=0": "running", "seed=1": "running"}
    assert scheduled.requeue(root, scheduler, ["seed=0"]) == ["seed=0"]
    processes.wait_until(lambda: len(calls[0].read_text().splitlines()) == 3, "it starts again", seconds=30)
    assert calls[0].read_text().splitlines()[1] == "TERM"
    assert scheduled.cancel(root, scheduler, ["seed=1"]) == ["seed=1"]
    processes.wait_until(lambda: not scheduler.active([job_of(root, "seed=1")]), "it ends", seconds=30)
    assert state(root, "seed=1") == "interrupted" and calls[1].read_text().endswith("TERM\n")
    assert len(calls[0].read_text().splitlines()) == 3  # the other one goes on
    with pytest.raises(InputError, match="--only: 'seed=7' is no run"):
        scheduled.cancel(root, scheduler, ["seed=7"])


def test_a_job_that_is_gone_without_a_word_has_failed(cluster):
    root, scheduler = cluster
    scheduled.run_scheduled(runs_of(0), root, scheduler, wait=False)
    processes.wait_until((root / "seed=0" / "calls").exists, "it starts", seconds=30)
    [pid] = {int(path.read_text()) for path in root.parent.glob("slurm/jobs/*/pid")}
    os.killpg(pid, signal.SIGKILL)
    job = job_of(root, "seed=0")
    processes.wait_until(lambda: not scheduler.active([job]), "SLURM sees it", seconds=30)
    assert state(root, "seed=0") == "running"
    watcher = scheduled._Scheduled(books.read_state(runs_of(0), root), scheduler)
    watcher.jobs = {"seed=0": job}
    assert watcher.look() == ["seed=0"]
    assert books.read_state(runs_of(0), root).reasons["seed=0"].startswith(f"job {job} is gone without a word")
    (root / "all.done").touch()
    assert scheduled.run_scheduled(runs_of(0), root, scheduler).done == ("seed=0",)  # handed in again


@pytest.mark.slow
def test_a_spent_budget_has_runs_stop_and_hands_nothing_in_until_it_is_raised(cluster, monkeypatch):
    root, scheduler = cluster
    hours = {"seed=0": 0.0, "seed=1": 0.0}
    monkeypatch.setattr(books, "device_hours_of", lambda path: hours[path.name])
    monkeypatch.setattr("isocompute_jax.sweeps.watch.BUDGET_EVERY_S", 0.0)

    def look(*_):
        if all((root / name / "calls").exists() for name in hours):
            hours["seed=1"] = 2.5

    monkeypatch.setattr(scheduled.status, "display", lambda *_: ShowWith(look))
    limits = Limits(max_device_hours=2.0)
    result = scheduled.run_scheduled(runs_of(0, 1), root, scheduler, limits=limits)
    assert result.halted == "--max_device_hours=2 is spent (2.5)"
    assert result.interrupted == ("seed=0", "seed=1") and not result.failed
    assert state(root, "seed=0") == "interrupted" and (root / "seed=0" / "calls").read_text().endswith("TERM\n")
    again = scheduled.run_scheduled(runs_of(0, 1), root, scheduler, limits=limits)
    assert again.halted and len((root / "seed=0" / "calls").read_text().splitlines()) == 2
    (root / "all.done").touch()
    more = scheduled.run_scheduled(runs_of(0, 1), root, scheduler, limits=Limits(max_device_hours=3.0))
    assert more.done == ("seed=0", "seed=1") and not more.halted


class ShowWith:
    """In place of the display."""

    def __init__(self, show):
        self._show = show

    def __enter__(self):
        return self._show

    def __exit__(self, *_):
        return None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"partition": "none"}, "invalid partition specified: none; .*; see --slurm_partition=none"),
        ({"more": "gres"}, "--slurm_more=gres: 'gres' is no name=value"),
    ],
)
def test_a_scheduler_that_refuses_is_quoted_and_the_flag_named(cluster, options, message):
    root, scheduler = cluster
    refused = slurm.SlurmScheduler(root, SlurmOptions(**options), scheduler._script)
    with pytest.raises(InputError, match=message):
        scheduled.run_scheduled(runs_of(0, 1), root, refused)
    assert books.read_state(runs_of(0, 1), root).states == {"seed=0": "waiting", "seed=1": "waiting"}


@pytest.mark.parametrize(
    ("said", "flag"),
    [
        ("Invalid account or account/partition combination specified", "--slurm_account=a"),
        ("Requested time limit is invalid (missing or exceeds some limit)", "--slurm_time_min=720"),
        ("Job dependency problem", "--after=7"),
        ("Invalid feature specification", "--slurm_constraint=fast"),
    ],
)
def test_refusals_name_their_flag(said, flag):
    options = SlurmOptions(account="a", after="7", constraint="fast")
    assert refusal(f"sbatch: error: {said}\n", options).endswith(f"{said}; see {flag}")


def test_without_slurm_and_without_an_answer(cluster, tmp_path, monkeypatch):
    root, scheduler = cluster
    (tmp_path / "slurm" / "down").touch()
    with pytest.raises(Unreachable, match="Unable to contact slurm controller"):
        scheduler.active(["1"])
    books.write_record(root, "seed=0", books.Record("running", "slurm", "101"))
    with pytest.raises(InputError, match="--executor=slurm does not answer"):
        scheduled.run_scheduled(runs_of(0), root, scheduler)
    books.write_record(root, "seed=0", books.Record("running", "kubernetes", "x"))
    with pytest.raises(InputError, match="run seed=0 is with kubernetes"):
        scheduled.run_scheduled(runs_of(0), root, scheduler)
    with monkeypatch.context() as patch, pytest.raises(InputError, match="there is no sbatch on PATH"):
        patch.setenv("PATH", "/nowhere")
        slurm.SlurmScheduler(root, SlurmOptions())


def test_runs_must_not_share_a_server_and_limits_need_a_watcher(cluster):
    root, scheduler = cluster
    config = dataclasses.replace(BASE, service=dataclasses.replace(BASE.service, endpoints="a:1"))
    with pytest.raises(InputError, match="every run starts servers of its own"):
        scheduled.run_scheduled([grid.PlannedRun("a", config)], root, scheduler)
    with pytest.raises(InputError, match="--nowait goes without --max_device_hours"):
        scheduled.run_scheduled(runs_of(0), root, scheduler, wait=False, limits=Limits(max_device_hours=1.0))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # the debug one leaves its logs open
@pytest.mark.parametrize("executor", [submitit.LocalExecutor, submitit.DebugExecutor])
def test_a_run_under_submitits_own_executors(cluster, tmp_path, executor):
    root, scheduler = cluster
    (root / "a").mkdir(parents=True)
    (root / "a" / "DONE").touch()
    job = Job("a", "train", root / "a", ("--resolved_config=c.json",), "m", root)
    found = executor(tmp_path / "submitit").submit(slurm.BatchRun(job, SlurmOptions(), scheduler._script))
    assert found.result() is None
    record = json.loads((root / "jobs" / "a.json").read_text())
    assert (record["state"], record["scheduler"], record["job"]) == ("done", "slurm", found.job_id)
    assert (root / "a" / run_files.DONE).exists()
