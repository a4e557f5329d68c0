"""Playing a hidden sweep: runs are added in one way or another until n*(C) is settled to one octave (`fewest_runs`)."""

from __future__ import annotations

import dataclasses
from typing import Literal

import numpy as np

from benchmarks.harness import METRIC, alive, analysed, forecast_of
from benchmarks.hidden_sweeps import SAME_COMPUTE, HiddenSweep, Reached
from isocompute_jax.fit.analysis_options import AnalysisOptions
from isocompute_jax.fit.frontier.envelope import data_end
from isocompute_jax.fit.frontier.forecast import Forecast
from isocompute_jax.fit.further_runs import Candidate, candidates, evaluations, optimal_sizes, propose
from isocompute_jax.fit.read import ReadOptions
from isocompute_jax.fit.stages import MetricAnalysis

WAYS = ("--next", "random", "grid", "interval")
"""How runs are added."""


@dataclasses.dataclass(frozen=True)
class Rules:
    """How it begins and ends: flags of `fewest_runs`."""

    start: float
    runs: int
    immaterial: float
    most: float


@dataclasses.dataclass(frozen=True, eq=False)
class Look:
    """What the runs so far say: n* at the budget, its 95% interval, and what an analysis is asked for more with."""

    found: MetricAnalysis
    forecast: Forecast
    among: list[int]
    named: int
    interval95: tuple[int, int]
    regret: float

    @property
    def settled(self) -> bool:
        """To one octave."""
        return self.interval95[1] <= 2 * self.interval95[0]


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a sweep ended: by what, after how much of C and how many runs, and its answer (see the module)."""

    ended: Literal["settled", "immaterial", "spent"]
    cost: float
    runs: int
    held: bool
    near: bool
    regret: float


def play(sweep: HiddenSweep, way: str, rules: Rules, number: int) -> Outcome:
    """Adds runs to a sweep until n* is settled, nothing can be added, or too much is spent."""
    rng = np.random.default_rng([number, WAYS.index(way)])
    every = range(len(sweep.group_sizes))
    first = sweep.budget / (1 if way == "grid" else rules.start)
    told: Reached = {}
    cost, runs, more = 0.0, 0, [Candidate(k, first, 1) for k in every]
    while True:
        for run in more:
            after = sweep.told_next(told, run)
            if after is not None:
                told, cost, runs = after, cost + run.cost / sweep.budget, runs + run.seeds
        seen = look(sweep, told)
        if seen.settled or seen.regret < rules.immaterial or cost >= rules.most * len(every):
            break
        more = further(sweep, told, seen, way, rules.runs, rng)
        if not any(sweep.told_next(told, run) for run in more):
            break
    best = float(sweep.truth.max())
    return Outcome(
        ended="settled" if seen.settled else "immaterial" if seen.regret < rules.immaterial else "spent",
        cost=cost,
        runs=runs,
        held=seen.interval95[0] <= sweep.best <= seen.interval95[1],
        near=0.5 <= sweep.group_sizes[seen.named] / sweep.best <= 2,
        regret=best - float(sweep.truth[seen.named]),
    )


def look(sweep: HiddenSweep, told: Reached) -> Look:
    """The fitter's forecast of the runs that were told, at the budget."""
    stages, found = analysed(sweep.table(told), AnalysisOptions(read=ReadOptions(metric=METRIC)), profiles=False)
    forecast, among = forecast_of(stages, found), alive(found, sweep.budget)
    rewards = forecast.rewards(sweep.budget)[:, among]
    interval = optimal_sizes(rewards, [sweep.group_sizes[k] for k in among])
    prospect = forecast.prospect(sweep.budget, among)
    return Look(found, forecast, among, prospect.index, interval, prospect.regret)


def further(
    sweep: HiddenSweep, told: Reached, seen: Look, way: str, count: int, rng: np.random.Generator
) -> list[Candidate]:
    """The runs that are added: by the fitter, as many drawn from its choices, one of each n, or of the interval's."""
    if way == "grid":
        return [Candidate(k, sweep.budget, 1) for k in range(len(sweep.group_sizes))]
    if way == "interval":
        return of_the_interval(sweep, seen)
    end = data_end(seen.found.fits)
    end = sweep.budget if end * SAME_COMPUTE >= sweep.budget else end
    choices = [run for run in candidates(sweep.budget, seen.among, end=end) if sweep.told_next(told, run)]
    if way == "random":
        return [choices[i] for i in rng.integers(len(choices), size=count)] if choices else []
    how = evaluations(seen.found, seen.forecast)
    proposed = propose(seen.forecast, sweep.budget, seen.among, choices, how, count=count)[1]
    return [run for run, _ in proposed] or of_the_interval(sweep, seen)


def of_the_interval(sweep: HiddenSweep, seen: Look) -> list[Candidate]:
    """One run up to the budget of every n in the interval."""
    low, high = seen.interval95
    return [Candidate(k, sweep.budget, 1) for k in seen.among if low <= sweep.group_sizes[k] <= high]
