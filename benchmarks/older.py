"""Ways to answer that `answers` compares with: a plain rule, SciPy, and an older checkout of this project."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Sequence

import numpy as np
import scipy.special

from benchmarks.harness import scipy_hill
from benchmarks.recorded_sweeps import GALLERY, Recorded, mean_of
from isocompute_jax.records.errors import RunError

Told = tuple[int, float, float]
"""Number of the configuration, compute at which it stops, and the reward that is expected there."""
SETTINGS = ("strict", "off")
"""Values of --records of the older checkout, of which `make study` had the first and the command the second."""


def plain(sweep: Recorded, seeds: Sequence[int], budget: float, *, between: bool = False) -> Told:
    """Averages the seeds, then three neighbouring evaluations, and takes the highest up to the budget.

    With `between` it may stop at the budget too, where that lies between two evaluations.
    """
    best = (-1, 0.0, -np.inf)
    for k in sweep.affordable(budget):
        compute, reward = mean_of(sweep, k, seeds, np.inf, base=True)
        smooth = np.array([reward[max(i - 1, 0) : i + 2].mean() for i in range(len(reward))])
        if between and compute[1] < budget < compute[-1]:
            at = float(np.interp(np.log(budget), np.log(compute[1:]), smooth[1:]))
            compute, smooth = np.append(compute, budget), np.append(smooth, at)
        smooth[(compute <= 0) | (compute > budget * 1.001)] = -np.inf
        i = int(smooth.argmax())
        if smooth[i] > best[2]:
            best = (k, float(compute[i]), float(smooth[i]))
    return best


def scipys(sweep: Recorded, seeds: Sequence[int], budget: float) -> Told:
    """A Hill curve through the mean of each configuration's seeds by `curve_fit`: the highest at the budget."""
    found = []
    for k in sweep.affordable(budget):
        compute, reward = mean_of(sweep, k, seeds, np.inf, base=True)
        stop = min(budget, float(compute[-1]))
        found.append((k, stop, float(scipy_hill(compute, reward)(np.array([stop]))[0])))
    return max(found, key=lambda each: each[2])


def rule_interval(values: np.ndarray, left: int, level: float) -> tuple[float, float]:
    """mean +- t(S - 1) sd sqrt(1/S + 1/k) of the fitted seeds at the rule's stop, for k seeds left out."""
    wide = scipy.special.stdtrit(len(values) - 1, (1 + level) / 2) * values.std(ddof=1)
    half = float(wide * np.sqrt(1 / len(values) + 1 / left))
    return float(values.mean()) - half, float(values.mean()) + half


SCRIPT = """
import json, sys, warnings
import pyarrow as pa, pyarrow.compute as pc, pyarrow.parquet as pq
from isocompute_jax.fit import AnalysisOptions, analyze

warnings.simplefilter("ignore")
given = json.load(sys.stdin)
rows = []
for path, seeds, budgets in given["cases"]:
    table = pq.read_table(path)
    table = table.filter(pc.is_in(table["seed"], value_set=pa.array(seeds, table["seed"].type)))
    options = AnalysisOptions(budgets=tuple(budgets), records=given["records"], holdout=0.0, bootstrap="none")
    for each in analyze(table, options, compare=False).recommendations:
        rows.append([each.group_size, each.problems_per_batch, each.stop or each.budget, each.reward, *each.interval95])
json.dump(rows, sys.stdout)
"""


def at_checkout(root: str, cases: Sequence[tuple[Recorded, Sequence[int], Sequence[float]]]) -> dict[str, list[Told]]:
    """Answers of the checkout in `root` to all budgets of all cases (sweep, seeds, budgets), for each of `SETTINGS`.

    Raises:
      RunError: it failed.
    """
    found = {}
    for records in SETTINGS:
        asked = [
            (str(GALLERY / f"{sweep.name}.parquet"), list(seeds), list(budgets)) for sweep, seeds, budgets in cases
        ]
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT],
            cwd=root,
            env=os.environ | {"PYTHONPATH": str(pathlib.Path(root).resolve())},
            input=json.dumps({"cases": asked, "records": records}),
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RunError(f"--tool_at={root}: it failed\n{done.stderr[-2000:]}")
        rows = json.loads(done.stdout)
        sweeps = [sweep for sweep, _, budgets in cases for _ in budgets]
        found[f"{root}, records={records}"] = [
            (sweep.index_of(int(n), int(b)), stop, reward)
            for sweep, (n, b, stop, reward, *_) in zip(sweeps, rows, strict=True)
        ]
    return found
