"""What servers and learners must know alike."""

from __future__ import annotations

PUSHBACK = "grpc-retry-pushback-ms"
"""Trailing metadata: when a full server asks to come again."""


def host_id() -> str:
    """The same for all processes of this kernel, which may so share /dev/shm; empty where there is none."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""
