"""Ends every process that a program leaves, and waits until it is gone."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress

from .jail import Jail, become


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
