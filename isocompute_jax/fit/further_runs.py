"""`--next=K`: which runs to add to a sweep for the budgets that were asked for."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from isocompute_jax.fit.frontier.budget_grid import BEYOND_DATA, data_end
from isocompute_jax.fit.frontier.forecast import Forecast
from isocompute_jax.fit.frontier.next_runs import Candidate, Evaluations, Proposal, candidates, propose
from isocompute_jax.fit.intervals import PERCENTILES
from isocompute_jax.fit.metric_analysis import MetricAnalysis
from isocompute_jax.fit.results import Configuration, NextRun, NextRuns
from isocompute_jax.fit.stages import Stages


def further_runs(stages: Stages, found: MetricAnalysis) -> tuple[NextRuns, ...]:
    """The proposals for each budget that was asked for, or for four times the data; empty without `--next`.

    Where the best n at a budget is the largest, or the smallest, that was run, the next factor of two is proposed too.
    """
    if not stages.options.next or stages.forecast(found) is None:
        return ()
    budgets = stages.options.budgets or (BEYOND_DATA * data_end(found.fits),)
    return tuple(_for_budget(stages, found, budget) for budget in budgets)


def _for_budget(stages: Stages, found: MetricAnalysis, budget: float) -> NextRuns:
    tried = [curve.configuration for curve in found.curves]
    known = stages.forecast(found)
    assert known is not None
    alive = [i for i, fit in enumerate(found.fits) if known.members[i] and fit.reaches(budget)]
    alive = [i for i in alive if tried[i].rollouts_per_step <= _rollouts(found, i, budget)]
    if not alive:
        return NextRuns(budget, math.nan, (), ())
    untried = _next_size(tried, known.prospect(budget, alive).index)
    forecast = stages.forecast(found, untried)
    assert forecast is not None
    among = [*alive, *range(len(tried), len(tried) + len(untried))]
    choices = candidates(budget, among, end=data_end(found.fits))
    regret, proposals = propose(
        forecast, budget, among, choices, evaluations(found, forecast),
        count=stages.options.next, seed=stages.options.seed,
    )  # fmt: skip
    every = [*tried, *untried]
    names = tuple(each.name for each in untried)
    sizes = [every[k].group_size for k in among]
    interval = optimal_sizes(forecast.rewards(budget)[:, among], sizes) if all(sizes) else None
    return NextRuns(budget, regret, names, tuple(_row(found, each, every) for each in proposals), interval)


def optimal_sizes(rewards: np.ndarray, sizes: Sequence[int]) -> tuple[int, int]:
    """95% interval of n*: of the n of the highest of K rewards, over their draws.

    Args:
      rewards: [S, K].
      sizes: [K] n.
    """
    best = np.asarray(sizes)[rewards.argmax(axis=1)]
    low, high = np.percentile(best, PERCENTILES, method="nearest").tolist()
    return low, high


def _rollouts(found: MetricAnalysis, index: int, compute: float) -> float:
    return found.rollouts(index, compute) if found.rollouts else compute


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


def _row(found: MetricAnalysis, proposal: Proposal, every: Sequence[Configuration]) -> NextRun:
    run: Candidate = proposal.run
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
        expected_regret=proposal.regret,
        untried=untried,
    )
