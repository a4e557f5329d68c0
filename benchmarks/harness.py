"""What benchmarks of the fitter share: simulated studies, recorded sweeps, long tables, and the draws of both."""

from __future__ import annotations

import dataclasses
import pathlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import scipy.optimize
from absl import flags

from benchmarks import families, published
from isocompute_jax.fit import analysis
from isocompute_jax.fit.configurations import ConfigurationRuns, group_runs, group_schedules
from isocompute_jax.fit.curves.forms import hill
from isocompute_jax.fit.engine import fit_sweep
from isocompute_jax.fit.frontier.answers import Sweep
from isocompute_jax.fit.mean_curves import SAME_COMPUTE, read_off
from isocompute_jax.fit.options import AnalysisOptions
from isocompute_jax.fit.read import ReadOptions, RunCurve, memory_table, read_curves

GALLERY = pathlib.Path(__file__).parents[1] / "gallery"
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


@dataclasses.dataclass(frozen=True, eq=False)
class Recorded:
    """A recorded sweep in memory; its runs of fixed n, or where it has none its schedules."""

    name: str
    metric: str
    groups: tuple[ConfigurationRuns, ...]  # [K]

    @property
    def seeds(self) -> tuple[int, ...]:
        """Those that every configuration has."""
        every = [{run.facts.seed for run in group.runs} for group in self.groups]
        return tuple(sorted(set.intersection(*every)))

    @property
    def end(self) -> float:
        """Largest compute of an evaluation."""
        return max(float(run.compute[-1]) for group in self.groups for run in group.runs)

    def told(self, seeds: Sequence[int], compute: float = np.inf) -> list[ConfigurationRuns]:
        """The configurations with these seeds alone, up to a compute."""
        return [
            dataclasses.replace(group, runs=tuple(cut(run, compute) for run in group.runs if run.facts.seed in seeds))
            for group in self.groups
        ]

    def affordable(self, budget: float) -> list[int]:
        """Numbers of the configurations that were evaluated up to a budget."""
        return [k for k in range(len(self.groups)) if len(mean_of(self, k, self.seeds, budget)[0])]

    def index_of(self, group_size: int, problems_per_batch: int) -> int:
        """Number of the configuration of these sizes."""
        every = [(each.configuration.group_size, each.configuration.problems_per_batch) for each in self.groups]
        return every.index((group_size, problems_per_batch))


def recorded_sweep(name: str) -> Recorded:
    """A sweep of gallery/ by its name."""
    runs, _ = read_curves([str(GALLERY / f"{name}.parquet")], ReadOptions())
    groups, _ = group_runs([run for run in runs if not run.schedule])
    return Recorded(name, METRIC, tuple(groups or group_schedules(runs)[0]))


def cut(run: RunCurve, compute: float) -> RunCurve:
    """Its evaluations up to a compute."""
    told = run.compute <= compute * (1 + SAME_COMPUTE)
    columns = {name: values[told] for name, values in run.columns.items()}
    return dataclasses.replace(run, compute=run.compute[told], columns=columns)


def mean_of(
    sweep: Recorded, k: int, seeds: Sequence[int], compute: float, *, base: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Compute [E] and mean reward [E] of some seeds up to a compute, without the base model's unless asked for."""
    runs = [run for run in sweep.groups[k].runs if run.facts.seed in seeds]
    count = min(len(run.compute) for run in runs)
    at = runs[0].compute[:count]
    reward = np.mean([run.columns[sweep.metric][:count] for run in runs], axis=0)
    told = (at <= compute * 1.001) & (base | (at > 0))
    return at[told], reward[told]


def got(sweep: Recorded, k: int, seeds: Sequence[int], compute: float) -> np.ndarray:
    """[k] reward of each of some seeds at a compute, linear in log C between evaluations, the last one beyond them."""
    runs = [run for run in sweep.groups[k].runs if run.facts.seed in seeds]
    return np.array([read_off(run.compute, run.columns[sweep.metric], np.array([compute]))[0] for run in runs])


def analysed(groups: Sequence[ConfigurationRuns], metric: str, budgets: Sequence[float]) -> Sweep:
    """The draws that `analyze` takes its answers to these budgets from, without everything else that it does."""
    options = AnalysisOptions(read=ReadOptions(metric=metric), budgets=tuple(budgets))
    model = fit_sweep(groups, metric, reward_range=options.read.reward_range)
    assert model is not None
    compute = analysis._grid(model, float(np.nanmax(model.observations.ends)), options.budgets)
    return analysis._sweep(groups, metric, options, model, model.curves(compute))


def told_table(table: Table, metric: str, budgets: Sequence[float]) -> Sweep:
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
