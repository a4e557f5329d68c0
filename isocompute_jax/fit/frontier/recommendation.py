"""The playbook's answer: how to spend a budget, why, what to expect, and how far that lies beyond the data."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy as np

from isocompute_jax.fit.curves import uncertainty
from isocompute_jax.fit.curves.holdout import predict
from isocompute_jax.fit.curves.seeds import SAME_COMPUTE
from isocompute_jax.fit.frontier.bootstrap import PERCENTILES, Bootstrap, leaders_among, replicate_rewards
from isocompute_jax.fit.frontier.envelope import contestants
from isocompute_jax.fit.results import AllocationFit, Configuration, CurveFit, Frontier, Recommendation
from isocompute_jax.options import option

REACH = 2.0
"""Curves are compared up to so many times their own data."""

BEYOND = 1 + 1e-9
"""A budget of more than so many times the data is beyond them; the margin is for rounding."""

FAR = 4.0
"""A budget of more than so many times the data is called far beyond them."""


@dataclasses.dataclass(frozen=True)
class LearningRate:
    """Learning rate by rollouts per step B: base_lr x (B / base_batch)^exponent."""

    base_lr: float = option(1e-6, "Learning rate at --base_batch, for recommendations.")
    base_batch: float = option(1024.0, "Rollouts per step that --base_lr is for.")
    exponent: float = option(
        0.5,
        "Learning rate = base_lr x (B / base_batch)^this; 0.5 is the square-root rule of the IsoCompute paper.",
        flag="lr_exponent",
    )
    source: str = option(
        "the paper's (1e-6 at 1,024 rollouts per step), not from these runs",
        "Where these come from, for the reader.",
        flag=None,
    )

    def __call__(self, rollouts_per_step: float) -> float:
        """The rate for B rollouts per step."""
        return self.base_lr * (rollouts_per_step / self.base_batch) ** self.exponent

    def reason(self) -> str:
        """The rule as a sentence."""
        if self.exponent == 0:
            return f"The learning rate does not depend on the rollouts per step; it is {self.source}."
        rules = {0.5: "with the square root of the rollouts per step", 1.0: "with the rollouts per step"}
        rule = rules.get(self.exponent, f"as the rollouts per step to the power {self.exponent:g}")
        return f"The learning rate grows {rule}; its base is {self.source}."


def allocate(
    budget: float,
    *,
    fits: Sequence[CurveFit],
    configurations: Sequence[Configuration],
    frontier: Frontier,
    allocation: AllocationFit,
    learning_rate: LearningRate,
    reward_range: tuple[float, float] = (0.0, 1.0),
    resampled: Bootstrap | None = None,
    rollouts: Callable[[int, float], float] | None = None,
) -> Recommendation:
    """Recommends n, B_problem, M and the learning rate for a budget C = B_problem x n x M.

    Inside the data the highest curve is taken; one whose data end earlier is carried on, to at most twice their end, so
    that nobody leads by having been run a little longer. Beyond all data, n is that of the sigmoid law (when its status
    is `ok`) rounded to the nearest n that was run, else that of the configuration that leads where the data end;
    B_problem is that of the best curve with this n.

    Args:
      budget: compute, > 0, in the unit of the curves.
      fits: [K] curves.
      configurations: [K] what they belong to.
      frontier: their envelope.
      allocation: n*(C).
      learning_rate: the rule.
      reward_range: the expected reward is kept in it.
      resampled: replicates, for intervals.
      rollouts: (configuration number, compute) -> rollouts, when the unit of compute is another.

    Raises:
      ValueError: the frontier is empty.
    """
    if not frontier.segments:
        raise ValueError("the frontier is empty: there is nothing to recommend")
    index, reasons = _choose(budget, fits, configurations, allocation)
    chosen, fit = configurations[index], fits[index]
    beyond = budget / fit.window[1]
    spent = rollouts(index, budget) if rollouts else budget
    steps = rate = None
    if chosen.group_size and chosen.problems_per_batch:
        per_step = chosen.group_size * chosen.problems_per_batch
        steps, rate = max(1, round(spent / per_step)), learning_rate(per_step)
        reasons.append(learning_rate.reason())
    else:
        reasons.append("Group size or problems per batch is not in the data, so steps and learning rate are left open.")
    if resampled is not None and sum(fit.status != "failed" for fit in fits) > 1:
        reasons += _agreement(resampled, budget, index, fits, configurations)
    doubts = _doubts(budget, fit, beyond)
    law = float(allocation.optimal_group_size(budget)) if allocation.status == "ok" else math.nan
    return Recommendation(
        budget=budget,
        run=chosen.name,
        group_size=chosen.group_size,
        problems_per_batch=chosen.problems_per_batch or None,
        num_steps=steps,
        learning_rate=rate,
        law_group_size=law,
        reward=float(np.clip(fit.reward(budget), *reward_range)),
        interval95=tuple(np.clip(_interval(fit, resampled, index, budget), *reward_range).tolist()),
        beyond=beyond,
        status="warning" if doubts else "ok",
        reasons=(*reasons, *doubts),
        place="beyond" if beyond > BEYOND else "inside" if budget >= fit.window[0] else "before",
        doubts=tuple(doubts),
    )


def _choose(
    budget: float, fits: Sequence[CurveFit], configurations: Sequence[Configuration], allocation: AllocationFit
) -> tuple[int, list[str]]:
    """Number of the configuration to take, and why."""
    windows = [fit.window for fit in fits if fit.status != "failed"]
    first, last = min(start for start, _ in windows), max(end for _, end in windows)
    index = _leader(min(max(budget, first), last), fits, configurations)
    name = configurations[index].name
    if budget < first * (1 - SAME_COMPUTE):
        return index, [f"{name} leads where the data begin, at {first:.3g}; below that nothing was measured."]
    if budget <= last * (1 + SAME_COMPUTE):
        end = fits[index].window[1]
        carried = "" if budget <= end * (1 + SAME_COMPUTE) else f", carried on from {end:.3g},"
        return index, [f"{name} has the highest fitted curve{carried} at this budget."]
    if allocation.status != "ok":
        return index, [
            f"{name} leads where the data end. The law of n*(C) is not established ({allocation.message}), so it is "
            "not used to go further."
        ]
    swept = sorted({configurations[i].group_size for i, fit in enumerate(fits) if fit.status != "failed"})
    wanted = float(allocation.optimal_group_size(budget))
    size = min(swept, key=lambda n: abs(math.log2(n / wanted)))
    alike = [i for i, c in enumerate(configurations) if c.group_size == size and fits[i].status != "failed"]
    index = max(alike, key=lambda i: float(fits[i].reward(budget)))
    rounded = "" if abs(wanted - size) < 0.01 * size else f", and {size} is the nearest that was run"
    return index, [f"The law gives n* = {wanted:.3g} at this budget{rounded}."]


def _leader(compute: float, fits: Sequence[CurveFit], configurations: Sequence[Configuration]) -> int:
    """The highest curve at `compute`, of equal ones that of the smaller n."""
    near = contestants(fits, compute, beyond=REACH) or [i for i, fit in enumerate(fits) if fit.status != "failed"]
    return max(near, key=lambda i: (float(fits[i].reward(compute)), -configurations[i].group_size))


def _agreement(
    resampled: Bootstrap,
    budget: float,
    index: int,
    fits: Sequence[CurveFit],
    configurations: Sequence[Configuration],
) -> list[str]:
    """In how many replicates this configuration leads at the budget, or where the data end."""
    at = min(max(budget, resampled.compute[0]), resampled.compute[-1])
    members = contestants(fits, at, beyond=REACH)
    if index not in members:
        return []
    leaders = leaders_among(resampled, fits, at, members)
    share = float(np.mean(leaders == index))
    where = "at this budget" if at == budget else "where the data end" if budget > at else "where the data begin"
    text = f"It leads {where} in {share:.0%} of {len(leaders)} bootstrap replicates"
    rivals, counts = np.unique(leaders[leaders != index], return_counts=True)
    if share >= 0.9 or not len(rivals):
        return [f"{text}."]
    rival = int(rivals[counts.argmax()])
    return [f"{text}; the strongest rival is {configurations[rival].name} ({counts.max() / len(leaders):.0%})."]


def _doubts(budget: float, fit: CurveFit, beyond: float) -> list[str]:
    """What to mistrust."""
    doubts = []
    if beyond > BEYOND:
        how = "far beyond" if beyond > FAR else "beyond"
        doubts.append(f"The budget is {beyond:.3g} times the largest compute of this configuration: {how} the data.")
        if not fit.identified.get("asymptote"):
            doubts.append("Its asymptote is not identified, so the expected reward rests on the form of the curve.")
    elif budget < fit.window[0]:
        doubts.append(f"The budget lies below the first evaluation, at {fit.window[0]:.3g}.")
    return doubts


def _interval(fit: CurveFit, resampled: Bootstrap | None, index: int, budget: float) -> tuple[float, float]:
    """95% interval of the curve at the budget: from the replicates, else by the delta method; NaN without either."""
    if resampled is not None and np.isfinite(resampled.at[:, index]).all():
        low, high = np.percentile(replicate_rewards(fit, resampled.at[:, index], np.array([budget])), PERCENTILES)
        return float(low), float(high)
    if fit.search is None or not np.isfinite(fit.search.covariance).all():
        return math.nan, math.nan
    (mean,), (error,) = predict(fit, np.array([budget]))
    freedom = fit.num_points - int(np.count_nonzero(np.diagonal(fit.search.covariance)))
    reach = float(uncertainty.critical(freedom)) * float(error)
    return float(mean) - reach, float(mean) + reach
