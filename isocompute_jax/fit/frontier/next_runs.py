"""Which runs to add: those that lower the expected loss of the answer most for what they cost.

The draws are joint, so they say how a measurement would move every configuration: the expectation of each reward given
a measured one is linear in it (as in an ensemble Kalman filter), and the expected loss afterwards follows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from isocompute_jax.fit.configurations import Configuration
from isocompute_jax.fit.engine import SweepModel
from isocompute_jax.fit.frontier.answers import DrawnSweep, answer
from isocompute_jax.fit.frontier.optimal import rewards
from isocompute_jax.fit.results import NextRun

COMPUTES = 16
"""Computes up to the budget at which configurations that were not run may stop."""

LEAST_GAIN = 1e-6
"""A run that lowers the expected loss by a smaller share of the range is not proposed."""


def next_runs(model: SweepModel, sweep: DrawnSweep, budget: float, count: int) -> tuple[NextRun, ...]:
    """Proposes `count` runs one after the other, each given those before it.

    Candidates are one more seed of every configuration, up to the budget, and the neighbours of the smallest and the
    largest n that were not run.
    """
    wider = _with_neighbours(model, sweep, budget)
    found = answer(wider, budget)
    if found is None:
        return ()
    values = rewards(wider, found)
    values = np.where(np.isfinite(values), values, values[np.isfinite(values)].min())
    candidates = [k for k in range(len(wider.configurations)) if not wider.steps_at[k] > budget]
    counts, chosen = dict.fromkeys(candidates, 0), []
    proposed: list[NextRun] = []
    loss = float((values.max(axis=0) - values[values.mean(axis=1).argmax()]).mean())
    for _ in range(count):
        measured = [_measured(wider, k, budget, counts[k]) for k in candidates]
        after = [_loss_after(values, [*chosen, each]) for each in measured]
        best = int(np.argmin(after))  # every run goes to the budget, and costs the same
        if loss - after[best] < LEAST_GAIN * sweep.width:
            break
        configuration = wider.configurations[candidates[best]]
        proposed.append(NextRun(configuration, budget, 1, budget, loss, after[best]))
        chosen.append(measured[best])
        counts[candidates[best]] += 1
        loss = after[best]
    return _merged(proposed)


def _with_neighbours(model: SweepModel, sweep: DrawnSweep, budget: float) -> DrawnSweep:
    """The sweep with half the smallest and twice the largest n, of which the model knows what their neighbours say."""
    known = [each for each in model.configurations if each.group_size]
    if not known or len({each.group_size for each in known}) < 2:
        return sweep
    small, large = (edge(known, key=lambda each: each.group_size) for edge in (min, max))
    sizes = [(small, small.group_size // 2), (large, large.group_size * 2)]
    untried = tuple(dataclasses.replace(near, name=f"n = {size}", group_size=size) for near, size in sizes if size >= 2)
    compute = sweep.draws.compute[sweep.draws.compute <= budget * 1.001]
    compute = np.concatenate([compute[:-1][:: max(len(compute) // COMPUTES, 1)], compute[-1:]])
    draws = model.curves(compute, draws=sweep.draws.mean.shape[1], untried=untried)
    steps = [each.rollouts_per_step or np.nan for each in untried]
    rollouts = np.isfinite(sweep.steps_at).all()
    return sweep._replace(
        configurations=(*sweep.configurations, *untried),
        draws=draws,
        ends=np.concatenate([sweep.ends, np.full(len(untried), np.nan)]),
        steps_at=np.concatenate([sweep.steps_at, steps if rollouts else np.full(len(untried), np.nan)]),
        seeds=np.concatenate([sweep.seeds, np.zeros(len(untried), int)]),
    )


def _measured(sweep: DrawnSweep, k: int, budget: float, number: int) -> np.ndarray:
    """What each draw [S] says that one more run, after `number` of these, would measure at the budget."""
    place = int(np.flatnonzero(sweep.draws.compute <= budget * 1.001)[-1])
    noise = np.random.default_rng([k, number]).normal(size=len(sweep.draws.noise)) * sweep.draws.noise
    mean, run = sweep.draws.mean[k, :, place], sweep.draws.run[k, :, place]
    # Departures are drawn independently of the mean: in another order they are those of another run.
    return mean + np.roll(run - mean, number) + noise


def _loss_after(values: np.ndarray, runs: Sequence[np.ndarray]) -> float:
    """Expected loss of the best choice once the runs are measured; `values` [K, S]."""
    measured = np.array(runs)
    measured = measured - measured.mean(axis=1, keepdims=True)
    centred = values - values.mean(axis=1, keepdims=True)
    spread = measured @ measured.T
    spread[np.diag_indices_from(spread)] *= 1 + 1e-6
    slope = np.linalg.solve(spread, measured @ centred.T).T
    expected = values.mean(axis=1, keepdims=True) + slope @ measured
    return float(values.max(axis=0).mean() - expected.max(axis=0).mean())


def _merged(runs: Sequence[NextRun]) -> tuple[NextRun, ...]:
    """Runs of one configuration together, as seeds of it."""
    found: dict[Configuration, NextRun] = {}
    for each in runs:
        known = found.get(each.configuration)
        found[each.configuration] = each if known is None else dataclasses.replace(
            known, seeds=known.seeds + 1, cost=known.cost + each.cost, regret_after=each.regret_after
        )  # fmt: skip
    return tuple(found.values())
