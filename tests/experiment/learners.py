"""Runs of several learner processes, real ones, which can be killed."""

import contextlib
import dataclasses
import pathlib
import signal
import time

from isocompute_jax.records import run_files
from tests.experiment.processes import Processes
from tests.launch.processes import free_ports

PROGRAM = """
import os, runpy, sys
devices, sys.argv = sys.argv[2], ["train", *sys.argv[3:]]
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
if "--hangs" in sys.argv:  # its main thread, in the third step
    sys.argv.remove("--hangs")
    import threading
    from isocompute_jax.experiment import loop
    made, make = [], loop.rollout_metrics  # between the meetings of a step and its update
    loop.rollout_metrics = lambda groups: make(groups) if made.append(1) or len(made) < 3 else threading.Event().wait()
runpy.run_module("isocompute_jax.train", run_name="__main__")
"""


@dataclasses.dataclass(frozen=True)
class Learners:
    """Starts all processes of a run, each with `devices` fake devices.

    Attributes:
      processes: where they share a compile cache.
      count: how many.
      devices: of each.
    """

    processes: Processes
    count: int
    devices: int

    @contextlib.contextmanager
    def running(
        self, config: pathlib.Path, workdir: pathlib.Path, *flags: str, own: dict[int, list[str]] | None = None
    ):
        """Their mains, in order; killed at the end. `own` are flags of some of them alone, or `--hangs`."""
        with contextlib.ExitStack() as stack:
            address = f"127.0.0.1:{free_ports(2)}"
            yield [
                stack.enter_context(
                    self.processes.start(
                        "-c",
                        [
                            PROGRAM,
                            str(self.devices),
                            f"--resolved_config={config}",
                            f"--workdir={workdir}",
                            *([] if self.count == 1 else [f"--coordinator={address}"]),
                            *([] if self.count == 1 else [f"--process_count={self.count}", f"--process_index={index}"]),
                            *flags,
                            *(own or {}).get(index, []),
                        ],
                        log_of(workdir, index),
                    )
                )
                for index in range(self.count)
            ]

    def finish(self, config: pathlib.Path, workdir: pathlib.Path) -> None:
        """Lets a run come to its end."""
        with self.running(config, workdir) as run:
            codes = [process.wait() for process in run]
        assert codes == [0] * self.count, [log_of(workdir, index).read_text() for index in range(self.count)]

    def kill(
        self,
        config: pathlib.Path,
        workdir: pathlib.Path,
        *,
        victim: int,
        after: int,
        number=signal.SIGKILL,
        stall_s: float = 20,
    ) -> tuple[list[int], float]:
        """Kills one process once metrics.jsonl has so many lines; exit codes of all, and how long the others took."""
        with self.running(config, workdir, f"--stall_s={stall_s}") as run:
            while lines(workdir) < after:
                assert all(process.exit_code is None for process in run), log_of(workdir, 0).read_text()
                time.sleep(0.002)
            run[victim].send(number)
            start = time.monotonic()
            codes = [process.wait() for index, process in enumerate(run) if index != victim]
            took = time.monotonic() - start
        return codes, took


def lines(workdir: pathlib.Path) -> int:
    path = workdir / run_files.METRICS
    return len(path.read_bytes().splitlines()) if path.exists() else 0


def log_of(workdir: pathlib.Path, index: int) -> pathlib.Path:
    return workdir.with_name(f"{workdir.name}.{index}.log")
