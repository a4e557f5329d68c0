"""Parts of a sweep in which configurations differ in some fields and in nothing else, and their rewards seed by seed.

What two configurations differ in explains a difference between their rewards only where the rest is equal: a smaller
B_problem that was run on fewer problems says nothing about B_problem.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from isocompute_jax.fit.curves.seeds import ConfigurationRuns, Curve, group_runs, merge_close, read_off
from isocompute_jax.fit.frontier.bootstrap import Bootstrap
from isocompute_jax.fit.metric_analysis import MetricAnalysis
from isocompute_jax.fit.read import RunCurve
from isocompute_jax.fit.results import Configuration
from isocompute_jax.fit.stages import Stages
from isocompute_jax.fit.sweep_results import SweepResult

HOW_FAR = ("max_compute", "evaluation.")
"""Fields, and groups of them, that say how far a run goes and where it is evaluated: at one compute runs are alike."""


@dataclasses.dataclass(frozen=True, eq=False)
class SweepPart:
    """Configurations that differ in the fields that were asked for alone."""

    groups: tuple[ConfigurationRuns, ...]  # [K] configurations with their runs, by n and then by B_problem
    differs: Mapping[str, Any]  # what tells this part from the others of the sweep; empty for the only one

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
    differing = [name for name in names if len({str(setting.get(name)) for setting in settings}) > 1]
    return [
        SweepPart(tuple(own), {name: setting[name] for name in differing if name in setting})
        for setting, own in zip(settings, shared.values(), strict=True)
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
    members: dict[int, list[int]] = {}
    for i, configuration in enumerate(configurations):
        members.setdefault(getattr(configuration, field), []).append(i)
    return dict(sorted(members.items()))


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
    rewards = np.full((len(curve.seeds), len(compute)), math.nan)
    for number in range(len(curve.seeds)):
        own, reward = curve.of_seed(number)
        own, reward = own[own > 0], reward[own > 0]
        if len(own):
            rewards[number] = np.interp(np.log(compute), np.log(own), reward, left=math.nan, right=math.nan)
    return rewards
