"""The filter of system calls: what it refuses on either machine, and what goes on working under it."""

from __future__ import annotations

import ctypes
import errno
import pathlib
import struct
import subprocess
import sys

import pytest

from isocompute_jax.tasks.sandbox import Sandbox, SandboxLimits
from isocompute_jax.tasks.sandbox.inside import seccomp
from isocompute_jax.tasks.sandbox.inside.jail import MEASURES

FOLDER = pathlib.Path(seccomp.__file__).parents[1]
PATIENT = SandboxLimits(test_s=30)
ALLOWED = 0x7FFF0000
LIBSECCOMP_NAMES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
REFUSED = {errno.EPERM, errno.ENOSYS}

# io_uring_setup(0, NULL) and the like reach the kernel's checks of their arguments without a filter: EFAULT, EINVAL.
CALLS = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
for number in (NUMBERS):
    ctypes.set_errno(0)
    print(libc.syscall(ctypes.c_long(number), 99, 0, 0, 0, 0), ctypes.get_errno())
"""
ORDINARY = {
    "threads": "import threading\nt = threading.Thread(target=print, args=('ok',)); t.start(); t.join()",
    "a pool of threads": "from concurrent.futures import ThreadPoolExecutor as P\nprint(*P(3).map(str, ['ok']))",
    "a process": "import os\nif os.fork() == 0:\n    print('ok', flush=True); os._exit(0)\nos.wait()",
    "processes and a pipe": """
import multiprocessing as m
context = m.get_context('fork')
a, b = context.Pipe()
p = context.Process(target=lambda: b.send('ok')); p.start(); print(a.recv()); p.join()
""",
    "an event loop": "import asyncio\nasyncio.run(asyncio.sleep(0))\nprint('ok')",
    "memory that is mapped": "import mmap\nm = mmap.mmap(-1, 4096); m[:2] = b'ok'; print(m[:2].decode())",
    "files": "import tempfile\nwith tempfile.TemporaryFile() as f: f.write(b'ok'); f.seek(0); print(f.read().decode())",
    "random numbers and clocks": "import os, time, random\nos.urandom(8); time.time(); random.random(); print('ok')",
    "pairs of sockets": "import socket\na, b = socket.socketpair(); a.send(b'ok'); print(b.recv(2).decode())",
    "a shell, if there is one": "import subprocess\ntry: subprocess.run(['true'])\nexcept OSError: pass\nprint('ok')",
}


@pytest.fixture(scope="module", params=[MEASURES, ("system_calls",)], ids=["all", "the filter alone"])
def sandbox(request):
    with Sandbox(PATIENT, measures=request.param) as sandbox:
        if "system_calls" not in sandbox.measures():
            pytest.skip("this kernel has no filters")
        yield sandbox


def numbers(machine: str) -> dict[str, int]:
    column = list(seccomp.ARCHITECTURES).index(machine)
    pairs = {name: both[column] for calls in seccomp.FORBIDDEN.values() for name, both in calls.items()}
    return {name: number for name, number in pairs.items() if number is not None}


def verdict(machine: str, number: int, *arguments: int, architecture: int | None = None) -> int:
    """What the filter says of a call, by walking through it as the kernel does."""
    code = seccomp.program(machine)
    data = struct.pack("=IIQ6Q", number, architecture or seccomp.ARCHITECTURES[machine], 0, *(*arguments, *[0] * 6)[:6])
    at, value = 0, 0
    while True:
        operation, yes, no, operand = struct.unpack_from("=HBBI", code, 8 * at)
        at += 1
        match operation:
            case 0x20:
                [value] = struct.unpack_from("=I", data, operand)
            case 0x06:
                return operand
            case 0x15:
                at += yes if value == operand else no
            case 0x35:
                at += yes if value >= operand else no
            case 0x45:
                at += yes if value & operand else no
            case _:
                raise AssertionError(operation)


@pytest.mark.parametrize("machine", seccomp.ARCHITECTURES)
def test_what_is_forbidden_is_and_nothing_else(machine):
    refused = {number for number in range(seccomp.NEWEST + 1) if verdict(machine, number) != ALLOWED}
    clone3, socket = 435, seccomp._SOCKET[list(seccomp.ARCHITECTURES).index(machine)]
    assert refused == {*numbers(machine).values(), clone3, socket}  # a socket of family 0, which there is not
    assert {verdict(machine, number) & 0xFFFF for number in numbers(machine).values()} == {errno.EPERM}
    for number in (clone3, seccomp.NEWEST + 1, 1000, 0x40000000, 0x40000000 + 321, 0xFFFFFFFF):
        assert verdict(machine, number) & 0xFFFF == errno.ENOSYS
    for foreign in (0x40000003, 0x40000028):  # i386, arm
        assert verdict(machine, 3, architecture=foreign) & 0xFFFF == errno.ENOSYS


@pytest.mark.parametrize(("machine", "clone", "socket"), [("x86_64", 56, 41), ("aarch64", 220, 198)])
def test_of_two_calls_the_arguments_count(machine, clone, socket):
    assert verdict(machine, clone, 0x3D0F00) == ALLOWED  # as pthread_create calls it
    for flag in (0x20000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000):
        assert verdict(machine, clone, 0x11 | flag) & 0xFFFF == errno.EPERM
    for family in range(50):
        found = verdict(machine, socket, family, 1, 0)
        assert found == ALLOWED if family in (1, 2, 10, 16) else found & 0xFFFF == errno.EAFNOSUPPORT


@pytest.mark.parametrize("machine", seccomp.ARCHITECTURES)
def test_the_numbers_are_those_of_libseccomp(machine):
    try:
        resolve = ctypes.CDLL("libseccomp.so.2").seccomp_syscall_resolve_name_arch
    except OSError:
        pytest.skip("libseccomp is not there")
    for name, number in numbers(machine).items():
        found = resolve(ctypes.c_uint32(LIBSECCOMP_NAMES[machine]), name.encode())
        assert found in (number, -1), name  # -1: it is older than the call


def test_hostile_calls_do_not_reach_the_kernel(sandbox):
    machine = seccomp.machine()
    assert machine is not None
    refused = {**numbers(machine), "clone3": 435, "x32": 0x40000000 + 1, "newer": 463}
    [outcome] = sandbox.run(CALLS.replace("(NUMBERS)", repr([*refused.values()])), [""])
    lines = [tuple(map(int, line.split())) for line in outcome.stdout.decode().splitlines()]
    assert len(lines) == len(refused), outcome
    assert {name for name, line in zip(refused, lines, strict=True) if line[0] != -1 or line[1] not in REFUSED} == set()


def test_without_the_filter_they_do():
    """The test before is worth something: without the measure these calls come to the kernel's own checks."""
    machine = seccomp.machine()
    if machine is None:
        pytest.skip("its numbers are not known")
    reached = [numbers(machine)[name] for name in ("add_key", "keyctl", "kcmp", "io_uring_setup", "perf_event_open")]
    with Sandbox(PATIENT, measures=[name for name in MEASURES if name != "system_calls"]) as sandbox:
        [outcome] = sandbox.run(CALLS.replace("(NUMBERS)", repr(reached)), [""])
    found = {int(line.split()[1]) for line in outcome.stdout.decode().splitlines()}
    assert found - REFUSED  # of some kernels another measure refuses some


@pytest.mark.parametrize("name", ORDINARY)
def test_ordinary_programs_work(sandbox, name):
    [outcome] = sandbox.run(ORDINARY[name], [""])
    assert (outcome.ending, outcome.stdout) == ("ended", b"ok\n"), outcome


def test_numpy_works_under_it():
    if seccomp.machine() is None:
        pytest.skip("its numbers are not known")
    source = f"""
import sys
sys.path.append({str(FOLDER)!r})
from inside import linux, seccomp
linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
seccomp.restrict()
import subprocess, threading
import numpy as np
print(np.linalg.inv(np.eye(300) * 2).sum(), subprocess.run(["echo", "ok"], capture_output=True).stdout)
"""
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=60)
    assert done.stdout == "150.0 b'ok\\n'\n", done.stderr
