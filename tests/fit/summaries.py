"""One analysis of a rich synthetic sweep, shared by the tests of pictures, report and terminal."""

from __future__ import annotations

import atexit
import copy
import csv
import functools
import pathlib
import shutil
import tempfile
from typing import Any

import numpy as np

from isocompute_jax.fit.analysis import analyse_runs
from isocompute_jax.fit.analysis_options import AnalysisOptions
from isocompute_jax.fit.curves.forms import hill
from isocompute_jax.fit.report.figures import draw_figures
from isocompute_jax.fit.report.summary_json import summarise

COLUMNS = (
    "run", "group_size", "problems_per_batch", "problem_set_size", "seed", "compute", "avg@4", "best@4", "worst@4",
    "entropy", "never_solved", "rarely_solved", "often_solved", "always_solved",
)  # fmt: skip
BUDGETS = np.geomspace(1e4, 1e6, 12).round()


def truth(group_size: int, batch: int) -> tuple[float, float, float, float]:
    """Floor, asymptote, midpoint and steepness; larger n start slower and end higher, those of n = 512 far away."""
    octaves = np.log2(group_size / 8)
    return 0.1, 0.40 + 0.07 * octaves + 0.03 * (batch == 64), 2e4 * 2 ** (0.75 * octaves) * (batch / 16) ** 0.3, 1.1


@functools.cache
def _summary() -> dict[str, Any]:
    rng = np.random.default_rng(3)
    rows = []
    for batch in (16, 64):
        for size in (8, 32, 128):
            for seed in (0, 1):
                for compute in (0.0, *BUDGETS):
                    r = float(hill(max(compute, 1e-9), *truth(size, batch))) + 0.003 * rng.normal()
                    facts = (f"b{batch}-n{size}-s{seed}", size, batch, 2000, seed, compute)
                    shares = (1 - r) ** 2, r * (1 - r), r * (1 - r), r**2
                    rows.append((*facts, r, 1 - (1 - r) ** 2, r**2, 1 - r, *shares))
    with tempfile.TemporaryDirectory() as root:
        path = pathlib.Path(root, "sweep.csv")
        with open(path, "w", newline="") as file:
            csv.writer(file).writerows([COLUMNS, *rows])
        return summarise(analyse_runs([str(path)], AnalysisOptions(replicates=20, budgets=(3e5, 2e7))))


def rich() -> dict[str, Any]:
    """A copy of the summary that a test may change."""
    return copy.deepcopy(_summary())


@functools.cache
def pictures() -> dict[str, pathlib.Path]:
    """Every picture of it, drawn once."""
    root = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, root)
    return draw_figures(_summary(), pathlib.Path(root))


def alone(summary: dict[str, Any], run: str) -> dict[str, Any]:
    """The summary as it would be for one configuration, as far as pictures and sentences read it."""
    summary["curves"] = [curve for curve in summary["curves"] if curve["run"] == run]
    summary["comparison"], summary["slices"], summary["targets"], summary["training"] = None, [], {}, []
    frontier = summary["frontier"]
    frontier["switches"], frontier["segments"], frontier["budgets"] = [], [], []
    summary["allocation"]["recommendations"] = []
    return summary


def unidentified(summary: dict[str, Any], value: float = 0.98765) -> dict[str, Any]:
    """Every parameter's estimate is `value` and none is identified: no text may have it."""
    for curve in summary["curves"]:
        curve["params"] = dict.fromkeys(curve["params"], value)
        curve["identified"] = dict.fromkeys(curve["identified"], False)
        curve["interval95"] = {name: [0.5, 1.0] for name in curve["interval95"]}
        curve["message"] = "A is not identified: its 95% interval, 0.5 to 1, reaches a bound"
        curve["status"] = "warning"
    for row in summary["comparison"]["curves"]:
        row |= {"steepness": value, "identified": False, "interval95": [0.5, 1.0]}
    allocation = summary["allocation"]
    allocation |= {"status": "warning", "saturation": value, "message": "n* takes two levels only"}
    allocation["law"] = dict.fromkeys(allocation["law"], value)
    for part in summary["slices"]:
        part["allocation"] |= {"status": "warning", "saturation": value, "message": "one level"}
    return summary
