"""What runs on this machine, found by its command line."""

import contextlib
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

ROOT = pathlib.Path(__file__).parent.parent.parent
LAUNCH = [sys.executable, str(ROOT / "launch" / "local.py")]


def find(*parts: str) -> list[int]:
    """Processes whose command line has every one of `parts`, this one aside."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue  # it has ended
        if state != "Z" and all(part in line for part in parts):
            found.append(int(entry.name))
    return found


def alive(pid: int) -> bool:
    """Whether a process exists and is no zombie (nobody may be there to reap it)."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until(condition: Callable[[], Any], what: str = "it does not come", *, seconds: float = 120.0) -> Any:
    """Polls until the condition holds, and returns its value; fails when it never does."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited {seconds:.0f} s in vain: {what}"
        time.sleep(0.02)
    return value


def kill(pid: int, number: signal.Signals = signal.SIGKILL) -> None:
    os.kill(pid, number)


def start(command: list[str], log: pathlib.Path, **options) -> subprocess.Popen:
    """Starts a command whose output goes to a file."""
    with open(log, "ab") as output:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, **options)


def find_flag(part: str, flag: str) -> str:
    """The value of a flag of the one process whose command line has `part` as an argument."""
    for entry in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            arguments = entry.read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if part in arguments:
            return next(a.partition("=")[2] for a in arguments if a.startswith(f"{flag}="))
    raise AssertionError(f"no process has {part}")


def free_ports(count: int) -> int:
    """The first of `count` ports of the loopback interface, one above the other, that nobody uses now."""
    while True:
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError, OverflowError):
            probes = [stack.enter_context(socket.socket()) for _ in range(count)]
            probes[0].bind(("127.0.0.1", 0))
            first = probes[0].getsockname()[1]
            for offset, probe in enumerate(probes[1:], 1):
                probe.bind(("127.0.0.1", first + offset))
            return first
