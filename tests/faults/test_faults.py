"""Twenty kills, a frozen server, a learner killed while it pushes weights: the run ends as if nothing had happened.

Real processes: two servers under `launch/local.py`, and a learner of 60 steps. With the JAX engine the run must end
with the undisturbed run's parameters and logs, bit for bit; with vLLM, whose redraws are new draws, no rollout may be
lost or counted twice. Run by `make test-faults`; minutes each.
"""

import contextlib
import dataclasses
import itertools
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator

import grpc
import pytest

from isocompute_jax.experiment.config import RunConfig
from isocompute_jax.records import run_files
from isocompute_jax.service.client.service_config import ServiceConfig
from isocompute_jax.service.proto import sampler_pb2 as pb
from isocompute_jax.service.proto import sampler_pb2_grpc
from tests.experiment import builders
from tests.launch import processes
from tests.model.tiny import random_params

pytestmark = pytest.mark.faults

STEPS, FROZEN_S = 60, 60.0
KILLS = int(os.environ.get("KILLS", "20"))
VLLM_PYTHON = processes.ROOT / ".venv-vllm" / "bin" / "python"
HOLD = "import sys, time, pathlib; pathlib.Path(sys.argv[1]).write_text(' '.join(sys.argv[2:])); time.sleep(86400)"


@dataclasses.dataclass
class Stage:
    """Two servers, where they are, and the learner's command."""

    engine: str
    config: RunConfig
    root: pathlib.Path
    shared: pathlib.Path
    endpoints: list[str]

    def learner(self, workdir: pathlib.Path) -> subprocess.Popen:
        environment = {**os.environ, **builders.compile_cache(self.root / "compile-cache")}
        command = builders.pinned(builders.train_command(self.root / "config.json", workdir))
        return processes.start(command, self.root / f"{workdir.name}.log", env=environment, cwd=processes.ROOT)

    def said(self, workdir: pathlib.Path) -> str:
        return (self.root / f"{workdir.name}.log").read_text()

    def server(self, number: int) -> int | None:
        """The process of a server, if it is there."""
        port = self.endpoints[number].rpartition(":")[2]
        return next(iter(processes.find("isocompute_jax.serve", f"--port={port}")), None)

    def answers(self, number: int) -> bool:
        """Whether a server can be called."""
        try:
            return self.version(number) >= 0
        except grpc.RpcError:
            return False

    def version(self, number: int) -> int:
        """The version that a server serves."""
        with grpc.insecure_channel(self.endpoints[number]) as channel:
            return sampler_pb2_grpc.SamplerStub(channel).Status(pb.StatusRequest(), timeout=10).version

    def wait_for_work(self, number: int, seconds: float = 1.0) -> None:
        """Until a server has a group, or is gone, or so long."""
        until = time.monotonic() + seconds
        with contextlib.suppress(grpc.RpcError), grpc.insecure_channel(self.endpoints[number]) as channel:
            status = sampler_pb2_grpc.SamplerStub(channel).Status
            while time.monotonic() < until and not status(pb.StatusRequest(), timeout=seconds).running_groups:
                time.sleep(0.001)


@pytest.fixture(scope="module", params=["jax", pytest.param("vllm", marks=pytest.mark.vllm)])
def stage(request, tmp_path_factory) -> Iterator[Stage]:
    engine, root = request.param, tmp_path_factory.mktemp(request.param)
    if engine == "vllm" and not VLLM_PYTHON.exists():
        pytest.fail("`make vllm-env` first")
    config = make_run(root)
    with contextlib.ExitStack() as stack:
        shared = pathlib.Path(tempfile.mkdtemp(prefix="isocompute-faults-", dir="/dev/shm"))
        stack.callback(shutil.rmtree, shared)
        command = [
            *processes.LAUNCH,
            *(f"--servers={2}", f"--engine={engine}", f"--model={config.model}", f"--logs={root / 'servers'}"),
            *((f"--server_python={VLLM_PYTHON}",) if engine == "vllm" else ()),
            f"--server_args=--weights_dir={shared} --max_model_len=32",
            *("--", sys.executable, "-c", HOLD, str(root / "addresses"), "{endpoints}", "{token_file}"),
        ]
        environment = {**os.environ, **builders.compile_cache(root / "server-cache")}
        launcher = processes.start(command, root / "launcher.log", env=environment, cwd=processes.ROOT)
        stack.callback(end, launcher, shared)
        processes.wait_until(
            lambda: launcher.poll() is not None or ((root / "addresses").exists() and (root / "addresses").read_text()),
            "the servers start",
        )
        assert launcher.poll() is None, (root / "launcher.log").read_text()
        endpoints, token_file = (root / "addresses").read_text().split()
        service = ServiceConfig(
            endpoints=endpoints, token_file=token_file, shared_dir=str(shared), stall_s=5.0, wait_s=300.0
        )
        config = dataclasses.replace(config, service=service)
        builders.write_config(root / "config.json", config)
        yield Stage(engine, config, root, shared, endpoints.split(","))


def make_run(root: pathlib.Path) -> RunConfig:
    """60 steps of 64 rollouts, on a model that both engines serve."""
    from isocompute_jax import model

    base = builders.make_inputs(root)
    random = dataclasses.replace(model.EMBEDDED, num_layers=1, mlp_dim=32)
    shutil.rmtree(root / "model")
    model.save_checkpoint(root / "model", random, random_params(random, scale=0.1), tokenizer_from=root / "tokenizer")
    return dataclasses.replace(base, max_compute=64 * STEPS)


def end(launcher: subprocess.Popen, shared: pathlib.Path) -> None:
    """Ends the servers; neither a process nor a file may be left behind."""
    launcher.send_signal(signal.SIGTERM)
    try:
        launcher.wait(60)
    finally:
        launcher.kill()
    processes.wait_until(lambda: not processes.find(str(shared)), "a server is left behind", seconds=30)
    assert list(shared.iterdir()) == []


class Chaos(threading.Thread):
    """Kills servers in turn, spread over the steps of a run, and freezes one of them for a while at its start.

    Every second kill is one while the server draws, which it does for some milliseconds a step.
    """

    def __init__(self, stage: Stage, workdir: pathlib.Path):
        super().__init__(daemon=True)
        self.stage, self.workdir = stage, workdir
        self.kills = 0
        self.error: BaseException | None = None
        self.over = threading.Event()

    def run(self) -> None:
        try:
            self._work()
        except BaseException as error:
            self.error = error

    def _work(self) -> None:
        frozen = self.stage.server(0)
        assert frozen is not None
        processes.wait_until(lambda: steps_done(self.workdir) >= 1, "the first step")
        os.kill(frozen, signal.SIGSTOP)
        thaw = time.monotonic() + FROZEN_S
        turn = itertools.count()
        while self.kills < KILLS and not self.over.is_set():
            if frozen is not None and time.monotonic() >= thaw:
                os.kill(frozen, signal.SIGCONT)
                frozen = None
            number = 1 if frozen is not None else next(turn) % 2
            due = steps_done(self.workdir) >= 2 + self.kills * (STEPS - 6) // KILLS
            victim = self.stage.server(number) if due else None
            if victim is not None:
                if self.kills % 2:
                    self.stage.wait_for_work(number)
                os.kill(victim, signal.SIGKILL)
                self.kills += 1
            time.sleep(0.05)
        if frozen is not None:
            time.sleep(max(0.0, thaw - time.monotonic()))
            os.kill(frozen, signal.SIGCONT)


def steps_done(workdir: pathlib.Path) -> int:
    """Lines of metrics.jsonl."""
    try:
        return (workdir / run_files.METRICS).read_bytes().count(b"\n")
    except FileNotFoundError:
        return 0


def finish(learner: subprocess.Popen, stage: Stage, workdir: pathlib.Path) -> None:
    """Waits for the learner's end, which must be a good one."""
    try:
        assert learner.wait(900) == 0, stage.said(workdir)
    finally:
        learner.kill()
    assert (workdir / run_files.DONE).exists()


@pytest.fixture(scope="module")
def undisturbed(stage) -> pathlib.Path:
    workdir = stage.root / "undisturbed"
    finish(stage.learner(workdir), stage, workdir)
    return workdir


def assert_whole(stage: Stage, workdir: pathlib.Path, undisturbed: pathlib.Path) -> None:
    """The undisturbed run's results with the JAX engine; no rollout lost or doubled with vLLM."""
    if stage.engine == "jax":
        builders.assert_same_run(workdir, undisturbed)
        return
    lines = run_files.read_lines(workdir / run_files.METRICS)
    assert [line["step"] for line in lines] == list(range(1, STEPS + 1))
    assert [line["compute"] for line in lines] == [64 * step for step in range(1, STEPS + 1)]
    assert {line["staleness"] for line in lines} == {0}


def test_kills_and_a_frozen_server(stage, undisturbed):
    workdir = stage.root / "killed"
    chaos = Chaos(stage, workdir)
    learner = stage.learner(workdir)
    chaos.start()
    try:
        finish(learner, stage, workdir)
    finally:
        chaos.over.set()
        chaos.join(FROZEN_S + 30)
    assert chaos.error is None, chaos.error
    assert chaos.kills == KILLS
    redrawn = [line["redrawn_rollouts"] for line in run_files.read_lines(workdir / run_files.METRICS)]
    assert max(redrawn) > 0, "the kills met no group: the test shows nothing"
    assert_whole(stage, workdir, undisturbed)


def test_a_learner_killed_while_it_pushes_weights(stage, undisturbed):
    """A frozen server holds the push up: the other has the new weights, the step is not done, the learner dies."""
    workdir = stage.root / "pushing"
    for number in (0, 1):
        processes.wait_until(lambda n=number: stage.answers(n), "a server is back")
    learner = stage.learner(workdir)
    for wanted in (5, 20, 40):
        processes.wait_until(lambda at=wanted: steps_done(workdir) >= at, "the run goes on")
        kill_while_pushing(stage, learner, workdir)
        learner = stage.learner(workdir)
    finish(learner, stage, workdir)
    assert_whole(stage, workdir, undisturbed)


def kill_while_pushing(stage: Stage, learner: subprocess.Popen, workdir: pathlib.Path) -> None:
    """Freezes server 0 right after a step, when nothing is sampled; kills the learner once only server 0 lacks weights.

    The next weights cannot reach server 0, so the learner waits in its push when server 1 has them.
    """
    for _ in range(STEPS):
        before = steps_done(workdir)
        processes.wait_until(lambda at=before: steps_done(workdir) > at or learner.poll() is not None, "the next step")
        assert learner.poll() is None, stage.said(workdir)
        frozen = stage.server(0)
        assert frozen is not None
        os.kill(frozen, signal.SIGSTOP)
        try:
            step = steps_done(workdir)
            if stage.version(1) < step:  # else this was too late: the weights were there before server 0 froze
                processes.wait_until(lambda at=step: stage.version(1) == at, "server 1 has the weights", seconds=4)
                learner.kill()
                learner.wait()
                return
        finally:
            os.kill(frozen, signal.SIGCONT)
    raise AssertionError("the learner was never met before a push")
