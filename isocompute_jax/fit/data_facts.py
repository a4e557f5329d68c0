"""What the data of a sweep are: how many, of what kind, whether anything rose, and what was left out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np

from isocompute_jax.fit.configurations import ConfigurationRuns, read_off
from isocompute_jax.fit.frontier.answers import MATERIAL, DrawnSweep, interval
from isocompute_jax.fit.options import AnalysisOptions
from isocompute_jax.fit.read import Notes
from isocompute_jax.fit.results import DataFacts

SHOWN = 3.0
"""A rise or a fall is shown by draws whose mean lies at least this many of their standard deviations above 0."""
ALIKE = 1.05
"""Runs end together when their ends differ by less than this factor."""


def data_facts(
    groups: Sequence[ConfigurationRuns],
    metric: str,
    options: AnalysisOptions,
    sweep: DrawnSweep,
    notes: Notes,
    *,
    curves: bool,
    only_scheduled: bool,
) -> DataFacts:
    """The facts of a metric's evaluations."""
    counts = [
        int(np.isfinite(run.columns[metric]).sum()) if metric in run.columns else 0
        for group in groups
        for run in group.runs
    ]
    seeds = [len(group.runs) for group in groups]
    measured = [run for group in groups for run in group.runs if metric in run.columns]
    trained = [run.compute[(run.compute > 0) & np.isfinite(run.columns[metric])] for run in measured]
    firsts, lasts = ([float(edge(each)) for each in trained if len(each)] for edge in (np.min, np.max))
    rose, gain = _gain(sweep)
    return DataFacts(
        runs=sum(seeds),
        configurations=len(groups),
        seeds=(min(seeds), max(seeds)),
        evaluations=sum(counts),
        evaluations_per_run=(min(counts), max(counts)),
        span=(min(firsts), max(lasts)),
        common_end=float(np.nanmin(sweep.ends)),
        held_out=_held_out(groups, metric),
        equal=_equal(groups, sweep.ends),
        varies=_varies(groups),
        trend="rise" if rose else "no rise",
        gain=gain,
        fallen=tuple(
            configuration for k, configuration in enumerate(sweep.configurations) if curves and _fell(sweep, k)
        ),
        curves=curves,
        left_out_rows=notes.rows,
        left_out_runs=notes.runs,
        notes=notes.texts,
        only_scheduled=only_scheduled,
    )


def _gain(sweep: DrawnSweep) -> tuple[bool, tuple[float, float]]:
    """Whether any configuration rose above the level before training, and the interval of the largest gain."""
    mean, compute = sweep.draws.mean, sweep.draws.compute
    best, rose = None, False
    for k in range(len(mean)):
        inside = np.flatnonzero(compute <= sweep.ends[k] * 1.001)[1:]  # the first is before training
        if not len(inside):
            continue
        peak = inside[mean[k][:, inside].mean(axis=0).argmax()]
        gained = mean[k, :, peak] - mean[k, :, 0]
        rose = rose or bool(gained.mean() > SHOWN * gained.std())
        if best is None or gained.mean() > best.mean():
            best = gained
    return rose, (math.nan, math.nan) if best is None else interval(best)


def _fell(sweep: DrawnSweep, k: int) -> bool:
    """Whether a configuration ends clearly below its best."""
    inside = np.flatnonzero(sweep.draws.compute <= sweep.ends[k] * 1.001)
    if len(inside) < 2:
        return False
    own = sweep.draws.mean[k]
    peak = inside[own[:, inside].mean(axis=0).argmax()]
    lost = own[:, peak] - own[:, inside[-1]]
    return bool(lost.mean() > SHOWN * lost.std())


def _held_out(groups: Sequence[ConfigurationRuns], metric: str) -> bool | None:
    """Whether rewards are of problems that are not trained on, as far as names say it."""
    name = metric.lower()
    if name.startswith("train") or "/train" in name:
        return False
    if any(word in name for word in ("val", "test", "eval", "held")):
        return True
    named = {each for group in groups for run in group.runs for each in run.eval_sets}
    return True if named else None


def _equal(groups: Sequence[ConfigurationRuns], ends: np.ndarray) -> Literal["compute", "steps", "neither"]:
    """In which unit the configurations end together."""
    known = ends[np.isfinite(ends)]
    if known.max() <= ALIKE * known.min():
        return "compute"
    steps = [
        max((float(np.nanmax(run.columns["step"])) for run in group.runs if "step" in run.columns), default=math.nan)
        for group in groups
    ]
    return "steps" if np.isfinite(steps).all() and max(steps) <= ALIKE * min(steps) else "neither"


def _varies(groups: Sequence[ConfigurationRuns]) -> tuple[str, ...]:
    """Names of what differs between configurations."""
    every = [group.configuration for group in groups]
    own = ("group_size", "problems_per_batch", "problem_set_size", "learning_rate")
    found = [name for name in own if len({getattr(each, name) for each in every}) > 1]
    settings = dict.fromkeys(name for each in every for name, _ in each.settings)
    return (*found, *(name for name in settings if name not in found and name not in own))


def seeds_agree(groups: Sequence[ConfigurationRuns], metric: str, width: float) -> bool:
    """Whether the seeds that all configurations share have leaders alike, where the shortest configuration ends.

    They disagree when some seed's leader lies below another seed's leader by more than a difference that matters, in
    most seeds.
    """
    shared = set.intersection(*({run.facts.seed for run in group.runs} for group in groups))
    if len(shared) < 2 or len(groups) < 2:
        return True
    end = min(max(float(run.compute[-1]) for run in group.runs) for group in groups)
    leads = []
    for seed in sorted(shared):
        values = [_end_of(group, metric, seed, end) for group in groups]
        if not np.isfinite(values).all():
            return True
        leads.append((int(np.argmax(values)), values))
    first = max({leader for leader, _ in leads}, key=lambda one: sum(leader == one for leader, _ in leads))
    against = sum(max(values) - values[first] > 2 * MATERIAL * width for _, values in leads)
    return against <= len(leads) / 2


def _end_of(group: ConfigurationRuns, metric: str, seed: int, end: float) -> float:
    for run in group.runs:
        if run.facts.seed == seed and metric in run.columns:
            known = np.isfinite(run.columns[metric]) & (run.compute > 0)
            if known.any():
                return float(read_off(run.compute[known], run.columns[metric][known], np.array([end]))[0])
    return math.nan
