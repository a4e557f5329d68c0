"""The sweeps of gallery/ in memory: some of their seeds, up to some compute, and what was measured."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Sequence

import numpy as np
from absl import flags

from benchmarks.harness import METRIC
from isocompute_jax.fit.configurations import SAME_COMPUTE, ConfigurationRuns, group_runs, group_schedules, read_off
from isocompute_jax.fit.read import ReadOptions, RunCurve, read_curves

GALLERY = pathlib.Path(__file__).parents[1] / "gallery"
SWEEPS = flags.DEFINE_list("sweeps", [], "Names of recorded sweeps; all that the benchmark has if absent.")
RESAMPLED = 10_000

Ends = tuple[float, float]


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

    def budgets(self, count: int) -> list[float]:
        """The largest compute, its half, and so on, as far as something was evaluated up to them; rising."""
        return [budget for budget in (self.end / 2**i for i in reversed(range(count))) if self.affordable(budget)]

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
    """[k] reward of each of some seeds at a compute, by interpolation in log C, the last one beyond their evaluations.

    Before the first evaluation after the base model's it is linear in C, from the base model on: of a configuration
    that is advised to stop there the first evaluation has not been earned yet.
    """
    runs = [run for run in sweep.groups[k].runs if run.facts.seed in seeds]
    return np.array([_at(run.compute, run.columns[sweep.metric], compute) for run in runs])


def _at(at: np.ndarray, reward: np.ndarray, compute: float) -> float:
    first = int(np.argmax(at > 0))
    if compute < at[first] and first:
        return float(np.interp(compute, at[[0, first]], reward[[0, first]]))
    return float(read_off(at, reward, np.array([compute]))[0])


def by_sweep(values: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Mean over the answers of each sweep."""
    return np.array([values[groups == name].mean() for name in dict.fromkeys(groups)])


def over_sweeps(values: np.ndarray) -> Ends:
    """The 95% interval of their mean, sweeps drawn again."""
    drawn = np.random.default_rng(0).integers(0, len(values), (RESAMPLED, len(values)))
    low, high = np.percentile(values[drawn].mean(axis=1), [2.5, 97.5])
    return float(low), float(high)
