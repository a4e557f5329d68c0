"""What one section of the report says of the results: numbers and verdicts that nobody else reads."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from isocompute_jax.fit.curves.seeds import SAME_COMPUTE
from isocompute_jax.fit.frontier.standings import Budget
from isocompute_jax.fit.frontier.switches import SwitchResult
from isocompute_jax.fit.read import SOLVE_SHARES
from isocompute_jax.fit.stages import MetricAnalysis
from isocompute_jax.fit.sweep_results import CurveResult, FrontierResult, SweepResult

LARGE_RESIDUAL = 3.0
"""Residuals of more than so many standard deviations of the noise are pointed out."""


def never_rises(result: SweepResult) -> bool:
    """Whether no evaluation of any configuration is above the least reward that there is: nothing was solved."""
    least = result.options.read.reward_range[0]
    return all(bool(np.all(curve.points.reward <= least)) for curve in result.curves)


def last_leader(result: SweepResult) -> tuple[CurveResult, float, float]:
    """The highest last evaluation: its curve, reward and compute."""
    ended = [curve for curve in result.curves if len(curve.points.reward)]
    best = max(ended, key=lambda curve: curve.points.reward[-1])
    return best, float(best.points.reward[-1]), float(best.points.compute[-1])


def curves_with_asymptote(result: SweepResult) -> list[CurveResult]:
    """The fitted curves whose A is identified."""
    return [curve for curve in result.fitted if curve.identified()]


def held_asymptote(result: SweepResult) -> float | None:
    """The A that every curve was given (--fix holds a parameter of all of them); None where it was fitted."""
    held = [curve.fit.asymptote for curve in result.fitted if "asymptote" in curve.held]
    return held[0] if held else None


def typical(result: SweepResult, name: Literal["noise", "correlation"]) -> dict[str, float] | None:
    """Median, least, most and count of a number of the residuals, over the curves that give one; None without."""
    known = [value for curve in result.with_noise if math.isfinite(value := getattr(curve.fit, name))]
    if not known:
        return None
    return {"median": statistics.median(known), "least": min(known), "most": max(known), "count": len(known)}


def large_residuals(result: SweepResult) -> list[tuple[CurveResult, float, float]]:
    """Fitted evaluations far from their curve: the curve, compute, and residual in units of the noise."""
    found = []
    for curve in result.with_noise:
        rest = curve.residuals
        rows = zip(rest.compute.tolist(), rest.reward.tolist(), rest.used, strict=True)
        found += [(curve, compute, t) for compute, t, used in rows if used and abs(t) > LARGE_RESIDUAL]
    return found


def num_not_fitted(result: SweepResult) -> int:
    """Evaluations that the choice of points left out."""
    return sum(int(np.count_nonzero(~np.asarray(curve.points.used, bool))) for curve in result.with_noise)


def relative_end(curve: CurveResult) -> float | None:
    """How far the data reach in units of C_mid, where that is identified or held."""
    midpoint = curve.fit.params.get("midpoint")
    sure = curve.identified("midpoint") or "midpoint" in curve.held
    return curve.fit.window[1] / midpoint if sure and midpoint else None


def holdout_totals(result: SweepResult) -> dict[str, float] | None:
    """Predictions of all curves together: how many were held out and lie in their interval, and the misses."""
    found = [curve.holdout for curve in result.curves if curve.holdout]
    if not found:
        return None
    count = sum(row.num_points for row in found)
    return {
        "num_points": count,
        "inside": sum(row.coverage * row.num_points for row in found),
        "mean_abs_error": sum(row.mean_abs_error * row.num_points for row in found) / count,
        "bias": sum(row.bias * row.num_points for row in found) / count,
    }


def fallen_leaders(result: SweepResult) -> list[SwitchResult]:
    """The changes of the leader where it collapses."""
    peaks = {curve.run: curve.fit.window[1] for curve in result.curves if curve.fit.fall}
    return [
        switch
        for switch in result.frontier.switches
        if switch.cause == "range"
        and math.isclose(peaks.get(switch.from_run, math.nan), switch.compute, rel_tol=SAME_COMPUTE)
    ]


def epochs(frontier: FrontierResult) -> Literal["near one", "later", "earlier", "mixed"]:
    """Where the crossings lie against one epoch."""
    values = [switch.epochs for switch in frontier.with_epochs]
    if all(0.5 <= value <= 2 for value in values):
        return "near one"
    return "later" if min(values) > 2 else "earlier" if max(values) < 0.5 else "mixed"


def steps(frontier: FrontierResult) -> dict[str, float] | None:
    """How the best number of steps moves along the frontier; None where it is unknown, goes up and down, or stays."""
    values = [row.num_steps or 0.0 for row in frontier.budgets]
    ordered = values in (sorted(values), sorted(values, reverse=True))
    if not values or not all(values) or values[0] == values[-1] or not ordered:
        return None
    spread = frontier.budgets[-1].compute / frontier.budgets[0].compute
    return {"first": values[0], "last": values[-1], "growth": values[-1] / values[0], "compute_growth": spread}


def tie_ranges(budgets: Sequence[Budget]) -> list[list[Budget]]:
    """Neighbouring budgets with the same best configuration by the evaluations, and the same ties."""
    alike = itertools.groupby(budgets, key=lambda row: (row.best_run, tuple(row.rivals)))
    return [list(group) for _, group in alike]


def choice_rows(choices: Mapping[str, MetricAnalysis]) -> list[tuple[float, float, tuple[str | None, ...]]]:
    """Neighbouring budgets with the same leaders: the first, the last, and who leads under each rule."""
    leaders = [{point.compute: point.run for point in choice.leading} for choice in choices.values()]
    budgets = sorted({compute for runs in leaders for compute in runs})
    alike = itertools.groupby(budgets, key=lambda compute: tuple(runs.get(compute) for runs in leaders))
    return [(some[0], some[-1], runs) for runs, group in alike if (some := list(group))]


def choices_compared(result: SweepResult) -> dict[str, Any]:
    """Whether the frontier depends on which evaluations count.

    Returns:
      `crossings`: rule -> its crossings; `alike`: whether all rules have the same; `widest`: by which share the
      computes of the same crossing differ at most, 0 without.
    """
    choices = result.record_choices.items()
    found = {rule: [s for s in choice.frontier.switches if s.cause == "crossing"] for rule, choice in choices}
    courses = [[(s.from_run, s.to_run) for s in switches] for switches in found.values()]
    alike = all(course == courses[0] for course in courses)
    widest = 0.0
    if alike and courses and courses[0]:
        computes = [[s.compute for s in switches] for switches in found.values()]
        widest = max(max(at) / min(at) for at in zip(*computes, strict=True)) - 1
    return {"crossings": found, "alike": alike, "widest": widest}


def largest_budgets(result: SweepResult) -> dict[str, Budget]:
    """Target -> its best at the largest budget that compares configurations."""
    return {name: rows[-1] for name, found in result.targets.items() if (rows := found.compared)}


def coverage_wants_larger_n(result: SweepResult) -> Literal["coverage", "sharpening", "same", ""]:
    """Which of best@k and worst@k asks for the larger n at the largest budget; empty where that cannot be told."""
    last = largest_budgets(result)
    best = next((row for name, row in last.items() if name.startswith("best@")), None)
    worst = next((row for name, row in last.items() if name.startswith("worst@")), None)
    if best is None or worst is None or not result.known_sizes:
        return ""
    larger = best.wants_larger_n(worst)
    return "same" if larger is None else "coverage" if larger else "sharpening"


def entropy_moves(result: SweepResult) -> list[dict[str, Any]]:
    """First and last entropy, in nats per token, of each `run` that has two or more, and whether it falls."""
    found = [(each.name, series["entropy"].reward) for each, series in result.training.items() if "entropy" in series]
    return [
        {"run": run, "first": mean[0], "last": mean[-1], "falls": mean[-1] < mean[0]}
        for run, mean in found
        if len(mean) >= 2
    ]


def last_solve_shares(result: SweepResult) -> list[dict[str, Any]]:
    """Shares of evaluation problems by solve rate at the end of each `run` that has them."""
    return [
        {"run": each.name, **{name: series[name].reward[-1] for name in SOLVE_SHARES}}
        for each, series in result.training.items()
        if all(name in series for name in SOLVE_SHARES)
    ]
