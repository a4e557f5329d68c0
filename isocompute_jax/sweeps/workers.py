"""Worker processes: one command each, on a core of its own, gone when the process that started it is gone.

    python -m isocompute_jax.sweeps.workers PARENT_PID CORE COMMAND...

sets a process up and turns it into COMMAND. It is a program and not a `preexec_fn`, because that may deadlock where
the parent has threads; and it imports nothing heavy, so that the core is set long before JAX counts cores.
"""

from __future__ import annotations

import ctypes
import glob
import importlib.util
import os
import pathlib
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

LAST_LINES = 5
"""Lines of a failed worker's log that are repeated in the reason."""
NO_CORE = "-"
PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
CODES = {1: "failed", 2: "bad input", 130: "interrupted from outside"}


class Worker:
    """A running command whose output goes to a log file."""

    def __init__(self, command: Sequence[str], log: pathlib.Path, *, core: int | None, environment: Mapping[str, str]):
        """Starts `command` in a session of its own, so that a terminal's Ctrl-C reaches it once: through `interrupt`.

        Args:
          command: program and arguments.
          log: file to append its output to.
          core: the one core it may run on; None leaves the choice to the system.
          environment: its environment variables, all of them.
        """
        self.core = core
        self.log = log
        self.interrupted = False
        setup = [sys.executable, "-m", __name__, str(os.getpid()), NO_CORE if core is None else str(core)]
        with open(log, "ab") as output:
            output.write(f"{time.strftime('%F %T')} $ {shlex.join(command)}\n".encode())
            output.flush()
            self._log_start = output.tell()
            self._process = subprocess.Popen(
                [*setup, *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=dict(environment),
            )

    @property
    def pid(self) -> int:
        """Process id, the same before and after it turned into the command."""
        return self._process.pid

    def poll(self) -> int | None:
        """Exit code, -N when signal N killed it, or None while it runs."""
        return self._process.poll()

    def interrupt(self) -> None:
        """Asks it, once, to end between two steps with a checkpoint."""
        if not self.interrupted:
            self.interrupted = True
            self._process.send_signal(signal.SIGINT)

    def kill(self) -> None:
        """Ends it and whatever it started, at once."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)  # session leader: its pid is the group's
            self._process.wait()

    def reason(self) -> str:
        """Why it ended as it did."""
        return reason_of(self._process.returncode, self.log, self._log_start)


def killed_by(code: int) -> str:
    """What an exit code below 0 says."""
    return f"killed by {signal.Signals(-code).name}" + ("; out of memory?" if -code == signal.SIGKILL else "")


def reason_of(code: int, log: pathlib.Path, start: int) -> str:
    """Exit code or signal, the last lines of a log from the byte `start` on, and where the log is."""
    if code < 0:
        what = killed_by(code)
    else:
        what = f"exit code {code}" + (f", {CODES[code]}" if code in CODES else "")
    with open(log, "rb") as file:
        file.seek(start)
        lines = file.read().decode(errors="replace").split("\n")
    last = [line.rstrip() for line in lines if line.strip()][-LAST_LINES:]
    return "\n  ".join([what, *last, f"log: {log}"])


def default_cores() -> list[int] | None:
    """The cores to pin workers to; None where that makes no sense (accelerators) or cannot be done (macOS)."""
    if not hasattr(os, "sched_getaffinity") or has_accelerator():
        return None
    return sorted(os.sched_getaffinity(0))


def has_accelerator() -> bool:
    """Whether JAX would use an accelerator, found out without starting JAX: that would take the device.

    `JAX_PLATFORMS` decides where it is set; else there must be both a device file and a JAX plugin for devices.
    """
    platforms = os.environ.get("JAX_PLATFORMS")
    if platforms:
        return platforms.split(",")[0] != "cpu"
    files = ("/dev/nvidia[0-9]*", "/dev/kfd", "/dev/accel*", "/dev/vfio/[0-9]*")
    plugins = ("jax_plugins", "libtpu")
    return any(map(glob.glob, files)) and any(importlib.util.find_spec(name) for name in plugins)


def main(arguments: Sequence[str]) -> None:
    """Sets this process up and turns it into the command."""
    parent, core, *command = arguments
    if core != NO_CORE:
        os.sched_setaffinity(0, {int(core)})
    # A background job of a shell ignores Ctrl-C, and its children inherit that.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if sys.platform == "linux":
        # SIGKILL, because runs lose nothing by it, and because a sweep that is started anew must not meet a worker
        # that is still writing.
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != int(parent):  # it died before the line above
            sys.exit("the process that started this one is gone")
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.exit(
            f"error: {command[0]} cannot be started: {error.strerror}; check its path, its rights and its first line"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
