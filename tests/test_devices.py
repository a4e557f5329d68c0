"""Without accelerators, the cores are the devices of a mesh."""

import subprocess
import sys

import pytest

PROGRAM = """
from isocompute_jax import devices
{before}
devices.cut_cpu({size})
import jax
print(jax.local_device_count())
"""


@pytest.mark.parametrize(
    ("before", "size", "found"), [("", 3, 3), ("", 1, 1), ("import jax; jax.devices()", 3, 1)], ids=str
)
def test_the_cpu_is_cut_unless_jax_has_started(monkeypatch, before, size, found):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    program = PROGRAM.format(before=before, size=size)
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(run.stdout) == found


def test_xla_flags_rule(monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=2")
    program = PROGRAM.format(before="", size=3)
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(run.stdout) == 2
