"""How to spend each budget; who leads must not hang on which evaluations are fitted, so two choices are compared."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from isocompute_jax.fit.curves.screening import Records
from isocompute_jax.fit.curves.seeds import ConfigurationRuns
from isocompute_jax.fit.frontier.bootstrap import Bootstrap
from isocompute_jax.fit.frontier.envelope import data_end
from isocompute_jax.fit.frontier.recommendation import Contest, LearningRate, OwnRate, allocate
from isocompute_jax.fit.metric_analysis import MetricAnalysis
from isocompute_jax.fit.results import AllocationFit, CurveFit, Recommendation
from isocompute_jax.fit.stages import Stages
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
    found = {}
    for budget in budgets:
        advice = allocate(budget, contest)
        if fitted and rivals:
            rival = allocate(budget, rivals)
            if rival.run not in (advice.run, allocate(budget, fitted).run):
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
