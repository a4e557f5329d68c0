"""System calls that Python 3.11 has no name for. Where they are missing or refused, they raise OSError."""

from __future__ import annotations

import ctypes
import errno
import os

# <linux/sched.h>
CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
# <linux/mount.h>
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_REMOUNT, MS_NOATIME, MS_NODIRATIME, MS_BIND = 32, 1024, 2048, 4096
MS_REC, MS_PRIVATE, MS_RELATIME = 1 << 14, 1 << 18, 1 << 21
MNT_DETACH = 2
# <linux/prctl.h>
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 36, 38
_CAPABILITY_VERSION_3 = 0x20080522  # <linux/capability.h>

_LIBC = ctypes.CDLL(None, use_errno=True)


def _call(name: str, *arguments: object) -> None:
    function = getattr(_LIBC, name, None)
    if function is None:
        raise OSError(errno.ENOSYS, f"no {name} in this C library")
    if function(*arguments) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")


def system_call(number: int, *arguments: bytes | int | None) -> int:
    """Makes a system call that the C library has no name for."""
    plain = [ctypes.c_long(argument) if isinstance(argument, int) else argument for argument in arguments]
    found = _LIBC.syscall(ctypes.c_long(number), *plain)
    if found < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"system call {number}: {os.strerror(code)}")
    return found


def unshare(flags: int) -> None:
    """Gives the calling process new namespaces."""
    _call("unshare", ctypes.c_int(flags))


def mount(source: str, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    """Makes a mount, or changes one."""
    texts = [None if text is None else os.fsencode(text) for text in (source, target, kind, data)]
    _call("mount", texts[0], texts[1], texts[2], ctypes.c_ulong(flags), texts[3])


def unmount(target: str) -> None:
    """Takes a mount away, also where it is in use."""
    _call("umount2", os.fsencode(target), ctypes.c_int(MNT_DETACH))


def prctl(operation: int, value: int, address: int = 0) -> None:
    """Sets a property of this process, of one argument, or of two with what lies at an address."""
    zero = ctypes.c_ulong(0)
    _call("prctl", ctypes.c_int(operation), ctypes.c_ulong(value), ctypes.c_ulong(address), zero, zero)


def drop_capabilities() -> None:
    """Gives up every capability; with no_new_privs for good."""
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    _call("capset", header, (ctypes.c_uint32 * 6)())
