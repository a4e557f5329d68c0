"""Answers: how to spend each budget, how sure that is, what speaks against it, and over which budgets it holds.

Who leads must not hang on which evaluations are fitted, so two choices of them are compared. Every number and verdict
of the report's first screen stands in these records.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from isocompute_jax.fit.curves.forms import FormName
from isocompute_jax.fit.curves.screening import Records
from isocompute_jax.fit.curves.seeds import ConfigurationRuns
from isocompute_jax.fit.frontier.bootstrap import Bootstrap
from isocompute_jax.fit.frontier.envelope import data_end
from isocompute_jax.fit.frontier.recommendation import Contest, LearningRate, OwnRate, allocate, carried_leaders
from isocompute_jax.fit.frontier.standings import nearest
from isocompute_jax.fit.plain_data import INLINE
from isocompute_jax.fit.results import SURE, AllocationFit, CurveFit, FormChoice, Recommendation, Switch
from isocompute_jax.fit.stages import MetricAnalysis, Stages
from isocompute_jax.records.errors import InputError

GRID_BUDGETS = 48
BEYOND_DATA = 4.0
"""The grid reaches so many times the largest compute of the data, or the largest budget that was asked for."""

RULES: dict[Records, str] = {
    "off": "all evaluations",
    "strict": "record-breaking evaluations alone",
    "bucketed": "evaluations that reach a new bin",
}
"""What each choice of evaluations fits, in words."""

OTHER_RULE: dict[Records, Records] = {"off": "strict", "strict": "off", "bucketed": "off"}
"""The choice that an answer is held against."""

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
        weighty = (each for each in self.objections if each.kind != "seeds" or each.size > each.of / 2)
        runs = *(each.run for each in weighty), self.recommendation.by_records
        return list(dict.fromkeys(run for run in runs if run))


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


def budget_grid(fits: Sequence[CurveFit], asked: Sequence[float]) -> list[float]:
    """Budgets even in log C and rounded to two figures, with the ends of the data and those that were asked for."""
    first, last = min(fit.window[0] for fit in fits if fit.status != "failed"), data_end(fits)
    low, high = min([first, *asked]), max([BEYOND_DATA * last, *asked])
    even = [float(f"{compute:.2g}") for compute in np.geomspace(low, high, GRID_BUDGETS)]
    return sorted({first, last, high, *asked, *(budget for budget in even if first < budget < high)})


def recommend(
    budgets: Sequence[float],
    stages: Stages,
    main: MetricAnalysis,
    allocation: AllocationFit,
    resampled: Bootstrap | None,
    by_records: Mapping[str, MetricAnalysis],
) -> dict[float, Recommendation]:
    """How to spend each budget; where the other choice of evaluations would answer otherwise, the reasons say so.

    Args:
      budgets: compute of each.
      stages: of the analysis.
      main: the analysis of the metric.
      allocation: n*(C).
      resampled: replicates of the frontier; None without.
      by_records: rule -> the analysis under that choice of evaluations.
    """
    if budgets and not main.frontier.segments:
        raise InputError("--budget: no curve spans a range of compute, so there is nothing to recommend from")
    rule = OTHER_RULE[stages.options.records]
    other = by_records[rule]
    contest = _contest(stages, main, allocation)
    fitted = rivals = None
    if other.frontier.segments:  # both by their fitted curves, or the two would differ in more than the evaluations
        fitted, rivals = contest, _contest(stages, other, stages.allocation(other, None))
    if stages.options.records == "off":  # evaluations picked because they are high are likelier than noise makes them
        contest = dataclasses.replace(contest, forecast=stages.forecast(main))
    contest = dataclasses.replace(contest, resampled=resampled)
    recommendations = {}
    for budget in budgets:
        advice = allocate(budget, contest)
        if fitted and rivals:
            rival = allocate(budget, rivals)
            if rival.run not in (advice.run, allocate(budget, fitted).run):
                advice = _doubted(advice, rival, rule)
        recommendations[budget] = advice
    return recommendations


def _doubted(advice: Recommendation, rival: Recommendation, rule: Records) -> Recommendation:
    """The advice with the doubt that another choice of evaluations gives another one; of a tie that is no doubt."""
    reason = f"With {RULES[rule]} (--records={rule}) {rival.run} would lead"
    if rival.run in advice.tied:
        return dataclasses.replace(advice, reasons=(*advice.reasons, f"{reason}."))
    reason += ": the answer depends on which evaluations are fitted."
    return dataclasses.replace(
        advice,
        status="warning",
        reasons=(*advice.reasons, reason),
        doubts=(*advice.doubts, reason),
        by_records=rival.run,
    )


def _contest(stages: Stages, found: MetricAnalysis, allocation: AllocationFit) -> Contest:
    """The curves of a metric as they were fitted."""
    return Contest(
        fits=found.fits,
        configurations=found.configurations,
        allocation=allocation,
        learning_rate=stages.options.learning_rate or _learning_rate(stages.groups),
        reward_range=stages.options.read.reward_range,
        measured=found.budgets,
        rollouts=found.rollouts,
    )


def disagreement(records: Records, by_records: Mapping[str, MetricAnalysis]) -> list[str]:
    """A warning where the choice of evaluations decides who leads where the data end."""
    last = {}
    for rule in (records, OTHER_RULE[records]):
        found = by_records[rule]
        if not found.frontier.segments:
            return []
        last[rule] = found.frontier.segments[-1].run
    if len(set(last.values())) == 1:
        return []
    each = "; ".join(f"{name} with {RULES[rule]} (--records={rule})" for rule, name in last.items())
    return [f"who leads where the data end depends on which evaluations are fitted: {each}"]


def _learning_rate(groups: Sequence[ConfigurationRuns]) -> LearningRate | dict[str, OwnRate]:
    """The rule in the runs' own config.json when they share one, else the rates that their tables have."""
    names = ("base_lr", "base_batch", "lr_scaling_exponent")
    rules = set()
    for run in (run for group in groups for run in group.runs):
        found = {key.rsplit(".", 1)[-1]: value for key, value in run.identity.items() if ".optimizer." in f".{key}"}
        rules.add(tuple(found.get(name) for name in names))
    if len(rules) != 1:
        return _own_rates(groups)
    values = [value for value in rules.pop() if isinstance(value, int | float) and not isinstance(value, bool)]
    if len(values) != len(names):
        return _own_rates(groups)
    base, batch, exponent = map(float, values)
    return LearningRate(base, batch, exponent, f"that of the runs ({base:g} at {batch:,.0f} rollouts per step)")


def _own_rates(groups: Sequence[ConfigurationRuns]) -> dict[str, OwnRate]:
    """Name -> the rate of a configuration's runs, which is the highest of each one's schedule; where they have any."""
    found: dict[str, OwnRate] = {}
    for group in groups:
        schedules = [run.learning_rates for run in group.runs if run.learning_rates is not None]
        rates = sorted({most for _, most in schedules})
        if len(rates) == 1:
            highest = "the highest of its runs' schedule" if any(a < b for a, b in schedules) else "that of its runs"
            found[group.configuration.name] = rates[0], f"The learning rate is {highest}."
        elif rates:
            text = f"Its runs had learning rates from {rates[0]:g} to {rates[-1]:g}, so none is named."
            found[group.configuration.name] = None, text
    return found


def answer(
    advice: Recommendation,
    main: MetricAnalysis,
    resampled: Bootstrap | None,
    by_seed: Mapping[int, MetricAnalysis],
    forms: Mapping[FormName, Sequence[CurveFit]],
    choice: FormChoice | None,
) -> BudgetAnswer:
    """A recommendation with its confidence and what speaks against it.

    Args:
      advice: the recommendation.
      main: of the metric.
      resampled: replicates of the frontier; None without.
      by_seed: seed -> the analysis of it alone.
      forms: form -> fits of the same points.
      choice: which form fits best; None where nothing tells.
    """
    group_sizes = {each.name: each.group_size for each in main.configurations}
    if advice.run not in group_sizes:  # the budget pays no step of any
        return BudgetAnswer(advice, None, None, (), "unknown", ())
    share, rival = _lead(advice, main, resampled)
    sizes = {group_sizes[run] for run in (advice.run, *advice.tied)}
    answered = BudgetAnswer(
        recommendation=advice,
        share=share,
        rival=rival,
        tied_group_sizes=tuple(sorted(sizes)) if advice.tied else (),
        confidence="unknown",
        objections=tuple(_objections(advice, main, resampled, by_seed, forms, choice)),
    )
    contradicted = bool(answered.contradicted_by)
    confidence = _confidence(share, tied=bool(advice.tied), contradicted=contradicted, seen=advice.seen)
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


def _lead(
    advice: Recommendation, main: MetricAnalysis, resampled: Bootstrap | None
) -> tuple[float | None, tuple[str, float] | None]:
    """In which share of the forecast's draws, or else of the replicates, it leads, and the strongest rival."""
    if math.isfinite(advice.best_share):
        return advice.best_share, advice.rival
    leaders = None if resampled is None else carried_leaders(resampled, main.fits, advice.budget)
    if leaders is None:
        return None, None
    shares = collections.Counter(main.configurations[i].name for i in leaders.tolist())
    share = shares.pop(advice.run, 0) / len(leaders)
    rival = next(iter(shares.most_common(1)), None)
    return share, rival and (rival[0], rival[1] / len(leaders))


def _objections(
    advice: Recommendation,
    main: MetricAnalysis,
    resampled: Bootstrap | None,
    by_seed: Mapping[int, MetricAnalysis],
    forms: Mapping[FormName, Sequence[CurveFit]],
    choice: FormChoice | None,
) -> list[Objection]:
    """See `answer`; in the order in which a reader is given them."""
    rows = []
    drawn = not math.isnan(advice.best_share)
    if advice.stop is None and not (drawn and advice.place == "beyond"):  # compared at the budget, or the data's end
        rows += _other_form(advice, main, forms, choice)
        rows += _evaluations(advice, main)
        rows += _seeds(advice, by_seed)
    if advice.unseen:
        rows.append(Objection("unseen", size=len(advice.unseen)))
    if advice.left_out:
        rows.append(Objection("left_out", size=len(advice.left_out)))
    if not main.has_noise_estimate:
        rows.append(Objection("one_seed"))
    if resampled is not None and resampled.seeds_differ:
        rows.append(Objection("seeds_differ"))
    outliers = {c.name: len(fit.outliers) for c, fit in zip(main.configurations, main.fits, strict=True)}
    if outliers[advice.run]:
        rows.append(Objection("outliers", size=outliers[advice.run]))
    sizes = {each.group_size for each in main.configurations}
    if len(sizes) > 1 and 0 not in sizes:
        if advice.group_size == max(sizes):
            rows.append(Objection("largest"))
        elif advice.group_size == min(sizes):
            rows.append(Objection("smallest"))
    return rows


def _leading_run(analysis: MetricAnalysis, budget: float, fits: Sequence[CurveFit] | None = None) -> str | None:
    index = analysis.leader(budget, fits)
    return None if index is None else analysis.configurations[index].name


def _other_form(
    advice: Recommendation,
    main: MetricAnalysis,
    forms: Mapping[FormName, Sequence[CurveFit]],
    choice: FormChoice | None,
) -> list[Objection]:
    """Another form that fits clearly better, and who leads by it."""
    used = {*advice.forms, *(fit.form for fit in main.fits)}
    if choice is None or choice.best in used or choice.strength != "clear":
        return []
    run = _leading_run(main, advice.budget, forms[choice.best])
    same = (advice.run, *advice.tied)
    return [] if run is None else [Objection("form", "" if run in same else run, choice.best, choice.ahead)]


def _evaluations(advice: Recommendation, main: MetricAnalysis) -> list[Objection]:
    """Who is ahead by the evaluations alone, where the recommended configuration is not."""
    budget = nearest(main.budgets, advice.budget)
    index = [each.name for each in main.configurations].index(advice.run)
    own = main.configurations[index]
    if budget is None or own in budget.tied:
        return []
    best, leader = budget.best_run, _leading_run(main, budget.compute)
    if best == leader != _leading_run(main, advice.budget):
        return []  # the curves agree with the evaluations where these are, on the other side of a switch
    ahead = float(budget.reward - budget.mean[index])
    if not math.isfinite(ahead) or (best in (advice.run, *advice.tied) and own not in budget.behind):
        return []
    return [Objection("evaluations", best, size=ahead)]


def _seeds(advice: Recommendation, by_seed: Mapping[int, MetricAnalysis]) -> list[Objection]:
    """How many seeds have another leader, and which one most of them."""
    leaders = [_leading_run(each, advice.budget) for each in by_seed.values()]
    others = collections.Counter(run for run in leaders if run and run not in (advice.run, *advice.tied))
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
