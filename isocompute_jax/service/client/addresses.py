"""How the address of a server is written."""

from __future__ import annotations

import re

from isocompute_jax.records.errors import InputError

_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:/\[\]]+):(\d{1,5})")


def check_target(target: str, where: str) -> None:
    """Raises InputError, beginning with `where`, for what is neither `host:port` nor `unix:PATH`."""
    found = _ADDRESS.fullmatch(target)
    if (target.startswith("unix:") and target != "unix:") or (found and 0 < int(found[2]) < 2**16):
        return
    raise InputError(f"{where}: {target!r} is neither host:port (a port lies in 1 .. 65535) nor unix:PATH")
