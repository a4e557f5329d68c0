"""How to spend a budget, as a decision: the choice of least expected loss, its verdict, and what others cost.

Every number is a statistic of the draws of a sweep. A configuration is stopped where its expected reward is highest up
to the budget, a decision that can be taken beforehand; what the draws say of the reward there is not biased by having
been chosen beyond what the model's shrinkage leaves.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from isocompute_jax.fit.configurations import Configuration
from isocompute_jax.fit.engine import SweepDraws
from isocompute_jax.fit.results import AnswerRange, BudgetAnswer, Choice, Interval, Reason, Verdict

MATERIAL = 0.01
"""Share of the range of rewards that a verdict calls a difference."""
CERTAIN = 0.95
"""Share of the draws that a verdict needs."""
MOST_NAMED = 3
LIKELY = 0.05
"""A configuration that is the best in at least this share of the draws is a rival whose missing data matter."""
SAME_COMPUTE = 1.001
REACHED = 1.05
"""Data that end less than this factor before a stop count as reaching it."""
ROUNDING = 1e-9
"""Share by which a compute that was raised to a power and back may miss a whole number of steps."""


class DrawnSweep(NamedTuple):
    """What answers are taken from."""

    configurations: tuple[Configuration, ...]  # [K]
    draws: SweepDraws
    ends: np.ndarray  # [K] largest compute of the evaluations; NaN without
    steps_at: np.ndarray  # [K] compute of one step; NaN where unknown
    width: float  # of the range of rewards
    seeds: np.ndarray  # [K]
    agree: bool  # whether the seeds have the same leader


class _Stopped(NamedTuple):
    """Configurations that the budget pays, each stopped at its best."""

    members: np.ndarray  # [M] their numbers
    places: np.ndarray  # [M] place of the stop among the computes of the draws
    values: np.ndarray  # [M, S] rewards there


def answer(sweep: DrawnSweep, budget: float) -> BudgetAnswer | None:
    """The answer for one budget; None where it pays no step of any configuration."""
    stopped = _stopped(sweep, budget)
    if stopped is None:
        return None
    values = stopped.values
    best, expected = values.max(axis=0), values.mean(axis=1)
    order = np.argsort(-expected, kind="stable")
    first = order[0]
    verdict, named = _verdict(sweep, stopped, order)
    reason: Reason = ""
    edge = float(np.nanmax(sweep.ends))
    if verdict != "open" and budget > edge * SAME_COMPUTE and not _as_sure_at(sweep, edge, stopped, order, verdict):
        verdict, named = "open", order[:1]  # leaving the data never makes surer
    if verdict == "open":
        reason = _reason(sweep, stopped, order, budget)
    choices = tuple(_choice(sweep, stopped, i, first, best) for i in order)
    known = [sweep.configurations[stopped.members[i]] for i in named]
    rate, scaled = _learning_rate(sweep.configurations, choices[0].configuration)
    return BudgetAnswer(
        budget=budget,
        choices=choices,
        verdict=verdict,
        named=tuple(sorted(known, key=lambda each: (each.group_size, each.problems_per_batch))),
        cheapest=_cheapest([choices[list(order).index(i)] for i in named]) if verdict == "no matter" else None,
        reason=reason,
        learning_rate=rate,
        scaled_rate=scaled,
        expected_regret=float((best - values[first]).mean()),
    )


def _stopped(sweep: DrawnSweep, budget: float) -> _Stopped | None:
    draws = sweep.draws
    affordable = ~(sweep.steps_at > budget * SAME_COMPUTE)
    members = np.flatnonzero(affordable & np.isfinite(draws.mean).all(axis=(1, 2)))
    within = draws.compute <= budget * SAME_COMPUTE
    if not len(members) or not within.any():
        return None
    # A step is the least that can be trained; stops before the first one say nothing.
    expected = draws.mean[members].mean(axis=1)
    least = np.where(np.isfinite(sweep.steps_at), sweep.steps_at, 0.0)[members]
    open_to = within[None] & ((draws.compute[None] >= least[:, None]) | (np.cumsum(within[::-1])[::-1] == 1)[None])
    places = np.where(open_to, expected, -np.inf).argmax(axis=1)
    return _Stopped(members, places, draws.mean[members, :, places])


def _verdict(sweep: DrawnSweep, stopped: _Stopped, order: np.ndarray) -> tuple[Verdict, np.ndarray]:
    """The verdict, and the numbers among the stopped of those that lie within 0.01 of the best together."""
    values, gap = stopped.values, MATERIAL * sweep.width
    if len(order) < 2:
        return "open", order[:1]
    ahead = values[order[0]] - np.delete(values, order[0], axis=0)
    if (ahead > gap).all(axis=0).mean() >= CERTAIN:
        return "clear", order[:1]
    near = values >= values.max(axis=0) - gap
    if near.all(axis=0).mean() >= CERTAIN:
        return "no matter", order
    named = [order[0]]
    for i in sorted(order[1:], key=lambda i: -near[i].mean()):
        if len(named) < MOST_NAMED and near[[*named, i]].all(axis=0).mean() >= CERTAIN:
            named.append(i)
    if near[named].all(axis=0).mean() >= CERTAIN:
        return "no matter", np.array(named)
    return "open", order[:1]


def _as_sure_at(sweep: DrawnSweep, edge: float, far: _Stopped, order: np.ndarray, verdict: Verdict) -> bool:
    """Whether the answer at the end of the data is as sure: clear of the same leader, or at least not open."""
    stopped = _stopped(sweep, edge)
    if stopped is None:
        return False
    near = np.argsort(-stopped.values.mean(axis=1), kind="stable")
    found = _verdict(sweep, stopped, near)[0]
    same = stopped.members[near[0]] == far.members[order[0]]
    return found == "clear" and same if verdict == "clear" else found != "open"


def _reason(sweep: DrawnSweep, stopped: _Stopped, order: np.ndarray, budget: float) -> Reason:
    """Why the answer is open."""
    if len(order) < 2:
        return "one configuration"
    winners = stopped.values.argmax(axis=0)
    rivals = [i for i in order if i == order[0] or np.mean(winners == i) >= LIKELY]
    stops = sweep.draws.compute[stopped.places[rivals]]
    if np.any(stops > sweep.ends[stopped.members[rivals]] * REACHED):
        return "not run this far"
    if sweep.seeds[stopped.members[rivals]].max() < 2:
        return "one seed"
    return "too noisy to tell" if sweep.agree else "the data disagree"


def _choice(sweep: DrawnSweep, stopped: _Stopped, i: int, first: int, best: np.ndarray) -> Choice:
    k, place, values = stopped.members[i], stopped.places[i], stopped.values[i]
    stop, step = float(sweep.draws.compute[place]), sweep.steps_at[k]
    loss = stopped.values[first] - values
    others = np.delete(stopped.values, i, axis=0)
    return Choice(
        configuration=sweep.configurations[k],
        stop=stop,
        num_steps=max(int(stop * (1 + ROUNDING) // step), 1) if math.isfinite(step) else None,
        reward=float(values.mean()),
        interval95=interval(values),
        run95=interval(sweep.draws.run[k, :, place]),
        cost=float(loss.mean()),
        cost95=interval(loss),
        best_share=float(np.mean(values >= others.max(axis=0))) if len(others) else 1.0,
        near_share=float(np.mean(values >= best - MATERIAL * sweep.width)),
        data_end=float(sweep.ends[k]),
    )


def interval(values: np.ndarray) -> Interval:
    """Ends between which 95% of the draws lie."""
    low, high = np.quantile(values, [0.025, 0.975])
    return float(low), float(high)


def _cheapest(choices: Sequence[Choice]) -> Configuration:
    """The choice of the fewest steps; of the least compute where steps are unknown."""
    return min(choices, key=lambda one: (one.num_steps or 0, one.stop)).configuration


def _learning_rate(configurations: Sequence[Configuration], advised: Configuration) -> tuple[float | None, bool]:
    """The rate of the advised, or by sqrt(B) from that of the nearest batch that has one; and whether it is scaled."""
    if advised.learning_rate:
        return advised.learning_rate, False
    known = [each for each in configurations if each.learning_rate and each.rollouts_per_step]
    if not known or not advised.rollouts_per_step:
        return None, False
    near = min(known, key=lambda each: abs(math.log(each.rollouts_per_step / advised.rollouts_per_step)))
    return near.learning_rate * math.sqrt(advised.rollouts_per_step / near.rollouts_per_step), True


def answer_ranges(answers: Sequence[BudgetAnswer]) -> tuple[AnswerRange, ...]:
    """Neighbouring budgets that have the same advised configuration, verdict and names together."""
    found = []
    for _, group in itertools.groupby(answers, key=lambda one: (one.advised.configuration, one.verdict, one.named)):
        members = list(group)
        first, last = members[0], members[-1]
        found.append(
            AnswerRange(
                start=first.budget,
                end=last.budget,
                advised=first.advised.configuration,
                verdict=first.verdict,
                named=first.named,
                reward=(first.advised.reward, last.advised.reward),
            )
        )
    return tuple(found)
