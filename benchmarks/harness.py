"""What benchmarks of the fitter share: simulated studies, long tables, and the draws of both."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import scipy.optimize
from absl import flags

from benchmarks import families, published
from isocompute_jax.fit import analysis
from isocompute_jax.fit.configurations import ConfigurationRuns, group_runs
from isocompute_jax.fit.curves.forms import hill
from isocompute_jax.fit.engine import fit_sweep
from isocompute_jax.fit.frontier.answers import DrawnSweep
from isocompute_jax.fit.options import AnalysisOptions
from isocompute_jax.fit.read import ReadOptions, memory_table, read_curves

METRIC = "avg@4"
Table = dict[str, np.ndarray]
"""Column -> values, as `analyze` takes it."""


def study_flags(studies: int, of: Sequence[str] = families.FAMILIES) -> None:
    """Defines the flags by which `studies_of_flags` draws simulated sweeps: by default so many of each family."""
    flags.DEFINE_integer("studies", studies, "Studies of each family.")
    flags.DEFINE_integer("first", 0, "Number of the first study of each family.")
    flags.DEFINE_enum("draw", "test", ["development", "test"], "Which studies are drawn.")
    flags.DEFINE_list("families", list(of), "Which families.")


def studies_of_flags() -> Iterator[tuple[int, families.Study]]:
    """(number, study) of every family of the flags, number by number."""
    given = flags.FLAGS
    for number in range(given.first, given.first + given.studies):
        for family in given.families:
            if family in published.FAMILIES:
                yield number, published.simulate(family, number)
            else:
                yield number, families.simulate(family, given.draw, number)


def long_table(runs: Iterable[Mapping[str, Any]]) -> Table:
    """One table of many runs, each of whose columns is an array with an element per evaluation, or one value."""
    columns: dict[str, list[np.ndarray]] = {}
    for run in runs:
        for name, values in run.items():
            columns.setdefault(name, []).append(np.broadcast_to(values, run["compute"].shape))
    return {name: np.concatenate(parts) for name, parts in columns.items()}


def analysed(groups: Sequence[ConfigurationRuns], metric: str, budgets: Sequence[float]) -> DrawnSweep:
    """The draws that `analyze` takes its answers to these budgets from, without everything else that it does."""
    options = AnalysisOptions(read=ReadOptions(metric=metric), budgets=tuple(budgets))
    model = fit_sweep(groups, metric, reward_range=options.read.reward_range)
    assert model is not None
    compute = analysis._grid(model, float(np.nanmax(model.observations.ends)), options.budgets)
    return analysis._sweep(groups, metric, options, model, model.curves(compute))


def told_table(table: Table, metric: str, budgets: Sequence[float]) -> DrawnSweep:
    """The same of a long table."""
    runs, _ = read_curves(memory_table(table), ReadOptions(metric=metric))
    return analysed(group_runs(runs)[0], metric, budgets)


def with_all(rows: Mapping[str, Sequence[Any]]) -> Iterator[tuple[str, Sequence[Any]]]:
    """Rows by family, and at the end those of all families together."""
    yield from rows.items()
    yield "all", [row for part in rows.values() for row in part]


def scipy_hill(compute: np.ndarray, reward: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """`curve_fit` of a Hill curve, the better of two starts."""

    def curve(c: np.ndarray, low: float, high: float, middle: float, steepness: float) -> np.ndarray:
        return hill(c, low, high, float(np.exp(middle)), steepness)

    best, found = np.inf, None
    bounds = ([0, 0, 0, 0.1], [1, 1, np.log(1e9), 10])
    for middle in np.log(compute[-1] / np.array([10, 2])):
        start = [np.clip(reward[0], 0.01, 0.98), min(0.97, reward.max() + 0.02), middle, 1.0]
        try:
            with warnings.catch_warnings(action="ignore"):
                values, _ = scipy.optimize.curve_fit(curve, compute, reward, p0=start, bounds=bounds, max_nfev=500)
        except RuntimeError:
            continue
        squares = float(np.sum((curve(compute, *values) - reward) ** 2))
        if squares < best:
            best, found = squares, values
    return (lambda c: np.full(len(c), reward[-1])) if found is None else (lambda c: curve(c, *found))
