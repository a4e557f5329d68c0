"""How `benchmarks.h200` runs its cases: each in a process, whatever becomes of it a line of the results."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import os
import pathlib
import platform
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.h200_cases import FUSED, Case

PACKAGES = ("jax", "jaxlib", "jax-cuda13-plugin", "tokamax", "numpy", "optax", "flax", "torch", "transformers")
ASK = (
    "import json, sys; from isocompute_jax.model.kernels import tokamax; "
    "print(json.dumps({name: tokamax.missing(name) for name in sys.argv[1:]}))"
)
FIRST_S = 20.0
"""No measurement is begun with less left of the budget."""


class Results:
    """Lines of a file, and of this call: added as they come."""

    def __init__(self, path: pathlib.Path):
        self._path = path
        self.lines: list[dict[str, Any]] = []
        if path.exists():
            self.lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]

    def add(self, line: dict[str, Any]) -> None:
        """Writes a line, and says it."""
        self.lines.append(line)
        with open(self._path, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        short = {name: value for name, value in line.items() if name != "case"}
        print(f"{line.get('name', line['kind'])}: {json.dumps(short)}", file=sys.stderr, flush=True)

    def works(self, kernel: str) -> bool | None:
        """Whether a kernel of attention was measured, and gave anything; None where nobody tried."""
        tried = [x for x in self.lines if x["kind"] == "attention" and x["case"]["attention"] == kernel]
        return any(x["status"] == "ok" for x in tried) if tried else None


def versions() -> dict[str, Any]:
    """Of what the figures depend on."""
    found: dict[str, Any] = {"python": platform.python_version(), "when": time.strftime("%Y-%m-%d %H:%M")}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=30, check=False)
        found["gpu"] = done.stdout.strip() or None
    except (OSError, subprocess.TimeoutExpired):
        found["gpu"] = None
    return found


def missing_kernels(kernels: Sequence[str]) -> Iterator[dict[str, Any]]:
    """A line for each fused kernel of attention that is not there, with the reason; asked in another process."""
    fused = [kernel for kernel in kernels if kernel in FUSED]
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}  # no device is taken
    command = [sys.executable, "-c", ASK, *fused]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    found = dict.fromkeys(fused, reason_of(done.stderr)) if done.returncode else json.loads(done.stdout)
    for kernel, why in found.items():
        if why is not None:
            yield {"kind": "missing", "name": kernel, "why": why}


def measured(
    case: Case, results: Results, kernels: Sequence[str], *, deadline: float, limit_s: float
) -> Iterator[dict[str, Any]]:
    """What comes of a case; a learner takes the first of the kernels of attention with which it works.

    Args:
      case: what to measure.
      results: those so far: a kernel that failed alone is not tried again.
      kernels: of attention.
      deadline: of the call, in monotonic seconds.
      limit_s: of one measurement.
    """
    if case.kind != "learner":
        yield run(case, deadline=deadline, limit_s=limit_s)
        return
    for kernel in [kernel for kernel in kernels if results.works(kernel) is not False] or ["chunked"]:
        found = run(dataclasses.replace(case, attention=kernel), deadline=deadline, limit_s=limit_s)
        yield found
        if found["status"] != "failed":
            return


def run(case: Case, *, deadline: float, limit_s: float) -> dict[str, Any]:
    """A case in a process of its own: `status` is ok, failed (`why` says how) or skipped."""
    line = {"kind": case.kind, "name": case.name, "case": dataclasses.asdict(case)}
    left = deadline - time.monotonic()
    if left < FIRST_S:
        return line | {"status": "skipped", "why": f"{max(left, 0):.0f} s were left of --budget_s"}
    environment = {
        "JAX_ENABLE_COMPILATION_CACHE": "false",  # times to compile are measured
        "TOKENIZERS_PARALLELISM": "false",
        **os.environ,
    }
    command = [sys.executable, "-m", "benchmarks.h200", f"--one={json.dumps(dataclasses.asdict(case))}"]
    started = time.monotonic()
    limit = min(limit_s, left)
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        return line | {"status": "failed", "why": f"not done within {limit:.0f} s"}
    line["wall_s"] = round(time.monotonic() - started, 1)
    if done.returncode:
        return line | {"status": "failed", "why": reason_of(done.stderr)}
    return line | {"status": "ok", **json.loads(done.stdout.splitlines()[-1])}


def reason_of(stderr: str) -> str:
    """The line of a failed process that says most: our own message, or the exception at the end of a traceback."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    said = [line for line in lines if line.startswith("error: ")]
    raised = [line for line in lines if "Error" in line.split(" ")[0]]
    return (said or raised or lines or ["it said nothing"])[-1][:500]
