"""Two processes that join, for real."""

import signal
import subprocess
import sys

import pytest

from tests.launch import processes

PROGRAM = """
import os, signal, sys, time
from isocompute_jax.distributed.environment import Place
from isocompute_jax.distributed.start import joined

index, port = map(int, sys.argv[1:])
with joined(Place(index, 2, f"127.0.0.1:{port}", "flags"), {}, records=(), stall_s=30, start_s=60) as team:
    assert team.index == index
    if index == 0:
        os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)
"""


@pytest.mark.slow
def test_a_joined_process_still_ends_on_sigterm():
    """JAX's preemption service, on by default, would swallow it; the other process then ends by itself."""
    port = processes.free_ports(2)
    commands = [[sys.executable, "-c", PROGRAM, str(index), str(port)] for index in range(2)]
    started = [subprocess.Popen(command, cwd=processes.ROOT, stderr=subprocess.PIPE, text=True) for command in commands]
    try:
        codes = [process.wait(120) for process in started]
        said = [process.communicate()[1] for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()
    assert codes == [-signal.SIGTERM, 1], said
    assert "process 0" in said[1] and "has died" in said[1]
