"""Holds a sweep to its limits as it goes, by the logs of its runs: whoever runs it asks now and then."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Mapping

from isocompute_jax.records import run_files
from isocompute_jax.sweeps import books, hopeless
from isocompute_jax.sweeps.options import Limits
from isocompute_jax.sweeps.status import SweepState

LOG = logging.getLogger(__name__)
BUDGET_EVERY_S = 2.0
CHANCES_EVERY_S = 60.0
"""Least time between two fits of the unfinished sweep, which take seconds of a process of their own."""


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What is to be done now."""

    halt: str = ""  # why everything is to stop; empty for going on
    stop: Mapping[str, str] = dataclasses.field(default_factory=dict)  # name -> why this run is to stop


class Watch:
    """Looks at a sweep as it goes, by the logs of its runs."""

    def __init__(self, state: SweepState, limits: Limits):
        self._state, self._limits = state, limits
        self._halt = ""
        self._next_budget = self._next_chances = 0.0
        self._fit: subprocess.Popen[bytes] | None = None
        self._fitted: dict[str, int] = {}

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        if self._fit is not None:
            self._fit.kill()
            self._fit.communicate()

    def look(self) -> Verdict:
        """Cheap: it may be called often."""
        return Verdict(self._over_budget(), self._hopeless() if self._limits.stop_hopeless else {})

    def _over_budget(self) -> str:
        """Why the budget ends the sweep; once it has, it stays so."""
        most = self._limits.max_device_hours
        if most is not None and not self._halt and time.monotonic() >= self._next_budget:
            self._next_budget = time.monotonic() + BUDGET_EVERY_S
            spent = books.spent_device_hours(self._state.root, list(self._state.runs))
            if spent >= most:
                self._halt = f"--max_device_hours={most:g} is spent ({spent:.4g})"
                LOG.warning("%s: nothing more is started, and running runs stop with a checkpoint", self._halt)
        return self._halt

    def _hopeless(self) -> dict[str, str]:
        """Runs that cannot matter any more, by the last fit; starts another where there are new evaluations."""
        if self._fit is None:
            if time.monotonic() >= self._next_chances and (logs := self._logs()) != self._fitted:
                self._fitted, self._next_chances = logs, time.monotonic() + CHANCES_EVERY_S
                self._fit = self._start_fit()
            return {}
        if self._fit.poll() is None:
            return {}
        output, error = self._fit.communicate()
        code, self._fit = self._fit.returncode, None
        if code:  # there is too little to fit yet, or a log is broken, which the fit at the end says
            LOG.info("no curves were fitted yet: %s", error.decode(errors="replace").strip().rpartition("\n")[2])
            return {}
        level = self._limits.stop_hopeless
        return {
            found["run"]: f"{found['configuration']} leads beyond C = {found['compute']:,.0f} with a chance of "
            f"{found['chance']:.2g}, below --stop_hopeless={level:g}"
            for found in json.loads(output)
            if found["chance"] < level and self._state.states.get(found["run"]) in ("waiting", "queued", "running")
        }

    def _logs(self) -> dict[str, int]:
        """Sizes of the runs' evaluation logs, where there are any."""
        paths = {name: self._state.root / name / run_files.EVAL for name in self._state.runs}
        return {name: path.stat().st_size for name, path in paths.items() if path.exists()}

    def _start_fit(self) -> subprocess.Popen[bytes]:
        """In a process of its own, on a CPU: the runs have the devices."""
        configs = self._state.runs.values()
        end = max(config.num_steps * config.rollouts_per_step for config in configs)
        evaluation = next(iter(configs)).evaluation
        eval_set = next(iter(evaluation.sets), "validation")
        command = [sys.executable, "-m", hopeless.__name__, str(self._state.root), str(end)]
        return subprocess.Popen(
            [*command, f"avg@{evaluation.k}", eval_set],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "JAX_PLATFORMS": "cpu"},
        )
