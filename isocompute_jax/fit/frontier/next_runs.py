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
from isocompute_jax.fit.frontier.answers import Sweep, answer
from isocompute_jax.fit.frontier.optimal import rewards
from isocompute_jax.fit.results import NextRun

COMPUTES = 16
"""Computes up to the budget at which configurations that were not run may stop."""

LEAST_GAIN = 1e-6
"""A run that lowers the expected loss by a smaller share of the range is not proposed."""


@dataclasses.dataclass(frozen=True, eq=False)
class _Candidate:
    configuration: Configuration
    compute: float
    measured: np.ndarray  # [S] what each draw says that the run would measure


def next_runs(model: SweepModel, sweep: Sweep, budget: float, count: int) -> tuple[NextRun, ...]:
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
    candidates = [_candidate(wider, k, budget) for k in range(len(wider.configurations))]
    candidates = [each for each in candidates if each is not None]
    chosen: list[_Candidate] = []
    proposed: list[NextRun] = []
    loss = float((values.max(axis=0) - values[values.mean(axis=1).argmax()]).mean())
    for _ in range(count):
        after = [_loss_after(values, [*chosen, each]) for each in candidates]
        worth = [(loss - left) / each.compute for left, each in zip(after, candidates, strict=True)]
        best = int(np.argmax(worth))
        if loss - after[best] < LEAST_GAIN * sweep.width:
            break
        each = candidates[best]
        proposed.append(NextRun(each.configuration, each.compute, 1, each.compute, loss, after[best]))
        chosen.append(_again(each, len(chosen)))
        loss = after[best]
    return _merged(proposed)


def _with_neighbours(model: SweepModel, sweep: Sweep, budget: float) -> Sweep:
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


def _candidate(sweep: Sweep, k: int, budget: float) -> _Candidate | None:
    """One further run of a configuration up to the budget, which is measured there; None where it takes no step."""
    if sweep.steps_at[k] > budget:
        return None
    place = int(np.flatnonzero(sweep.draws.compute <= budget * 1.001)[-1])
    noise = np.random.default_rng(k).normal(size=len(sweep.draws.noise)) * sweep.draws.noise
    measured = sweep.draws.run[k, :, place] + noise
    return _Candidate(sweep.configurations[k], budget, measured)


def _again(candidate: _Candidate, number: int) -> _Candidate:
    """The run as it was chosen: a second one of the same configuration has another seed, in another order of draws."""
    spread = candidate.measured - candidate.measured.mean()
    noise = np.random.default_rng(1000 + number).normal(size=len(spread)) * spread.std() * 0.1
    return dataclasses.replace(candidate, measured=candidate.measured + noise)


def _loss_after(values: np.ndarray, runs: Sequence[_Candidate]) -> float:
    """Expected loss of the best choice once the runs are measured; `values` [K, S]."""
    measured = np.array([each.measured for each in runs])
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
