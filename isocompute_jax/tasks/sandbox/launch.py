"""Starts the sandbox, hands it programs, reads what they gave within bounds, and says what it keeps from them."""

from __future__ import annotations

import atexit
import dataclasses
import json
import marshal
import math
import os
import pathlib
import secrets
import select
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Any, Literal

from isocompute_jax.options import check, described, option
from isocompute_jax.records.errors import RunError
from isocompute_jax.tasks.sandbox.inside import keeper
from isocompute_jax.tasks.sandbox.inside.jail import MEASURES

Ending = Literal["ended", "failed", "time", "output", "not run"]
"""By itself, with exit code 0 or another way; by its deadline; for what it printed; after a test that ended by time."""

Call = tuple[str, Sequence[Any] | None]
"""A function (or a method of the class `Solution`) and its arguments; or an expression and None."""

_START_S = 60.0
_GRACE_S = 10.0  # beyond the deadline that the sandbox keeps by itself, for a busy machine
_START = "import sys; sys.path.append({folder!r}); from inside.server import main; main(*sys.argv[1:])"


@described
@dataclasses.dataclass(frozen=True)
class SandboxLimits:
    """What the untrusted programs of one completion may use up before they are ended."""

    wall_s: float = option(30.0, "Seconds that all tests of one completion may take together.", low=0.05)
    test_s: float = option(
        6.0, "Seconds that one test may take; after one that took longer, no other is run.", low=0.05
    )
    cpu_s: float = option(10.0, "CPU seconds of one process, rounded up to whole ones.", low=0.05)
    memory_mb: int = option(512, "Address space of one process, in MiB.", low=64)
    output_kb: int = option(1024, "KiB that one test may print, or all function results together.", low=1)
    file_mb: int = option(8, "Largest file, in MiB.", low=1)
    scratch_mb: int = option(32, "All files of one completion together, in MiB, where the kernel hides files.", low=1)
    files: int = option(1024, "Number of those files and directories.", low=16)
    open_files: int = option(32, "Files and pipes that one process may hold open.", low=8)
    processes: int = option(16, "Processes and threads at a time.", low=1)

    def __post_init__(self) -> None:
        check(self)

    def for_server(self) -> dict[str, int | float]:
        """The same in the units of the kernel (`inside.program`, `inside.keeper`)."""
        in_bytes: dict[str, int | float] = {
            "cpu_s": math.ceil(self.cpu_s),
            "memory_bytes": self.memory_mb << 20,
            "file_bytes": self.file_mb << 20,
        }
        return dataclasses.asdict(self) | in_bytes


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What one process of a program came to."""

    ending: Ending
    stdout: bytes = b""  # what it printed, up to `output_kb` (`inside.keeper.KEPT_BYTES` where functions are called)
    stderr: bytes = b""  # the beginning of its error output
    results: bytes = b""  # lines of JSON of the functions that were called
    seconds: float = 0.0  # that it took


class Sandbox:
    """A process that runs untrusted Python programs, each in a jail, one after the other.

    It is started with the first program and again if it is lost; `close` ends it. Threads may share one, and take
    turns; a process that was forked from its own must make another.
    """

    def __init__(self, limits: SandboxLimits | None = None, *, measures: Collection[str] = MEASURES):
        """Starts nothing yet.

        Args:
          limits: what each program may use up.
          measures: those of `inside.jail.MEASURES` that are tried; fewer than all show what a kernel that refuses the
            others gives.
        """
        self.limits = limits or SandboxLimits()
        self._wanted = [name for name in MEASURES if name in measures]
        self._lock = threading.Lock()
        self._server: subprocess.Popen[bytes] | None = None
        self._scratch = ""
        self._in_force: frozenset[str] = frozenset()
        self._owner = 0

    def run(self, source: str, inputs: Sequence[str], *, limits: SandboxLimits | None = None) -> list[Outcome]:
        """Runs a program once for each text on its standard input, in a fresh process and directory each time.

        `limits` stand in place of the sandbox's own for this program.

        Raises:
          RunError: the sandbox cannot be started on this machine.
        """
        return self._job(
            source, [text.encode("utf-8", "surrogatepass") for text in inputs], None, limits or self.limits
        )

    def call(self, source: str, calls: Sequence[Call]) -> list[Any]:
        """Runs a program in one process and makes calls to what it defines.

        Returns:
          For each call its value as plain data (`inside.program.plain`), or `Failed` where it raised, where time was
          over, or where the program meddled with the results.

        Raises:
          RunError: the sandbox cannot be started on this machine.
        """
        plain = [(name, None if arguments is None else list(arguments)) for name, arguments in calls]
        [outcome] = self._job(source, [b""], plain, self.limits)
        return _values(outcome, len(calls))

    def measures(self) -> frozenset[str]:
        """Those of `MEASURES` that are in force here.

        Raises:
          RunError: the sandbox cannot be started on this machine.
        """
        with self._lock:
            self._started()
            return self._in_force

    def close(self) -> None:
        """Ends the sandbox with all that runs in it, and removes its directory."""
        with self._lock:
            self._stop()

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _job(self, source: str, stdins: list[bytes], calls: list[Any] | None, limits: SandboxLimits) -> list[Outcome]:
        job = marshal.dumps({"source": source, "stdins": stdins, "calls": calls, "limits": limits.for_server()})
        with self._lock:
            for _ in range(2):  # once more with a new one, if it is lost
                server = self._started()
                try:
                    return self._answers(server, job, len(stdins), limits)
                except _Lost:
                    self._stop()
        return [Outcome("failed")] * len(stdins)

    def _answers(self, server: subprocess.Popen[bytes], job: bytes, count: int, limits: SandboxLimits) -> list[Outcome]:
        """Sends a job and reads its frames."""
        assert server.stdin is not None
        try:
            server.stdin.write(struct.pack("<I", len(job)) + job)
            server.stdin.flush()
        except OSError:
            raise _Lost from None
        began = time.monotonic()
        read = _Reader(server, began + limits.wall_s + _GRACE_S)
        most = (limits.output_kb << 10) + 2 * keeper.KEPT_BYTES
        found: list[Outcome] = []
        while len(found) <= count:
            how, status, *sizes = keeper.FRAME.unpack(read.exactly(keeper.FRAME.size))
            if how == keeper.LAST:
                return found + [Outcome("not run")] * (count - len(found))
            if sum(sizes) > most:
                break
            parts = [read.exactly(size) for size in sizes]
            began, taken = time.monotonic(), time.monotonic() - began
            found.append(Outcome(_ending(how, status), *parts, seconds=taken))
        raise _Lost

    def _started(self) -> subprocess.Popen[bytes]:
        """The running server; a new one where there is none."""
        if self._server is not None and self._server.poll() is None:
            return self._server
        self._stop()
        # Made by the server, where it needs one, and removed with it, also when this process is killed.
        self._scratch = os.path.join(tempfile.gettempdir(), f"sandbox-{secrets.token_hex(8)}")
        start = _START.format(folder=str(pathlib.Path(__file__).parent))
        command = [sys.executable, "-S", "-s", "-P", "-X", "utf8", "-c", start, ",".join(self._wanted), self._scratch]
        self._server = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={"PYTHONHASHSEED": "0"},  # with -P and -s what -I does, but for the same hashes in every run
            start_new_session=True,  # a terminal's Ctrl-C is for the run, which ends this in its own time
        )
        self._owner = os.getpid()
        atexit.register(self.close)
        try:
            names = _Reader(self._server, time.monotonic() + _START_S).line()
        except _Lost:
            self._stop()
            raise RunError(
                "the sandbox for code does not start: its error stands above; it needs a POSIX system and the Python "
                f"that runs this ({sys.executable}), with its standard library"
            ) from None
        self._in_force = frozenset(filter(None, names.split(",")))
        return self._server

    def _stop(self) -> None:
        server, self._server = self._server, None
        if server is None or self._owner != os.getpid():
            return  # it is for the process that started it to end it
        atexit.unregister(self.close)
        assert server.stdin is not None and server.stdout is not None
        with suppress(OSError):
            server.stdin.close()  # it then ends what it runs, and itself
        try:
            server.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
        server.stdout.close()
        shutil.rmtree(self._scratch, ignore_errors=True)


class _Lost(Exception):
    """The sandbox ended, or no longer answers."""


class Failed:
    """Stands for the value of a call that has none."""


class _Reader:
    """Reads a server's answers until a time."""

    def __init__(self, server: subprocess.Popen[bytes], deadline: float):
        assert server.stdout is not None
        self._descriptor = server.stdout.fileno()
        self._deadline = deadline
        self._poll = select.poll()
        self._poll.register(self._descriptor, select.POLLIN)

    def exactly(self, count: int) -> bytes:
        found = bytearray()
        while len(found) < count:
            left = self._deadline - time.monotonic()
            if left <= 0 or not self._poll.poll(left * 1000):
                raise _Lost
            chunk = os.read(self._descriptor, count - len(found))
            if not chunk:
                raise _Lost
            found += chunk
        return bytes(found)

    def line(self) -> str:
        found = bytearray()
        while not found.endswith(b"\n"):
            found += self.exactly(1)
        return found.decode("ascii", "replace").strip()


def _ending(how: int, status: int) -> Ending:
    if how == keeper.ENDED:
        return "ended" if status == 0 else "failed"
    return {keeper.TIME: "time", keeper.OUTPUT: "output"}.get(how, "failed")  # pyright: ignore[reportReturnType]


def _values(outcome: Outcome, count: int) -> list[Any]:
    """The value of each call; none at all if a line is no answer, or a second one to the same call."""
    values: list[Any] = [Failed] * count
    seen: set[int] = set()
    lines = outcome.results.split(b"\n")
    if outcome.ending == "output":
        return values
    for line in lines[:-1]:  # behind the last line end is nothing, or what was cut off
        try:
            index, *value = json.loads(line)
        except (ValueError, TypeError, RecursionError):
            return [Failed] * count
        if type(index) is not int or not 0 <= index < count or index in seen or len(value) > 1:
            return [Failed] * count
        seen.add(index)
        values[index] = value[0] if value else Failed
    return values


# --- what is kept from programs on this machine

_HOW = "allow user namespaces (sysctl kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns)"
_MISSING = {
    "processes": (
        "Processes: programs share the process ids of this machine. What they leave is looked for and killed, but they "
        "can see other processes{signals}."
    ),
    "network": "Network: programs can reach whatever this machine can reach{tcp}.",
    "files": (
        "Files: programs can read every file that {reader} may read, problem sets with their answers too, write where "
        "that user may, and fill that disk."
    ),
    "disk": "Files: rules hide them, but programs can fill the disk of the temporary directory while they run.",
    "shared_memory": "Shared memory: System V segments that programs make are not limited, and remain after them.",
    "library": (
        "Library: Python's standard library lies where the programs' user cannot read it; they can import its common "
        "modules alone. Use a Python that every user may read."
    ),
    "system_calls": (
        "System calls: this kernel, or this processor, has no filter for them that we know; programs can make them "
        "all, bpf, io_uring_setup and perf_event_open among them."
    ),
    "memory": "Memory: this system does not limit it for each process.",
    "count": "Number of processes: this system does not limit it for the programs alone.",
}


@dataclasses.dataclass(frozen=True)
class Isolation:
    """What is in force on this machine."""

    processes: bool  # a process-id namespace for each program: it sees and signals nobody else, nothing outlives it
    network: bool  # no network
    files: bool  # nothing of the file system but Python, the system's libraries and one small directory
    shared_memory: bool  # no System V shared memory
    user: bool  # another user id than ours
    landlock: bool  # rules of the kernel, which stand in where files cannot be hidden
    system_calls: bool  # a filter refuses those that no program needs (`inside.seccomp`)
    library: bool  # programs can import all of the standard library
    missing: tuple[str, ...]  # a sentence for each measure that is not in force

    def __str__(self) -> str:
        names = [field.name for field in dataclasses.fields(self) if getattr(self, field.name) is True]
        in_force = ", ".join(name.replace("_", " ") for name in names if name != "library") or "limits alone"
        namespaces = self.processes and self.network and self.files and self.shared_memory
        remedy = "" if os.geteuid() == 0 or sys.platform != "linux" or namespaces else f" To have more, {_HOW}."
        return " ".join([f"The sandbox for code isolates: {in_force}.", *self.missing]) + remedy


def isolation(sandbox: Sandbox | None = None) -> Isolation:
    """What is in force, as a sandbox that was started found out.

    Args:
      sandbox: the one to ask; by default one that tries everything is started for it.

    Raises:
      RunError: it cannot be started on this machine.
    """
    if sandbox is None:
        with Sandbox() as own:
            return isolation(own)
    measures = sandbox.measures()
    in_force = {name: name in measures for name in (*MEASURES, "library")}
    return Isolation(**in_force, missing=tuple(_sentences(in_force, measures)))


def _sentences(in_force: dict[str, bool], measures: frozenset[str]) -> list[str]:
    """One for each thing that a program is not kept from. That it is our own user matters where it can reach us."""
    unreachable = in_force["user"] or "no_signals" in measures
    words = {
        "signals": "" if unreachable else ", and signal those of the user who started this",
        "tcp": ", but not by TCP" if "no_tcp" in measures else "",
        "reader": "an unprivileged user" if in_force["user"] else "the user who started this",
    }
    names = [name for name in in_force if not in_force[name] and name in _MISSING]
    if in_force["system_calls"] and "shared_memory" in names:
        names.remove("shared_memory")  # the filter refuses it
    if in_force["landlock"]:
        names[names.index("files")] = "disk"
    if sys.platform != "linux":
        names += ["memory", "count"]
    elif os.geteuid() == 0 and not in_force["user"]:  # Linux counts everybody's processes but root's
        names.append("count")
    return [_MISSING[name].format(**words) for name in names]
