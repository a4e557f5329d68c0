"""Programs per second of the sandbox for code, beside a fresh interpreter for every test. Usage:

python -m benchmarks.sandbox --seconds=3

One thread hands programs over, and everything runs on one core. The peer is what a grader does without a sandbox: one
`python -I` (and `python -I -S`, without site-packages) for every test, no limits, no isolation.
"""

from __future__ import annotations

import functools
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable

from absl import flags

from benchmarks.shared import print_head, print_row
from isocompute_jax import app
from isocompute_jax.tasks.sandbox import Sandbox, isolation
from isocompute_jax.tasks.sandbox.inside.jail import MEASURES

SECONDS = flags.DEFINE_float("seconds", 3.0, "Seconds of each measurement.", lower_bound=0.1)
TESTS = flags.DEFINE_integer("tests", 10, "Tests of a problem.", lower_bound=1)

STDIN = """
import heapq, sys
from collections import defaultdict
values = list(map(int, sys.stdin.read().split()))
heapq.heapify(values)
print(sum(heapq.heappop(values) for _ in range(len(values))))
"""
FUNCTION = STDIN.replace("values = list(map(int, sys.stdin.read().split()))", "def f(values):").replace(
    "\nheapq.heapify(values)\nprint(", "\n    heapq.heapify(values)\n    return ("
)
TEXT = " ".join(map(str, range(200)))
FALLBACK = ("user", "landlock", "system_calls")
ISOLATIONS = {"namespaces": MEASURES, "user and rules": FALLBACK, "limits alone": ()}


def main() -> None:
    """Flags -> table."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    print(isolation())
    print_head(("", "isolation", "programs/s", "tests/s", "ms a program", "of CPU"), left=(0, 1))
    for name, measures in ISOLATIONS.items():
        for tests in (1, TESTS.value):
            with _measured("standard input", name, tests) as clock, Sandbox(measures=measures) as sandbox:
                clock.run(functools.partial(sandbox.run, STDIN, [TEXT] * tests))
        with _measured("function", name, TESTS.value) as clock, Sandbox(measures=measures) as sandbox:
            clock.run(functools.partial(sandbox.call, FUNCTION, [("f", [list(range(200))])] * TESTS.value))
    for options in (["-I"], ["-I", "-S"]):
        with _measured("a fresh interpreter", " ".join(["none,", *options]), 1) as clock:
            clock.run(functools.partial(_fresh, [sys.executable, *options, "-c", STDIN]))


def _fresh(command: list[str]) -> None:
    subprocess.run(command, input=TEXT, text=True, capture_output=True, check=True)


class _measured:
    """Prints a line of the table once the sandbox is closed and its CPU time is known, its start included."""

    def __init__(self, name: str, measures: str, tests: int):
        self._name = f"{name}, {tests} test{'s' if tests > 1 else ''}"
        self._measures = measures
        self._tests = tests

    def __enter__(self) -> _measured:
        self._cpu = _cpu_s()
        return self

    def run(self, program: Callable[[], object]) -> None:
        """Runs one program again and again; the first time does not count."""
        program()
        self._count, start = 0, time.perf_counter()
        while (passed := time.perf_counter() - start) < SECONDS.value:
            program()
            self._count += 1
        self._rate = self._count / passed

    def __exit__(self, *_: object) -> None:
        cpu_ms = 1000 * (_cpu_s() - self._cpu) / (self._count + 1)
        rates = f"{self._rate:,.0f}", f"{self._rate * self._tests:,.0f}", f"{1000 / self._rate:.1f}", f"{cpu_ms:.1f}"
        print_row(self._name, self._measures, *rates)


def _cpu_s() -> float:
    """CPU seconds of this process and of all that it has waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


if __name__ == "__main__":
    app.run(main)
