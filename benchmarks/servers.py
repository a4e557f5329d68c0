"""Real server processes for benchmarks, what they use of the machine, and groups to ask them for."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import pathlib
import sys
import time
from collections.abc import Iterator, Sequence

import jax
import numpy as np

from isocompute_jax import model
from isocompute_jax.records.errors import RunError
from isocompute_jax.records.requests import SampleRequest, SamplingParams
from isocompute_jax.service.client.fleet import RemoteSampler
from isocompute_jax.service.client.service_config import ServiceConfig
from isocompute_jax.service.client.weight_sender import Sender
from isocompute_jax.sweeps.workers import Worker

START_S = 180.0
STOP_S = 30.0
POLL_S = 0.05
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclasses.dataclass(frozen=True)
class Usage:
    """What a process uses: seconds of processor time since its start, and resident memory in MiB now."""

    cpu_s: float
    rss_mib: float


def usage(pid: int) -> Usage:
    """Of one process, from /proc; all its threads together."""
    _, cpu_s = _session_and_cpu(pid)
    pages = int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1])
    return Usage(cpu_s, pages * os.sysconf("SC_PAGE_SIZE") / 2**20)


def _session_and_cpu(pid: int) -> tuple[int, float]:
    """Session id and seconds of processor time: fields 6, 14 and 15 of proc(5)."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[3]), (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


class Server:
    """A server process; `address` is where it listens."""

    def __init__(self, worker: Worker, port_file: pathlib.Path):
        self._worker = worker
        self._port_file = port_file
        self.address = ""

    @property
    def usage(self) -> Usage:
        """Of the server's own process."""
        return usage(self._worker.pid)

    def session_cpu_s(self) -> float:
        """Processor time of the server and of the processes of its engine, so far."""
        total = 0.0
        for directory in pathlib.Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it has just ended
                session, cpu_s = _session_and_cpu(int(directory.name))
                total += cpu_s if session == self._worker.pid else 0.0
        return total

    def listening(self) -> bool:
        """Whether it can be called.

        Raises:
          RunError: it ended instead.
        """
        if self._worker.poll() is not None:
            raise RunError(f"a server did not start: {self._worker.reason()}")
        if self._port_file.exists():
            self.address = self._port_file.read_text()
        return bool(self.address)

    def kill(self) -> None:
        """Ends it at once, as a machine that is lost."""
        self._worker.kill()

    def stop(self) -> None:
        """Asks it to end, and ends it where it does not."""
        self._worker.interrupt()
        deadline = time.monotonic() + STOP_S
        while self._worker.poll() is None and time.monotonic() < deadline:
            time.sleep(POLL_S)
        self._worker.kill()


@contextlib.contextmanager
def serving(
    module: str, arguments: Sequence[str], *, count: int, root: pathlib.Path, python: str = sys.executable
) -> Iterator[list[Server]]:
    """Servers that listen, and end with the block.

    Args:
      module: what `python -m` runs; takes `--port_file`.
      arguments: its other flags.
      count: how many servers.
      root: folder for their logs and port files.
      python: of their environment.
    """
    names = [root / f"server-{time.monotonic_ns()}-{i}" for i in range(count)]
    servers = []
    try:
        for name in names:
            command = [python, "-m", module, f"--port_file={name}.port", "--grace_s=0", *arguments]
            worker = Worker(command, name.with_suffix(".log"), core=None, environment=os.environ)
            servers.append(Server(worker, name.with_suffix(".port")))
        deadline = time.monotonic() + START_S
        while not all([server.listening() for server in servers]):
            if time.monotonic() > deadline:
                raise RunError(f"the servers do not listen after {START_S:.0f} s; logs in {root}")
            time.sleep(POLL_S)
        yield servers
    finally:
        for server in servers:
            server.stop()


@contextlib.contextmanager
def sampling(addresses: str, shape: model.ModelConfig) -> Iterator[RemoteSampler]:
    """A sampler over servers, addresses with commas between them, which have got random weights of this shape."""
    session = f"{pathlib.Path(sys.argv[0]).stem}-{os.getpid()}"
    sender = Sender(ServiceConfig(endpoints=addresses), shape, session=session, in_flight="abort")
    sampler = RemoteSampler(sender)
    try:
        sampler.update_weights(model.init_params(shape, jax.random.key(0)), version=0)
        yield sampler
    finally:
        sampler.close()


def endless_groups(group_size: int, *, max_tokens: int, step: int = 0) -> Iterator[SampleRequest]:
    """Groups of one short prompt without end, each with random numbers of its own; only their length ends them."""
    prompt, params = np.arange(3, 12, dtype=np.int32), SamplingParams(1.0, 1.0, max_tokens)
    for number in itertools.count():
        yield SampleRequest(f"p{number}", prompt, group_size, 0, step, (), params)
