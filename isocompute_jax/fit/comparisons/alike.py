"""Parts of a sweep in which configurations differ in some fields and in nothing else, and their rewards seed by seed.

What two configurations differ in explains a difference between their rewards only where the rest is equal: a smaller
B_problem that was run on fewer problems says nothing about B_problem.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from isocompute_jax.fit.curves.seeds import ConfigurationRuns, Curve, group_runs
from isocompute_jax.fit.frontier.bootstrap import Bootstrap
from isocompute_jax.fit.read import RunCurve
from isocompute_jax.fit.stages import MetricAnalysis, Stages
from isocompute_jax.fit.sweep_results import SweepResult

HOW_FAR = ("max_compute", "evaluation.")
"""Fields, and groups of them, that say how far a run goes and where it is evaluated: at one compute runs are alike."""

Groups = tuple[ConfigurationRuns, ...]
"""[K] configurations with their runs, by n and then by B_problem."""


def parts(runs: Sequence[RunCurve], *free: str) -> list[tuple[str, Groups]]:
    """The parts of a sweep whose configurations differ in the `free` fields alone, and have n and B_problem.

    Args:
      runs: all runs of the sweep.
      free: names of fields, without groups.

    Returns:
      Each part with what tells it from the others, ` (problem_set_size = 64)`; that of the only part is empty.
    """
    shared: dict[tuple[tuple[str, str], ...], list[ConfigurationRuns]] = {}
    for group in group_runs(runs)[0]:
        if group.configuration.rollouts_per_step:
            shared.setdefault(_setting(group, free), []).append(group)
    settings = [dict(key) for key in shared]
    names = sorted({name for setting in settings for name in setting})
    differing = [name for name in names if len({setting.get(name, "None") for setting in settings}) > 1]
    labels = [", ".join(f"{n.rsplit('.', 1)[-1]} = {s[n]}" for n in differing if n in s) for s in settings]
    return [(f" ({label})" if label else "", tuple(own)) for label, own in zip(labels, shared.values(), strict=True)]


def _setting(group: ConfigurationRuns, free: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """The fields of a configuration that must be equal, and their values as text."""
    fields = group.runs[0].identity.items()
    kept = [(name, str(value)) for name, value in fields if not name.startswith(HOW_FAR)]
    return tuple(sorted((name, value) for name, value in kept if name.rsplit(".", 1)[-1] not in free))


def fits_of(
    result: SweepResult, groups: Groups, metrics: Iterable[str]
) -> list[tuple[MetricAnalysis, Bootstrap | None]]:
    """A part alone, fitted in the form of the whole sweep and resampled as the options say, for each metric."""
    stages = Stages(result.options, groups, result.form.name)
    fitted = [stages.metric(name, intervals=True, profiles=False) for name in metrics]
    return [(each, stages.bootstrap(each)) for each in fitted]


def members_by(each: Iterable[ConfigurationRuns | Curve], field: str) -> dict[int, list[int]]:
    """Known value of a field, rising -> numbers of the configurations that have it."""
    members: dict[int, list[int]] = {}
    for i, one in enumerate(each):
        members.setdefault(getattr(one.configuration, field), []).append(i)
    return {value: own for value, own in sorted(members.items()) if value}


def several_by(each: Iterable[ConfigurationRuns | Curve], field: str) -> dict[int, list[int]]:
    """The same of the values that two configurations or more have."""
    return {value: own for value, own in members_by(each, field).items() if len(own) > 1}


def rewards_at(curve: Curve, compute: np.ndarray) -> np.ndarray:
    """[S, P] reward of each seed at computes [P], linear in log C between evaluations; NaN outside of its data."""
    rewards = np.full((len(curve.seeds), len(compute)), math.nan)
    for number in range(len(curve.seeds)):
        own, reward = curve.of_seed(number)
        own, reward = own[own > 0], reward[own > 0]
        if len(own):
            rewards[number] = np.interp(np.log(compute), np.log(own), reward, left=math.nan, right=math.nan)
    return rewards
