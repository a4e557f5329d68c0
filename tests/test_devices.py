"""Without accelerators, the cores are the devices of a mesh."""

import pytest

from tests import mains

PROGRAM = """
from isocompute_jax import devices
{before}
devices.cut_cpu({size})
import jax
print(jax.local_device_count())
"""


def local_devices(flags: str, program: str) -> int:
    """What a program prints under some XLA_FLAGS, which JAX reads when it starts."""
    run = mains.run("-c", [f"import os; os.environ['XLA_FLAGS'] = {flags!r}\n{program}"])
    assert run.returncode == 0, run.stderr
    return int(run.stdout)


@pytest.mark.parametrize(
    ("before", "size", "found"), [("", 3, 3), ("", 1, 1), ("import jax; jax.devices()", 3, 1)], ids=str
)
def test_the_cpu_is_cut_unless_jax_has_started(before, size, found):
    assert local_devices("", PROGRAM.format(before=before, size=size)) == found


def test_xla_flags_rule():
    program = PROGRAM.format(before="", size=3)
    assert local_devices("--xla_force_host_platform_device_count=2", program) == 2
