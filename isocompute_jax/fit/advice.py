"""How to spend a budget, held against the other choice of evaluations: who leads must not hang on which were fitted."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from isocompute_jax.fit.curves.screening import Records
from isocompute_jax.fit.curves.seeds import ConfigurationRuns
from isocompute_jax.fit.frontier.bootstrap import Bootstrap
from isocompute_jax.fit.frontier.recommendation import LearningRate, OwnRate, allocate
from isocompute_jax.fit.metric_analysis import MetricAnalysis
from isocompute_jax.fit.results import AllocationFit, Recommendation
from isocompute_jax.fit.stages import Stages
from isocompute_jax.records.errors import InputError

RULES: dict[Records, str] = {
    "off": "all evaluations",
    "strict": "record-breaking evaluations alone",
    "bucketed": "evaluations that reach a new bin",
}
"""What each choice of evaluations fits, in words."""

OTHER_RULE: dict[Records, Records] = {"off": "strict", "strict": "off", "bucketed": "off"}
"""The choice that an answer is held against."""


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
    law = stages.allocation(other, None) if other.frontier.segments else None
    found = {}
    for budget in budgets:
        advice = _allocate(budget, stages, main, allocation, resampled)
        if law is not None:  # both by their fitted curves, or the two would differ in more than the evaluations
            fitted = _allocate(budget, stages, main, allocation, None, forecast=False)
            rival = _allocate(budget, stages, other, law, None, forecast=False)
            if rival.run not in (advice.run, fitted.run):
                advice = _doubted(advice, rival, rule)
        found[budget] = advice
    return found


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


def _allocate(
    budget: float,
    stages: Stages,
    found: MetricAnalysis,
    allocation: AllocationFit,
    resampled: Bootstrap | None,
    *,
    forecast: bool = True,
) -> Recommendation:
    options = stages.options
    unpicked = options.records == "off"  # evaluations picked because they are high are likelier than noise makes them
    return allocate(
        budget,
        fits=found.fits,
        configurations=[curve.configuration for curve in found.curves],
        frontier=found.frontier,
        allocation=allocation,
        learning_rate=options.learning_rate or _learning_rate(stages.groups),
        reward_range=options.read.reward_range,
        resampled=resampled,
        forecast=stages.forecast(found) if forecast and unpicked else None,
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
        last[rule] = found.curves[found.frontier.segments[-1].index].configuration.name
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
    found = {}
    for group in groups:
        schedules = [run.learning_rates for run in group.runs if run.learning_rates is not None]
        rates = sorted({most for _, most in schedules})
        if len(rates) == 1:
            highest = "the highest of its runs' schedule" if any(a < b for a, b in schedules) else "that of its runs"
            found[group.configuration.name] = OwnRate(rates[0], f"The learning rate is {highest}.")
        elif rates:
            text = f"Its runs had learning rates from {rates[0]:g} to {rates[-1]:g}, so none is named."
            found[group.configuration.name] = OwnRate(None, text)
    return found
