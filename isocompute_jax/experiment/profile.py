"""A trace of some steps, for xprof or Perfetto: what ran when, on the host and on its devices."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import pathlib
import re
from collections.abc import Iterator

import jax

from isocompute_jax.experiment.config import RunConfig
from isocompute_jax.records.errors import InputError

LOG = logging.getLogger(__name__)

FOLDER = "profile"


@dataclasses.dataclass(frozen=True)
class ProfileSteps:
    """Which steps are traced; 0 to 0 for none."""

    first: int = 0
    last: int = 0

    def check(self, config: RunConfig) -> None:
        """Raises InputError where the run has no such steps."""
        if self.last > config.num_steps:
            raise InputError(
                f"--profile_steps={self.first}:{self.last}: the run has {config.num_steps} steps (config.max_compute "
                "over rollouts per step); steps count from 1"
            )


NO_STEPS = ProfileSteps()


def parse_steps(text: str) -> ProfileSteps:
    """`10:12` (both included) or `10`.

    Raises:
      InputError: it is neither, or ends before it begins.
    """
    found = re.fullmatch(r"([1-9]\d*)(?::([1-9]\d*))?", text)
    if not found:
        raise InputError(f"--profile_steps={text}: not FIRST:LAST, two steps of the run, as 10:12; steps count from 1")
    first, last = int(found[1]), int(found[2] or found[1])
    if last < first:
        raise InputError(f"--profile_steps={text} ends before it begins: FIRST:LAST, as {last}:{first}")
    return ProfileSteps(first, last)


class Profiler:
    """Traces those steps of a run, with whatever lies between them, into its folder profile/.

    Args:
      steps: which.
      path: the run's directory.
      process: which of several this is; each of them has a folder of its own in profile/.
    """

    def __init__(self, steps: ProfileSteps, path: pathlib.Path, process: int | None = None):
        self._steps = steps
        self._folder = path / FOLDER if process is None else path / FOLDER / f"process-{process}"
        self._on = self._done = False

    @contextlib.contextmanager
    def step(self, number: int) -> Iterator[None]:
        """Around step `number`, which the trace then shows as one."""
        if self._steps.first <= number <= self._steps.last and not self._on:
            jax.profiler.start_trace(self._folder)
            self._on = self._done = True
        if not self._on:
            yield
            return
        with jax.profiler.StepTraceAnnotation("step", step_num=number):
            yield
        if number >= self._steps.last:
            self.close()

    def close(self) -> None:
        """Ends the trace, if one goes on, and writes it; says where none was made."""
        if self._on:
            self._on = False
            jax.profiler.stop_trace()
            LOG.info("%s: a trace of steps, for xprof or Perfetto (docs/watch.md)", self._folder)
        elif self._steps.first and not self._done:
            LOG.warning("--profile_steps=%d:%d: none of them was made by this start", *dataclasses.astuple(self._steps))
