"""Parts of a sweep in which configurations differ in some fields and in nothing else, and who leads in them.

What two configurations differ in explains a difference between their rewards only where the rest is equal: a smaller
B_problem that was run on fewer problems says nothing about B_problem.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from isocompute_jax.fit.comparisons.comparison import DrawnSeries, Tone, Value
from isocompute_jax.fit.curves.seeds import ConfigurationRuns, Curve, group_runs, merge_close, read_off
from isocompute_jax.fit.frontier.bootstrap import Bootstrap, leaders_among
from isocompute_jax.fit.frontier.envelope import frontier
from isocompute_jax.fit.intervals import PERCENTILES, whole_or_none
from isocompute_jax.fit.metric_analysis import MetricAnalysis, uncontested
from isocompute_jax.fit.read import RunCurve
from isocompute_jax.fit.results import Configuration
from isocompute_jax.fit.stages import Stages
from isocompute_jax.fit.sweep_results import SweepResult

HOW_FAR = ("max_compute", "evaluation.")
"""Fields, and groups of them, that say how far a run goes and where it is evaluated: at one compute runs are alike."""


@dataclasses.dataclass(frozen=True, eq=False)
class SweepPart:
    """Configurations that differ in the fields that were asked for alone.

    Attributes:
      groups: [K] configurations with their runs, by n and then by B_problem.
      differs: what tells this part from the others of the sweep; empty for the only one.
    """

    groups: tuple[ConfigurationRuns, ...]
    differs: Mapping[str, Any]

    @property
    def configurations(self) -> list[Configuration]:
        """[K]."""
        return [group.configuration for group in self.groups]

    @property
    def label(self) -> str:
        """` (problem_set_size = 64)`; empty for the only part."""
        text = ", ".join(f"{name.rsplit('.', 1)[-1]} = {value}" for name, value in self.differs.items())
        return f" ({text})" if text else ""


def parts(runs: Sequence[RunCurve], *free: str) -> list[SweepPart]:
    """The parts of a sweep, in the order of its configurations; those without n or B_problem are in none.

    Args:
      runs: all runs of the sweep.
      free: names of fields, without groups, in which the configurations of a part may differ.
    """
    groups, _ = group_runs(runs)
    shared: dict[tuple, list[ConfigurationRuns]] = {}
    for group in groups:
        if group.configuration.rollouts_per_step:
            shared.setdefault(tuple(sorted(_setting(group, free).items())), []).append(group)
    settings = [dict(key) for key in shared]
    names = sorted({name for setting in settings for name in setting})
    told = [name for name in names if len({str(setting.get(name)) for setting in settings}) > 1]
    return [
        SweepPart(tuple(found), {name: setting[name] for name in told if name in setting})
        for setting, found in zip(settings, shared.values(), strict=True)
    ]


def _setting(group: ConfigurationRuns, free: Sequence[str]) -> dict[str, Any]:
    """The fields of a configuration that must be equal, as text where they cannot be compared."""
    own = group.runs[0].identity
    return {
        name: str(value)
        for name, value in own.items()
        if name.rsplit(".", 1)[-1] not in free and not name.startswith(HOW_FAR)
    }


def fits_of(
    result: SweepResult, part: SweepPart, metrics: Iterable[str]
) -> list[tuple[MetricAnalysis, Bootstrap | None]]:
    """A part alone, fitted in the form of the whole sweep and resampled as the options say, for each metric."""
    stages = Stages(result.options, part.groups, result.form.name)
    fitted = [stages.metric(name, intervals=True, profiles=False) for name in metrics]
    return [(each, stages.bootstrap(each)) for each in fitted]


def members_by(configurations: Sequence[Configuration], field: str) -> dict[int, list[int]]:
    """Value of a field, rising -> numbers of the configurations that have it."""
    found: dict[int, list[int]] = {}
    for i, configuration in enumerate(configurations):
        found.setdefault(getattr(configuration, field), []).append(i)
    return dict(sorted(found.items()))


@dataclasses.dataclass(frozen=True, eq=False)
class Leaders:
    """Who leads among some configurations, at the budgets where none without data would.

    Attributes:
      compute: [P] increasing.
      index: [P] numbers of the configurations.
      reward: [P] of their fitted curves.
      replicates: [R, P] numbers of the leaders of bootstrap replicates; None without.
    """

    compute: np.ndarray
    index: np.ndarray
    reward: np.ndarray
    replicates: np.ndarray | None


def leaders(analysis: MetricAnalysis, resampled: Bootstrap | None, members: Sequence[int]) -> Leaders:
    """The upper envelope of some configurations of an analysis (arXiv 2603.12151), and its replicates.

    Args:
      analysis: of one metric.
      resampled: bootstrap of its curves; None without.
      members: numbers of the configurations.
    """
    fits = [fit if i in members else dataclasses.replace(fit, status="failed") for i, fit in enumerate(analysis.fits)]
    envelope = frontier(fits, [curve.configuration for curve in analysis.curves])
    found = uncontested(analysis, envelope, members)
    compute = np.array([budget.compute for budget, _ in found])
    index = np.array([i for _, i in found], dtype=int)
    reward = np.array([float(analysis.fits[i].reward(c)) for c, i in zip(compute, index, strict=True)])
    return Leaders(compute, index, reward, replicate_leaders(analysis, resampled, members, compute))


def replicate_leaders(
    analysis: MetricAnalysis, resampled: Bootstrap | None, members: Sequence[int], compute: np.ndarray
) -> np.ndarray | None:
    """[R, P] numbers of the leaders of bootstrap replicates among some configurations; None where nothing tells."""
    fitted = [i for i in members if analysis.fits[i].status != "failed"]
    if resampled is None or not len(compute) or not all(resampled.tells(analysis.fits[i], i) for i in fitted):
        return None
    budgets: list[float] = compute.tolist()
    return np.stack([leaders_among(resampled, analysis.fits, dict.fromkeys(fitted, c)) for c in budgets], axis=1)


@dataclasses.dataclass(frozen=True, eq=False)
class LeaderCourse:
    """How one field of the leader moves over compute, as n* or B_problem* does.

    Attributes:
      compute: [P] budgets.
      value: [P] of the leader.
      low: [P] ends of the value's 95% interval over replicates; None without.
      high: [P].
    """

    compute: np.ndarray
    value: np.ndarray
    low: np.ndarray | None
    high: np.ndarray | None

    @property
    def switches(self) -> list[tuple[float, int]]:
        """The first value and every other one, with the budget that has it first."""
        new = [0, *(np.flatnonzero(np.diff(self.value)) + 1)] if len(self.value) else []
        return [(float(self.compute[i]), int(self.value[i])) for i in new]

    @property
    def last95(self) -> tuple[int, int] | None:
        """The interval at the last budget; None where it does not hold the value."""
        if self.low is None or self.high is None:
            return None
        return whole_or_none((int(self.low[-1]), int(self.high[-1])), self.value[-1])

    @property
    def last(self) -> Value:
        """The last value and its interval: `16 (8 to 32)`."""
        value, ends = int(self.value[-1]), self.last95
        text = "" if ends is None else f" ({' to '.join(map(str, dict.fromkeys(ends)))})"
        return Value.within(value, ends, f"{value}{text}")

    def drawn(
        self, name: str, tone: Tone, panel: str = "", look: Literal["steps", "wide steps"] = "steps"
    ) -> DrawnSeries:
        """For a picture."""
        return DrawnSeries(name, self.compute, self.value, panel, self.low, self.high, look=look, tone=tone)


def course(found: Leaders, values: Sequence[int]) -> LeaderCourse:
    """The course of a field with `values` [K], one for each configuration."""
    field = np.asarray(values)
    low = high = None
    if found.replicates is not None:
        low, high = np.percentile(field[found.replicates], PERCENTILES, axis=0, method="nearest")
    return LeaderCourse(found.compute, field[found.index], low, high)


def tones(values: Iterable[float]) -> dict[float, float]:
    """value > 0 -> share of the palette, in the order of its logarithm."""
    found = sorted(set(values))
    first, span = math.log(found[0]), math.log(found[-1] / found[0]) or 1.0
    return {value: (math.log(value) - first) / span for value in found}


def aligned(curve: Curve) -> tuple[np.ndarray, np.ndarray]:
    """Each seed at the same computes: compute [E] and reward [S, E], the base model's (compute 0) if all seeds have it.

    Pooled seeds are read off at every compute that all of them cover, linear in log C between their evaluations.
    """
    if not curve.pooled:
        return curve.compute, curve.per_seed
    seeds = [curve.of_seed(i) for i in range(len(curve.seeds))]
    trained = [compute[compute > 0] for compute, _ in seeds]
    if not all(len(compute) for compute in trained):
        return np.empty(0), np.empty((len(seeds), 0))
    low, high = max(c[0] for c in trained), min(c[-1] for c in trained)
    grid = merge_close(np.concatenate([c[(c >= low) & (c <= high)] for c in trained]))
    values = np.array([read_off(compute, reward, grid) for compute, reward in seeds])
    if all(compute[0] == 0 for compute, _ in seeds):
        base = np.array([[reward[0]] for _, reward in seeds])
        grid, values = np.append(0.0, grid), np.concatenate([base, values], axis=1)
    return grid, values


def rewards_at(curve: Curve, compute: np.ndarray) -> np.ndarray:
    """[S, P] reward of each seed at computes [P], linear in log C between evaluations; NaN outside of its data."""
    found = np.full((len(curve.seeds), len(compute)), math.nan)
    for number in range(len(curve.seeds)):
        own, reward = curve.of_seed(number)
        own, reward = own[own > 0], reward[own > 0]
        if len(own):
            found[number] = np.interp(np.log(compute), np.log(own), reward, left=math.nan, right=math.nan)
    return found
