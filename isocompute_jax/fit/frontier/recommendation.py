"""The playbook's answer: how to spend a budget, why, what to expect, and how far that lies beyond the data."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from isocompute_jax.fit.curves.seeds import SAME_COMPUTE
from isocompute_jax.fit.frontier.bootstrap import Bootstrap, leaders_among
from isocompute_jax.fit.frontier.envelope import contestants
from isocompute_jax.fit.frontier.forecast import Forecast
from isocompute_jax.fit.frontier.prospect import Prospect, prospect
from isocompute_jax.fit.frontier.standings import Standings, interval, standings, tie_text
from isocompute_jax.fit.frontier.ties import Budget, nearest
from isocompute_jax.fit.results import AllocationFit, Configuration, CurveFit, Frontier, Recommendation
from isocompute_jax.options import described, option

REACH = 2.0
"""Curves are compared up to so many times their own data."""

BEYOND = 1 + SAME_COMPUTE
"""A budget of more than so many times the data is beyond them."""

ROUNDING = 1e-12
"""Budgets that are a whole number of steps up to rounding pay that many."""

FAR = 4.0
"""A budget of more than so many times the data is called far beyond them."""


@described
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
    forecast: Forecast | None = None,
    measured: Sequence[Budget] = (),
    rollouts: Callable[[int, float], float] | None = None,
) -> Recommendation:
    """Recommends n, B_problem, M and the learning rate for a budget C = B_problem x n x M.

    Only configurations of which the budget pays at least one step are considered, and M is rounded down. The
    configuration with the highest expected reward in the forecast is taken, inside the data and beyond. Inside, one
    whose data end earlier is carried on, to at most twice their end, so that nobody leads by having been run a little
    longer, and never past the peak of a curve that collapses: one that is the best of all at its peak stops there.

    Without a forecast the highest curve is taken inside the data (see `standings` for ties). Beyond all data n is then
    that of the sigmoid law (when its status is `ok`) rounded to the nearest n that was run, else that of the
    configuration that leads where the data end; B_problem is that of the best curve with this n.

    Args:
      budget: compute, > 0, in the unit of the curves.
      fits: [K] curves.
      configurations: [K] what they belong to.
      frontier: their envelope.
      allocation: n*(C).
      learning_rate: the rule.
      reward_range: the expected reward is kept in it.
      resampled: replicates, for intervals.
      forecast: draws of what the curves are; None to compare and carry on the fitted ones.
      measured: the evaluated budgets: whom the evaluations have clearly behind ties with nobody.
      rollouts: (configuration number, compute) -> rollouts, when the unit of compute is another.

    Raises:
      ValueError: the frontier is empty.
    """
    if not frontier.segments:
        raise ValueError("the frontier is empty: there is nothing to recommend")
    known = [i for i, fit in enumerate(fits) if fit.status != "failed"]
    spent = {i: rollouts(i, budget) if rollouts else budget for i in known}
    affordable = [i for i in known if not configurations[i].rollouts_per_step > spent[i]]
    if not affordable:
        return _none_fits(budget, [configurations[i] for i in known])
    contest = Contest(fits, configurations, allocation, resampled, reward_range, forecast, measured)
    index, reasons, found, drawn = contest.choose(budget, affordable)
    if len(affordable) < len(known):
        reasons += _too_dear(contest.choose(budget, known).index, affordable, configurations)
    chosen, fit = configurations[index], fits[index]
    at = min(budget, fit.window[1]) if fit.fall else budget  # a curve that collapses is never carried past its peak
    steps, rate, reason = _steps(chosen, rollouts(index, at) if rollouts else at, learning_rate)
    reasons.append(reason)
    if drawn is None and resampled is not None and len(known) > 1:
        reasons += _agreement(resampled, budget, index, fits, configurations)
    beyond = at / fit.window[1]
    doubts = _doubts(budget, fit, beyond) + _falls(budget, index, fits, configurations)
    law = float(allocation.optimal_group_size(budget)) if allocation.status == "ok" else math.nan
    reward = float(fit.reward(at)) if drawn is None else drawn.reward
    ends = interval(fit, index, at, resampled) if drawn is None else drawn.interval95
    return Recommendation(
        budget=budget,
        run=chosen.name,
        group_size=chosen.group_size,
        problems_per_batch=chosen.problems_per_batch or None,
        num_steps=steps,
        learning_rate=rate,
        law_group_size=law,
        reward=float(np.clip(reward, *reward_range)),
        interval95=tuple(np.clip(ends, *reward_range).tolist()),
        beyond=beyond,
        status="warning" if doubts else "ok",
        reasons=(*reasons, *doubts),
        stop=at if at < budget else None,
        place="beyond" if beyond > BEYOND else "inside" if budget >= fit.window[0] else "before",
        doubts=tuple(doubts),
        tied=tuple(configurations[i].name for i in found.tied if i != index) if index in found.tied else (),
        expected_regret=math.nan if drawn is None else drawn.regret,
        best_share=math.nan if drawn is None else drawn.best_share,
        rival=None if drawn is None or drawn.rival is None else (configurations[drawn.rival].name, drawn.rival_share),
        forms={} if drawn is None or forecast is None else forecast.weights,
    )


def _steps(chosen: Configuration, rollouts: float, learning_rate: LearningRate) -> tuple[int | None, float | None, str]:
    """Whole steps that so many rollouts pay for, their learning rate, and why; None where the data do not say B."""
    per_step = chosen.rollouts_per_step
    if not per_step:
        reason = "Group size or problems per batch is not in the data, so steps and learning rate are left open."
        return None, None, reason
    return math.floor(rollouts / per_step * (1 + ROUNDING)), learning_rate(per_step), learning_rate.reason()


class Choice(NamedTuple):
    """Number of a configuration, why it was chosen, who competed, and what the draws say; None without a forecast."""

    index: int
    reasons: list[str]
    standings: Standings
    drawn: Prospect | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Contest:
    """The curves that compete for a budget, and what is known of n*(C)."""

    fits: Sequence[CurveFit]
    configurations: Sequence[Configuration]
    allocation: AllocationFit
    resampled: Bootstrap | None
    reward_range: tuple[float, float]
    forecast: Forecast | None
    measured: Sequence[Budget]

    def choose(self, budget: float, allowed: Sequence[int]) -> Choice:
        """The configuration to take among those `allowed`."""
        alive = self._alive(budget, allowed)
        found = self.prospect(budget, allowed)
        if found is not None:
            return self._by_the_draws(budget, found, alive)
        if not alive:
            return self._stop_at_a_peak(allowed)
        first, last = self._data(alive)
        found = self._standings(min(max(budget, first), last), alive)
        index, name = found.chosen, self.configurations[found.chosen].name
        if budget < first * (1 - SAME_COMPUTE):
            reason = f"{name} leads where the data begin, at {first:.3g}; below that nothing was measured."
            return Choice(index, [reason, *self._tie(found)], found)
        if budget <= last * (1 + SAME_COMPUTE):
            lead = "has the highest fitted curve" if index == self._highest(budget, found) else "is the surest"
            reason = f"{name} {lead}{self._carried(budget, index)} at this budget."
            return Choice(index, [reason, *self._tie(found)], found)
        if self.allocation.status != "ok":
            reason = (
                f"{name} leads where the data end. The law of n*(C) is not established ({self.allocation.message}), so "
                "it is not used to go further."
            )
            return Choice(index, [reason, *self._tie(found)], found)
        index, reason = self._by_the_law(budget, alive)
        return Choice(index, [reason], found)

    def prospect(self, budget: float, allowed: Sequence[int]) -> Prospect | None:
        """What the forecast says of a budget, or of the data's begin before them; None where there is no forecast.

        A configuration that collapses before the budget competes as it is at its peak, stopped there.
        """
        if self.forecast is None:
            return None
        alive, inside = self._alive(budget, allowed), False
        at = {i: self.fits[i].window[1] for i in allowed if i not in alive}
        if alive:
            first, last = self._data(alive)
            inside = budget <= last * (1 + SAME_COMPUTE)
            at |= dict.fromkeys(self._rivals(budget, alive), max(budget, first))
        at = {i: compute for i, compute in at.items() if self.forecast.members[i]}
        if not at:
            return None
        drawn = {compute: self.forecast.rewards(compute) for compute in set(at.values())}
        return prospect(np.column_stack([drawn[c][:, i] for i, c in at.items()]), tuple(at), surest=inside)

    def _by_the_draws(self, budget: float, found: Prospect, alive: Sequence[int]) -> Choice:
        below = self._behind(budget, alive) if alive else ()
        behind = () if found.index in below else below
        tied = tuple(i for i in found.tied if i not in behind)
        rivals = self._rivals(budget, alive) if alive else found.tied
        standing = Standings(found.index, tied, tuple({*rivals, *tied}))
        reasons = [*self._forecast_reasons(budget, found, alive), *self._tie(standing)]
        return Choice(found.index, reasons, standing, found)

    def _alive(self, budget: float, allowed: Sequence[int]) -> list[int]:
        """Who has not collapsed before the budget."""
        return [i for i in allowed if self.fits[i].reaches(budget, beyond=math.inf)]

    def _data(self, alive: Sequence[int]) -> tuple[float, float]:
        """Where the data of these begin and end."""
        windows = [self.fits[i].window for i in alive]
        return min(start for start, _ in windows), max(end for _, end in windows)

    def _rivals(self, budget: float, alive: Sequence[int]) -> list[int]:
        """Who competes: beyond all data everybody, inside them those whose own reach so far (`REACH`)."""
        first, last = self._data(alive)
        if budget > last * (1 + SAME_COMPUTE):
            return list(alive)
        near = contestants(self.fits, min(max(budget, first), last), beyond=REACH)
        return [i for i in near if i in alive] or list(alive)

    def _carried(self, budget: float, index: int) -> str:
        end = self.fits[index].window[1]
        return "" if budget <= end * (1 + SAME_COMPUTE) else f", carried on from {end:.3g},"

    def _forecast_reasons(self, budget: float, found: Prospect, alive: Sequence[int]) -> list[str]:
        assert self.forecast is not None
        name = self.configurations[found.index].name
        weights = sorted(self.forecast.weights.items(), key=lambda kv: -kv[1])
        forms = ", ".join(f"{form} {weight:.0%}" for form, weight in weights if weight >= 0.005)
        first, last = self._data(alive) if alive else (0.0, math.inf)
        where = (
            " beyond the data" if budget > last * (1 + SAME_COMPUTE) else f"{self._carried(budget, found.index)} here"
        )
        if found.index not in alive:
            end = self.fits[found.index].window[1]
            where = f", stopped at its peak at {end:.3g}: the rest of the budget is better not spent"
        elif budget < first * (1 - SAME_COMPUTE):
            where = f" where the data begin, at {first:.3g}; below that nothing was measured"
        lead = "is the surest of those that tie for" if found.surest else "has"
        reasons = [f"{name} {lead} the highest expected reward{where}. Forms of curve are averaged: {forms}."]
        share = f"It is the best in {found.best_share:.0%} of the curves that the data allow"
        if found.rival is not None:
            rival = f"{self.configurations[found.rival].name} ({found.rival_share:.0%})"
            others = f"; the strongest rival is {rival}" if found.best_share < 0.9 else ""
            loss = f"choosing it is expected to lose {found.regret:.2g} of reward to the best"
            reasons.append(f"{share}{others}, and {loss}.")
        elif len(self.fits) > 1:
            reasons.append(f"{share}.")
        if self.allocation.status == "ok" and budget > last * (1 + SAME_COMPUTE):
            reasons.append(f"The law of n*(C) gives {float(self.allocation.optimal_group_size(budget)):.3g}.")
        return reasons

    def _by_the_law(self, budget: float, alive: Sequence[int]) -> tuple[int, str]:
        """Of the n nearest to that of the law the best curve, and why."""
        swept = sorted({self.configurations[i].group_size for i in alive})
        wanted = float(self.allocation.optimal_group_size(budget))
        size = min(swept, key=lambda n: abs(math.log2(n / wanted)))
        alike = [i for i in alive if self.configurations[i].group_size == size]
        index = max(alike, key=lambda i: float(self.fits[i].reward(budget)))
        rounded = "" if abs(wanted - size) < 0.01 * size else f", and {size} is the nearest that was run"
        return index, f"The law gives n* = {wanted:.3g} at this budget{rounded}."

    def _stop_at_a_peak(self, allowed: Sequence[int]) -> Choice:
        """Where every curve has collapsed before the budget, the highest peak is where to stop."""
        index = max(allowed, key=lambda i: float(self.fits[i].reward(self.fits[i].window[1])))
        end, name = self.fits[index].window[1], self.configurations[index].name
        reason = (
            f"Every configuration falls before this budget. {name} has the highest peak: the steps are those up to it, "
            f"at {end:.3g}, and the rest of the budget is better not spent."
        )
        return Choice(index, [reason], Standings(index, (index,), (index,)))

    def _standings(self, compute: float, alive: Sequence[int]) -> Standings:
        return standings(
            compute, self._rivals(compute, alive), fits=self.fits, configurations=self.configurations,
            resampled=self.resampled, reward_range=self.reward_range, behind=self._behind(compute, alive),
        )  # fmt: skip

    def _behind(self, compute: float, alive: Sequence[int]) -> tuple[int, ...]:
        """Whom the evaluations have clearly below the best ones there; nobody beyond all data."""
        if compute > self._data(alive)[1] * (1 + SAME_COMPUTE):
            return ()
        near = nearest(self.measured, compute)
        return near.behind if near else ()

    def _highest(self, budget: float, found: Standings) -> int:
        """Of equal curves that of the smaller n."""
        return max(
            found.members,
            key=lambda i: (float(self.fits[i].reward(budget)), -self.configurations[i].group_size),
        )

    def _tie(self, found: Standings) -> list[str]:
        text = tie_text(found, self.configurations)
        return [f"{text}."] if text else []


def _none_fits(budget: float, configurations: Sequence[Configuration]) -> Recommendation:
    """The answer where no configuration's step is paid by the budget."""
    cheapest = min(configurations, key=lambda c: c.rollouts_per_step)
    reason = (
        f"No configuration fits this budget: the cheapest step, of {cheapest.name} with "
        f"{cheapest.problems_per_batch:,} problems per batch, costs {cheapest.rollouts_per_step:,} rollouts."
    )
    nan = math.nan
    return Recommendation(
        budget=budget, run="none", group_size=0, problems_per_batch=None, num_steps=0, learning_rate=None,
        law_group_size=nan, reward=nan, interval95=(nan, nan), beyond=nan, status="warning", reasons=(reason,),
        place="before",
    )  # fmt: skip


def _too_dear(wanted: int, affordable: Sequence[int], configurations: Sequence[Configuration]) -> list[str]:
    """Says so where the choice would be another if the budget paid one of its steps."""
    if wanted in affordable:
        return []
    chosen = configurations[wanted]
    return [
        f"{chosen.name} would be chosen, but one of its steps costs {chosen.rollouts_per_step:,} rollouts, more than "
        "the budget."
    ]


def _falls(budget: float, index: int, fits: Sequence[CurveFit], configurations: Sequence[Configuration]) -> list[str]:
    """Names the configurations that collapse before the budget, and where one was better at its peak."""
    reasons = []
    for i, (fit, configuration) in enumerate(zip(fits, configurations, strict=True)):
        if fit.fall is None or fit.fall.compute >= budget:
            continue
        higher = i != index and fit.fall.reward > float(fits[index].reward(budget))
        reasons.append(
            f"{configuration.name} {fit.fall.text()}: do not train it past its peak"
            f"{', where it is higher than what is expected here' if higher else ''}."
        )
    return reasons


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
    if index not in members or not all(resampled.tells(fits[i], i) for i in members):
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
    if fit.num_points and not fit.measured:
        doubts.append(
            f"{fit.num_points} points for {len(fit.params)} parameters: the curve runs through its points, so no "
            "interval can be given."
        )
    if beyond > BEYOND and not fit.fall:
        how = "far beyond" if beyond > FAR else "beyond"
        doubts.append(f"The budget is {beyond:.3g} times the largest compute of this configuration: {how} the data.")
        if not fit.identified.get("asymptote"):
            doubts.append("Its asymptote is not identified, so the expected reward rests on the form of the curve.")
    elif budget < fit.window[0]:
        doubts.append(f"The budget lies below the first evaluation, at {fit.window[0]:.3g}.")
    return doubts
