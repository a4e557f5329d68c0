"""Waits for jobs on standard input, keeps each in processes of its own, and answers on standard output.

A job is a length and a marshalled dict: `source`, `stdins` (bytes, one process each), `calls` (None, or what one
process is to call) and `limits`. The answer is `keeper.FRAME`s. The first answer is a line that names what is in force.
Its standard input ends when the process that started it does, or wants no more: whatever runs is then ended.
"""

from __future__ import annotations

import fcntl
import importlib
import marshal
import os
import select
import signal
import struct
import sys
from contextlib import suppress
from typing import Any

from . import linux, program
from .jail import Jail, allowance, close_scratch, enter, library_is_readable, open_scratch, remove_scratch
from .keeper import FRAME, LAST, TICK_MS, die_with_parent, exit_fd, keep, sweep, write

LENGTH = struct.Struct("<I")
LIBRARY, NO_TCP, NO_SIGNALS = "library", "no_tcp", "no_signals"
"""Among what is in force, too: programs can import all of the standard library; what Landlock keeps them from."""

_OFTEN = (
    "array", "calendar", "cmath", "contextlib", "copy", "dataclasses", "datetime", "decimal", "enum", "fractions",
    "hashlib", "io", "numbers", "pprint", "queue", "statistics", "struct", "subprocess", "textwrap", "threading",
    "time", "traceback", "uuid",
)  # fmt: skip
"""Loaded beforehand where programs cannot read the library themselves."""
_FIRST_FD = 10  # a program's own begin at 0
_LOOK_AROUND_MS = 1000


def main(measures: str, scratch: str) -> None:
    """Serves until standard input ends."""
    jobs, answers = (fcntl.fcntl(number, fcntl.F_DUPFD, _FIRST_FD) for number in (0, 1))
    for name in {*program.PRELUDE.values(), *program.MODULES}:
        importlib.import_module(name)
    jail = enter(frozenset(filter(None, measures.split(","))), scratch)
    parent = os.getppid()
    in_force = set(jail.measures)
    if "landlock" in in_force:
        in_force |= {NO_TCP} if linux.keeps_from_tcp() else set()
        in_force |= {NO_SIGNALS} if linux.keeps_from_signals() else set()
    if library_is_readable(jail):
        in_force.add(LIBRARY)
    else:
        for name in _OFTEN:
            importlib.import_module(name)
    write(answers, f"{','.join(sorted(in_force))}\n".encode())
    while (job := _receive(jobs)) is not None:
        job["limits"]["processes"] = allowance(jail, job["limits"]["processes"])
        open_scratch(jail, megabytes=job["limits"]["scratch_mb"], files=job["limits"]["files"])
        wanted = _serve(job, jail, jobs, answers, parent)
        close_scratch(jail)
        if not wanted:
            break
        write(answers, FRAME.pack(LAST, 0, 0, 0, 0))
    remove_scratch(jail)


def _receive(jobs: int) -> dict[str, Any] | None:
    """The next job; None once there will be none."""
    head = _read(jobs, LENGTH.size)
    return marshal.loads(_read(jobs, *LENGTH.unpack(head))) if len(head) == LENGTH.size else None


def _read(descriptor: int, count: int) -> bytes:
    found = bytearray()
    while len(found) < count and (chunk := os.read(descriptor, count - len(found))):
        found += chunk
    return bytes(found)


def _serve(job: dict[str, Any], jail: Jail, jobs: int, answers: int, parent: int) -> bool:
    """Runs one job to its end, with nothing left of it; whether anybody still waits for it."""
    server = os.getpid()
    child = os.fork()
    if child == 0:
        try:
            die_with_parent(server)
            _keep_apart(job, jail, answers)
        finally:
            os._exit(0)
    wanted = True
    poll = select.poll()
    poll.register(jobs, select.POLLIN)  # nothing is sent during a job: it can only have ended
    ended = exit_fd(child)
    if ended is not None:
        poll.register(ended, select.POLLIN)
    while os.waitpid(child, os.WNOHANG)[0] == 0:
        ready = poll.poll(_LOOK_AROUND_MS if ended is not None else TICK_MS)
        if any(descriptor == jobs for descriptor, _ in ready) or os.getppid() != parent:
            wanted = False
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            break
    if ended is not None:
        os.close(ended)
    sweep(jail)
    return wanted


def _keep_apart(job: dict[str, Any], jail: Jail, answers: int) -> None:
    """Keeps the job in a process-id namespace, as its first process, where there are such."""
    if "processes" not in jail.measures:
        if sys.platform == "linux":
            linux.prctl(linux.PR_SET_CHILD_SUBREAPER, 1)
        keep(job, jail, answers)
        return
    linux.unshare(linux.CLONE_NEWPID)
    first = os.fork()
    if first == 0:
        try:
            linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)  # and with this process goes its whole namespace
            keep(job, jail, answers)
        finally:
            os._exit(0)
    os.waitpid(first, 0)
