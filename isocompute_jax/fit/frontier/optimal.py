"""n*(C) and where it switches, over the draws: of each draw the best configuration at each budget."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

from isocompute_jax.fit.configurations import Configuration
from isocompute_jax.fit.frontier.answers import DrawnSweep, interval
from isocompute_jax.fit.frontier.paper import fit_allocation
from isocompute_jax.fit.results import BudgetAnswer, OptimalSizes, SwitchPoint

LAW = ("span", "slope", "midpoint", "floor", "saturation")
LEAST_SHARE = 0.05
"""A switch that fewer draws have is not listed."""


def leaders(sweep: DrawnSweep, answers: Sequence[BudgetAnswer]) -> np.ndarray:
    """[A, S] number of the configuration that is the best of each draw, each stopped as the answer says."""
    return np.array([rewards(sweep, each).argmax(axis=0) for each in answers])


def rewards(sweep: DrawnSweep, answer: BudgetAnswer) -> np.ndarray:
    """Rewards [K, S] of all configurations, each stopped as the answer says; -inf where its budget pays no step."""
    number = {each: k for k, each in enumerate(sweep.configurations)}
    found = np.full(sweep.draws.mean.shape[:2], -np.inf)
    for choice in answer.choices:
        k = number[choice.configuration]
        place = int(np.argmin(np.abs(sweep.draws.compute - choice.stop)))
        found[k] = sweep.draws.mean[k, :, place]
    return found


def optimal_sizes(
    sweep: DrawnSweep, answers: Sequence[BudgetAnswer], end: float, *, rises: bool
) -> OptimalSizes | None:
    """n*, B* and M* up to the budget `end`, and the sigmoid of n* if rewards rise; None unless several n were run."""
    inside = [each for each in answers if each.budget <= end * 1.001]
    sizes = np.array([each.group_size for each in sweep.configurations], float)
    if len(set(sizes)) < 2 or sizes.min() <= 0 or len(inside) < 2:
        return None
    best = sizes[leaders(sweep, inside)]
    budgets = np.array([each.budget for each in inside])
    advised = [each.advised for each in inside]
    group_size = np.array([each.configuration.group_size for each in advised], float)
    law = fit_allocation(budgets, group_size, window=1, largest=float(sizes.max()))
    known = rises and law.status != "failed" and len(set(group_size)) > 1
    return OptimalSizes(
        budgets=budgets,
        group_size=group_size,
        interval95=np.quantile(best, [0.025, 0.975], axis=1, method="nearest").T,
        problems_per_batch=np.array([each.configuration.problems_per_batch for each in advised], float),
        num_steps=np.array([np.nan if each.num_steps is None else each.num_steps for each in advised]),
        law={name: getattr(law, name) for name in LAW} if known else {},
    )


def switch_points(
    sweep: DrawnSweep, answers: Sequence[BudgetAnswer], end: float, rollouts: Sequence[float] | None = None
) -> tuple[SwitchPoint, ...]:
    """Where the advised configuration changes on the way to `end`, and where it does so in each draw.

    Args:
      sweep: draws and configurations.
      answers: over a grid of budgets, rising.
      end: largest budget that is looked at.
      rollouts: rollouts at each budget, where compute is in another unit; NaN where unknown.
    """
    inside = [each for each in answers if each.budget <= end * 1.001]
    number = {each: k for k, each in enumerate(sweep.configurations)}
    values = [rewards(sweep, each) for each in inside]
    budgets = np.array([each.budget for each in inside])
    found = []
    for i, (one, other) in enumerate(itertools.pairwise(inside)):
        before, after = one.advised.configuration, other.advised.configuration
        if before == after:
            continue
        ahead = np.array([each[number[after]] > each[number[before]] for each in values])  # [A, S]
        change = ~ahead[:-1] & ahead[1:]
        has = change.any(axis=0)
        if has.mean() < LEAST_SHARE:
            continue
        # Of several changes the one nearest to where the expected rewards cross.
        distance = np.where(change, np.abs(np.arange(len(change)) - i)[:, None], np.inf)
        place = distance.argmin(axis=0)[has]
        crossing = np.sqrt(budgets[place] * budgets[place + 1])
        found.append(_switch(before, after, crossing, float(has.mean()), budgets, rollouts))
    return tuple(found)


def _switch(
    before: Configuration,
    after: Configuration,
    crossing: np.ndarray,
    share: float,
    budgets: np.ndarray,
    rollouts: Sequence[float] | None,
) -> SwitchPoint:
    middle, ends = float(np.median(crossing)), interval(crossing)
    spent = crossing if rollouts is None else np.interp(crossing, budgets, np.asarray(rollouts, float))
    per_epoch = before.group_size * before.problem_set_size
    epochs = spent / per_epoch if per_epoch else np.full(len(spent), math.nan)
    known = bool(np.isfinite(epochs).all())
    return SwitchPoint(
        before=before,
        after=after,
        compute=middle,
        interval95=ends,
        share=share,
        epochs=float(np.median(epochs)) if known else math.nan,
        epoch_interval95=interval(epochs) if known else (math.nan, math.nan),
    )
