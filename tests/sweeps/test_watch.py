"""A spent budget ends a sweep of this machine early."""

import json
import pathlib
import subprocess
import types

import numpy as np
import pytest

from isocompute_jax.experiment.config import EvaluationConfig, RunConfig
from isocompute_jax.fit.curves.forms import hill
from isocompute_jax.plan.roofline import Range
from isocompute_jax.records import run_files
from isocompute_jax.sweeps import books, estimate, executor, grid
from isocompute_jax.sweeps.watch import Limits
from tests.launch.processes import wait_until

BASE = RunConfig(
    model="m", train_set="t.jsonl", group_size=4, problems_per_batch=8, max_compute=2**18,
    evaluation=EvaluationConfig(sets={"validation": "v.jsonl"}),
)  # fmt: skip
RUNS = grid.grid(BASE, {"group_size": (2, 32), "seed": (0, 1)})


def write_logs(root: pathlib.Path, run: grid.PlannedRun, share: float, asymptote: float, hours: float = 0.1) -> None:
    """The run directory of a run that has come so far."""
    path, config = root / run.name, run.config
    path.mkdir(parents=True)
    facts = {"group_size": config.group_size, "problems_per_batch": 8, "num_steps": config.num_steps}
    facts |= {"problem_set_size": 100, "model_params": 1, "seed": config.seed}
    (path / run_files.CONFIG).write_text(json.dumps(facts | {"config": {"group_size": config.group_size}}))
    rng = np.random.default_rng([config.group_size, config.seed])
    grid_of = [0.0, *np.geomspace(2048, config.max_compute, 15)]
    for compute in grid_of[: round(share * 15) + 1]:
        reward = float(hill(max(compute, 1e-9), 0.1, asymptote, 2e4, 1.2)) + 0.003 * rng.normal()
        line = {"step": int(compute // config.rollouts_per_step), "compute": int(compute), "tokens": 1, "wall_s": 1.0}
        line |= {"device_hours": hours * compute / config.max_compute, "eval_set": "validation", "avg@4": reward}
        run_files.append_line(path / run_files.EVAL, line)


class EndlessWorker:
    """A worker that ends when it is interrupted."""

    core = None

    def __init__(self, command, log, *, core, environment):
        self.interrupted = False

    def poll(self):
        return 130 if self.interrupted else None

    def interrupt(self):
        self.interrupted = True

    def kill(self):
        return None


def test_a_spent_budget_interrupts_workers_and_starts_none(tmp_path, monkeypatch):
    write_logs(tmp_path, RUNS[0], 0.5, 0.5, hours=4.0)
    monkeypatch.setattr(executor, "Worker", EndlessWorker)
    monkeypatch.setattr(executor, "check_directories", lambda *_: None)
    limits = Limits(max_device_hours=0.3)
    result = executor.run_sweep(RUNS, tmp_path, num_workers=2, cores=[0], limits=limits)
    spent = books.spent_device_hours(tmp_path, [RUNS[0].name])
    assert result.halted == f"--max_device_hours=0.3 is spent ({spent:.4g})" and spent > 0.3
    assert len(result.interrupted) == 4 and not result.failed
    state = books.read_state(books.planned_runs(tmp_path), tmp_path)
    assert "running" not in state.states.values()


def test_device_hours_of_what_has_run_and_of_what_was_compiled(tmp_path, monkeypatch):
    for step in range(1, 9):
        line = {"step": step, "compute": 1, "tokens": 1, "wall_s": 1.0, "device_hours": 1.0 + 0.5 * step}
        (tmp_path / RUNS[0].name).mkdir(exist_ok=True)
        run_files.append_line(tmp_path / RUNS[0].name / run_files.METRICS, line)
    found = estimate.estimates(RUNS, tmp_path)
    steps = RUNS[0].config.num_steps
    assert found[RUNS[0].name] == found[RUNS[1].name] == estimate.DeviceHours(0.5 * steps, 0.5 * steps)
    assert found[RUNS[2].name] is None
    text = estimate.summary(found, 5.0, 100.0)
    assert text.startswith(f"{estimate.span(steps, steps)} device-hours without 2 runs of which nothing is known; ")
    assert text.endswith("5 spent; --max_device_hours=100 is too little")
    calls = []

    def dry_run(command, **_):
        calls.append(command)
        [out] = [part.partition("=")[2] for part in command if part.startswith("--plan_out=")]
        pathlib.Path(out).write_text(json.dumps({"fits": True, "step_s": [1.0, 2.0]}))
        return subprocess.CompletedProcess(command, 0, "", "")

    def price_again(config, figures):
        ends = (config.max_compute * seconds / 2**18 * 10.0 for seconds in figures["step_s"])
        return types.SimpleNamespace(device_hours=Range(*ends))

    monkeypatch.setattr(estimate, "price_again", price_again)
    monkeypatch.setattr(estimate.subprocess, "run", dry_run)
    shorter = grid.grid(BASE, {"group_size": (2, 32), "seed": (0,), "max_compute": (2**17, 2**18)})
    for runs in (RUNS, shorter):
        compiled = estimate.estimates(runs, tmp_path, "h200:1x8")
    assert len(calls) == 2  # one for each n: neither seeds nor budgets are compiled anew
    assert [(each.low, each.high) for each in compiled.values() if each] == [(5.0, 10.0), (10.0, 20.0)] * 2
    assert estimate.as_text(estimate.DeviceHours(0.0, 0.0, False)) == "does not fit"


def test_a_worker_of_a_sweep_that_is_gone_does_not_run(tmp_path):
    books.prepare(RUNS, tmp_path)
    assert books.names_of(tmp_path) == [run.name for run in RUNS]
    books.write_record(tmp_path, RUNS[0].name, books.Record("running"))
    books.write_record(tmp_path, RUNS[1].name, books.Record("failed", reason="why"))
    found = books.read_state(RUNS, tmp_path)
    assert list(found.states.values()) == ["interrupted", "failed", "waiting", "waiting"]
    with executor.locked(tmp_path, "sweep"):
        assert books.read_state(RUNS, tmp_path).states[RUNS[0].name] == "running"
    assert wait_until(lambda: not books.is_held(tmp_path))
    with pytest.raises(executor.InputError, match="is no sweep's directory"):
        books.planned_runs(tmp_path / "none")
