"""`python -m benchmarks.fit_startup`: what `python -m isocompute_jax.fit` costs from start to end, in CPU seconds.

    python -m benchmarks.fit_startup                       # 15 configurations, cold and warm, and 500 runs x 100 points
    python -m benchmarks.fit_startup --parts=small --repeats=3

Each line is one process, user and system time of all its threads: imports, reading, the fit and its draws,
pictures and report, with the flags that a first user has. Cold starts with an empty compile cache, warm with the one
that the cold run left. Programs are those that XLA compiled or, warm, loaded. CPU seconds hardly notice other work on
the machine as long as cores are left over; a full machine makes them up to half as many again.
"""

from __future__ import annotations

import csv
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import time

import numpy as np
from absl import flags

from benchmarks.shared import print_head, print_row
from isocompute_jax import app
from isocompute_jax.fit.curves.forms import hill

PARTS = flags.DEFINE_list("parts", ["small", "seeds", "large"], "Which studies: small, seeds, large.")
REPEATS = flags.DEFINE_integer("repeats", 1, "Warm runs of each study; the least is given.", lower_bound=1)

STUDIES = {
    "small": ((4, 8, 16, 32, 64), (16, 64, 128), 1, 30),
    "seeds": ((4, 8, 16, 32, 64), (16,), 3, 30),
    "large": (tuple(range(4, 54, 2)), (16, 32, 64, 128), 5, 100),
}
"""Group sizes, problems per batch, seeds and evaluations."""
NOISE = 0.005


def write_study(path: pathlib.Path, name: str) -> str:
    """A table of Hill curves whose asymptote and midpoint rise with n; returns what it holds."""
    sizes, batches, seeds, evaluations = STUDIES[name]
    rng = np.random.default_rng(0)
    compute = np.geomspace(1e4, 1e6, evaluations - 1).round()
    with open(path, "w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["run", "group_size", "problems_per_batch", "problem_set_size", "seed", "compute", "avg@4"])
        for batch in batches:
            for size in sizes:
                octaves = np.log2(size / 8)
                asymptote = min(0.4 + 0.05 * octaves + 0.03 * (batch == 64), 0.95)
                midpoint = 2e4 * 2 ** (0.5 * octaves) * (batch / 16) ** 0.3
                for seed in range(seeds):
                    reward = hill(compute, 0.1, asymptote, midpoint, 1.1) + rng.normal(0.0, NOISE, len(compute))
                    for at, value in ((0.0, 0.1), *zip(compute, reward, strict=True)):
                        table.writerow([f"b{batch}-n{size}-s{seed}", size, batch, 2000, seed, at, value])
    configurations = len(sizes) * len(batches)
    return f"{configurations} configurations x {seeds} x {evaluations} points"


def measure(table: pathlib.Path, root: pathlib.Path) -> tuple[float, float, int]:
    """CPU seconds, wall seconds and programs of one run of the command, with the compile cache in `root`."""
    drop = ("JAX_COMPILATION_CACHE_DIR", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "XLA_FLAGS")
    drop += ("PYTHONDONTWRITEBYTECODE",)  # users have the byte code of the package
    environment = {name: value for name, value in os.environ.items() if name not in drop}
    environment |= {"JAX_LOG_COMPILES": "1", "JAX_PLATFORMS": "cpu", "XDG_CACHE_HOME": str(root / "cache")}
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    command = [sys.executable, "-m", "isocompute_jax.fit", f"--runs={table}", f"--out={root / 'out'}"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise RuntimeError(done.stderr)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return cpu, wall, done.stderr.count("Finished XLA compilation of")


def main() -> None:
    """Flags -> table."""
    print_head(("study", "compile cache", "CPU s", "wall s", "programs"), left=(0, 1))
    for name in PARTS.value:
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            what = write_study(root / "study.csv", name)
            runs = {"cold": [measure(root / "study.csv", root)]}
            runs["warm"] = [measure(root / "study.csv", root) for _ in range(REPEATS.value)]
        for cache, found in runs.items():
            cpu, wall, programs = min(found)
            print_row(what, cache, f"{cpu:.1f}", f"{wall:.1f}", programs)


if __name__ == "__main__":
    app.run(main)
