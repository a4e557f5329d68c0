r"""Sampler servers on this machine, kept alive while a command runs.

    .venv/bin/python launch/local.py --servers=2 --engine=jax --model=runs/study-quick/base -- \
        .venv/bin/python -m isocompute_jax.train --config=configs/arithmetic_hard.py --workdir=runs/hard \
        --config.service.endpoints={endpoints} --config.service.token_file={token_file}

Starts the servers, waits until they listen, runs the command with `{endpoints}` and `{token_file}` filled in, starts
servers that die again at the same address, and ends them when the command ends, with its exit code. Killed (SIGKILL),
it takes servers and command with it; the same command resumes from the last checkpoint. On a cluster this
is the scheduler's work: there a server is a job of its own that is restarted when it fails.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence

from absl import app as absl_app
from absl import flags

from isocompute_jax import app
from isocompute_jax.records.errors import InputError, RunError
from isocompute_jax.sweeps import workers
from isocompute_jax.sweeps.workers import Worker

SERVERS = flags.DEFINE_integer("servers", 2, "How many servers to keep running.", lower_bound=1)
ENGINE = flags.DEFINE_enum("engine", "jax", ["jax", "vllm"], "Their engine.")
MODEL = flags.DEFINE_string("model", None, "Hugging Face directory that they load; its weights serve until an update.")
SERVER_PYTHON = flags.DEFINE_string("server_python", sys.executable, "Python of their environment, for another engine.")
SERVER_ARGS = flags.DEFINE_string("server_args", "", "More flags of isocompute_jax.serve, as on a command line.")
LOGS = flags.DEFINE_string("logs", "runs/servers", "Directory of their logs.")
START_S = flags.DEFINE_float("start_s", 300.0, "A server that does not listen after so many seconds has failed.")

PREFIX = "isocompute-launch-"
POLL_S = 0.1
GRACE_S = 15.0
BACKOFF_S = (0.0, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Waits before a server is started again, by how often it has died in a row within `HEALTHY_S` of its start."""
HEALTHY_S = 60.0


class Server:
    """One server: its address stays the same over restarts."""

    def __init__(self, number: int, directory: pathlib.Path, token_file: pathlib.Path):
        self.number = number
        self.address = f"127.0.0.1:{free_port()}"
        self._log = pathlib.Path(LOGS.value) / f"server-{number}.log"
        self._port_file = directory / f"server-{number}"
        self._command = [
            *(SERVER_PYTHON.value, "-m", "isocompute_jax.serve"),
            *(f"--engine={ENGINE.value}", f"--model={MODEL.value}", f"--port={self.address.rpartition(':')[2]}"),
            *(f"--port_file={self._port_file}", f"--token_file={token_file}", *shlex.split(SERVER_ARGS.value)),
        ]
        self._deaths = 0
        self._due = 0.0
        self.start()

    def start(self) -> None:
        """Starts it; its process ends with this one."""
        self._port_file.unlink(missing_ok=True)
        self._started = time.monotonic()
        self._worker: Worker | None = Worker(self._command, self._log, core=None, environment=os.environ)

    def listening(self) -> bool:
        """Whether it can serve. Raises when it died instead, or took too long."""
        assert self._worker is not None
        if self._worker.poll() is not None:
            error = InputError if self._worker.poll() == app.BAD_INPUT else RunError
            raise error(f"server {self.number} did not start: {self._worker.reason()}")
        if time.monotonic() - self._started > START_S.value:
            raise RunError(f"server {self.number} does not listen after {START_S.value:.0f} s; log: {self._log}")
        return self._port_file.exists()

    def keep_alive(self) -> None:
        """Starts it again if it died, later and later if it keeps dying."""
        now = time.monotonic()
        if self._worker is not None and self._worker.poll() is not None:
            self._deaths = 0 if now - self._started > HEALTHY_S else self._deaths + 1
            wait = BACKOFF_S[min(self._deaths, len(BACKOFF_S)) - 1] if self._deaths else 0.0
            reason = self._worker.reason().splitlines()[0]
            place = f"server {self.number} at {self.address}"
            print(f"{place} died ({reason}; log: {self._log}); again in {wait:.0f} s", file=sys.stderr)
            self._worker, self._due = None, now + wait
        if self._worker is None and now >= self._due:
            self.start()

    def ask_to_end(self) -> None:
        """Asks it to end."""
        if self._worker is not None and self._worker.poll() is None:
            self._worker.interrupt()

    def end(self, deadline: float) -> None:
        """Waits until the deadline, then ends it and whatever it started."""
        if self._worker is None:
            return
        while self._worker.poll() is None and time.monotonic() < deadline:
            time.sleep(POLL_S)
        self._worker.kill()


def main(command: Sequence[str]) -> int:
    """Runs `command` beside the servers and returns its exit code."""
    if not MODEL.value:
        raise InputError("--model is missing: give the Hugging Face directory that the servers load")
    if not command:
        raise InputError("no command: give it after `--`, with {endpoints} where the servers' addresses go")
    for what, program in (("--server_python", SERVER_PYTHON.value), ("the command after `--`", command[0])):
        if shutil.which(program) is None:
            raise InputError(f"{what}: {program} is no program that can be started; check its path")
    pathlib.Path(LOGS.value).mkdir(parents=True, exist_ok=True)
    sweep()
    with tempfile.TemporaryDirectory(prefix=f"{PREFIX}{os.getpid()}-") as name:
        directory = pathlib.Path(name)
        token_file = directory / "token"
        token_file.touch(mode=0o600)
        token_file.write_text(secrets.token_hex(32))
        with servers(directory, token_file) as fleet:
            endpoints = ",".join(server.address for server in fleet)
            places = {"{endpoints}": endpoints, "{token_file}": str(token_file)}
            return supervise([filled(part, places) for part in command], fleet)


@contextlib.contextmanager
def servers(directory: pathlib.Path, token_file: pathlib.Path) -> Iterator[list[Server]]:
    """Servers that listen; they are ended however the block is left."""
    fleet: list[Server] = []
    try:
        fleet.extend(Server(number, directory, token_file) for number in range(SERVERS.value))
        while not all([server.listening() for server in fleet]):
            time.sleep(POLL_S)
        print(f"{len(fleet)} servers listen: {', '.join(server.address for server in fleet)}", file=sys.stderr)
        yield fleet
    finally:
        for server in fleet:
            server.ask_to_end()
        deadline = time.monotonic() + GRACE_S
        for server in fleet:
            server.end(deadline)


def supervise(command: list[str], fleet: list[Server]) -> int:
    """Keeps the servers alive until `command` has ended; a terminal's Ctrl-C is the command's to answer."""
    # The learner dies with this process, as the servers do: alone it would wait for them in vain.
    process = subprocess.Popen([sys.executable, "-m", workers.__name__, str(os.getpid()), workers.NO_CORE, *command])

    def forward(number: int, _: object) -> None:
        # A terminal has sent Ctrl-C to the command already; who sends SIGTERM knows this process alone.
        if number == signal.SIGTERM:
            process.send_signal(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, forward)
    while process.poll() is None:
        for server in fleet:
            server.keep_alive()
        time.sleep(POLL_S)
    return process.returncode if process.returncode >= 0 else 128 - process.returncode


def sweep() -> None:
    """Removes what killed launchers of this user have left: the token of servers that ended with them."""
    for path in pathlib.Path(tempfile.gettempdir()).glob(f"{PREFIX}*-*"):
        pid = path.name.removeprefix(PREFIX).partition("-")[0]
        with contextlib.suppress(FileNotFoundError):  # another launcher may have ended, or swept
            if pid.isdigit() and path.lstat().st_uid == os.getuid() and not pathlib.Path("/proc", pid).exists():
                shutil.rmtree(path, ignore_errors=True)


def filled(part: str, places: dict[str, str]) -> str:
    """A part of the command with the placeholders filled in."""
    for place, value in places.items():
        part = part.replace(place, value)
    return part


def free_port() -> int:
    """A port of the loopback interface that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _run(arguments: Sequence[str]) -> None:
    code = 0

    def run() -> None:
        nonlocal code
        code = main(arguments[1:])

    sys.exit(app.exit_code(run) or code)


if __name__ == "__main__":
    absl_app.run(_run)
