"""fleet.json: what the learner knows of its sampler servers, for whoever watches the run from outside."""

from __future__ import annotations

import dataclasses
import json
import logging
import pathlib
import time
from typing import TYPE_CHECKING

from isocompute_jax.records import run_files

if TYPE_CHECKING:  # gRPC is needed by nobody else
    from isocompute_jax.service.client.health import FleetHealth

LOG = logging.getLogger(__name__)


class FleetFile:
    """Writes the file anew whenever it is called; a disk that is full is said once, and ends nothing.

    Args:
      path: the run's directory.
    """

    def __init__(self, path: pathlib.Path):
        self._file = path / run_files.FLEET
        self._said = False

    def __call__(self, health: FleetHealth) -> None:
        """`written`, seconds since 1970, and the fields of `FleetHealth`."""
        content = {"written": round(time.time(), 1), **dataclasses.asdict(health)}
        try:
            run_files.write_atomic(self._file, json.dumps(content) + "\n")
        except OSError as error:
            if not self._said:
                LOG.warning("%s cannot be written, and tells nothing from now on: %s", self._file, error)
            self._said = True
