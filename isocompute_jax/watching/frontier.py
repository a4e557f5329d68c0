"""The best n so far, over compute: the fit of the runs as they are, made beside the page and never waited for.

It is the command that a user would run (`python -m isocompute_jax.fit`), in a process of its own at low priority and on
the CPU alone, so that neither the page nor a learner on this machine waits for it.
"""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from typing import Any

from isocompute_jax.watching.watched_runs import WatchedRuns

AGAIN_S = 60.0
"""A fit is made anew when there are new evaluations, but not sooner than this, or so many times what the last took:"""
AGAIN_TIMES = 5.0
SIZES = 2
"""Of fewer group sizes none is the best."""
SAME_COMPUTE = 1.001
"""A budget that exceeds the end of the data by rounding lies inside of them."""
SIZE_FIELDS = ("group_size", "problems_per_batch")
"""What is expected to differ between the runs of a sweep."""
SUMMARY, REPORT = "summary.json", "report.html"


class FrontierSoFar:
    """The last fit of all runs that are watched, renewed while somebody asks for it."""

    def __init__(self, runs: WatchedRuns):
        self._runs = runs
        self._folder = pathlib.Path(tempfile.mkdtemp(prefix="isocompute-watch-"))
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._process: subprocess.Popen[str] | None = None
        self._of = 0  # evaluations that the last fit was made of
        self._next = 0.0
        self._result: dict[str, Any] | None = None
        self._when = 0.0
        self._message = ""

    def now(self) -> dict[str, Any]:
        """What is known, at once: `state`, `message`, `fitted_at`, and the fit's `result` where there is one."""
        sizes, evaluations = self._runs.evaluated()
        with self._lock:
            busy = self._thread is not None and self._thread.is_alive()
            due = not busy and evaluations != self._of and time.monotonic() >= self._next
            if sizes >= SIZES and due:
                self._of = evaluations
                self._thread = threading.Thread(target=self._fit, name="fit", daemon=True)
                self._thread.start()
                busy = True
            state = "fitting" if busy else "ready" if self._result else "waiting"
            few = "The best n needs runs of two group sizes or more." if sizes < SIZES else ""
            return {
                "state": state,
                "message": few or self._message,
                "fitted_at": self._when or None,
                "result": self._result,
            }

    def report(self) -> bytes | None:
        """The last fit's report; None where there is none."""
        try:
            return (self._folder / REPORT).read_bytes()
        except OSError:
            return None

    def close(self) -> None:
        """Ends a fit that goes on, and removes its files."""
        if self._process is not None:
            self._process.kill()
        if self._thread is not None:
            self._thread.join(5)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _fit(self) -> None:
        began = time.monotonic()
        out = self._folder / "next"
        self._process = subprocess.Popen(
            [sys.executable, "-m", "isocompute_jax.fit", f"--runs={self._runs.root}", f"--out={out}"],
            env={**os.environ, "JAX_PLATFORMS": "cpu"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        os.setpriority(os.PRIO_PROCESS, self._process.pid, 10)
        _, log = self._process.communicate()
        with self._lock:
            if self._process.returncode == 0:
                self._result = shown(json.loads((out / SUMMARY).read_text(encoding="utf-8")))
                self._when = time.time()
                self._message = ""
                os.replace(out / REPORT, self._folder / REPORT)
            else:
                errors = [line.removeprefix("error: ") for line in log.splitlines() if line.startswith("error: ")]
                self._message = errors[-1] if errors else "The fit failed; run python -m isocompute_jax.fit to see why."
            self._next = time.monotonic() + max(AGAIN_S, AGAIN_TIMES * (time.monotonic() - began))


def shown(summary: Mapping[str, Any]) -> dict[str, Any]:
    """What the page draws of a fit's summary.json: nothing beyond the data."""
    end = summary["data"]["span"][1] * SAME_COMPUTE
    answers = [each for each in summary["grid"] if each["budget"] <= end]
    return {
        "metric": summary["metric"],
        "unit": summary["compute_unit"],
        "budgets": [_answer(each) for each in answers],
        "switches": [_switch(each) for each in summary["switches"]],
        "runs": len(summary["inputs"]),
        "differ": [name for name in summary["data"]["varies"] if name not in SIZE_FIELDS],
    }


def _answer(answer: Mapping[str, Any]) -> dict[str, Any]:
    """A budget, and the advised choice with the verdict on it: `named` are the n of which it is no matter which."""
    kept = ("reward", "group_size", "problems_per_batch")
    return {
        "compute": answer["budget"],
        **{name: answer["choices"][0][name] for name in kept},
        "verdict": answer["verdict"],
        "named": sorted({each["group_size"] for each in answer["named"]}),
    }


def _switch(switch: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "compute": switch["compute"],
        "interval95": switch["interval95"],
        "from_group_size": switch["before"]["group_size"],
        "to_group_size": switch["after"]["group_size"],
    }
