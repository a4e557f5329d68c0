"""Which runs to add to a sweep, and which of an unfinished one can still matter, by the draws of a `Forecast`.

`--next=K` proposes the runs that are expected to reduce the regret at a budget most, per rollout: Bayesian experimental
design. Each draw in turn is taken for the truth; a candidate run would then measure its curve with noise, the other
draws are weighed by how well they agree with that, and the configuration of the highest weighted mean is chosen. What
that choice loses against the truth, averaged over the draws, is the regret to expect after the run (preposterior
analysis; Raiffa and Schlaifer 1961). Runs are added one by one, each judged together with those before it.
Each draw goes on by its form here (`Forecast.by_form`): by draws whose gain beyond the data is independent of what they
are inside, a run tells less than it does, and proposals cost more and help less (BENCHMARKS.md, "Which runs to add").

`--stop_hopeless` asks for the chance that a run's configuration leads in what is left. All curves are drawn together,
inside the data and beyond them; a draw counts for a run where its configuration has the highest reward at any compute
between where the run is and where it would end, by its form too. What the run has already shown stays in the fit,
whether it goes on or not.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from isocompute_jax.fit.advice import BEYOND_DATA
from isocompute_jax.fit.analysis_options import AnalysisOptions
from isocompute_jax.fit.curves.seeds import group_runs
from isocompute_jax.fit.frontier.bootstrap import PERCENTILES
from isocompute_jax.fit.frontier.envelope import data_end
from isocompute_jax.fit.frontier.forecast import Forecast
from isocompute_jax.fit.frontier.standings import prospect
from isocompute_jax.fit.read import RunCurve, read_curves
from isocompute_jax.fit.results import Configuration, NextRun, NextRuns
from isocompute_jax.fit.stages import MetricAnalysis, Stages

WORTH = 0.5
"""Of the candidates that reduce the regret by at least this share of what the best one does, the cheapest reduction
per rollout is taken: by ratio alone tiny runs would always win."""

FORM_ERROR = 0.003
"""Share of the reward range that forms of curve miss the truth by: no run is taken to tell more."""

LOOKS = (1.0, 0.5, 0.25, 0.125)
"""Where a run is compared, as shares of its compute; each look averages the evaluations up to twice as far down."""

SEEDS = (1, 2)
"""How many runs of one kind are proposed at a time."""

HALVINGS = 6
"""How often a budget is halved, at most, for a run to go up to."""
NEARLY = 1.2
"""A run that reaches less than so many times as far as the data is none that goes further."""

LEADER_POINTS = 32
"""Computes at which the leader of each draw is looked for, evenly in log C."""

LEAST_EVALUATIONS = 5
"""Trained evaluations of a run, at least, before anything is said of it: fewer do not tell how noisy they are."""

LEAST_SHARE = 0.25
"""Share of the compute at which runs end that a run has spent, at least, before anything is said of it.

Where small groups lead early and fall later, larger ones that lead at the end have hardly risen by then, and a fit of
curves of which none has fallen foresees no fall: without this all 60 wrong stops of 220 on the recorded sweeps lay in
the first eighth, with it 5 of 170 are wrong. The quarter was chosen on these same sweeps (BENCHMARKS.md, "Early
stopping").
"""


def further_runs(stages: Stages, found: MetricAnalysis) -> tuple[NextRuns, ...]:
    """The proposals for each budget that was asked for, or for four times the data; empty without `--next`.

    Where the best n at a budget is the largest, or the smallest, that was run, the next factor of two is proposed too.
    """
    if not stages.options.next or stages.forecast(found) is None:
        return ()
    budgets = stages.options.budgets or (BEYOND_DATA * data_end(found.fits),)
    return tuple(_for_budget(stages, found, budget) for budget in budgets)


def _for_budget(stages: Stages, found: MetricAnalysis, budget: float) -> NextRuns:
    tried = found.configurations
    known = stages.forecast(found)
    assert known is not None
    alive = [i for i, fit in enumerate(found.fits) if known.members[i] and fit.reaches(budget)]
    alive = [i for i in alive if tried[i].rollouts_per_step <= found.rollouts_spent(i, budget)]
    if not alive:
        return NextRuns(budget, math.nan, (), ())
    untried = _next_size(tried, known.prospect(budget, alive).index)
    forecast = stages.forecast(found, untried)
    assert forecast is not None
    among = [*alive, *range(len(tried), len(tried) + len(untried))]
    choices = candidates(budget, among, end=data_end(found.fits))
    regret, proposals = propose(
        forecast.by_form(), budget, among, choices, evaluations(found, forecast),
        count=stages.options.next, seed=stages.options.seed,
    )  # fmt: skip
    every = [*tried, *untried]
    names = tuple(each.name for each in untried)
    sizes = [every[k].group_size for k in among]
    interval = optimal_sizes(forecast.rewards(budget)[:, among], sizes) if all(sizes) else None
    return NextRuns(budget, regret, names, tuple(_row(found, *each, every) for each in proposals), interval)


def optimal_sizes(rewards: np.ndarray, sizes: Sequence[int]) -> tuple[int, int]:
    """95% interval of n*: of the n of the highest of K rewards, over their draws.

    Args:
      rewards: [S, K].
      sizes: [K] n.
    """
    best = np.asarray(sizes)[rewards.argmax(axis=1)]
    low, high = np.percentile(best, PERCENTILES, method="nearest").tolist()
    return low, high


def _next_size(tried: Sequence[Configuration], leader: int) -> tuple[Configuration, ...]:
    """The leader with twice, or half, its n, where it has the largest, or the smallest, of its B_problem."""
    best = tried[leader]
    sizes = sorted(c.group_size for c in tried if c.problems_per_batch == best.problems_per_batch)
    old = f"n = {best.group_size}"
    if not best.name.startswith(old) or len(set(sizes)) < 2:
        return ()
    n = 2 * best.group_size if best.group_size == sizes[-1] else best.group_size // 2
    if best.group_size not in (sizes[0], sizes[-1]) or n < 2:
        return ()
    return (dataclasses.replace(best, name=best.name.replace(old, f"n = {n}", 1), group_size=n),)


def evaluations(found: MetricAnalysis, forecast: Forecast) -> Evaluations:
    """How the runs of a sweep are measured: the medians over its curves."""
    noise, correlation, density = [], [], []
    for k, (curve, fit) in enumerate(zip(found.curves, found.fits, strict=True)):
        if not (forecast.members[k] and math.isfinite(fit.noise)):
            continue
        noise.append(fit.noise * math.sqrt(curve.count.mean()))
        correlation.append(fit.correlation if math.isfinite(fit.correlation) else 0.0)
        ends = [curve.compute[own] for own in curve.series]
        density.append(np.mean([np.count_nonzero(c > c[-1] / 2) for c in ends if len(c)]))
    return Evaluations(
        float(np.median(noise)), float(np.clip(np.median(correlation), 0.0, 0.9)), float(np.median(density))
    )


def _row(found: MetricAnalysis, run: Candidate, regret: float, every: Sequence[Configuration]) -> NextRun:
    chosen, untried = every[run.index], run.index >= len(found.curves)
    spent = run.compute if found.rollouts is None else math.nan if untried else found.rollouts(run.index, run.compute)
    per_step = chosen.rollouts_per_step
    return NextRun(
        run=chosen.name,
        group_size=chosen.group_size,
        problems_per_batch=chosen.problems_per_batch or None,
        seeds=run.seeds,
        compute=run.compute,
        num_steps=max(round(spent / per_step), 1) if per_step and math.isfinite(spent) else None,
        cost=run.cost,
        expected_regret=regret,
        untried=untried,
    )


class Candidate(NamedTuple):
    """Runs that could be added: `seeds` of the configuration with the number `index`, each from 0 up to `compute`."""

    index: int
    compute: float
    seeds: int

    @property
    def cost(self) -> float:
        """Compute of all of them."""
        return self.compute * self.seeds


class Evaluations(NamedTuple):
    """How a run is measured."""

    noise: float  # standard deviation of an evaluation of one run
    correlation: float  # of neighbouring evaluations
    density: float  # evaluations over a factor of two in compute

    def error(self, seeds: int, width: float) -> float:
        """Standard deviation of a look at so many runs."""
        variance = self.noise**2 * (1 + self.correlation) / (1 - self.correlation) / (seeds * max(self.density, 1.0))
        return float(np.sqrt(variance + (FORM_ERROR * width) ** 2))


def candidates(budget: float, among: Sequence[int], *, end: float) -> list[Candidate]:
    """What may be proposed: for a budget inside the data runs of it, else up to where they end or half the budget.

    Args:
      budget: compute that n is to be chosen for.
      among: numbers of the configurations.
      end: compute where the data end.
    """
    if budget <= end:
        computes = [budget]
    else:
        halves = budget / 2.0 ** np.arange(1, HALVINGS + 1)
        computes = [end, *halves[halves > end * NEARLY].tolist()]
    return [Candidate(k, compute, seeds) for k in among for compute in computes for seeds in SEEDS]


def propose(
    forecast: Forecast,
    budget: float,
    among: Sequence[int],
    choices: Sequence[Candidate],
    evaluations: Evaluations,
    *,
    count: int,
    seed: int = 0,
) -> tuple[float, list[tuple[Candidate, float]]]:
    """The regret to expect at a budget today, and up to `count` runs to add with the regret after each.

    Args:
      forecast: draws of all curves.
      budget: compute that n is to be chosen for.
      among: numbers of the configurations that it may be chosen from.
      choices: runs that may be added, each any number of times.
      evaluations: how they are measured.
      count: K, how many proposals; fewer where none reduces the regret any further.
      seed: of the noise that is drawn.
    """
    rewards = forecast.rewards(budget)[:, among]
    best = rewards.max(axis=1)
    regret = now = prospect(rewards, among).regret
    rng = np.random.default_rng(seed)
    seen = [_likelihood(forecast, run, evaluations, rng) for run in choices]
    known = np.zeros((len(rewards), len(rewards)))
    np.fill_diagonal(known, -np.inf)  # a draw must not be recognised by itself
    proposals: list[tuple[Candidate, float]] = []
    for _ in range(count):
        after = np.array([_regret(rewards, best, known + likelihood) for likelihood in seen])
        gain = regret - after
        if not gain.size or gain.max() <= 0:
            break
        rate = np.where(gain >= WORTH * gain.max(), gain / [run.cost for run in choices], -np.inf)
        chosen = int(rate.argmax())
        known, regret = known + seen[chosen], float(after[chosen])
        proposals.append((choices[chosen], regret))
    return now, proposals


def _likelihood(forecast: Forecast, run: Candidate, how: Evaluations, rng: np.random.Generator) -> np.ndarray:
    """[S, S] log likelihood of each draw (columns) when each draw in turn (rows) is the truth that the run measures."""
    low, high = forecast.reward_range
    error = how.error(run.seeds, high - low)
    total = 0.0
    for share in LOOKS:
        curve = forecast.rewards(run.compute * share)[:, run.index]
        measured = curve + error * rng.normal(size=len(curve))
        total = total - 0.5 * ((measured[:, None] - curve) / error) ** 2
    return np.asarray(total)


def _regret(rewards: np.ndarray, best: np.ndarray, log_weight: np.ndarray) -> float:
    """Of choosing by the weighted draws [S, S], averaged over the truths (rows)."""
    weight = np.exp(log_weight - log_weight.max(axis=1, keepdims=True))
    chosen = (weight @ rewards).argmax(axis=1)
    return float((best - rewards[np.arange(len(rewards)), chosen]).mean())


@dataclasses.dataclass(frozen=True)
class Chance:
    """Of one run that has not come to the end."""

    run: str  # its name
    configuration: str  # as the report names it
    compute: float  # where it is
    chance: float  # that its configuration leads anywhere beyond that


def chances_of_leading(curves: Any, options: AnalysisOptions, *, end: float) -> list[Chance]:
    """The chance of every run that is judged (`is_judged`).

    Args:
      curves: run directories or a table, as for `read_curves`.
      options: how they are read and fitted.
      end: compute at which every run would end; where they differ, the longest.

    Returns:
      One for each of these runs; none where nothing tells the noise yet, or there is one configuration alone.

    Raises:
      InputError: no usable run.
    """
    groups, _ = group_runs(read_curves(curves, options.read)[0])
    if not any(is_judged(run, end=end) for group in groups for run in group.runs):
        return []
    stages = Stages(options, groups)
    found = stages.metric(options.metric, intervals=True, profiles=False)
    forecast = stages.forecast(found)
    if forecast is None or np.count_nonzero(forecast.members) < 2:
        return []
    runs = {group.configuration.name: group.runs for group in groups}
    chances = []
    for number, curve in enumerate(found.curves):
        for run in runs[curve.configuration.name]:
            if is_judged(run, end=end):
                reached = float(run.compute.max())
                chance = chance_of_leading(forecast.by_form(), number, start=reached, end=end)
                chances.append(Chance(run.run, curve.configuration.name, reached, chance))
    return chances


def is_judged(run: RunCurve, *, end: float) -> bool:
    """Whether a run has come far enough, not to the end, and has been evaluated often enough."""
    reached = LEAST_SHARE * end <= float(run.compute.max()) < end
    return reached and int(np.count_nonzero(run.compute > 0)) >= LEAST_EVALUATIONS


def chance_of_leading(forecast: Forecast, number: int, *, start: float, end: float) -> float:
    """Share of the draws in which a configuration has the highest reward anywhere from `start` to `end`."""
    if not forecast.members[number]:
        return 1.0
    leads = np.zeros(len(forecast.form), bool)
    for compute in np.geomspace(start, end, LEADER_POINTS):
        rewards = forecast.rewards(float(compute))
        leads |= rewards[:, number] >= np.nanmax(rewards, axis=1)
    return float(leads.mean())
