"""Ends the processes of an engine whose server is gone.

vLLM's engine processes outlive a server that is killed (SIGKILL), and hold their memory forever. Each engine starts
this module as a process of its own, which waits for the server's end and then kills what the server left:

    python -m isocompute_jax.service.server.engines.vllm.reaper SERVER_PID MARK

Processes are found by a mark in their environment, which they inherit from the server however they are started.
"""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import time

MARK = "ISOCOMPUTE_VLLM_ENGINE"
POLL_S = 0.25
PROC = pathlib.Path("/proc")
TRACKER = b"multiprocessing.resource_tracker"
"""Python's process that removes shared memory once everybody who used it has gone; it ends by itself."""


def start(mark: str) -> subprocess.Popen[bytes]:
    """Starts the process that waits for this one's end. It does not carry the mark itself."""
    return subprocess.Popen(
        [sys.executable, "-m", __name__, str(os.getpid()), mark],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # what a terminal or a scheduler sends to the server's group must not end it first
    )


def marked(mark: str) -> list[int]:
    """Ids of the living processes that carry a mark, resource trackers aside."""
    wanted = f"{MARK}={mark}".encode()
    pids = []
    for folder in PROC.iterdir():
        if folder.name.isdigit():
            try:
                environment = (folder / "environ").read_bytes().split(b"\0")
                if wanted in environment and TRACKER not in (folder / "cmdline").read_bytes():
                    pids.append(int(folder.name))
            except OSError:  # it has just ended, or is somebody else's
                continue
    return pids


def sweep(mark: str) -> None:
    """Kills the processes that carry a mark, until none is left."""
    while pids := marked(mark):
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(POLL_S)


def main() -> None:
    """Waits for the server's end, then sweeps."""
    server, mark = int(sys.argv[1]), sys.argv[2]
    while os.getppid() == server:
        time.sleep(POLL_S)
    sweep(mark)


if __name__ == "__main__":
    main()
