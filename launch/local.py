r"""A run on this machine: learner processes and sampler servers, kept alive until the run is done.

    .venv/bin/python launch/local.py --learners=2 --servers=2 --engine=jax --model=runs/study-quick/base -- \
        .venv/bin/python -m isocompute_jax.train --config=configs/arithmetic_hard.py --workdir=runs/hard \
        --config.service.endpoints={endpoints} --config.service.token_file={token_file}

Starts the servers, waits until they listen, then starts the learners: the command, with `{endpoints}` and
`{token_file}` filled in and, of several learners, `--coordinator`, `--process_count` and `--process_index` added. What
the first learner prints is seen here, what the others print in their logs.

- A server that dies is started again at its address, and given up when it dies again and again before it listens.
- When a learner dies the others end by themselves (`--stall_s` of isocompute_jax.train), and all are started again:
  they resume from the last checkpoint. Learners that fail without progress, no line of metrics.jsonl being new, are
  given up.
- Done, bad input (exit code 2) or interrupted (Ctrl-C, SIGTERM): everything ends, with the exit code of the learners.
- Killed (SIGKILL), it takes servers and learners with it; the same command resumes from the last checkpoint.
- On a host with GPUs `--learner_gpus=4 --servers=4 --server_gpus=1` gives the learner the first four and each server
  one of the others, by CUDA_VISIBLE_DEVICES; one that is set already says what there is to give. A learner and a server
  on one GPU share its memory.

On a cluster all this is the scheduler's work: see docs/clusters.md.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
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
from collections.abc import Iterator, Mapping, Sequence

import gpus  # of this folder
from absl import app as absl_app
from absl import flags

from isocompute_jax import app
from isocompute_jax.records.errors import InputError, RunError
from isocompute_jax.sweeps import workers
from isocompute_jax.sweeps.workers import Worker

ELSE_START_S, VLLM_START_S = 300.0, 1800.0
"""How long a server may take to listen: on GPUs vLLM reads the weights, compiles, and captures graphs first."""

LEARNERS = flags.DEFINE_integer("learners", 1, "Learner processes, which share the cores.", lower_bound=1)
SERVERS = flags.DEFINE_integer(
    "servers", 2, "Sampler servers; 0: the learner samples in its own process.", lower_bound=0
)
ENGINE = flags.DEFINE_enum("engine", "jax", ["jax", "vllm"], "Their engine.")
MODEL = flags.DEFINE_string("model", None, "Hugging Face directory that they load; its weights serve until an update.")
SERVER_PYTHON = flags.DEFINE_string("server_python", sys.executable, "Python of their environment, for another engine.")
SERVER_ARGS = flags.DEFINE_string("server_args", "", "More flags of isocompute_jax.serve, as on a command line.")
LOGS = flags.DEFINE_string("logs", "runs/servers", "Directory of the logs of servers, and of learners but the first.")
LEARNER_GPUS = flags.DEFINE_integer(
    "learner_gpus", None, "GPUs of all learners together, evenly shared, the host's first; 0: none.", lower_bound=0
)
SERVER_GPUS = flags.DEFINE_integer(
    "server_gpus", None, "GPUs of each server, after the learners'; 0: none.", lower_bound=0
)
START_S = flags.DEFINE_float(
    "start_s",
    None,
    f"A server that does not listen after so many seconds has failed: {ELSE_START_S:.0f}, for vLLM on GPUs "
    f"{VLLM_START_S:.0f}, if absent.",
)
RESTARTS = flags.DEFINE_integer(
    "restarts", 5, "Failures in a row without progress that are not the end.", lower_bound=0
)
GRACE_S = flags.DEFINE_float(
    "grace_s", 90.0, "Learners that run so many seconds after another has ended are killed: more than their --stall_s."
)

PREFIX = "isocompute-launch-"
POLL_S = 0.1
END_S = 15.0
BACKOFF_S = (0.0, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Waits before something is started again, by how often it has failed in a row."""
HEALTHY_S = 60.0
"""A server that has lived so long does not die in a row."""
UNBORN = 10
"""So many starts in a row that did not come to listen, and a server is given up; one that has listened never is."""


@dataclasses.dataclass(frozen=True)
class Host:
    """What this host gives to the processes of a run.

    Attributes:
      learners: the environment of each.
      servers: the environment of each.
      server_args: flags of all servers that the user has given, and what their GPUs add.
      start_s: how long a server may take to listen.
    """

    learners: tuple[Mapping[str, str], ...]
    servers: tuple[Mapping[str, str], ...]
    server_args: tuple[str, ...]
    start_s: float


class Server:
    """One server: its address stays the same over restarts."""

    def __init__(self, number: int, directory: pathlib.Path, token_file: pathlib.Path, host: Host):
        self.number = number
        self._environment, self._start_s = host.servers[number], host.start_s
        self.address = f"127.0.0.1:{free_port()}"
        self._log = pathlib.Path(LOGS.value) / f"server-{number}.log"
        self._port_file = directory / f"server-{number}"
        self._command = [
            *(SERVER_PYTHON.value, "-m", "isocompute_jax.serve"),
            *(f"--engine={ENGINE.value}", f"--model={MODEL.value}", f"--port={self.address.rpartition(':')[2]}"),
            *(f"--port_file={self._port_file}", f"--token_file={token_file}", *host.server_args),
        ]
        self._deaths = 0
        self._unborn = 0
        self._due = 0.0
        self.given_up = False
        self.start()

    def start(self) -> None:
        """Starts it; its process ends with this one."""
        self._port_file.unlink(missing_ok=True)
        self._started = time.monotonic()
        self._worker: Worker | None = Worker(self._command, self._log, core=None, environment=self._environment)

    def listening(self) -> bool:
        """Whether it can serve. Raises when it died instead, or took too long."""
        assert self._worker is not None
        if self._worker.poll() is not None:
            error = InputError if self._worker.poll() == app.BAD_INPUT else RunError
            raise error(f"server {self.number} did not start: {self._worker.reason()}")
        if time.monotonic() - self._started > self._start_s:
            raise RunError(f"server {self.number} does not listen after {self._start_s:.0f} s; log: {self._log}")
        return self._port_file.exists()

    def keep_alive(self) -> None:
        """Starts it again if it died, later and later if it keeps dying; no more if it never comes to listen."""
        now = time.monotonic()
        if self._port_file.exists():
            self._unborn = 0
        if self._worker is not None and (code := self._worker.poll()) is not None:
            self._deaths = 1 if now - self._started > HEALTHY_S else self._deaths + 1
            self._unborn += 1
            self.given_up = code == app.BAD_INPUT or self._unborn >= UNBORN
            wait = backoff(self._deaths)
            then = "it is given up" if self.given_up else f"again in {wait:.0f} s"
            reason = self._worker.reason().splitlines()[0]
            say(f"server {self.number} at {self.address} died ({reason}; log: {self._log}); {then}")
            self._worker, self._due = None, now + wait
        if self._worker is None and not self.given_up and now >= self._due:
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


class Learners:
    """All learner processes of one attempt at a run; the end of a `with` ends them.

    The first is in this program's session: it sees a terminal's Ctrl-C, and what it decides the others follow.
    """

    def __init__(self, command: Sequence[str], environments: Sequence[Mapping[str, str]]):
        self._ended: dict[int, int] = {}
        self._deadline = float("inf")
        self._killed = 0
        setup = [sys.executable, "-m", workers.__name__, str(os.getpid()), workers.NO_CORE]  # it dies with this process
        commands = [[*command, *place] for place in places(LEARNERS.value)]
        self._first = subprocess.Popen([*setup, *commands[0]], env=dict(environments[0]))
        self._others: list[Worker] = []
        for number, each in enumerate(commands[1:], 1):
            log = pathlib.Path(LOGS.value) / f"learner-{number}.log"
            self._others.append(Worker(each, log, core=None, environment=environments[number]))
        processes = [self._first, *self._others]
        for process, cores in zip(processes, shares(len(processes)), strict=False):
            os.sched_setaffinity(process.pid, cores)  # long before it has imported JAX, which counts them

    def __enter__(self) -> Learners:
        return self

    def __exit__(self, *_: object) -> None:
        self._first.kill()
        self._first.wait()
        for other in self._others:
            other.kill()

    def send(self, number: int) -> None:
        """Sends a signal to the first."""
        self._first.send_signal(number)

    def over(self) -> bool:
        """Whether all have ended; what is left some time after the first death is killed."""
        for number, process in enumerate([self._first, *self._others]):
            code = process.poll()
            if code is not None and number not in self._ended:
                self._ended[number] = code
                self._deadline = min(self._deadline, time.monotonic() + GRACE_S.value)
        if time.monotonic() > self._deadline:
            self._killed = self._killed or len(self._others) + 1 - len(self._ended)
            self.__exit__()
        return len(self._ended) > len(self._others)

    def cause(self) -> dict[int, int]:
        """Number -> exit code of those that ended first, or may have; empty if all is well.

        A user's doing comes before a death by a signal; what follows from another's end is exit code 1.
        """
        order = list(self._ended.items())[: len(self._ended) - self._killed]
        codes = [code for _, code in order if code]
        user = [code for code in codes if code in (app.BAD_INPUT, app.INTERRUPTED)]
        chosen = next(iter(user or [code for code in codes if code < 0] or codes), 0)
        return {number: code for number, code in order if code == chosen} if chosen else {}

    def reason(self, number: int) -> str:
        """How a learner ended."""
        if number:
            return f"learner {number}: {self._others[number - 1].reason()}"
        code = self._ended[number]
        return "learner 0: " + (workers.killed_by(code) if code < 0 else f"exit code {code}")


def main(command: Sequence[str]) -> int:
    """Runs `command` beside the servers and returns its exit code."""
    if SERVERS.value and not MODEL.value:
        raise InputError("--model is missing: give the Hugging Face directory that the servers load")
    if not command:
        raise InputError("no command: give it after `--`, with {endpoints} where the servers' addresses go")
    for what, program in (("--server_python", SERVER_PYTHON.value), ("the command after `--`", command[0])):
        if shutil.which(program) is None:
            raise InputError(f"{what}: {program} is no program that can be started; check its path")
    host = host_of_run()
    pathlib.Path(LOGS.value).mkdir(parents=True, exist_ok=True)
    sweep()
    with tempfile.TemporaryDirectory(prefix=f"{PREFIX}{os.getpid()}-") as name:
        directory = pathlib.Path(name)
        token_file = directory / "token"
        token_file.touch(mode=0o600)
        token_file.write_text(secrets.token_hex(32))
        with servers(directory, token_file, host) as fleet:
            endpoints = ",".join(server.address for server in fleet)
            filled_in = {"{endpoints}": endpoints, "{token_file}": str(token_file)}
            return supervise([filled(part, filled_in) for part in command], fleet, host)


def host_of_run() -> Host:
    """What this host gives to whom.

    Raises:
      InputError: it has not what the flags ask for, or several processes would take the same GPU.
    """
    learner_gpus, server_gpus = LEARNER_GPUS.value, SERVER_GPUS.value
    if learner_gpus is None and server_gpus is None:
        return undivided()
    if server_gpus is None and not SERVERS.value:
        server_gpus = 0
    if learner_gpus is None or server_gpus is None:
        name = (LEARNER_GPUS if learner_gpus is None else SERVER_GPUS).name
        raise InputError(f"--{name} is missing, and the other processes are told their GPUs: 0 is none")
    return divided(learner_gpus, server_gpus)


def undivided() -> Host:
    """All processes see what the launcher sees: where that is GPUs there may be one process that uses them."""
    on_gpus, vllm, seen = workers.has_accelerator(), ENGINE.value == "vllm", gpus.visible(os.environ)
    gpus.check_apart(seen, learners=LEARNERS.value if on_gpus else 0, servers=SERVERS.value if on_gpus or vllm else 0)
    if LEARNERS.value > 1 and on_gpus:
        raise InputError(f"--learners={LEARNERS.value}: processes cannot share this machine's accelerators; start one")
    start_s = START_S.value or (VLLM_START_S if vllm and seen else ELSE_START_S)
    environment = dict(os.environ)
    return Host((environment,) * LEARNERS.value, (environment,) * SERVERS.value, server_args(), start_s)


def divided(learner_gpus: int, server_gpus: int) -> Host:
    """Each process sees its own GPUs; says which."""
    arguments, vllm = server_args(), ENGINE.value == "vllm"
    if server_gpus:
        gpus.check_parts(ENGINE.value, server_gpus, arguments)
    shares = gpus.divide(
        gpus.pool_of(os.environ) if learner_gpus or server_gpus else gpus.Pool(()),
        learners=LEARNERS.value,
        learner_gpus=learner_gpus,
        servers=SERVERS.value,
        server_gpus=server_gpus,
    )
    shares, added = gpus.settle(shares, engine=ENGINE.value, arguments=arguments, environ=os.environ)
    say(f"who sees which GPUs (CUDA_VISIBLE_DEVICES): {shares}")
    return Host(
        tuple(share.environment(os.environ) for share in shares.learners),
        tuple(share.environment(os.environ) for share in shares.servers),
        (*arguments, *added),
        START_S.value or (VLLM_START_S if vllm and server_gpus else ELSE_START_S),
    )


def server_args() -> tuple[str, ...]:
    """The user's flags of the servers."""
    return tuple(shlex.split(SERVER_ARGS.value))


@contextlib.contextmanager
def servers(directory: pathlib.Path, token_file: pathlib.Path, host: Host) -> Iterator[list[Server]]:
    """Servers that listen; they are ended however the block is left."""
    fleet: list[Server] = []
    try:
        fleet.extend(Server(number, directory, token_file, host) for number in range(SERVERS.value))
        while not all([server.listening() for server in fleet]):
            time.sleep(POLL_S)
        if fleet:
            say(f"{len(fleet)} servers listen: {', '.join(server.address for server in fleet)}")
        yield fleet
    finally:
        for server in fleet:
            server.ask_to_end()
        deadline = time.monotonic() + END_S
        for server in fleet:
            server.end(deadline)


def supervise(command: list[str], fleet: list[Server], host: Host) -> int:
    """Starts the learners, again where that may help, and returns their exit code.

    Raises:
      RunError: they fail again and again, or there is no server left.
    """
    told: list[int] = []  # signals that asked this program to end
    attempt: list[Learners] = []

    def forward(number: int, _: object) -> None:
        told.append(number)
        # A terminal has sent Ctrl-C to the first learner already; who sends another signal knows this process alone.
        if attempt and not (number == signal.SIGINT and in_foreground()):
            attempt[-1].send(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, forward)
    failures, most = 0, lines(command)
    while not told:
        with Learners(command, host.learners) as learners:
            attempt.append(learners)
            while not learners.over():
                if keep_alive(fleet) and not told:
                    told.append(signal.SIGTERM)
                    learners.send(signal.SIGTERM)
                time.sleep(POLL_S)
        if fleet and all(server.given_up for server in fleet):
            raise RunError(f"no server is left; logs: {LOGS.value}. The same command resumes from the last checkpoint")
        cause = learners.cause()
        code = next(iter(cause.values()), 0)
        # Of exit codes only that of a failed run is known to be worth another attempt; any signal is.
        again = not told and (code == app.FAILED or code < 0)
        for number in cause:
            if again or (0 not in cause and code != app.INTERRUPTED):  # else the first has said it itself
                say(learners.reason(number))
        if not again:
            return code if code >= 0 else 128 - code
        now = lines(command)
        failures, most = (1 if now > most else failures + 1), max(now, most)
        if failures > RESTARTS.value:
            raise RunError(f"the learners failed {failures} times in a row without progress; given up")
        wait = backoff(failures)
        say(f"all learners again in {wait:.0f} s (failure {failures} since they made progress)")
        due = time.monotonic() + wait
        while time.monotonic() < due and not told:
            keep_alive(fleet)
            time.sleep(POLL_S)
    return 128 + told[0]


def in_foreground() -> bool:
    """Whether a terminal's Ctrl-C comes to this process, and to all of its group."""
    try:
        with open("/dev/tty", "rb") as terminal:
            return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    except OSError:
        return False


def keep_alive(fleet: list[Server]) -> bool:
    """Starts servers again that died; whether there are none left to start."""
    for server in fleet:
        server.keep_alive()
    return bool(fleet) and all(server.given_up for server in fleet)


def lines(command: Sequence[str]) -> int:
    """Lines of every metrics.jsonl in the command's --workdir: progress is more of them than ever before."""
    given = [text.removeprefix("--workdir=") for text in command if text.startswith("--workdir=")]
    given += [text for flag, text in itertools.pairwise(command) if flag == "--workdir"]
    files = pathlib.Path(given[-1]).rglob("metrics.jsonl") if given else ()
    return sum(file.read_bytes().count(b"\n") for file in files)


def places(count: int) -> list[list[str]]:
    """The flags that tell each learner its place; none where there is but one."""
    if count == 1:
        return [[]]
    shared = [f"--coordinator=127.0.0.1:{free_port(2)}", f"--process_count={count}"]
    return [[*shared, f"--process_index={index}"] for index in range(count)]


def shares(count: int) -> list[set[int]]:
    """The cores of each of `count` processes; none where there is nothing to share out, or too little."""
    cores = workers.default_cores() or []
    if count == 1 or len(cores) < count:
        return []
    return [set(cores[index * len(cores) // count : (index + 1) * len(cores) // count]) for index in range(count)]


def backoff(failures: int) -> float:
    """Seconds to wait after so many failures in a row, at least one."""
    return BACKOFF_S[min(failures, len(BACKOFF_S)) - 1]


def say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


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


def free_port(count: int = 1) -> int:
    """The first of `count` ports of the loopback interface, one above the other, that nobody uses now."""
    while True:
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError, OverflowError):
            probes = [stack.enter_context(socket.socket()) for _ in range(count)]
            probes[0].bind(("127.0.0.1", 0))
            first = probes[0].getsockname()[1]
            for offset, probe in enumerate(probes[1:], 1):
                probe.bind(("127.0.0.1", first + offset))
            return first


def _run(arguments: Sequence[str]) -> None:
    code = 0

    def run() -> None:
        nonlocal code
        code = main(arguments[1:])

    sys.exit(app.exit_code(run) or code)


if __name__ == "__main__":
    absl_app.run(_run)
