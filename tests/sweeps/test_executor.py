"""Sweeps of real runs: what fails, what is interrupted, what is shared out."""

import dataclasses
import json
import pathlib
import signal
import subprocess
import sys
import typing

import jax
import pytest

from isocompute_jax import model, tasks
from isocompute_jax.experiment.config import EvaluationConfig, RunConfig, SamplingConfig, override
from isocompute_jax.experiment.workdir import locked
from isocompute_jax.learner import OptimizerConfig
from isocompute_jax.records import run_files
from isocompute_jax.records.errors import InputError
from isocompute_jax.records.rollout import Problem
from isocompute_jax.sweeps import books, executor, grid
from tests.experiment import builders
from tests.launch.processes import find, wait_until

BASE = RunConfig(model="m", train_set="t.jsonl", group_size=4, problems_per_batch=8, max_compute=1024)


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> RunConfig:
    """A run of a random model on a few problems."""
    path = tmp_path_factory.mktemp("inputs")
    tasks.save_arithmetic_tokenizer(path / "tokenizer")
    params = model.init_params(builders.MODEL, jax.random.key(0))
    model.save_checkpoint(path / "model", builders.MODEL, params, tokenizer_from=path / "tokenizer")
    # Any text with the right digit counts, so that even a random model is rewarded, and updated.
    problems = [Problem(f"p{i}", f"{i}+{i}=", str(i % 10), "numeric") for i in range(24)]
    tasks.write_problems(path / "train.jsonl", problems[:16])
    tasks.write_problems(path / "validation.jsonl", problems[16:])
    return RunConfig(
        model=str(path / "model"),
        train_set=str(path / "train.jsonl"),
        group_size=16,
        problems_per_batch=2,
        max_compute=32 * 8,
        sampling=SamplingConfig(max_tokens=2),
        optimizer=OptimizerConfig(base_lr=1e-2),
        evaluation=EvaluationConfig(sets={"validation": str(path / "validation.jsonl")}, points=1),
    )


def log_lines(run: pathlib.Path) -> list[dict]:
    """Both logs of a run, without what the clock wrote."""
    lines = run_files.read_lines(run / run_files.METRICS) + run_files.read_lines(run / run_files.EVAL)
    return [{key: value for key, value in line.items() if key not in run_files.WALL_CLOCK_KEYS} for line in lines]


@pytest.mark.slow
def test_a_failing_run_stops_no_other_and_a_warm_cache_changes_no_bit(base, tmp_path, monkeypatch, caplog):
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)  # the user's own cache, which is empty
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", raising=False)
    broken = dataclasses.replace(base, train_set="/no/such/file.jsonl")
    runs = [
        grid.PlannedRun("broken", broken),
        grid.PlannedRun("cold", base),
        grid.PlannedRun("warm", base),  # the same run: one worker, so it starts when `cold` has filled the cache
    ]
    with caplog.at_level("INFO"):
        result = executor.run_sweep(runs, tmp_path, num_workers=1)
    assert (result.done, result.interrupted) == (("cold", "warm"), ()), result.failed
    assert list(result.failed) == ["broken"]
    assert "exit code 2" in result.failed["broken"] and "/no/such/file.jsonl" in result.failed["broken"]
    assert "broken: failed: exit code 2" in caplog.text
    assert len(log_lines(tmp_path / "cold")) == base.num_steps + 2
    assert log_lines(tmp_path / "cold") == log_lines(tmp_path / "warm")
    weights = [(tmp_path / name / "model" / "model.safetensors").read_bytes() for name in ("cold", "warm")]
    assert weights[0] == weights[1]
    assert weights[0] != pathlib.Path(base.model, "model.safetensors").read_bytes()
    assert list((tmp_path / "cache" / "isocompute_jax" / "train").rglob("*-cache"))
    # Again: what is finished starts no process, what is broken is tried again.
    logs = {name: (tmp_path / "logs" / f"{name}.log").stat().st_mtime_ns for name in ("broken", "cold", "warm")}
    again = executor.run_sweep(runs, tmp_path, num_workers=1)
    now = {name: (tmp_path / "logs" / f"{name}.log").stat().st_mtime_ns for name in logs}
    assert again.done == ("cold", "warm") and list(again.failed) == ["broken"]
    assert [name for name in logs if now[name] != logs[name]] == ["broken"]
    # Finished runs of another config are never taken for this one's.
    other = [grid.PlannedRun("cold", dataclasses.replace(base, seed=7))]
    with pytest.raises(InputError, match=r"cold holds a run of another config \(config.seed: 0 there, 7 here\)"):
        executor.run_sweep(other, tmp_path)


@pytest.mark.slow
def test_interrupted_sweep_leaves_no_process_and_resumes(base, tmp_path, monkeypatch):
    monkeypatch.delenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", raising=False)  # small programs too
    config = dataclasses.replace(base, max_compute=32 * 200)
    file = tmp_path / "config.py"
    file.write_text(
        "import json\nfrom isocompute_jax.experiment.config import RunConfig, from_dict\n"
        f"def get_config():\n    return from_dict(json.loads({json.dumps(dataclasses.asdict(config))!r}))\n"
    )
    root = tmp_path / "runs"
    command = [sys.executable, "-m", "isocompute_jax.sweep", f"--config={file}", "--grid=seed=0,1"]
    command += [f"--workdir={root}"]
    # While the workers start up: nothing is lost, so nothing is waited for.
    process = start([*command, "--workers=2"])
    with process:
        wait_until((root / "logs" / "seed=1.log").exists, seconds=300)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=300)
    assert process.returncode == 130, output
    assert find(str(root)) == []
    # While one trains and the other waits.
    command += ["--workers=1"]
    process = start(command)
    with process:
        wait_until(lambda: len(books.tail(root / "seed=0" / run_files.METRICS)) > 2, seconds=300)
        assert len(find(str(root))) == 2
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=300)
    assert process.returncode == 130, output
    assert "interrupted" in output and "the same command resumes" in output
    assert find(str(root)) == []
    steps = len(run_files.read_lines(root / "seed=0" / run_files.METRICS))
    assert 2 < steps < config.num_steps
    assert list((root / "seed=0" / run_files.CHECKPOINTS).iterdir())
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"resuming from step {steps}" in (root / "logs" / "seed=0.log").read_text()
    assert len(run_files.read_lines(root / "seed=0" / run_files.METRICS)) == config.num_steps
    assert "2 done; 100% of 12,800 rollouts" in done.stdout


def start(command: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_two_sweeps_never_share_a_directory(tmp_path):
    with locked(tmp_path, "sweep"), pytest.raises(InputError, match="another sweep is at work"):
        executor.run_sweep([grid.PlannedRun("a", BASE)], tmp_path)


class InstantWorker:
    """A worker that ends on its second poll, and writes DONE."""

    core = None
    interrupted = False
    alive: typing.ClassVar[set[str]] = set()
    seen: typing.ClassVar[list[tuple[str, frozenset[str]]]] = []

    def __init__(self, command, log, *, core, environment):
        del log, core, environment
        [config] = [part.partition("=")[2] for part in command if part.startswith("--resolved_config=")]
        [workdir] = [part.partition("=")[2] for part in command if part.startswith("--workdir=")]
        self.endpoints = json.loads(pathlib.Path(config).read_text())["config"]["service"]["endpoints"]
        self.workdir = pathlib.Path(workdir)
        self.seen.append((self.endpoints, frozenset(self.alive)))
        self.alive.add(self.endpoints)
        self.polls = 0

    def poll(self):
        self.polls += 1
        if self.polls < 2:
            return None
        self.workdir.mkdir(exist_ok=True)
        (self.workdir / run_files.DONE).touch()
        self.alive.discard(self.endpoints)
        return 0

    def kill(self):
        raise AssertionError("nothing to kill")


@pytest.mark.parametrize(("num_workers", "parts"), [(None, {"a:1", "b:2"}), (1, {"a:1,b:2"})])
def test_workers_share_out_the_endpoints(base, tmp_path, monkeypatch, num_workers, parts):
    monkeypatch.setattr(executor, "Worker", InstantWorker)
    monkeypatch.setattr(InstantWorker, "alive", set())
    monkeypatch.setattr(InstantWorker, "seen", [])
    config = override(base, "service.endpoints", "a:1, b:2")
    runs = grid.grid(config, {"seed": tuple(range(6))})
    result = executor.run_sweep(runs, tmp_path, num_workers=num_workers, cores=[0, 1, 2, 3])
    assert len(result.done) == 6
    assert {mine for mine, _ in InstantWorker.seen} == parts
    assert all(mine not in others for mine, others in InstantWorker.seen)  # a server serves one run at a time


def test_more_workers_than_endpoints_and_mixed_endpoints_are_refused(base, tmp_path):
    config = override(base, "service.endpoints", "a:1,b:2")
    with pytest.raises(InputError, match="3 workers cannot share 2 endpoints"):
        executor.run_sweep(grid.grid(config, {"seed": (0,)}), tmp_path, num_workers=3)
    (tmp_path / "servers").write_text("a:1\n")
    listed = override(base, "service.endpoints_file", str(tmp_path / "servers"))
    with pytest.raises(InputError, match="endpoints_file lists the servers of one run, and a sweep has several"):
        executor.shared_endpoints(grid.grid(listed, {"seed": (0, 1)}))
    mixed = grid.grid(base, {"service.endpoints": ("a:1", "b:2")})
    with pytest.raises(InputError, match=r"the same config\.service\.endpoints"):
        executor.run_sweep(mixed, tmp_path)


@pytest.mark.parametrize(("num_workers", "cores"), [(1, None), (2, [0, 1])])
def test_a_worker_alone_has_all_cores(base, tmp_path, monkeypatch, num_workers, cores):
    given = []

    class Sweep:
        def __init__(self, *_, cores, **options):
            given.append(cores)

        def work(self, *_):
            pass

    monkeypatch.setattr(executor, "_Sweep", Sweep)
    executor.run_sweep(grid.grid(base, {"seed": (0, 1)}), tmp_path, num_workers=num_workers, cores=[0, 1])
    assert given == [cores]
