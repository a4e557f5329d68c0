"""Runs in processes of their own, which can be killed."""

import dataclasses
import os
import pathlib
import time

from isocompute_jax.records import run_files
from tests import mains

LOGS = (run_files.METRICS, run_files.EVAL)


@dataclasses.dataclass(frozen=True)
class Processes:
    """Starts mains, all on one core: another number of threads may sum in another order.

    Their compile cache is one that no other test reads: JAX writes it in place, and a kill may leave half an entry.
    """

    path: pathlib.Path

    def start(self, module: str, arguments: list[str], output: pathlib.Path) -> mains.Main:
        """Starts `module`; what it prints is appended to `output`."""
        core = None
        if hasattr(os, "sched_getaffinity"):
            cores = sorted(os.sched_getaffinity(0))
            core = cores[int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % len(cores)]
        return mains.Main(module, arguments, output, output, core=core, cache=self.path / "compile-cache")

    def train(self, config: pathlib.Path, workdir: pathlib.Path) -> mains.Main:
        """Starts a run, which prints to WORKDIR.log."""
        arguments = [f"--resolved_config={config}", "--trust_config", f"--workdir={workdir}"]
        return self.start("isocompute_jax.train", arguments, log_of(workdir))

    def finish(self, config: pathlib.Path, workdir: pathlib.Path) -> str:
        """Starts a run and lets it end; returns what it said."""
        before = len(said(workdir))
        with self.train(config, workdir) as run:
            code = run.wait()
        output = said(workdir)[before:]
        assert code == 0, output
        return output


def log_of(workdir: pathlib.Path) -> pathlib.Path:
    return workdir.with_name(f"{workdir.name}.log")


def said(workdir: pathlib.Path) -> str:
    """All that the processes of a run have printed."""
    return log_of(workdir).read_text(encoding="utf-8") if log_of(workdir).exists() else ""


def wait_for(main: mains.Main, condition) -> None:
    """Polls, as often as it can, until the condition holds."""
    while not condition():
        assert main.exit_code is None, f"{main.command} ended before its time with exit code {main.exit_code}"
        time.sleep(0.0005)


def written(workdir: pathlib.Path):
    """A function that tells how many bytes were appended to the logs since its first call."""
    sizes: dict[str, int] = {}
    total = 0

    def so_far() -> int:
        nonlocal total
        for name in LOGS:
            try:
                size = (workdir / name).stat().st_size
            except FileNotFoundError:
                size = 0
            total += max(0, size - sizes.get(name, size))  # a log that was cut back is shorter
            sizes[name] = size
        return total

    so_far()
    return so_far


def unfinished_checkpoint(workdir: pathlib.Path) -> bool:
    """Whether orbax is at work on one; a whole one is named by its step alone."""
    path = workdir / run_files.CHECKPOINTS
    return path.exists() and any(not entry.name.isdigit() for entry in path.iterdir())
