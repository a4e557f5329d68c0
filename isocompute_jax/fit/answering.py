"""From recommendations to answers: how sure each is, what speaks against it, and over which budgets it holds."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence

import numpy as np

from isocompute_jax.fit.analysis import Analysis
from isocompute_jax.fit.answer_results import (
    LIKELY,
    BudgetAnswer,
    BudgetRange,
    Chart,
    Confidence,
    DrawnCurve,
    Objection,
)
from isocompute_jax.fit.curve_results import FormChoice
from isocompute_jax.fit.frontier.envelope import carried, leader
from isocompute_jax.fit.frontier.recommendation import carried_leaders
from isocompute_jax.fit.frontier.ties import nearest
from isocompute_jax.fit.frontier_results import SURE, SegmentResult
from isocompute_jax.fit.metric_analysis import MetricAnalysis
from isocompute_jax.fit.results import CurveFit, Recommendation, Switch

LINE_POINTS = 48
"""Of a curve's line in the interactive picture."""


def answer(analysis: Analysis, found: Recommendation, choice: FormChoice | None) -> BudgetAnswer:
    """A recommendation with its confidence and what speaks against it.

    Args:
      analysis: of the sweep.
      found: the recommendation.
      choice: which form of curve fits best; None where nothing tells.
    """
    main = analysis.main
    if found.run not in [curve.configuration.name for curve in main.curves]:  # the budget pays no step of any
        return BudgetAnswer(found, None, None, (), "unknown", ())
    share, rival = _lead(analysis, found)
    tied, objections = found.tied, tuple(_objections(analysis, found, choice))
    sizes = {c.configuration.group_size for c in main.curves if c.configuration.name in tied} | {found.group_size}
    answered = BudgetAnswer(
        recommendation=found,
        share=share,
        rival=rival,
        tied_group_sizes=tuple(sorted(sizes)) if tied else (),
        confidence="unknown",
        objections=objections,
    )
    contradicted = bool(answered.contradicted_by)
    confidence = _confidence(share, tied=bool(tied), contradicted=contradicted, seen=found.seen)
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


def _lead(analysis: Analysis, found: Recommendation) -> tuple[float | None, tuple[str, float] | None]:
    """In which share of the forecast's draws, or else of the replicates, it leads, and the strongest rival."""
    if math.isfinite(found.best_share):
        return found.best_share, found.rival
    if analysis.resampled is None:
        return None, None
    leaders = carried_leaders(analysis.resampled, analysis.main.fits, found.budget)
    if leaders is None:
        return None, None
    names = [curve.configuration.name for curve in analysis.main.curves]
    shares = collections.Counter(names[i] for i in leaders.tolist())
    share = shares.pop(found.run, 0) / len(leaders)
    rival = next(iter(shares.most_common(1)), None)
    return share, rival and (rival[0], rival[1] / len(leaders))


def _objections(analysis: Analysis, found: Recommendation, choice: FormChoice | None) -> list[Objection]:
    main, same = analysis.main, {found.run, *found.tied}
    rows = []
    drawn = not math.isnan(found.best_share)
    if found.stop is None and not (drawn and found.place == "beyond"):  # these compare at the budget, or the data's end
        rows += _other_form(analysis, found, same, choice)
        rows += _evaluations(main, found, same)
        rows += _seeds(analysis.by_seed, found, same)
    if found.unseen:
        rows.append(Objection("unseen", size=len(found.unseen)))
    if found.left_out:
        rows.append(Objection("left_out", size=len(found.left_out)))
    if not any(math.isfinite(budget.seed_sd) for budget in main.budgets):
        rows.append(Objection("one_seed"))
    if analysis.resampled is not None and analysis.resampled.seeds_differ:
        rows.append(Objection("seeds_differ"))
    left_out = next(
        len(f.outliers) for c, f in zip(main.curves, main.fits, strict=True) if c.configuration.name == found.run
    )
    if left_out:
        rows.append(Objection("outliers", size=left_out))
    sizes = {curve.configuration.group_size for curve in main.curves}
    if len(sizes) > 1 and 0 not in sizes:
        if found.group_size == max(sizes):
            rows.append(Objection("largest"))
        elif found.group_size == min(sizes):
            rows.append(Objection("smallest"))
    return rows


def _leader(found: MetricAnalysis, budget: float, fits: Sequence[CurveFit] | None = None) -> int | None:
    """Number of the curve that is the highest at a budget (see `envelope.leader`), or by other `fits` of the points."""
    reached = [float(curve.compute.max(initial=0.0)) for curve in found.curves]
    return leader(fits or found.fits, [curve.configuration for curve in found.curves], budget, reached=reached)


def _leading_run(found: MetricAnalysis, budget: float) -> str | None:
    index = _leader(found, budget)
    return None if index is None else found.curves[index].configuration.name


def _other_form(
    analysis: Analysis, found: Recommendation, same: set[str], choice: FormChoice | None
) -> list[Objection]:
    """Another form that fits clearly better, and who leads by it."""
    used = {*found.forms, *(fit.form for fit in analysis.main.fits)}
    if choice is None or choice.best in used or choice.strength != "clear":
        return []
    main = analysis.main
    index = _leader(main, found.budget, analysis.forms[choice.best])
    if index is None:
        return []
    name = main.curves[index].configuration.name
    return [Objection("form", "" if name in same else name, choice.best, choice.ahead)]


def _evaluations(main: MetricAnalysis, found: Recommendation, same: set[str]) -> list[Objection]:
    """Who is ahead by the evaluations alone, where the recommended configuration is not."""
    budget = nearest(main.budgets, found.budget)
    names = [curve.configuration.name for curve in main.curves]
    own = names.index(found.run)
    if budget is None or budget.best == own or own in budget.tied:
        return []
    if names[budget.best] == _leading_run(main, budget.compute) != _leading_run(main, found.budget):
        return []  # the curves agree with the evaluations where these are, on the other side of a switch
    ahead = float(budget.mean[budget.best] - budget.mean[own])
    if not math.isfinite(ahead) or (names[budget.best] in same and own not in budget.behind):
        return []
    return [Objection("evaluations", names[budget.best], size=ahead)]


def _seeds(by_seed: Mapping[int, MetricAnalysis], found: Recommendation, same: set[str]) -> list[Objection]:
    """How many seeds have another leader, and which one most of them."""
    leaders = [_leading_run(each, found.budget) for each in by_seed.values()]
    others = collections.Counter(leader for leader in leaders if leader and leader not in same)
    if not others:
        return []
    return [Objection("seeds", others.most_common(1)[0][0], size=others.total(), of=len(leaders))]


def ranges(answers: Sequence[BudgetAnswer], switches: Sequence[Switch], names: Sequence[str]) -> list[BudgetRange]:
    """Neighbouring budgets with the same answer and verdict, or with answers that tie; they meet at the switches.

    Args:
      answers: by budget, in order.
      switches: of the frontier.
      names: [K] of the configurations.
    """
    groups: list[list[BudgetAnswer]] = []
    for each in answers:
        if groups and _alike(groups[-1][-1], each):
            groups[-1].append(each)
        else:
            groups.append([each])
    found, start = [], answers[0].budget if answers else math.nan
    for group, after in itertools.zip_longest(groups, groups[1:]):
        end = group[-1].budget if after is None else _meeting(group[-1], after[0], switches, names)
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


def _meeting(before: BudgetAnswer, after: BudgetAnswer, switches: Sequence[Switch], names: Sequence[str]) -> float:
    """Where one range ends and the next begins: the switch between them, the peak to stop at, the end of the data."""
    for switch in switches:
        pair = names[switch.from_index], names[switch.to_index]
        inside = before.budget <= switch.compute <= after.budget
        if inside and pair == (before.recommendation.run, after.recommendation.run):
            return switch.compute
    a, b = before.recommendation, after.recommendation
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
    run, size = collections.Counter((a.recommendation.run, a.recommendation.group_size) for a in group).most_common()[
        0
    ][0]
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


def chart(found: MetricAnalysis, budgets: Sequence[float]) -> Chart:
    """The picture of a metric, with its leader at each budget by the fitted curves (see `carried`)."""
    curves = tuple(
        DrawnCurve(
            curve.configuration,
            curve.compute,
            curve.reward,
            used,
            *_line(fit),
            peak=(fit.fall.compute, fit.fall.reward) if fit.fall else None,
        )
        for curve, used, fit in zip(found.curves, found.used, found.fits, strict=True)
    )
    segments = tuple(
        SegmentResult(found.curves[s.index].configuration, s.start, s.end) for s in found.frontier.segments
    )
    leaders = {}
    for budget in budgets:
        index = _leader(found, budget)
        if index is not None:
            at = carried(found.fits, budget)[index]
            leaders[budget] = found.curves[index].configuration.name, float(found.fits[index].reward(at))
    return Chart(found.metric, curves, segments, leaders)


def _line(fit: CurveFit) -> tuple[np.ndarray, np.ndarray]:
    if fit.status == "failed" or not fit.window[0] < fit.window[1]:
        return np.empty(0), np.empty(0)
    compute = np.geomspace(*fit.window, LINE_POINTS)
    return compute, fit.reward(compute)
