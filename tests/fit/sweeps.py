"""One analysis of a rich synthetic sweep, shared by the tests of pictures, report and terminal."""

from __future__ import annotations

import atexit
import csv
import dataclasses
import functools
import pathlib
import shutil
import tempfile
from collections.abc import Mapping
from typing import Any

import numpy as np

from isocompute_jax.fit.analysis import analyse_runs
from isocompute_jax.fit.analysis_options import AnalysisOptions
from isocompute_jax.fit.curves.forms import hill
from isocompute_jax.fit.report.figures import draw_figures
from isocompute_jax.fit.sweep_results import SweepResult

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
def rich() -> SweepResult:
    """The results; frozen, so that tests may share them."""
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
        return analyse_runs([str(path)], AnalysisOptions(replicates=20, budgets=(3e5, 2e7)))


@functools.cache
def pictures() -> dict[str, pathlib.Path]:
    """Every picture of it, drawn once."""
    root = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, root)
    return draw_figures(rich(), pathlib.Path(root))


def put(record: Any, path: str, **changes: Any) -> Any:
    """The record with changes at a dotted path of fields, places in tuples and keys of mappings: `curves.0.fit`."""
    if not path:
        return {**record, **changes} if isinstance(record, Mapping) else dataclasses.replace(record, **changes)
    head, _, rest = path.partition(".")
    if isinstance(record, tuple):
        at = int(head)
        return (*record[:at], put(record[at], rest, **changes), *record[at + 1 :])
    if isinstance(record, Mapping):
        return {**record, head: put(record[head], rest, **changes)}
    return dataclasses.replace(record, **{head: put(getattr(record, head), rest, **changes)})


def put_all(record: Any, path: str, rest: str = "", **changes: Any) -> Any:
    """The same changes in every element of a tuple at a path."""
    held = record
    for name in path.split("."):
        held = getattr(held, name)
    for i in range(len(held)):
        record = put(record, f"{path}.{i}.{rest}".rstrip("."), **changes)
    return record


def alone(result: SweepResult, run: str) -> SweepResult:
    """The results as they would be for one configuration, as far as pictures and sentences read them."""
    found = dataclasses.replace(
        result,
        curves=tuple(curve for curve in result.curves if curve.run == run),
        comparison=None,
        slices=(),
        targets={},
        training={},
        recommendations=(),
        frontier=dataclasses.replace(result.frontier, switches=(), segments=(), budgets=()),
    )
    return put(found, "", answers=(), ranges=())


def unidentified(result: SweepResult, value: float = 0.98765) -> SweepResult:
    """Every parameter's estimate is `value` and none is identified: no text may have it."""
    for i, curve in enumerate(result.curves):
        names = curve.fit.params
        result = put(
            result,
            f"curves.{i}.fit",
            params=dict.fromkeys(names, value),
            identified=dict.fromkeys(names, False),
            interval95=dict.fromkeys(names, (0.5, 1.0)),
            message="A is not identified: its 95% interval, 0.5 to 1, reaches a bound",
            status="warning",
        )
    result = put_all(result, "comparison.curves", steepness=value, identified=False, interval95=(0.5, 1.0))
    result = _degenerate(result, "allocation", value, "n* takes two levels only")
    for i in range(len(result.slices)):
        result = _degenerate(result, f"slices.{i}.allocation", value, "one level")
    return result


def _degenerate(result: SweepResult, path: str, value: float, message: str) -> SweepResult:
    law = dict.fromkeys(("span", "slope", "midpoint", "floor", "saturation"), value)
    return put(result, path, status="warning", message=message, **law)
