"""Ends a sweep once its runs have spent the device-hours that it may take, by their logs."""

from __future__ import annotations

import dataclasses
import logging
import time

from isocompute_jax.options import check, described, option
from isocompute_jax.sweeps import books

LOG = logging.getLogger(__name__)
BUDGET_EVERY_S = 2.0


@described
@dataclasses.dataclass(frozen=True)
class Limits:
    """When a sweep ends early; each is a flag of its name."""

    max_device_hours: float | None = option(
        None,
        "Device-hours that all runs together may take, those of earlier starts included. Once they are spent nothing "
        "new is started and running ones write a checkpoint and stop; with a higher budget the same command goes on.",
        low=0,
    )

    def __post_init__(self) -> None:
        check(self, "--")


NO_LIMITS = Limits()


class Watch:
    """Compares what the runs of a sweep have spent with its limits."""

    def __init__(self, state: books.SweepState, limits: Limits):
        self._state, self._limits = state, limits
        self._next = 0.0

    def look(self) -> None:
        """Sets `halted` of the state once the budget is spent, for good. Reads logs every two seconds at most."""
        most = self._limits.max_device_hours
        if most is None or self._state.halted or time.monotonic() < self._next:
            return
        self._next = time.monotonic() + BUDGET_EVERY_S
        spent = books.spent_device_hours(self._state.root, list(self._state.runs))
        if spent >= most:
            self._state.halted = f"--max_device_hours={most:g} is spent ({spent:.4g})"
            LOG.warning("%s: nothing more is started, and running runs stop with a checkpoint", self._state.halted)
