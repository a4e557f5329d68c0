"""Waiting for processes, and looking whether they are there."""

import pathlib
import time


def wait_for(condition, seconds: float = 120.0):
    """Polls until `condition()` is true, and returns its value."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if value := condition():
            return value
        time.sleep(0.02)
    raise AssertionError("waited in vain")


def alive(pid: int) -> bool:
    """Whether a process exists and is no zombie (nobody may be there to reap it)."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
