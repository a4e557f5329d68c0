"""`python -m benchmarks.fewest_runs`: how many runs settle n*(C) to one octave, by the fitter's `--next` and otherwise.

    python -m benchmarks.fewest_runs                     # one sweep of each source
    python -m benchmarks.fewest_runs --studies=4
    python -m benchmarks.fewest_runs --sources='recorded, C = 131,072' --studies=3

Sweeps that are known in full (`hidden_sweeps`): simulated ones of several families, some in the form of the recorded
sweep, worlds of the theory, and the recorded sweep itself. Runs are told one by one, and n is asked for at a budget C,
until the 95% interval of n* there, by the draws of the fitter's forecast, spans one octave. Three ways to get there:

    --next   one run of each n up to C over `--start`, then what the fitter proposes, `--runs` at a time; where it has
             nothing to propose, one run up to C of every n in the interval
    random   the same start, then runs drawn from those that the fitter chooses from
    grid     one run of each n up to C, then another one of each

It ends, too, where choosing today is expected to cost less than `--immaterial`, as between curves that are alike, and
where `--most` grids were paid for. Held is the share of the settled in which the interval has the true n*; near that
in which the n that is named is within an octave of it; regret the true reward of the best n less that of the named one,
over all. Cost is in units of C, runs are runs. Of a recorded sweep whose seeds are all told the run that came least far
is told further, and paid for as a new one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from absl import flags

from benchmarks.hidden_sweeps import METRIC, SAME_COMPUTE, SOURCES, HiddenSweep, Reached, hidden_sweep
from isocompute_jax import app
from isocompute_jax.fit.analysis_options import AnalysisOptions
from isocompute_jax.fit.curves.seeds import group_runs
from isocompute_jax.fit.frontier.budget_grid import data_end
from isocompute_jax.fit.frontier.forecast import Forecast
from isocompute_jax.fit.frontier.next_runs import Candidate, candidates, propose
from isocompute_jax.fit.further_runs import evaluations, optimal_sizes
from isocompute_jax.fit.metric_analysis import MetricAnalysis
from isocompute_jax.fit.read import ReadOptions, memory_table, read_curves
from isocompute_jax.fit.stages import Stages

STUDIES = flags.DEFINE_integer("studies", 1, "Sweeps of each source.")
FIRST = flags.DEFINE_integer("first", 0, "Number of the first of them.")
FROM = flags.DEFINE_string("sources", "", "Some of the sources alone, ';' between them.")
START = flags.DEFINE_float("start", 8.0, "The first run of each n goes up to C over this.")
RUNS = flags.DEFINE_integer("runs", 2, "Runs that are proposed, or drawn, at a time.")
IMMATERIAL = flags.DEFINE_float("immaterial", 0.003, "Ends, too, where choosing today is expected to cost less reward.")
MOST = flags.DEFINE_float("most", 2.0, "Ends unsettled after so many grids of one run of each n up to C.")

WAYS = ("--next", "random", "grid")


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


def main() -> None:
    """Flags -> table."""
    sources = [name.strip() for name in FROM.value.split(";")] if FROM.value else list(SOURCES)
    rows: dict[str, dict[str, list[Outcome]]] = {source: {way: [] for way in WAYS} for source in sources}
    for number in range(FIRST.value, FIRST.value + STUDIES.value):
        for source in sources:
            sweep = hidden_sweep(source, number)
            for way in WAYS:
                outcome = play(sweep, way, number)
                rows[source][way].append(outcome)
                print(f"{source} {number}, {way}: {outcome}", flush=True)
    print_table(rows)


def play(sweep: HiddenSweep, way: str, number: int) -> Outcome:
    """Adds runs to a sweep until n* is settled, nothing can be added, or too much is spent."""
    rng = np.random.default_rng([number, WAYS.index(way)])
    every = range(len(sweep.group_sizes))
    first = sweep.budget / (1 if way == "grid" else START.value)
    told: Reached = {}
    cost, runs, more = 0.0, 0, [Candidate(k, first, 1) for k in every]
    while True:
        for run in more:
            after = sweep.told_next(told, run)
            if after is not None:
                told, cost, runs = after, cost + run.cost / sweep.budget, runs + run.seeds
        seen = look(sweep, told)
        if seen.settled or seen.regret < IMMATERIAL.value or cost >= MOST.value * len(every):
            break
        more = further(sweep, told, seen, way, rng)
        if not any(sweep.told_next(told, run) for run in more):
            break
    best = float(sweep.truth.max())
    return Outcome(
        ended="settled" if seen.settled else "immaterial" if seen.regret < IMMATERIAL.value else "spent",
        cost=cost,
        runs=runs,
        held=seen.interval95[0] <= sweep.best <= seen.interval95[1],
        near=0.5 <= sweep.group_sizes[seen.named] / sweep.best <= 2,
        regret=best - float(sweep.truth[seen.named]),
    )


def look(sweep: HiddenSweep, told: Reached) -> Look:
    """The fitter's forecast of the runs that were told, at the budget."""
    options = AnalysisOptions(read=ReadOptions(metric=METRIC))
    runs, _ = read_curves(memory_table(sweep.table(told)), options.read)
    stages = Stages(options, group_runs(runs)[0])
    found = stages.metric(METRIC, intervals=True, profiles=False)
    forecast = stages.forecast(found)
    assert forecast is not None
    alive = [i for i, fit in enumerate(found.fits) if fit.reaches(sweep.budget, beyond=np.inf)]
    among = alive or list(range(len(found.fits)))
    rewards = forecast.rewards(sweep.budget)[:, among]
    interval = optimal_sizes(rewards, [sweep.group_sizes[k] for k in among])
    prospect = forecast.prospect(sweep.budget, among)
    return Look(found, forecast, among, prospect.index, interval, prospect.regret)


def further(sweep: HiddenSweep, told: Reached, seen: Look, way: str, rng: np.random.Generator) -> list[Candidate]:
    """The runs that are added: by the fitter, as many drawn from the same choices, or one of each n."""
    if way == "grid":
        return [Candidate(k, sweep.budget, 1) for k in range(len(sweep.group_sizes))]
    end = data_end(seen.found.fits)
    end = sweep.budget if end * SAME_COMPUTE >= sweep.budget else end
    choices = [run for run in candidates(sweep.budget, seen.among, end=end) if sweep.told_next(told, run)]
    if way == "random":
        return [choices[i] for i in rng.integers(len(choices), size=RUNS.value)] if choices else []
    how = evaluations(seen.found, seen.forecast)
    proposed = propose(seen.forecast, sweep.budget, seen.among, choices, how, count=RUNS.value)[1]
    return [proposal.run for proposal in proposed] or finalists(sweep, seen)


def finalists(sweep: HiddenSweep, seen: Look) -> list[Candidate]:
    """One run up to the budget of every n in the interval, where the fitter has nothing to propose."""
    low, high = seen.interval95
    return [Candidate(k, sweep.budget, 1) for k in seen.among if low <= sweep.group_sizes[k] <= high]


def print_table(rows: Mapping[str, Mapping[str, Sequence[Outcome]]]) -> None:
    """By source and over all of them."""
    print("\n| sweep | way | sweeps | settled | immaterial | cost / C | runs | held | near | regret |")
    print("| :-- | :-- |" + " --: |" * 8)
    together = {way: [each for of in rows.values() for each in of[way]] for way in WAYS}
    for source, by_way in [*rows.items(), ("all", together)]:
        for way, outcomes in by_way.items():
            print(f"| {source} | {way} | {len(outcomes)} | {' | '.join(cells(outcomes))} |")


def cells(outcomes: Sequence[Outcome]) -> list[str]:
    """How many ended how; mean cost, its standard error, and mean runs; how many of the settled were right; regret."""
    settled = [each for each in outcomes if each.ended == "settled"]
    cost = np.array([each.cost for each in outcomes])
    error = f" ± {cost.std(ddof=1) / np.sqrt(len(cost)):.1f}" if len(cost) > 1 else ""
    return [
        str(len(settled)),
        str(sum(each.ended == "immaterial" for each in outcomes)),
        f"{cost.mean():.1f}{error}",
        f"{np.mean([each.runs for each in outcomes]):.1f}",
        f"{sum(each.held for each in settled)} of {len(settled)}",
        f"{sum(each.near for each in settled)} of {len(settled)}",
        f"{np.mean([each.regret for each in outcomes]):.4f}",
    ]


if __name__ == "__main__":
    app.run(main)
