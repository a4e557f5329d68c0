"""Runs of several learner processes, real ones, which can be killed."""

import contextlib
import dataclasses
import json
import pathlib
import signal
import time
from typing import Literal

from isocompute_jax.records import run_files
from launch.kubernetes import render
from tests.experiment.processes import Processes
from tests.launch.processes import free_ports

PROGRAM = """
import json, os, runpy, sys
about, sys.argv = json.loads(sys.argv[2]), ["train", *sys.argv[3:]]
os.environ |= about["environ"]
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={about['devices']}"
from isocompute_jax.distributed import environment
environment.PORT = about["port"]  # a pod has all ports to itself, and these processes share a machine
if "--hangs" in sys.argv:  # its main thread, in the third step
    sys.argv.remove("--hangs")
    import threading
    from isocompute_jax.experiment import loop
    made, make = [], loop.rollout_metrics  # between the meetings of a step and its update
    loop.rollout_metrics = lambda *args: make(*args) if made.append(1) or len(made) < 3 else threading.Event().wait()
runpy.run_module("isocompute_jax.train", run_name="__main__")
"""
Source = Literal["flags", "jobset", "tpu pod"]
COORDINATOR = "jobset.sigs.k8s.io/coordinator"


@dataclasses.dataclass(frozen=True)
class Learners:
    """Starts all processes of a run, each with `devices` fake devices.

    Attributes:
      processes: where they share a compile cache.
      count: how many.
      devices: of each.
      source: where each learns which of how many it is: from flags, or from what a cluster puts into its environment.
    """

    processes: Processes
    count: int
    devices: int
    source: Source = "flags"

    def place(self, index: int, port: int) -> tuple[list[str], dict[str, str]]:
        """Flags and environment of one process."""
        if self.count == 1:
            return [], {}
        if self.source == "jobset":
            return [], jobset(self.count, index)
        if self.source == "tpu pod":
            hosts = ["localhost", *(f"slice-{other}.svc" for other in range(1, self.count))]
            return [], {"TPU_WORKER_HOSTNAMES": ",".join(hosts), "TPU_WORKER_ID": str(index)}
        flags = [f"--coordinator=127.0.0.1:{port}", f"--process_count={self.count}", f"--process_index={index}"]
        return flags, {}

    @contextlib.contextmanager
    def running(
        self, config: pathlib.Path, workdir: pathlib.Path, *flags: str, own: dict[int, list[str]] | None = None
    ):
        """Their mains, in order; killed at the end. `own` are flags of some of them alone, or `--hangs`."""
        with contextlib.ExitStack() as stack:
            port, run = free_ports(2), []
            for index in range(self.count):
                place, environ = self.place(index, port)
                about = {"devices": self.devices, "port": port, "environ": environ}
                given = [
                    f"--resolved_config={config}",
                    "--trust_config",
                    f"--workdir={workdir}",
                    *place,
                    *flags,
                    *(own or {}).get(index, []),
                ]
                main = self.processes.start("-c", [PROGRAM, json.dumps(about), *given], log_of(workdir, index))
                run.append(stack.enter_context(main))
            yield run

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


def jobset(count: int, index: int) -> dict[str, str]:
    """What launch/kubernetes has Kubernetes set in a learner's pod, whose first learner this machine resolves."""
    [rendered] = render.render(render.Run(name="run", image="i", command=("true",), learners=count))
    [learners] = rendered["spec"]["replicatedJobs"]
    [main] = learners["template"]["spec"]["template"]["spec"]["containers"]
    fields = {f"metadata.annotations['{COORDINATOR}']": "localhost"}
    found = {
        variable["name"]: variable["value"]
        if "value" in variable
        else fields[variable["valueFrom"]["fieldRef"]["fieldPath"]]
        for variable in main["env"]
    }
    return {**found, "JOB_COMPLETION_INDEX": str(index)}  # which pods of an Indexed Job have without being asked


def lines(workdir: pathlib.Path) -> int:
    path = workdir / run_files.METRICS
    return len(path.read_bytes().splitlines()) if path.exists() else 0


def log_of(workdir: pathlib.Path, index: int) -> pathlib.Path:
    return workdir.with_name(f"{workdir.name}.{index}.log")
