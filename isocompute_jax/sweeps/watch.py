"""Holds a sweep to its limits as it goes, by the logs of its runs: whoever runs it asks now and then.

    python -m isocompute_jax.sweeps.watch DIRECTORY END METRIC EVAL_SET

is the fit behind `--stop_hopeless`: JSON of the chances of all unfinished runs (see `fit.frontier.chances`). It is a
process of its own, because the fit takes a JAX device, and the sweep must not.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Sequence

from isocompute_jax.options import check, described, option
from isocompute_jax.records import run_files
from isocompute_jax.records.errors import InputError
from isocompute_jax.records.printing import say
from isocompute_jax.sweeps import books

LOG = logging.getLogger(__name__)
PROGRAM = "isocompute_jax.sweeps.watch"
BUDGET_EVERY_S = 2.0
CHANCES_EVERY_S = 60.0
"""Least time between two fits of the unfinished sweep, which take seconds of a process of their own."""


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
    stop_hopeless: float = option(
        0.0,
        "Stop a run once the chance that its configuration is the best at any compute that is left to it, by the "
        "fitted model, is below this, such as 0.01; 0 never does. Its curve stays in the fit. "
        "Nothing is stopped in the first quarter of the compute of the longest run.",
        low=0,
        high=0.5,
    )

    def __post_init__(self) -> None:
        check(self, "--")


NO_LIMITS = Limits()


class Watch:
    """Looks at a sweep as it goes, by the logs of its runs."""

    def __init__(self, state: books.SweepState, limits: Limits):
        self._state, self._limits = state, limits
        self._next_budget = self._next_chances = 0.0
        self._fit: subprocess.Popen[bytes] | None = None
        self._fitted: dict[str, int] = {}

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        if self._fit is not None:
            self._fit.kill()
            self._fit.communicate()

    def look(self) -> dict[str, str]:
        """Run -> why it is to stop; where the budget is spent, the state says so (`halted`). Cheap: call it often."""
        self._check_budget()
        return self._hopeless() if self._limits.stop_hopeless else {}

    def _check_budget(self) -> None:
        """Once the budget has ended the sweep, it stays so."""
        most = self._limits.max_device_hours
        if most is None or self._state.halted or time.monotonic() < self._next_budget:
            return
        self._next_budget = time.monotonic() + BUDGET_EVERY_S
        spent = books.spent_device_hours(self._state.root, list(self._state.runs))
        if spent >= most:
            self._state.halted = f"--max_device_hours={most:g} is spent ({spent:.4g})"
            LOG.warning("%s: nothing more is started, and running runs stop with a checkpoint", self._state.halted)

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
            found["run"]: f"{found['configuration']} is the best beyond C = {found['compute']:,.0f} with a chance of "
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
        end = max(config.planned_compute for config in configs)
        evaluation = next(iter(configs)).evaluation
        eval_set = next(iter(evaluation.sets), "validation")
        command = [sys.executable, "-m", PROGRAM, str(self._state.root), str(end)]
        return subprocess.Popen(
            [*command, f"avg@{evaluation.k}", eval_set],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "JAX_PLATFORMS": "cpu"},
        )


def main(arguments: Sequence[str]) -> None:
    """Prints a list of `Chance`s."""
    from isocompute_jax.fit import AnalysisOptions, ReadOptions
    from isocompute_jax.fit.frontier.chances import chances_of_leading

    directory, end, metric, eval_set = arguments
    options = AnalysisOptions(read=ReadOptions(metric=metric, eval_set=eval_set))
    try:
        chances = chances_of_leading([directory], options, end=float(end))
    except InputError as error:
        sys.exit(str(error))
    say(json.dumps([dataclasses.asdict(chance) for chance in chances]))


if __name__ == "__main__":
    main(sys.argv[1:])
