"""From recommendations to answers: how sure each is, what speaks against it, and over which budgets it holds.

Every number and verdict of the report's first screen stands in these records.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np

from isocompute_jax.fit.curves.forms import FormName
from isocompute_jax.fit.frontier.bootstrap import Bootstrap
from isocompute_jax.fit.frontier.recommendation import carried_leaders
from isocompute_jax.fit.frontier.ties import nearest
from isocompute_jax.fit.metric_analysis import MetricAnalysis
from isocompute_jax.fit.plain_data import INLINE
from isocompute_jax.fit.results import SURE, CurveFit, FormChoice, Recommendation, Switch

LIKELY = 0.8
"""A leader is likely where at least this share of the draws has it (and, inside the data, sure from `SURE` on)."""

Confidence = Literal["sure", "likely", "open", "tied", "contradicted", "unknown"]
"""Of a leader: by the share of replicates that have it; before that come `tied`, `contradicted` (something in the data
names another leader) and `unknown` (no replicates)."""

ObjectionKind = Literal[
    "form", "evaluations", "seeds", "largest", "smallest", "one_seed", "seeds_differ", "outliers", "unseen", "left_out"
]  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Objection:
    """Something in the data that speaks against an answer, or that the data cannot say.

    That another choice of evaluations has another leader is among the recommendation's own doubts.
    """

    kind: ObjectionKind
    run: str = ""  # who leads instead; empty where nobody else does
    by: str = ""  # the form
    size: float = 0.0  # `evaluations`, `form`: how far ahead (reward, AICc); else how many seeds, outliers or others
    of: int = 0  # `seeds`: how many there are


@dataclasses.dataclass(frozen=True)
class BudgetAnswer:
    """What to do with a budget."""

    recommendation: Recommendation = dataclasses.field(metadata=INLINE)
    share: float | None  # of draws, or of replicates at the budget or the data's end, that it leads in; None without
    rival: tuple[str, float] | None  # who leads in most of the others, and in which share of all; None without
    tied_group_sizes: tuple[int, ...]  # its n and of those that no difference was seen from, in order; empty without
    confidence: Confidence  # in the configuration
    objections: tuple[Objection, ...]  # what speaks against it

    @property
    def budget(self) -> float:
        """The budget."""
        return self.recommendation.budget

    @property
    def contradicted_by(self) -> list[str]:
        """The other leaders that something in the data names: most seeds, the evaluations, a form, other records."""
        told = (each for each in self.objections if each.kind != "seeds" or each.size > each.of / 2)
        return list(dict.fromkeys(run for run in (*(each.run for each in told), self.recommendation.by_records) if run))


@dataclasses.dataclass(frozen=True)
class BudgetRange:
    """Neighbouring budgets with the same answer."""

    start: float  # the first budget, or the switch to this configuration
    end: float  # likewise
    run: str  # the recommended configuration; of several that tie with each other the one of most budgets
    group_size: int  # its n; 0 when unknown
    rewards: tuple[float, float]  # expected at its ends
    share: float | None  # median over the budgets of the share of replicates, or draws, that it leads in; None without
    confidence: Confidence  # what that comes to; `tied`, or `contradicted`, where all of the budgets are
    tied_group_sizes: tuple[int, ...]  # every n of those ties
    beyond: bool  # beyond the data
    stop: float | None  # at the peak of a configuration that collapses; None to spend all of a budget


class Evidence(NamedTuple):
    """What a recommendation is held against."""

    main: MetricAnalysis  # of the metric
    resampled: Bootstrap | None  # replicates of the frontier; None without
    by_seed: Mapping[int, MetricAnalysis]  # of each seed alone
    forms: Mapping[FormName, Sequence[CurveFit]]  # form -> fits of the same points
    choice: FormChoice | None  # which form of curve fits best; None where nothing tells


def answer(found: Recommendation, evidence: Evidence) -> BudgetAnswer:
    """A recommendation with its confidence and what speaks against it."""
    configurations = {each.name: each for each in evidence.main.configurations}
    if found.run not in configurations:  # the budget pays no step of any
        return BudgetAnswer(found, None, None, (), "unknown", ())
    share, rival = _lead(found, evidence)
    sizes = {configurations[run].group_size for run in (found.run, *found.tied)}
    answered = BudgetAnswer(
        recommendation=found,
        share=share,
        rival=rival,
        tied_group_sizes=tuple(sorted(sizes)) if found.tied else (),
        confidence="unknown",
        objections=tuple(_objections(found, evidence)),
    )
    contradicted = bool(answered.contradicted_by)
    confidence = _confidence(share, tied=bool(found.tied), contradicted=contradicted, seen=found.seen)
    return dataclasses.replace(answered, confidence=confidence)


def _confidence(share: float | None, *, tied: bool, contradicted: bool, seen: bool) -> Confidence:
    """Nothing is sure that was not `seen` (see `Recommendation`): how curves go on is assumed."""
    if contradicted:
        return "contradicted"
    if tied:
        return "tied"
    if share is None:
        return "unknown"
    return "sure" if share >= SURE and seen else "likely" if share >= LIKELY else "open"


def _lead(found: Recommendation, evidence: Evidence) -> tuple[float | None, tuple[str, float] | None]:
    """In which share of the forecast's draws, or else of the replicates, it leads, and the strongest rival."""
    if math.isfinite(found.best_share):
        return found.best_share, found.rival
    if evidence.resampled is None:
        return None, None
    leaders = carried_leaders(evidence.resampled, evidence.main.fits, found.budget)
    if leaders is None:
        return None, None
    shares = collections.Counter(evidence.main.configurations[i].name for i in leaders.tolist())
    share = shares.pop(found.run, 0) / len(leaders)
    rival = next(iter(shares.most_common(1)), None)
    return share, rival and (rival[0], rival[1] / len(leaders))


def _objections(found: Recommendation, evidence: Evidence) -> list[Objection]:
    main, same = evidence.main, {found.run, *found.tied}
    rows = []
    drawn = not math.isnan(found.best_share)
    if found.stop is None and not (drawn and found.place == "beyond"):  # these compare at the budget, or the data's end
        rows += _other_form(found, same, evidence)
        rows += _evaluations(main, found, same)
        rows += _seeds(evidence.by_seed, found, same)
    if found.unseen:
        rows.append(Objection("unseen", size=len(found.unseen)))
    if found.left_out:
        rows.append(Objection("left_out", size=len(found.left_out)))
    if not any(math.isfinite(budget.seed_sd) for budget in main.budgets):
        rows.append(Objection("one_seed"))
    if evidence.resampled is not None and evidence.resampled.seeds_differ:
        rows.append(Objection("seeds_differ"))
    outliers = {c.name: len(fit.outliers) for c, fit in zip(main.configurations, main.fits, strict=True)}
    if outliers[found.run]:
        rows.append(Objection("outliers", size=outliers[found.run]))
    sizes = {each.group_size for each in main.configurations}
    if len(sizes) > 1 and 0 not in sizes:
        if found.group_size == max(sizes):
            rows.append(Objection("largest"))
        elif found.group_size == min(sizes):
            rows.append(Objection("smallest"))
    return rows


def _leading_run(found: MetricAnalysis, budget: float, fits: Sequence[CurveFit] | None = None) -> str | None:
    index = found.leader(budget, fits)
    return None if index is None else found.configurations[index].name


def _other_form(found: Recommendation, same: set[str], evidence: Evidence) -> list[Objection]:
    """Another form that fits clearly better, and who leads by it."""
    main, choice = evidence.main, evidence.choice
    used = {*found.forms, *(fit.form for fit in main.fits)}
    if choice is None or choice.best in used or choice.strength != "clear":
        return []
    name = _leading_run(main, found.budget, evidence.forms[choice.best])
    return [] if name is None else [Objection("form", "" if name in same else name, choice.best, choice.ahead)]


def _evaluations(main: MetricAnalysis, found: Recommendation, same: set[str]) -> list[Objection]:
    """Who is ahead by the evaluations alone, where the recommended configuration is not."""
    budget = nearest(main.budgets, found.budget)
    names = [each.name for each in main.configurations]
    own = names.index(found.run)
    if budget is None or main.configurations[own] in budget.tied:
        return []
    best, leader = budget.best_run, _leading_run(main, budget.compute)
    if best == leader != _leading_run(main, found.budget):
        return []  # the curves agree with the evaluations where these are, on the other side of a switch
    ahead = float(budget.reward - budget.mean[own])
    if not math.isfinite(ahead) or (best in same and main.configurations[own] not in budget.behind):
        return []
    return [Objection("evaluations", best, size=ahead)]


def _seeds(by_seed: Mapping[int, MetricAnalysis], found: Recommendation, same: set[str]) -> list[Objection]:
    """How many seeds have another leader, and which one most of them."""
    leaders = [_leading_run(each, found.budget) for each in by_seed.values()]
    others = collections.Counter(leader for leader in leaders if leader and leader not in same)
    if not others:
        return []
    return [Objection("seeds", others.most_common(1)[0][0], size=others.total(), of=len(leaders))]


def ranges(answers: Sequence[BudgetAnswer], switches: Sequence[Switch]) -> list[BudgetRange]:
    """Neighbouring budgets with the same answer and verdict, or with answers that tie; they meet at the switches.

    Args:
      answers: by budget, in order.
      switches: of the frontier.
    """
    groups: list[list[BudgetAnswer]] = []
    for each in answers:
        if groups and _alike(groups[-1][-1], each):
            groups[-1].append(each)
        else:
            groups.append([each])
    found, start = [], answers[0].budget if answers else math.nan
    for group, after in itertools.zip_longest(groups, groups[1:]):
        end = group[-1].budget if after is None else _meeting(group[-1], after[0], switches)
        found.append(_range(group, start, end, rewards=_rewards(answers, group, start, end)))
        start = end
    return found


def _rewards(
    answers: Sequence[BudgetAnswer], group: Sequence[BudgetAnswer], start: float, end: float
) -> tuple[float, float]:
    """Expected at both ends of a range, between two budgets by interpolation; of a stopped curve it is one."""
    if group[0].recommendation.stop is not None:
        return group[0].recommendation.reward, group[-1].recommendation.reward
    rows = [a.recommendation for a in answers if math.isfinite(a.recommendation.reward)]
    if not rows:
        return math.nan, math.nan
    budgets, rewards = np.log([row.budget for row in rows]), [row.reward for row in rows]
    first, last = np.interp(np.log([start, end]), budgets, rewards)
    return float(first), float(last)


def _alike(one: BudgetAnswer, other: BudgetAnswer) -> bool:
    """Whether two answers are the same: one configuration, or two that tie with each other, stopped at one place."""
    a, b = one.recommendation, other.recommendation
    verdicts = [each.confidence if each.confidence in ("tied", "contradicted") else "" for each in (one, other)]
    if (a.place == "beyond", a.stop, verdicts[0]) != (b.place == "beyond", b.stop, verdicts[1]):
        return False
    return a.run == b.run or (verdicts[0] == "tied" and a.run in b.tied and b.run in a.tied)


def _meeting(before: BudgetAnswer, after: BudgetAnswer, switches: Sequence[Switch]) -> float:
    """Where one range ends and the next begins: the switch between them, the peak to stop at, the end of the data."""
    a, b = before.recommendation, after.recommendation
    for switch in switches:
        if a.budget <= switch.compute <= b.budget and (switch.from_run, switch.to_run) == (a.run, b.run):
            return switch.compute
    if a.run == b.run and a.stop is None and b.stop is not None:
        return b.stop
    if a.run == b.run and a.place != b.place:
        return before.budget
    return math.sqrt(before.budget * after.budget)


def _range(group: Sequence[BudgetAnswer], start: float, end: float, *, rewards: tuple[float, float]) -> BudgetRange:
    first, verdict = group[0].recommendation, group[0].confidence
    shares = [answer.share for answer in group if answer.share is not None]
    share = float(np.median(shares)) if shares else None
    beyond, tied = first.place == "beyond", verdict == "tied"
    seen = 2 * sum(answer.recommendation.seen for answer in group) > len(group)
    runs = collections.Counter((each.recommendation.run, each.recommendation.group_size) for each in group)
    ((run, size), _), *_ = runs.most_common()
    return BudgetRange(
        start=start,
        end=end,
        run=run,
        group_size=size,
        rewards=rewards,
        share=share,
        confidence=_confidence(share, tied=tied, contradicted=verdict == "contradicted", seen=seen),
        tied_group_sizes=tuple(sorted({size for each in group for size in each.tied_group_sizes})) if tied else (),
        beyond=beyond,
        stop=first.stop,
    )
