"""A list of servers that may change while a run goes on: a file, looked at every second."""

from __future__ import annotations

import logging
import os

from isocompute_jax.records.errors import InputError
from isocompute_jax.service.client.addresses import check_target

LOG = logging.getLogger(__name__)
FIELD = "config.service.endpoints_file"

Stamp = tuple[int, int, int]


class EndpointsFile:
    """One endpoint a line; what follows a `#` is a comment. An empty list is one.

    Args:
      path: the file.
    """

    def __init__(self, path: str):
        self.path = path
        self._taken: Stamp | None = None
        self._seen: Stamp | None = None

    def read(self) -> tuple[str, ...]:
        """The endpoints that it lists now.

        Raises:
          InputError: it cannot be read, or a line is no endpoint; names the line.
        """
        try:
            self._taken = self._seen = self._stamp()
            with open(self.path, encoding="utf-8") as file:
                lines = file.read().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else str(error)
            raise InputError(f"{FIELD} = {self.path!r}: {why}") from error
        found: dict[str, int] = {}
        for number, line in enumerate(lines, 1):
            target = line.partition("#")[0].strip()
            if not target:
                continue
            check_target(target, f"{FIELD}: {self.path}:{number}")
            if target in found:
                raise InputError(f"{FIELD}: {self.path}:{number}: {target} stands in line {found[target]} already")
            found[target] = number
        return tuple(found)

    def changed(self) -> tuple[str, ...] | None:
        """The endpoints, where the file has changed since it was read last; None where it has not.

        It is read when it looked the same twice: half of it may have been written when it first looks new. What cannot
        be read is warned of, once, and is no change.
        """
        try:
            stamp = self._stamp()
        except OSError as error:
            if self._seen is not None:
                LOG.warning("%s = %r: %s; the list that it had stays", FIELD, self.path, error.strerror)
            self._taken = self._seen = None
            return None
        settled, self._seen = stamp == self._seen, stamp
        if stamp == self._taken or not settled:
            return None
        try:
            return self.read()
        except InputError as error:
            LOG.warning("%s; the list that was read before stays", error)
            return None

    def _stamp(self) -> Stamp:
        found = os.stat(self.path)
        return found.st_mtime_ns, found.st_size, found.st_ino
