"""The command: its actions, and flags that do not go together."""

import pytest

from isocompute_jax.experiment.config import RunConfig
from isocompute_jax.sweeps import books, grid
from tests import mains

BASE = RunConfig(model="m", train_set="t.jsonl", group_size=4, problems_per_batch=8, max_compute=1024)
SWEEP = ["--config=configs/arithmetic_hard.py", "--grid=seed=0,1"]


def sweep(*arguments: str):
    return mains.run("isocompute_jax.sweep", arguments)


def test_status_reads_the_directory_alone(tmp_path):
    books.prepare(grid.grid(BASE, {"seed": (0, 1)}), tmp_path)
    books.write_record(tmp_path, "seed=1", books.Record("failed", "slurm", "7", "exit code 2, bad input"))
    done = sweep("status", f"--workdir={tmp_path}")
    assert done.returncode == 0, done.stderr
    assert "1 failed, 1 waiting; 0% of 2,048 rollouts" in done.stdout
    assert "seed=1: failed: exit code 2, bad input" in done.stdout


def test_plan_starts_nothing(tmp_path):
    done = sweep("plan", *SWEEP, f"--workdir={tmp_path / 'sweep'}", "--config.max_compute=4096")
    assert done.returncode == 0, done.stderr
    assert "unknown" in done.stdout and "8,192 rollouts" in done.stdout
    assert not (tmp_path / "sweep").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["status"], "--workdir is missing"),
        (["state", "--workdir=w"], "unexpected argument 'state'"),
        (["cancel", "--workdir=w"], "cancel needs --executor=slurm or kubernetes"),
        ([*SWEEP, "--workdir=w", "--nowait"], "--nowait goes with --executor=slurm or kubernetes"),
        (
            [*SWEEP, "--workdir=w", "--slurm_partition=p"],
            "--slurm_partition goes with --executor=slurm; this is",
        ),
        ([*SWEEP, "--workdir=w", "--executor=slurm", "--kubernetes=f"], "--kubernetes goes with --executor=kubernetes"),
        ([*SWEEP, "--workdir=w", "--topology=h200:1x8"], "--topology goes with `sweep plan`"),
        ([*SWEEP, "--workdir=w", "--max_device_hours=-1"], "--max_device_hours"),
    ],
)
def test_flags_that_do_not_go_together(arguments, message):
    done = sweep(*arguments)
    assert done.returncode == 2 and message in done.stderr, done.stderr
