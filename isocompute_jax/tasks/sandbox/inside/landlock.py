"""Landlock: rules that a process puts on itself, for good and without any privilege, where namespaces are refused.

A program then opens no file but those that are named, makes no TCP connection, and neither traces nor signals a process
outside. What a kernel knows depends on its version (https://docs.kernel.org/userspace-api/landlock.html).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable
from contextlib import suppress

from . import linux

# Numbers of the system calls, which are the same on every processor.
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


def version() -> int:
    """What this kernel knows; 0 for nothing."""
    try:
        return linux.system_call(_CREATE_RULESET, None, 0, _VERSION)
    except OSError:
        return 0


def keeps_from_tcp() -> bool:
    """Whether rules forbid TCP."""
    return version() >= _TCP_SINCE


def keeps_from_signals() -> bool:
    """Whether rules forbid signals to processes outside."""
    return version() >= _SCOPES_SINCE


def restrict(readable: Iterable[str], writable: Iterable[str], devices: Iterable[str]) -> None:
    """Leaves this process, and all it will start, files beneath some paths alone.

    Args:
      readable: directories and files to read.
      writable: directories to do everything in but run programs.
      devices: files to read and write.

    Raises:
      OSError: the kernel refuses.
    """
    known = version()
    every = max(rights for since, rights in _FILES.items() if since <= known)
    attributes = struct.pack("=Q", every)
    if known >= _TCP_SINCE:
        attributes += struct.pack("=Q", _TCP)
    if known >= _SCOPES_SINCE:
        attributes += struct.pack("=Q", _SCOPES)
    rules = linux.system_call(_CREATE_RULESET, attributes, len(attributes), 0)
    for rights, paths in (
        (_READ_FILE | _READ_DIR, readable),
        (every & ~_EXECUTE, writable),
        (_READ_FILE | _WRITE_FILE, devices),
    ):
        for path in paths:
            with suppress(FileNotFoundError, PermissionError):  # then there is nothing to be allowed
                _allow(rules, rights, path)
    linux.system_call(_RESTRICT_SELF, rules, 0)
    os.close(rules)


def _allow(rules: int, rights: int, path: str) -> None:
    descriptor = os.open(path, os.O_PATH)
    if not os.path.isdir(path):
        rights &= _OF_FILES
    try:
        linux.system_call(_ADD_RULE, rules, _PATH_BENEATH, struct.pack("=Qi", rights, descriptor), 0)
    finally:
        os.close(descriptor)
