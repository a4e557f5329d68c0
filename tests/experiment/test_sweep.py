"""Sweeps: what a grid plans, and what happens to its processes."""

import dataclasses
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import textwrap
import time
import typing

import jax
import pytest

from isocompute_jax import model, tasks
from isocompute_jax import sweep as main
from isocompute_jax.experiment import sweep, sweep_status, workers
from isocompute_jax.experiment.config import EvaluationConfig, RunConfig, SamplingConfig, override
from isocompute_jax.experiment.workdir import locked
from isocompute_jax.learner import OptimizerConfig
from isocompute_jax.records import run_files
from isocompute_jax.records.errors import InputError
from isocompute_jax.records.rollout import Problem
from tests.experiment import builders

BASE = RunConfig(model="m", train_set="t.jsonl", group_size=4, problems_per_batch=8, max_compute=1024)


# --- the grid


def test_grid_is_the_product_in_a_stable_order():
    runs = sweep.grid(BASE, {"seed": [0, 1], "group_size": [2, 8], "optimizer.base_lr": [1e-4]})
    assert [(run.config.seed, run.config.group_size) for run in runs] == [(0, 2), (0, 8), (1, 2), (1, 8)]
    assert all(run.config.optimizer.base_lr == 1e-4 for run in runs)
    assert runs[1].name == "group_size=8,seed=0,optimizer.base_lr=0.0001"


def test_names_do_not_depend_on_the_order_of_the_axes():
    one = sweep.grid(BASE, {"seed": [0, 1], "group_size": [2, 8]})
    other = sweep.grid(BASE, {"group_size": [2, 8], "seed": [0, 1]})
    assert {run.name for run in one} == {run.name for run in other}


def test_names_are_safe_and_unique():
    paths = ["data/a b.jsonl", "data/a_b.jsonl", "x" * 300, "x" * 300 + "y"]
    names = [run.name for run in sweep.grid(BASE, {"train_set": paths})]
    assert len(set(names)) == 4
    assert all(re.fullmatch(r"[A-Za-z0-9._=,+~-]{1,200}", name) for name in names)


def test_grid_leaves_out_what_is_over_a_limit(caplog):
    with caplog.at_level("INFO"):
        runs = sweep.grid(BASE, {"group_size": [2, 16, 256]}, max_rollouts_per_step=64)
        large = sweep.grid(BASE, {"group_size": [2, 256]})
    assert [run.config.group_size for run in runs] == [2]
    assert [run.config.group_size for run in large] == [2]
    assert "left out: group_size=16 (B = 128 rollouts per step is above B_max = 64)" in caplog.text
    assert "left out: group_size=256 (C_max = 1024 is less than one step of 2048 rollouts)" in caplog.text


def test_tied_axes_change_together():
    runs = sweep.grid(BASE, {**sweep.fixed_rollouts_per_step(32, [2, 4]), "seed": [0, 1]})
    assert [(run.config.group_size, run.config.problems_per_batch) for run in runs] == [(2, 16)] * 2 + [(4, 8)] * 2
    assert {run.config.rollouts_per_step for run in runs} == {32}
    assert runs[0].name == "group_size=2,problems_per_batch=16,seed=0"


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        ({"group_sizes": [2]}, "did you mean 'group_size'"),
        ({"optimizer.lr": [2.0]}, "unknown config field config.optimizer.lr"),
        ({"group_size": ["two"]}, "config.group_size = 'two': must be of type int"),
        ({"group_size": [1]}, "run group_size=1: config.group_size = 1"),
        ({"group_size": [2, 2]}, "'group_size' has the value 2 twice"),
        ({"group_size": [2], "group_size+seed": [(2, 0)]}, "stands in another axis"),
        ({"group_size+seed": [(2, 0, 1)]}, "names 2 fields"),
        ({"group_size": []}, "the grid is empty"),
        ({"group_size": [4096]}, "the grid is empty"),
    ],
)
def test_a_bad_grid_is_an_error_that_names_the_field(axes, message):
    with pytest.raises(InputError, match=re.escape(message)):
        sweep.grid(BASE, axes)


def test_fixed_rollouts_per_step_must_divide():
    with pytest.raises(InputError, match="groups of 3"):
        sweep.fixed_rollouts_per_step(32, [2, 3])


def test_one_seed_of_everything_starts_first_and_the_longest_before_the_rest():
    runs = sweep.grid(BASE, {"group_size": [8, 2, 4], "seed": [0, 1]})
    order = [(run.config.seed, run.config.group_size) for run in sweep.start_order(runs)]
    assert order == [(0, 2), (0, 4), (0, 8), (1, 2), (1, 4), (1, 8)]


def test_the_flag_is_parsed_to_the_types_of_the_fields():
    axes = main.parse_grid(
        "group_size+problems_per_batch=2+32,4+16; optimizer.base_lr=1,2.5e-4;recipe.healthy=hard;evaluation.sets.v=p",
        RunConfig,
    )
    assert axes == {
        "group_size+problems_per_batch": [(2, 32), (4, 16)],
        "optimizer.base_lr": [1.0, 2.5e-4],
        "recipe.healthy": ["hard"],
        "evaluation.sets.v": ["p"],
    }
    assert isinstance(axes["optimizer.base_lr"][0], float)
    [first, *_] = sweep.grid(BASE, axes)
    assert first.config.evaluation.sets == {"v": "p"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("group_size", "'group_size' is not FIELD=VALUE"),
        ("group_size=2;", "'' is not FIELD=VALUE"),
        ("groupsize=2", "did you mean 'group_size'"),
        ("group_size=2.5", "group_size=2.5: must be a whole number"),
        ("optimizer.base_lr=fast", "optimizer.base_lr=fast: must be a number"),
        ("optimizer=3", "optimizer is a group of fields"),
        ("group_size=2;group_size=4", "twice"),
        ("group_size+seed=2", "2 fields need 2 values"),
    ],
)
def test_a_bad_flag_is_an_error_that_names_the_field(text, message):
    with pytest.raises(InputError, match=re.escape(message)):
        main.parse_grid(text, RunConfig)


# --- one worker


def run_worker(tmp_path: pathlib.Path, program: str, **options) -> workers.Worker:
    command = [sys.executable, "-c", textwrap.dedent(program)]
    return workers.Worker(command, tmp_path / "log", **{"core": None, "environment": os.environ, **options})


def wait_for(condition, seconds: float = 120.0):
    """Polls until `condition()` is true, and returns its value."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if value := condition():
            return value
        time.sleep(0.02)
    raise AssertionError("waited in vain")


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system cannot pin")
def test_a_worker_is_on_its_core_before_its_program_starts(tmp_path):
    core = max(os.sched_getaffinity(0))
    worker = run_worker(tmp_path, "import os; print('cores', os.sched_getaffinity(0))", core=core)
    wait_for(lambda: worker.poll() is not None)
    assert worker.poll() == 0
    assert f"cores {{{core}}}" in (tmp_path / "log").read_text()


def test_a_failed_worker_gives_code_last_lines_and_log(tmp_path):
    worker = run_worker(tmp_path, "for i in range(9): print('line', i)\nraise SystemExit(2)")
    wait_for(lambda: worker.poll() is not None)
    reason = worker.reason()
    assert "exit code 2, bad input" in reason and "line 8" in reason and "line 3" not in reason
    assert str(tmp_path / "log") in reason


def test_a_killed_worker_names_the_signal(tmp_path):
    worker = run_worker(tmp_path, "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    wait_for(lambda: worker.poll() is not None)
    assert "killed by SIGKILL" in worker.reason()


def test_a_worker_is_interrupted_once_and_killed_with_its_children(tmp_path):
    worker = run_worker(
        tmp_path,
        """
        import signal, subprocess, time
        signal.signal(signal.SIGINT, lambda *_: print("inter" + "rupted", flush=True))
        print("child", subprocess.Popen(["sleep", "300"]).pid, flush=True)
        while True:
            time.sleep(0.1)
        """,
    )
    log = tmp_path / "log"
    child = int(wait_for(lambda: re.search(r"child (\d+)\n", log.read_text()))[1])
    for _ in range(2):
        worker.interrupt()
    wait_for(lambda: "interrupted" in log.read_text())
    worker.kill()
    assert worker.poll() == -signal.SIGKILL
    wait_for(lambda: not alive(child))
    assert log.read_text().count("interrupted\n") == 1


@pytest.mark.skipif(sys.platform != "linux", reason="prctl is Linux's")
def test_workers_die_with_the_process_that_started_them(tmp_path):
    program = f"""
        import os, pathlib, time
        from isocompute_jax.experiment.workers import Worker
        log = pathlib.Path({str(tmp_path / "log")!r})
        print(Worker(["sleep", "300"], log, core=None, environment=os.environ).pid, flush=True)
        time.sleep(300)
    """
    parent = subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, text=True)
    with parent:
        assert parent.stdout
        pid = int(parent.stdout.readline())
        wait_for(lambda: b"sleep" in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:1])
        parent.kill()
    wait_for(lambda: not alive(pid))


def alive(pid: int) -> bool:
    """Whether a process exists and is no zombie (nobody may be there to reap it)."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


# --- sweeps of real runs


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


def test_a_failing_run_stops_no_other_and_a_warm_cache_changes_no_bit(base, tmp_path, monkeypatch, caplog):
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)  # the sweep's own cache, which is empty
    monkeypatch.delenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", raising=False)
    broken = dataclasses.replace(base, train_set="/no/such/file.jsonl")
    runs = [
        sweep.PlannedRun("broken", broken),
        sweep.PlannedRun("cold", base),
        sweep.PlannedRun("warm", base),  # the same run: one worker, so it starts when `cold` has filled the cache
    ]
    with caplog.at_level("INFO"):
        result = sweep.run_sweep(runs, tmp_path, num_workers=1)
    assert (result.done, result.interrupted) == (("cold", "warm"), ()), result.failed
    assert list(result.failed) == ["broken"]
    assert "exit code 2" in result.failed["broken"] and "/no/such/file.jsonl" in result.failed["broken"]
    assert "broken: failed: exit code 2" in caplog.text
    assert len(log_lines(tmp_path / "cold")) == base.num_steps + 2
    assert log_lines(tmp_path / "cold") == log_lines(tmp_path / "warm")
    weights = [(tmp_path / name / "model" / "model.safetensors").read_bytes() for name in ("cold", "warm")]
    assert weights[0] == weights[1]
    assert weights[0] != pathlib.Path(base.model, "model.safetensors").read_bytes()
    assert list((tmp_path / ".compile_cache").glob("*-cache"))
    # Again: what is finished starts no process, what is broken is tried again.
    logs = {name: (tmp_path / "logs" / f"{name}.log").stat().st_mtime_ns for name in ("broken", "cold", "warm")}
    again = sweep.run_sweep(runs, tmp_path, num_workers=1)
    now = {name: (tmp_path / "logs" / f"{name}.log").stat().st_mtime_ns for name in logs}
    assert again.done == ("cold", "warm") and list(again.failed) == ["broken"]
    assert [name for name in logs if now[name] != logs[name]] == ["broken"]
    # Finished runs of another config are never taken for this one's.
    other = [sweep.PlannedRun("cold", dataclasses.replace(base, seed=7))]
    with pytest.raises(InputError, match=r"cold holds a run of another config \(config.seed: 0 there, 7 here\)"):
        sweep.run_sweep(other, tmp_path)


def test_interrupted_sweep_leaves_no_process_and_goes_on(base, tmp_path, monkeypatch):
    monkeypatch.delenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", raising=False)  # small programs too
    config = dataclasses.replace(base, max_compute=32 * 200)
    file = tmp_path / "config.py"
    file.write_text(
        "import json\nfrom isocompute_jax.experiment.config import RunConfig, from_dict\n"
        f"def get_config():\n    return from_dict(json.loads({json.dumps(dataclasses.asdict(config))!r})).editable()\n"
    )
    root = tmp_path / "runs"
    command = [sys.executable, "-m", "isocompute_jax.sweep", f"--config={file}", "--grid=seed=0,1"]
    command += [f"--workdir={root}"]
    # While the workers start up: nothing is lost, so nothing is waited for.
    process = start([*command, "--workers=2"])
    with process:
        wait_for((root / "logs" / "seed=1.log").exists, 300)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 130, output
    assert processes_of(root) == []
    # While one trains and the other waits.
    command += ["--workers=1"]
    process = start(command)
    with process:
        wait_for(lambda: len(sweep_status.tail(root / "seed=0" / run_files.METRICS)) > 2, 300)
        assert len(processes_of(root)) == 2
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=300)
    assert process.returncode == 130, output
    assert "interrupted" in output and "the same command goes on" in output
    assert processes_of(root) == []
    steps = len(run_files.read_lines(root / "seed=0" / run_files.METRICS))
    assert 2 < steps < config.num_steps
    assert list((root / "seed=0" / run_files.CHECKPOINTS).iterdir())
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"going on from step {steps}" in (root / "logs" / "seed=0.log").read_text()
    assert len(run_files.read_lines(root / "seed=0" / run_files.METRICS)) == config.num_steps
    assert "2 done; 100% of 12,800 rollouts" in done.stdout


def start(command: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def processes_of(root: pathlib.Path) -> list[int]:
    """Processes, other than zombies, whose command line names `root`."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and str(root).encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
    return [pid for pid in found if alive(pid)]


# --- what is shown


def state_with_logs(root: pathlib.Path) -> sweep_status.SweepState:
    """Two runs, one of them at step 100 of 128 at 64 rollouts/s."""
    config = dataclasses.replace(BASE, group_size=2, max_compute=2048, evaluation=EvaluationConfig(sets={"v": "p"}))
    (root / "a").mkdir()
    line = {"tokens": 1, "device_hours": 0.0}
    for step in range(1, 101):
        columns = {"step": step, "compute": 16 * step, "wall_s": step / 4, "reward": 0.25}
        run_files.append_line(root / "a" / run_files.METRICS, {**line, **columns})
    for name, score in (("v", 0.5), ("train", 0.9)):
        columns = {"step": 96, "compute": 1536, "wall_s": 24.0, "eval_set": name, "avg@4": score}
        run_files.append_line(root / "a" / run_files.EVAL, {**line, **columns})
    states = {"a": "running", "b": "waiting"}
    return sweep_status.SweepState(root, {"a": config, "b": config}, states, {}, num_workers=1)


def test_status_is_read_from_the_ends_of_the_logs(tmp_path, monkeypatch):
    state = state_with_logs(tmp_path)
    with open(tmp_path / "a" / run_files.METRICS, "a") as file:
        file.write('{"step": 101, "comp')  # a write in progress
    monkeypatch.setattr(sweep_status, "TAIL_BYTES", 1000)
    status = sweep_status.read_status(tmp_path / "a", state.runs["a"])
    assert status == sweep_status.RunStatus(step=100, compute=1600, reward=0.25, score="avg@4 0.500", rate=64.0)
    assert sweep_status.read_status(tmp_path / "b", state.runs["b"]) == sweep_status.RunStatus()
    assert 1 < len(sweep_status.tail(tmp_path / "a" / run_files.METRICS)) < 20


def test_headline_says_how_much_is_left(tmp_path):
    # 448 rollouts of one run and 2,048 of the other are left, at 64 a second.
    state = state_with_logs(tmp_path)
    statuses = {name: sweep_status.read_status(tmp_path / name, config) for name, config in state.runs.items()}
    text = sweep_status.headline(state, statuses)
    assert text == "1 running, 1 waiting; 39% of 4,096 rollouts; 64 rollouts/s, about 0:00:39 left"


def test_a_long_table_shows_what_runs(tmp_path):
    state = state_with_logs(tmp_path)
    state.runs = {f"r{i}": state.runs["b"] for i in range(50)} | {"a": state.runs["a"]}
    state.states = dict.fromkeys(state.runs, "waiting") | {"a": "running"}
    table = sweep_status.status_table(state, max_rows=5)
    assert table.row_count == 5
    assert "a" in list(table.columns[0].cells)
    assert str(table.caption).endswith("46 runs not shown")


def test_two_sweeps_never_share_a_directory(tmp_path):
    with locked(tmp_path, "sweep"), pytest.raises(InputError, match="another sweep is at work"):
        sweep.run_sweep([sweep.PlannedRun("a", BASE)], tmp_path)


def test_pinning_is_for_cpus(monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "cuda,cpu")
    assert workers.default_cores() is None
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    assert workers.default_cores() == sorted(os.sched_getaffinity(0))


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
    monkeypatch.setattr(sweep, "Worker", InstantWorker)
    monkeypatch.setattr(InstantWorker, "alive", set())
    monkeypatch.setattr(InstantWorker, "seen", [])
    config = override(base, "service.endpoints", "a:1, b:2")
    runs = sweep.grid(config, {"seed": tuple(range(6))})
    result = sweep.run_sweep(runs, tmp_path, num_workers=num_workers, cores=[0, 1, 2, 3])
    assert len(result.done) == 6
    assert {mine for mine, _ in InstantWorker.seen} == parts
    assert all(mine not in others for mine, others in InstantWorker.seen)  # a server serves one run at a time


def test_more_workers_than_endpoints_and_mixed_endpoints_are_refused(base, tmp_path):
    config = override(base, "service.endpoints", "a:1,b:2")
    with pytest.raises(InputError, match="3 workers cannot share 2 endpoints"):
        sweep.run_sweep(sweep.grid(config, {"seed": (0,)}), tmp_path, num_workers=3)
    mixed = sweep.grid(base, {"service.endpoints": ("a:1", "b:2")})
    with pytest.raises(InputError, match=r"the same config\.service\.endpoints"):
        sweep.run_sweep(mixed, tmp_path)
