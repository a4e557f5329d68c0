"""Without accelerators, the cores are the devices of a mesh."""

import os
import subprocess
import sys

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


FREED = """
import ctypes, threading
from isocompute_jax import devices
devices.keep_freed_memory()
libc, size = ctypes.CDLL("libc.so.6"), 2**28
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes = [ctypes.c_size_t]
libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096
def use():
    block = libc.malloc(size)
    libc.memset(block, 1, size)
    libc.free(block)
before = resident()
thread = threading.Thread(target=use)
thread.start()
thread.join()
print((resident() - before) / size)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's malloc is told")
@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ({"JAX_PLATFORMS": "cpu"}, 1.0),
        ({"JAX_PLATFORMS": "cuda"}, 0.0),
        ({"JAX_PLATFORMS": "cpu", "MALLOC_ARENA_MAX": "8"}, 0.0),
    ],
    ids=str,
)
def test_memory_that_a_program_frees_is_kept_on_cpus_unless_malloc_is_told_otherwise(settings, kept):
    environment = {**os.environ, **settings}
    run = subprocess.run([sys.executable, "-c", FREED], env=environment, capture_output=True, text=True, check=True)
    assert float(run.stdout) == pytest.approx(kept, abs=0.1)
