"""Two learner processes and two servers under `launch/local.py`: kills, a stall, a full disk, the launcher's own death.

Whatever happens, the same command ends with the undisturbed run's parameters and logs, bit for bit, and leaves nothing
behind. Run by `make test-faults`; minutes.
"""

import contextlib
import dataclasses
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator

import pytest

from isocompute_jax.experiment.config import MeshConfig, RunConfig
from isocompute_jax.records import run_files
from isocompute_jax.service.client.service_config import ServiceConfig
from tests.experiment import builders
from tests.launch import processes

pytestmark = pytest.mark.faults

STEPS, SEED, STALL_S, GRACE_S = 48, 0, 15, 30
KILLS = int(os.environ.get("KILLS", "20"))
"""A multiple of 4."""


@dataclasses.dataclass
class Stage:
    """Where runs lie, and how they are started."""

    root: pathlib.Path
    shared: pathlib.Path
    config: RunConfig

    @contextlib.contextmanager
    def launch(self, workdir: pathlib.Path, *more: str) -> Iterator[subprocess.Popen]:
        """The launcher of a run; when the block is left nothing of it is."""
        flags = [
            f"--model={self.config.model}",
            f"--logs={self.root / workdir.name}-logs",
            f"--grace_s={GRACE_S}",
            *more,
        ]
        server_args = f"--server_args=--weights_dir={self.shared} --max_model_len=32"
        train = builders.train_command(self.root / "config.json", workdir)
        service = ["--endpoints={endpoints}", "--token_file={token_file}", f"--stall_s={STALL_S}"]
        environment = {**os.environ, **builders.compile_cache(self.root / "compile-cache"), "JAX_PLATFORMS": "cpu"}
        command = [*processes.LAUNCH, "--learners=2", "--servers=2", *flags, server_args, "--", *train, *service]
        launcher = processes.start(command, self.root / f"{workdir.name}.log", env=environment, cwd=processes.ROOT)
        try:
            yield launcher
        finally:
            launcher.kill()
            launcher.wait()
            processes.wait_until(lambda: not processes.find(f"--workdir={workdir} "), "its learners end", seconds=30)

    def said(self, workdir: pathlib.Path) -> str:
        return (self.root / f"{workdir.name}.log").read_text()

    def learners_of(self, workdir: pathlib.Path) -> Callable[[int], int | None]:
        return lambda index: self.learner(workdir, index)

    def learner(self, workdir: pathlib.Path, index: int) -> int | None:
        return next(iter(processes.find(f"--workdir={workdir} ", f"--process_index={index}")), None)

    def server(self, number: int) -> int | None:
        mark = f"--weights_dir={self.shared}"
        return next(iter(processes.find("isocompute_jax.serve", mark, f"/server-{number} ")), None)


@pytest.fixture(scope="module")
def stage(tmp_path_factory) -> Iterator[Stage]:
    root = tmp_path_factory.mktemp("team")
    shared = pathlib.Path(tempfile.mkdtemp(prefix="isocompute-team-", dir="/dev/shm"))
    config = dataclasses.replace(
        builders.make_inputs(root),
        max_compute=64 * STEPS,
        mesh=MeshConfig(data=2),
        service=ServiceConfig(shared_dir=str(shared), stall_s=5.0, wait_s=300.0),
    )
    builders.write_config(root / "config.json", config)
    yield Stage(root, shared, config)
    processes.wait_until(lambda: not processes.find(str(root)), "a process is left behind", seconds=30)
    left = list(shared.iterdir())
    shutil.rmtree(shared)
    assert left == []


@pytest.fixture(scope="module")
def undisturbed(stage) -> pathlib.Path:
    workdir = stage.root / "undisturbed"
    with stage.launch(workdir) as launcher:
        finish(stage, launcher, workdir)
    return workdir


def finish(stage: Stage, launcher: subprocess.Popen, workdir: pathlib.Path) -> None:
    """Waits for a good end."""
    assert launcher.wait(400) == 0, stage.said(workdir)


def reach(stage: Stage, launcher: subprocess.Popen, workdir: pathlib.Path, step: int) -> None:
    """Waits until so many steps are done."""

    def there() -> bool:
        assert launcher.poll() is None, stage.said(workdir)
        return len(run_files.read_lines(workdir / run_files.METRICS, partial_last_line=True)) >= step

    processes.wait_until(there, f"step {step}", seconds=200)


def test_kills_at_random_moments(stage, undisturbed):
    """Each of the four processes equally often, in a random order; the two learners' coordinator is one of them."""
    workdir, rng = stage.root / "killed", random.Random(SEED)
    victims = [(find, number) for find in (stage.learners_of(workdir), stage.server) for number in (0, 1)]
    victims *= KILLS // 4
    rng.shuffle(victims)
    with stage.launch(workdir) as launcher:
        done = 0
        for number, (find, which) in enumerate(victims):
            # A new step since the last kill is progress: learners that fail without any are given up.
            reach(stage, launcher, workdir, max(done + 1, 2 + number * (STEPS - 6) // KILLS))
            processes.wait_until(lambda find=find, which=which: find(which) is not None, "it is there", seconds=100)
            time.sleep(rng.uniform(0.0, 0.5))
            done = len(run_files.read_lines(workdir / run_files.METRICS, partial_last_line=True))
            if (pid := find(which)) is not None:
                os.kill(pid, signal.SIGKILL)
        finish(stage, launcher, workdir)
    said = stage.said(workdir)
    assert said.count("killed by SIGKILL") >= KILLS
    assert KILLS // 4 <= said.count("all learners again") <= KILLS // 2
    builders.assert_same_run(workdir, undisturbed)


def test_the_disk_fills_up(stage, undisturbed):
    """One message, said by the process that writes; with room made, the same command ends the run."""
    with builders.small_disk(stage.root / "disk") as make_room:
        if make_room is None:
            pytest.skip("this user may not mount a small disk")
        workdir = stage.root / "disk" / "run"
        with stage.launch(workdir, "--restarts=0") as launcher:
            assert launcher.wait(200) == 1, stage.said(workdir)
        said = stage.said(workdir)
        assert "No space left on device" in said and "make room, then run the same" in said and "Traceback" not in said
        make_room()
        with stage.launch(workdir) as launcher:
            finish(stage, launcher, workdir)
        builders.assert_same_run(workdir, undisturbed)


def test_one_stalls_and_the_launcher_dies(stage, undisturbed):
    workdir = stage.root / "stalled"
    with stage.launch(workdir) as launcher:
        reach(stage, launcher, workdir, 4)
        frozen = stage.learner(workdir, 1)
        assert frozen is not None
        os.kill(frozen, signal.SIGSTOP)
        processes.wait_until(lambda: "all learners again" in stage.said(workdir), "all come back", seconds=200)
        # Whichever of a process's threads finds out first: the one that listens, or one that sends.
        assert re.search(rf"has not been heard of for {STALL_S} s|takes nothing any more", stage.said(workdir))
        reach(stage, launcher, workdir, 12)
    with stage.launch(workdir) as launcher:
        finish(stage, launcher, workdir)
    builders.assert_same_run(workdir, undisturbed)
