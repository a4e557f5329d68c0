"""Keeps one job: starts the program for each test, feeds it, reads it within bounds, and ends it in time."""

from __future__ import annotations

import os
import select
import signal
import struct
import sys
import time
from contextlib import suppress
from typing import Any

from . import linux, program
from .jail import Jail, become

FRAME = struct.Struct("<BiIII")
"""How a process ended, its wait status, and how many bytes of stdout, stderr and results follow."""
ENDED, TIME, OUTPUT, SCRATCH, LAST = range(5)
"""It ended by itself; its time was over; it wrote too much; its directory could not be made; no more frames."""

KEPT_BYTES = 4096
"""Of error output, and of what functions print."""
_CHUNK = 1 << 16
TICK_MS = 10  # where a process cannot be waited for together with pipes


def keep(job: dict[str, Any], jail: Jail, out: int) -> None:
    """Runs the program on every test of the job and writes a frame for each; ends early when time is over."""
    end = time.monotonic() + job["limits"]["wall_s"]
    for index, stdin in enumerate(job["stdins"]):
        how = _one(job, index, stdin, jail, end, out)
        if how == TIME:
            return  # all must pass: the rest would change nothing, and often take as long


def write(descriptor: int, data: bytes) -> None:
    """Writes all of it."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _one(job: dict[str, Any], index: int, stdin: bytes, jail: Jail, end: float, out: int) -> int:
    """One process of the program; returns how it ended."""
    place = os.path.join(jail.scratch, str(index))
    try:
        os.mkdir(place, 0o700)
        if jail.uid is not None:
            os.chown(place, jail.uid, jail.uid)
        source = _file(stdin)
    except OSError:
        write(out, FRAME.pack(SCRATCH, 0, 0, 0, 0))
        return SCRATCH
    pipes = [os.pipe() for _ in range(3 if job["calls"] is not None else 2)]
    ends = [write_end for _, write_end in pipes]
    child = os.fork()
    if child == 0:
        program.run(job, source, ends[0], ends[1], ends[2] if len(ends) > 2 else None, jail, place)
    for descriptor in (source, *ends):
        os.close(descriptor)
    streams = Streams([read_end for read_end, _ in pipes], job["limits"]["output_kb"] * 1024)
    how, status = _watch(child, streams, end, job["limits"]["test_s"])
    if status is None:
        os.kill(child, signal.SIGKILL)
        status = os.waitpid(child, 0)[1]
    sweep(jail, group=child)
    while streams.read(0):  # nobody writes any more: what is left in the pipes
        pass
    if how == ENDED and streams.full:
        how = OUTPUT
    streams.close()
    data = [*map(bytes, streams.data), b""]
    write(out, FRAME.pack(how, status, len(data[0]), len(data[1]), len(data[2])) + b"".join(data))
    return how


def _watch(child: int, streams: Streams, end: float, test_s: float) -> tuple[int, int | None]:
    """(how it ended, wait status or None while it runs) of a child that is given its time; a result renews it."""
    deadline = min(end, time.monotonic() + test_s)
    ended = exit_fd(child)
    if ended is not None:
        streams.poll.register(ended, select.POLLIN)
    try:
        while True:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                return ENDED, status
            left = deadline - time.monotonic()
            if left <= 0:
                return TIME, None
            if streams.full:
                return OUTPUT, None
            results = streams.lines
            streams.read(left * 1000 if ended is not None else min(left * 1000, TICK_MS))
            if streams.lines > results:
                deadline = min(end, time.monotonic() + test_s)
    finally:
        if ended is not None:
            streams.poll.unregister(ended)
            os.close(ended)


class Streams:
    """Pipes from the program, read as they fill, each kept up to a number of bytes."""

    def __init__(self, descriptors: list[int], most: int):
        self.data = [bytearray() for _ in descriptors]  # of stdout, stderr and, where functions are called, results
        self.full = False  # whether more came on the stream that is judged than is kept
        self.lines = 0  # of results so far
        self.poll = select.poll()
        self._index = {descriptor: index for index, descriptor in enumerate(descriptors)}
        judged = 2 if len(descriptors) > 2 else 0
        self._most = [most if index == judged else KEPT_BYTES for index in range(len(descriptors))]
        self._judged = judged
        for descriptor in descriptors:
            os.set_blocking(descriptor, False)
            self.poll.register(descriptor, select.POLLIN)

    def read(self, timeout_ms: float) -> bool:
        """Waits for output, or the end of the process, and takes in what is there; whether any pipe had some."""
        some = False
        for descriptor, _ in self.poll.poll(timeout_ms):
            index = self._index.get(descriptor)
            if index is None:
                continue
            try:
                chunk = os.read(descriptor, _CHUNK)
            except BlockingIOError:
                continue
            if not chunk:
                self.poll.unregister(descriptor)
                continue
            some = True
            kept = self.data[index]
            kept += chunk[: self._most[index] - len(kept)]
            if index == self._judged:
                self.full = self.full or len(kept) == self._most[index]
                self.lines += chunk.count(b"\n") if index == 2 else 0
        return some and not self.full

    def close(self) -> None:
        """Closes the pipes."""
        for descriptor in self._index:
            os.close(descriptor)


def _file(data: bytes) -> int:
    """A file without a name that holds `data`, at its beginning: standard input that needs nobody to feed it."""
    if sys.platform == "linux":
        descriptor = os.memfd_create("stdin")
    else:
        import tempfile

        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    write(descriptor, data)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def exit_fd(pid: int) -> int | None:
    """Something that poll reports once a process has ended; None where there is no such thing."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


def die_with_parent(parent: int) -> None:
    """Has this process killed when its parent ends; it may have ended already."""
    if sys.platform == "linux":
        linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


# --- what a program leaves


def sweep(jail: Jail, *, group: int | None = None) -> None:
    """Kills all that this process, directly or not, has started, until nothing of it is left.

    Args:
      jail: says how leftovers are found.
      group: process group of the program, for systems that give orphans to init (macOS).
    """
    first = os.getpid() == 1
    while True:
        if first:
            with suppress(ProcessLookupError):
                os.kill(-1, signal.SIGKILL)  # everybody in this process-id namespace but us
        elif group is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(group, signal.SIGKILL)
        if not _reap():
            return
        if not first:
            _kill_descendants() if jail.unique_uid is None else _kill_user(jail.unique_uid)
            time.sleep(0.001)


def _reap() -> bool:
    """Takes in the dead; whether any child is alive. Orphans are our children: we are a subreaper, or process 1."""
    try:
        while os.waitpid(-1, 0 if os.getpid() == 1 else os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def _kill_user(uid: int) -> None:
    """Kills every process of a user that has no others, from a process of that user: there is no race with forks."""
    child = os.fork()
    if child == 0:
        try:
            become(uid)
            os.kill(-1, signal.SIGKILL)
        finally:
            os._exit(0)
    os.waitpid(child, 0)


def _kill_descendants() -> None:
    """Stops all descendants, so that none starts another unseen, and kills them."""
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in _descendants():
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)


def _descendants() -> list[int]:
    """Ids of all descendants of this process, as /proc tells; none where there is no /proc."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc") if os.path.isdir("/proc") else ():
        if name.isdigit():
            with suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                # The name, in parentheses, may hold anything; state and parent follow the last one.
                children.setdefault(int(file.read().rpartition(b")")[2].split()[1]), []).append(int(name))
    found, new = [], [os.getpid()]
    while new:
        new = [child for parent in new for child in children.get(parent, ())]
        found += new
    return found
