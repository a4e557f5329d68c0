"""The playbook's answer: how to spend a budget, why, what to expect, and how far that lies beyond the data."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import numpy as np

from isocompute_jax.fit.curves.seeds import SAME_COMPUTE
from isocompute_jax.fit.frontier.bootstrap import Bootstrap, leaders_among, percentile_interval
from isocompute_jax.fit.frontier.envelope import REACH, carried
from isocompute_jax.fit.frontier.forecast import Forecast
from isocompute_jax.fit.frontier.standings import (
    NEAR,
    Budget,
    Choice,
    interval,
    nearest,
    prospect,
    standings,
    tie_text,
    told_apart,
)
from isocompute_jax.fit.results import AllocationFit, Configuration, CurveFit, Recommendation, Unseen
from isocompute_jax.options import described, option

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


OwnRate = tuple[float | None, str]
"""Learning rate of a configuration's runs, None where it is not one, and a sentence about it."""

NO_RATE: OwnRate = (None, "The runs do not say their learning rate, so it is left open.")


Chosen = tuple[Choice, float, list[str], tuple[Unseen, ...]]
"""What is chosen for a budget; the compute that it is trained to, which is the budget or where to stop; why; and who
competes without evaluations near the budget."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Contest:
    """K curves that compete for a budget, and what is known of them and of n*(C).

    Everybody with a curve competes for every budget, however far its own data go: what it was not run to is open, and
    stopping earlier always is.
    """

    fits: Sequence[CurveFit]  # [K]
    configurations: Sequence[Configuration]  # [K] what they belong to
    allocation: AllocationFit  # n*(C)
    learning_rate: LearningRate | Mapping[str, OwnRate]  # the rule, or the rate of each configuration's runs by name
    reward_range: tuple[float, float] = (0.0, 1.0)  # expected rewards are kept in it
    resampled: Bootstrap | None = None  # replicates, for intervals
    forecast: Forecast | None = None  # draws of the curves; None to compare and carry on the fitted ones
    measured: Sequence[Budget] = ()  # at evaluated budgets: whom the evaluations have clearly behind ties with nobody
    rollouts: Callable[[int, float], float] | None = None  # (number, compute) -> rollouts; None: compute is in these

    def choose(self, budget: float, allowed: Sequence[int]) -> Chosen:
        """The configuration to take among those `allowed`."""
        members = self.drawn(allowed)
        return self._by_the_draws(budget, members) if members else self._by_the_fits(budget, allowed)

    def drawn(self, allowed: Sequence[int]) -> list[int]:
        """Those of which there are draws; none without a forecast."""
        return [] if self.forecast is None else [i for i in allowed if self.forecast.members[i]]

    def spent(self, index: int, compute: float) -> float:
        """Rollouts of a configuration at a compute."""
        return self.rollouts(index, compute) if self.rollouts else compute

    def law(self, budget: float) -> float:
        """n* of the law; NaN where that is not established."""
        return float(self.allocation.optimal_group_size(budget)) if self.allocation.status == "ok" else math.nan

    def names(self, numbers: Iterable[int]) -> tuple[str, ...]:
        """Of the configurations with these numbers."""
        return tuple(self.configurations[i].name for i in numbers)

    def _by_the_draws(self, budget: float, members: Sequence[int]) -> Chosen:
        """The highest expected reward over the draws; before all data, without a common start, where they begin."""
        assert self.forecast is not None
        first, last = self._data(members)
        at = budget if self.forecast.start is not None else max(budget, first)
        plans = {i: self._plan(i, at) for i in members}
        rewards = np.column_stack([plans[i][0] for i in members])
        found = prospect(rewards, members, choices=self._choices(at, members))
        index, stop = found.index, plans[found.index][1]
        behind = self._behind(budget, last)
        tied = tuple(i for i in found.tied if i == index or index in behind or i not in behind)
        apart = [i for i in members if told_apart(plans[index][0], plans[i][0])]
        choice = found._replace(tied=tied)
        if budget < at:
            own = self.forecast.rewards(budget)[:, index]
            reward = float(own.mean())
            choice = choice._replace(reward=reward, interval95=percentile_interval(own, reward))
        reasons = [*self._forecast_reasons(budget, found, stop, first, last), *self._tie(tied, members)]
        return choice, min(stop, budget), reasons, self._unseen(budget, index, members, apart)

    def _plan(self, index: int, compute: float) -> tuple[np.ndarray, float]:
        """Draws of what a configuration comes to, and where to stop it: at its peak where it has collapsed."""
        assert self.forecast is not None
        if self.fits[index].fall:
            at = min(compute, self.fits[index].window[1])
            return self.forecast.rewards(at)[:, index], at
        return self.forecast.best_within(index, compute)

    def _choices(self, compute: float, members: Sequence[int]) -> list[int]:
        """Without those that another one was never below: inside their data no curve says more than its evaluations."""
        rewards = np.array([budget.mean[list(members)] for budget in self.measured]).reshape(-1, len(members))
        windows = np.array([self.fits[i].window for i in members])

        def never_better(k: int, other: int) -> bool:
            covered = windows[other, 0] <= windows[k, 0] * BEYOND and windows[k, 1] <= windows[other, 1] * BEYOND
            ahead = rewards[:, other] - rewards[:, k]
            ahead = ahead[np.isfinite(ahead)]
            return covered and len(ahead) > 1 and bool(np.all(ahead >= 0)) and bool(np.any(ahead > 0))

        inside = [k for k in range(len(members)) if compute <= windows[k, 1] * BEYOND]
        worse = {k for k in inside if any(never_better(k, other) for other in range(len(members)) if other != k)}
        return [i for k, i in enumerate(members) if k not in worse] or list(members)

    def _by_the_fits(self, budget: float, allowed: Sequence[int]) -> Chosen:
        """The highest fitted curve, each carried on to `REACH` times its data and held there."""
        first, last = self._data(allowed)
        at = {i: compute for i, compute in carried(self.fits, max(budget, first)).items() if i in allowed}
        index, tied = standings(
            at, fits=self.fits, configurations=self.configurations, resampled=self.resampled,
            reward_range=self.reward_range, behind=self._behind(budget, last),
        )  # fmt: skip
        fit = self.fits[index]
        stop = fit.window[1] if fit.fall else math.inf
        where = min(budget, at[index])
        tied = tied if index in tied else (index,)
        reasons = [self._fitted_reason(budget, index, first, last), *self._tie(tied, list(at))]
        choice = Choice(index, float(fit.reward(where)), interval(fit, index, where, self.resampled), tied)
        return choice, min(budget, stop), reasons, self._unseen(budget, index, list(at))

    def _fitted_reason(self, budget: float, index: int, first: float, last: float) -> str:
        name, fit = self.configurations[index].name, self.fits[index]
        if fit.fall and budget > fit.window[1]:
            return (
                f"{name} has the highest fitted curve, at its peak at {fit.window[1]:.3g}: the rest of the budget is "
                "better not spent."
            )
        if budget < first * (1 - SAME_COMPUTE):
            return f"{name} leads where the data begin, at {first:.3g}; below that nothing was measured."
        reason = f"{name} has the highest fitted curve{self._carried(budget, index)} at this budget."
        return " ".join([reason, *self._law_reason(budget, last)])

    def _law_reason(self, budget: float, last: float) -> list[str]:
        """What the law says of a budget beyond the data."""
        law = self.law(budget)
        return [f"The law of n*(C) gives {law:.3g}."] if budget > last * BEYOND and not math.isnan(law) else []

    def _data(self, members: Sequence[int]) -> tuple[float, float]:
        """Where the data of these begin and end."""
        windows = [self.fits[i].window for i in members]
        return min(start for start, _ in windows), max(end for _, end in windows)

    def _is_near(self, budget: float, index: int) -> bool:
        """Whether a configuration has evaluations near a budget, fitted or not, or has collapsed before it."""
        first, last = self.fits[index].window
        near = nearest(self.measured, budget)
        if near is not None and budget <= near.compute * NEAR and math.isfinite(near.mean[index]):
            return True
        return first / NEAR <= budget and (budget <= last * NEAR or self.fits[index].fall is not None)

    def _unseen(
        self, budget: float, chosen: int, members: Sequence[int], apart: Collection[int] = ()
    ) -> tuple[Unseen, ...]:
        """The others without evaluations near a budget; open, unless draws that do not reach far tell them apart.

        Args:
          budget: of compute.
          chosen: number of the configuration to take.
          members: numbers of all that compete.
          apart: numbers of those that the draws have below it; at more than `REACH` times their data they say little.
        """
        others = [i for i in members if i != chosen and not self._is_near(budget, i)]
        return tuple(
            Unseen(
                self.configurations[i].name,
                *self.fits[i].window,
                open=i not in apart or budget > self.fits[i].window[1] * REACH,
            )
            for i in others
        )

    def _carried(self, budget: float, index: int) -> str:
        end = self.fits[index].window[1]
        return "" if budget <= end * BEYOND else f", carried on from {end:.3g},"

    def _forecast_reasons(self, budget: float, found: Choice, stop: float, first: float, last: float) -> list[str]:
        assert self.forecast is not None
        name, fit = self.configurations[found.index].name, self.fits[found.index]
        weights = sorted(self.forecast.weights.items(), key=lambda kv: -kv[1])
        forms = ", ".join(f"{form} {weight:.0%}" for form, weight in weights if weight >= 0.005)
        where = " beyond the data" if budget > last * BEYOND else f"{self._carried(budget, found.index)} here"
        if stop < budget:
            why = "at its peak" if fit.fall else "before it is expected to fall as others of this sweep did,"
            where = f", stopped {why} at {stop:.3g}: the rest of the budget is better not spent"
        elif budget < fit.window[0] * (1 - SAME_COMPUTE) and self.forecast.start is not None:
            where = f" here, between the base model and its first evaluation at {fit.window[0]:.3g}"
        elif budget < first * (1 - SAME_COMPUTE):
            where = f" where the data begin, at {first:.3g}; below that nothing was measured"
        reasons = [f"{name} has the highest expected reward{where}. Forms of curve are averaged: {forms}."]
        share = f"It is the best in {found.best_share:.0%} of the curves that the data allow"
        if found.rival is not None:
            rival = f"{self.configurations[found.rival].name} ({found.rival_share:.0%})"
            others = f"; the strongest rival is {rival}" if found.best_share < 0.9 else ""
            loss = f"choosing it is expected to lose {found.regret:.2g} of reward to the best"
            reasons.append(f"{share}{others}, and {loss}.")
        elif len(self.fits) > 1:
            reasons.append(f"{share}.")
        return [*reasons, *self._law_reason(budget, last)]

    def _behind(self, compute: float, last: float) -> tuple[int, ...]:
        """Whom the evaluations have clearly below the best ones there; nobody beyond all data."""
        near = nearest(self.measured, compute) if compute <= last * BEYOND else None
        return tuple(i for i, each in enumerate(self.configurations) if near and each in near.behind)

    def _tie(self, tied: Sequence[int], members: Sequence[int]) -> list[str]:
        text = tie_text(tied, members, self.configurations)
        return [f"{text}."] if text else []

    def too_dear(self, wanted: int, affordable: Sequence[int], known: Sequence[int]) -> list[str]:
        """Names those of which the budget does not pay a step, and says so where the choice would be one of them."""
        dear = [i for i in known if i not in affordable]
        if not dear:
            return []
        if wanted in affordable:
            return [f"One step of {', '.join(self.names(dear))} costs more than this budget."]
        chosen = self.configurations[wanted]
        return [
            f"{chosen.name} would be chosen, but one of its steps costs {chosen.rollouts_per_step:,} rollouts, "
            "more than the budget."
        ]

    def falls(self, budget: float, choice: Choice) -> dict[str, bool]:
        """Names the configurations that collapse before the budget, and where one was better at its peak.

        Returns:
          Sentence -> whether it is of another than the chosen one, which was not better at its peak.
        """
        reasons = {}
        for i, (fit, configuration) in enumerate(zip(self.fits, self.configurations, strict=True)):
            if fit.fall is None or fit.fall.compute >= budget:
                continue
            higher = i != choice.index and fit.fall.reward > choice.reward
            where = ", where it is higher than what is expected here" if higher else ""
            text = f"{configuration.name} {fit.fall.text()}: do not train it past its peak{where}."
            reasons[text] = i != choice.index and not higher
        return reasons

    def agreement(self, budget: float, index: int) -> list[str]:
        """In how many replicates this configuration leads at the budget, or where the data end."""
        if self.resampled is None:
            return []
        at = min(max(budget, self.resampled.compute[0]), self.resampled.compute[-1])
        leaders = carried_leaders(self.resampled, self.fits, at)
        if leaders is None:
            return []
        share = float(np.mean(leaders == index))
        where = "at this budget" if at == budget else "where the data end" if budget > at else "where the data begin"
        text = f"It leads {where} in {share:.0%} of {len(leaders)} bootstrap replicates"
        rivals, counts = np.unique(leaders[leaders != index], return_counts=True)
        if share >= 0.9 or not len(rivals):
            return [f"{text}."]
        rival = self.configurations[int(rivals[counts.argmax()])].name
        return [f"{text}; the strongest rival is {rival} ({counts.max() / len(leaders):.0%})."]


def allocate(budget: float, contest: Contest) -> Recommendation:
    """Recommends n, B_problem, M and the learning rate for a budget C = B_problem x n x M.

    Only configurations of which the budget pays at least one step are considered, and M is rounded down. The
    configuration with the highest expected reward in the forecast is taken, inside the data and beyond. All compete for
    every budget: one whose data end earlier, or begin later, has the reward that its draws give there, and their width.
    One that has collapsed, or is expected to, is stopped where it is the best, so that a larger budget is never worth
    less.

    Without a forecast the highest fitted curve is taken, each carried on to at most twice its data and held there (see
    `standings` for ties).

    Args:
      budget: compute, > 0, in the unit of the curves.
      contest: what is known of the curves.

    Raises:
      ValueError: no curve spans a range of compute.
    """
    fits, configurations = contest.fits, contest.configurations
    known = [i for i, fit in enumerate(fits) if fit.status != "failed"]
    if not any(fits[i].window[0] < fits[i].window[1] for i in known):
        raise ValueError("the frontier is empty: there is nothing to recommend")
    affordable = [i for i in known if not configurations[i].rollouts_per_step > contest.spent(i, budget)]
    if not affordable:
        return _none_fits(budget, [configurations[i] for i in known])
    choice, at, reasons, unseen = contest.choose(budget, affordable)
    chosen, fit, drawn = configurations[choice.index], fits[choice.index], not math.isnan(choice.regret)
    wanted = contest.choose(budget, known)[0].index if len(affordable) < len(known) else choice.index
    steps, rate, reason = _steps(chosen, contest.spent(choice.index, at), contest.learning_rate)
    reasons = [*reasons, *contest.too_dear(wanted, affordable, known), reason]
    if not drawn and len(known) > 1:
        reasons += contest.agreement(budget, choice.index)
    beyond = at / fit.window[1]
    fallen = contest.falls(budget, choice)
    doubts = [*_doubts(budget, fit, beyond), *fallen]
    left_out = sorted(set(range(len(fits))) - set(contest.drawn(known) or known))
    return Recommendation(
        budget=budget,
        run=chosen.name,
        group_size=chosen.group_size,
        problems_per_batch=chosen.problems_per_batch or None,
        num_steps=steps,
        learning_rate=rate,
        law_group_size=contest.law(budget),
        reward=float(np.clip(choice.reward, *contest.reward_range)),
        interval95=tuple(np.clip(choice.interval95, *contest.reward_range).tolist()),
        beyond=beyond,
        status="warning" if doubts else "ok",
        reasons=(*reasons, *doubts),
        stop=at if at < budget else None,
        place="beyond" if beyond > BEYOND else "inside" if budget >= fit.window[0] else "before",
        doubts=tuple(doubts),
        others_fallen=tuple(text for text, lower in fallen.items() if lower),
        tied=contest.names(i for i in choice.tied if i != choice.index),
        expected_regret=choice.regret,
        best_share=choice.best_share,
        rival=None if choice.rival is None else (configurations[choice.rival].name, choice.rival_share),
        forms=contest.forecast.weights if drawn and contest.forecast else {},
        unseen=unseen,
        left_out=contest.names(left_out),
    )


def _steps(
    chosen: Configuration, rollouts: float, learning_rate: LearningRate | Mapping[str, OwnRate]
) -> tuple[int | None, float | None, str]:
    """Whole steps that so many rollouts pay for, their learning rate, and why; None where the data do not say B."""
    per_step = chosen.rollouts_per_step
    if not per_step:
        reason = "Group size or problems per batch is not in the data, so steps and learning rate are left open."
        return None, None, reason
    if isinstance(learning_rate, LearningRate):
        rate, reason = learning_rate(per_step), learning_rate.reason()
    else:
        rate, reason = learning_rate.get(chosen.name, NO_RATE)
    return math.floor(rollouts / per_step * (1 + ROUNDING)), rate, reason


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


def carried_leaders(resampled: Bootstrap, fits: Sequence[CurveFit], budget: float) -> np.ndarray | None:
    """[R] who leads for a budget in each replicate (see `carried`); None where nothing tells."""
    at = carried(fits, budget)
    return leaders_among(resampled, fits, at) if all(resampled.tells(fits[i], i) for i in at) else None


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
