"""System calls that Python 3.11 has no name for, and Landlock. Where they are missing or refused, they raise OSError.

Landlock: rules that a process puts on itself, for good and without any privilege, where namespaces are refused. A
program then opens no file but those that are named, makes no TCP connection, and neither traces nor signals a process
outside. What a kernel knows depends on its version (https://docs.kernel.org/userspace-api/landlock.html).
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Iterable
from contextlib import suppress

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

# Landlock: its system calls, whose numbers are the same on every processor.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION, _PATH_BENEATH = 1, 1
# <linux/landlock.h>
_EXECUTE, _READ_FILE, _READ_DIR, _IOCTL = 1 << 0, 1 << 2, 1 << 3, 1 << 15
_WRITE_FILE, _TRUNCATE = 1 << 1, 1 << 14
_FILES = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}
"""Every right over files, by the version that first knew them."""
_TCP, _TCP_SINCE = 0b11, 4  # to bind and to connect
_SCOPES, _SCOPES_SINCE = 0b11, 6  # abstract Unix sockets and signals stay within

_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL
"""Rights that a rule for a single file may give."""

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


# --- Landlock


def landlock_version() -> int:
    """What this kernel knows of Landlock; 0 for nothing."""
    try:
        return system_call(_CREATE_RULESET, None, 0, _VERSION)
    except OSError:
        return 0


def keeps_from_tcp() -> bool:
    """Whether rules forbid TCP."""
    return landlock_version() >= _TCP_SINCE


def keeps_from_signals() -> bool:
    """Whether rules forbid signals to processes outside."""
    return landlock_version() >= _SCOPES_SINCE


def restrict_files(readable: Iterable[str], writable: Iterable[str], devices: Iterable[str]) -> None:
    """Leaves this process, and all it will start, files beneath some paths alone.

    Args:
      readable: directories and files to read.
      writable: directories to do everything in but run programs.
      devices: files to read and write.

    Raises:
      OSError: the kernel refuses.
    """
    known = landlock_version()
    every = max(rights for since, rights in _FILES.items() if since <= known)
    attributes = struct.pack("=Q", every)
    if known >= _TCP_SINCE:
        attributes += struct.pack("=Q", _TCP)
    if known >= _SCOPES_SINCE:
        attributes += struct.pack("=Q", _SCOPES)
    rules = system_call(_CREATE_RULESET, attributes, len(attributes), 0)
    for rights, paths in (
        (_READ_FILE | _READ_DIR, readable),
        (every & ~_EXECUTE, writable),
        (_READ_FILE | _WRITE_FILE, devices),
    ):
        for path in paths:
            with suppress(FileNotFoundError, PermissionError):  # then there is nothing to be allowed
                _allow(rules, rights, path)
    system_call(_RESTRICT_SELF, rules, 0)
    os.close(rules)


def _allow(rules: int, rights: int, path: str) -> None:
    descriptor = os.open(path, os.O_PATH)
    if not os.path.isdir(path):
        rights &= _OF_FILES
    try:
        system_call(_ADD_RULE, rules, _PATH_BENEATH, struct.pack("=Qi", rights, descriptor), 0)
    finally:
        os.close(descriptor)
