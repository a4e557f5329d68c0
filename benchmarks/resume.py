"""What learner processes cost a run, and how long it stands still when one of its processes is killed.

    python -m benchmarks.resume                       # about ten minutes
    python -m benchmarks.resume --parts=steps --layouts=1x2,2x1 --steps=60
    python -m benchmarks.resume --parts=deaths --repeats=3

Runs are started by `launch/local.py` on the embedded model with random weights, 256 rollouts a step, every group in the
loss; their devices are XLA's on the processor, which share its cores. Compiled programs are cached, as on a machine on
which the run has been before. Parts:

- steps: steps per hour, the learner sampling for itself, by processes x devices of each; read from the run's own
  metrics.jsonl, without the first third. The ratio is to the first layout with as many devices, within a round;
  layouts take turns.
- deaths: two learners of one device and two servers; each of learner 0, learner 1 and server 0 is killed in turn,
  `--repeats` times, while a run goes on that saves a checkpoint every second. All seconds are from the kill on: until
  another process says that it has died, until everything is started again, until the run says that it resumes, and
  until metrics.jsonl has a step that it never had.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import itertools
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator

from absl import flags

from benchmarks import small_runs
from benchmarks.shared import names, print_head, print_row, spread
from isocompute_jax import app
from isocompute_jax.experiment.config import MeshConfig, RunConfig
from isocompute_jax.model import EMBEDDED
from isocompute_jax.records import run_files
from isocompute_jax.records.errors import RunError
from isocompute_jax.service.client.service_config import ServiceConfig
from isocompute_jax.sweeps import workers

PARTS = ("steps", "deaths")

_PARTS = flags.DEFINE_list("parts", list(PARTS), f"Of {', '.join(PARTS)}.")
_LAYOUTS = flags.DEFINE_list("layouts", ["1x2", "2x1", "1x4", "4x1"], "Processes x devices of each, for `steps`.")
_STEPS = flags.DEFINE_integer("steps", 60, "Steps of each run of `steps`, the first third of which is not timed.", 6)
_REPEATS = flags.DEFINE_integer("repeats", 3, "Rounds.", 1)
_STALL_S = flags.DEFINE_float("stall_s", 15.0, "--stall_s of the learners.", 2.0)

LAUNCH = pathlib.Path(__file__).parent.parent / "launch" / "local.py"
ROLLOUTS, GROUP = 256, 16
VICTIMS = ("learner 0", "learner 1", "server 0")
WEIGHTS = "weights"
"""Folder in which weights are passed on."""
APART = 5
"""Steps that a run makes between two deaths, at least."""
WAIT_S = 300.0
POLL_S = 0.01


def main() -> None:
    """Flags -> tables."""
    parts = names(_PARTS, PARTS)
    with tempfile.TemporaryDirectory() as directory:
        root = pathlib.Path(directory)
        small_runs.write_files(root, EMBEDDED, problems=4096)
        if "steps" in parts:
            print_steps(root)
        if "deaths" in parts:
            print_deaths(root)


def make_config(root: pathlib.Path, *, devices: int, steps: int, checkpoint_every_s: float) -> RunConfig:
    """A run of `ROLLOUTS` a step."""
    (root / WEIGHTS).mkdir(exist_ok=True)
    return small_runs.run_config(
        root,
        group_size=GROUP,
        problems=ROLLOUTS // GROUP,
        steps=steps,
        lr=1e-5,
        checkpoint_every_s=checkpoint_every_s,
        mesh=MeshConfig(data=devices),
        service=ServiceConfig(shared_dir=str(root / WEIGHTS), stall_s=5.0),
    )


@dataclasses.dataclass
class Launched:
    """A run that `launch/local.py` keeps alive."""

    workdir: pathlib.Path
    launcher: subprocess.Popen[bytes]

    def said(self) -> str:
        """All that launcher and learners have said so far."""
        logs = [self.workdir.with_suffix(".log"), *sorted(self.logs.glob("learner-*.log"))]
        return "".join(log.read_text(errors="replace") for log in logs if log.exists())

    @property
    def logs(self) -> pathlib.Path:
        """Folder of the logs of servers and other learners."""
        return self.workdir.with_suffix(".logs")

    def steps(self) -> int:
        """Steps in metrics.jsonl; fewer again where a run has resumed from before them."""
        file = self.workdir / run_files.METRICS
        return file.read_bytes().count(b"\n") if file.exists() else 0

    def learner(self, index: int) -> int | None:
        """Its process id, if it runs."""
        return find(f"--workdir={self.workdir}", f"--process_index={index}", "isocompute_jax.train")

    def server(self, number: int) -> int | None:
        """Its process id, if it runs."""
        return find(f"--weights_dir={self.workdir.parent / WEIGHTS}", f"/server-{number}", "isocompute_jax.serve")

    def wait(self, condition: Callable[[], object], what: str) -> None:
        """Waits until a condition holds.

        Raises:
          RunError: it does not, or the run has ended before.
        """
        deadline = time.monotonic() + WAIT_S
        while not condition():
            if self.launcher.poll() is not None or time.monotonic() > deadline:
                raise RunError(f"{what} did not come\n{self.said()[-2000:]}")
            time.sleep(POLL_S)


@contextlib.contextmanager
def launched(root: pathlib.Path, name: str, config: RunConfig, *, learners: int, servers: int) -> Iterator[Launched]:
    """A run under the launcher, which ends with the block."""
    workdir = root / name
    command = [*small_runs.with_this_process(workers.NO_CORE), sys.executable, str(LAUNCH)]
    command += [f"--learners={learners}", f"--servers={servers}", f"--model={config.model}"]
    command += [f"--logs={workdir.with_suffix('.logs')}", f"--grace_s={2 * _STALL_S.value}"]
    command += [f"--server_args=--weights_dir={root / WEIGHTS} --max_model_len=64", "--", sys.executable]
    command += [*small_runs.train_flags(config, workdir), f"--stall_s={_STALL_S.value}"]
    if servers:
        command += ["--endpoints={endpoints}", "--token_file={token_file}"]
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={config.mesh.data // learners}",  # whatever the cores
        "JAX_COMPILATION_CACHE_DIR": str(root / "compiled"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    with open(workdir.with_suffix(".log"), "ab") as log:
        launcher = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment)
    try:
        yield Launched(workdir, launcher)
    finally:
        launcher.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            launcher.wait(60)
        launcher.kill()
        launcher.wait()


def print_steps(root: pathlib.Path) -> None:
    """The table of `steps`."""
    layouts = [tuple(map(int, layout.split("x"))) for layout in _LAYOUTS.value]
    rates: dict[tuple[int, ...], list[float]] = collections.defaultdict(list)
    for number, (processes, devices) in itertools.product(range(_REPEATS.value), layouts):
        rates[processes, devices].append(steps_per_hour(root, f"steps-{number}", processes, processes * devices))
    print_head(("processes x devices", "steps/h", "of the first with as many devices", "from .. to"), left=())
    for layout in layouts:
        first = next(other for other in layouts if other[0] * other[1] == layout[0] * layout[1])
        ratios = [ours / theirs for ours, theirs in zip(rates[layout], rates[first], strict=True)]
        rate, ratio = statistics.median(rates[layout]), statistics.median(ratios)
        print_row(f"{layout[0]} x {layout[1]}", f"{rate:,.0f}", f"{ratio:.2f}", spread(ratios))


def steps_per_hour(root: pathlib.Path, name: str, processes: int, devices: int) -> float:
    """Of a run of so many processes, which have so many devices together."""
    steps = _STEPS.value
    config = make_config(root, devices=devices, steps=steps, checkpoint_every_s=1e9)
    with launched(root, f"{name}-{processes}-{devices}", config, learners=processes, servers=0) as run:
        done = run.workdir / run_files.DONE
        run.wait(lambda: done.exists() or run.launcher.poll() == 0, "the end of a run")
        run.launcher.wait(WAIT_S)
        lines = run_files.read_lines(run.workdir / run_files.METRICS)[steps // 3 :]
    return 3600 * (len(lines) - 1) / (lines[-1]["wall_s"] - lines[0]["wall_s"])


def print_deaths(root: pathlib.Path) -> None:
    """The table of `deaths`."""
    config = make_config(root, devices=2, steps=1_000_000, checkpoint_every_s=1.0)
    found: dict[str, list[dict[str, float]]] = collections.defaultdict(list)
    with launched(root, "deaths", config, learners=2, servers=2) as run:
        for _, victim in itertools.product(range(_REPEATS.value), VICTIMS):
            reached = run.steps() + APART
            run.wait(lambda reached=reached: run.steps() >= reached, f"step {reached}")
            found[victim].append(kill(run, victim))
    print_head(("killed", "noticed", "all started again", "resumes", "next new step", "from .. to", "steps made again"))
    for victim, rounds in found.items():
        middle = {name: statistics.median(each[name] for each in rounds) for name in rounds[0]}
        steps = [each["step"] for each in rounds]
        cells = [victim, f"{middle['noticed']:.2f} s", f"{middle['again']:.2f} s"]
        cells += [f"{middle['resumed']:.1f} s" if "resumed" in middle else "-", f"{middle['step']:.1f} s"]
        cells += [f"{min(steps):.1f} .. {max(steps):.1f} s", f"{middle['lost']:.0f}"]
        print_row(*cells)


def kill(run: Launched, victim: str) -> dict[str, float]:
    """Kills a process of a run: seconds until each thing has happened, and `lost`, the steps that were made again."""
    kind, number = victim.split()
    pid = run.learner(int(number)) if kind == "learner" else run.server(int(number))
    if pid is None:
        raise RunError(f"{victim} does not run\n{run.said()[-2000:]}")
    marks = {"noticed": "has died", "again": "all learners again", "resumed": "resuming from step"}
    if kind == "server":
        marks = {"noticed": "is taken out", "again": "died ("}
    before, most = {name: run.said().count(mark) for name, mark in marks.items()}, run.steps()
    began, least = time.monotonic(), most
    os.kill(pid, signal.SIGKILL)
    found: dict[str, float] = {}

    def over() -> bool:
        nonlocal least
        now, said, steps = time.monotonic() - began, run.said(), run.steps()
        least = min(least, steps)
        for name, mark in marks.items():
            if said.count(mark) > before[name]:
                found.setdefault(name, now)
        if steps > most and (kind == "server" or "resumed" in found):
            found.setdefault("step", now)
        return len(found) > len(marks)

    run.wait(over, f"the next step after the death of {victim}")
    return {**found, "lost": float(most - least)}


def find(*parts: str) -> int | None:
    """A process whose command line has every one of `parts`, the launcher aside."""
    for entry in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if all(part in line for part in parts) and str(LAUNCH) not in line:
                return int(entry.name)
    return None


if __name__ == "__main__":
    app.run(main)
