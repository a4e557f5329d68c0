"""The facts that sentences are made of: numbers and names of a sweep, and of one answer, ready to be said.

A sentence has no number of its own: terminal, page and README fill the same macros with the same facts.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from isocompute_jax.fit.configurations import Configuration, spoken_rate
from isocompute_jax.fit.report.wording import Rewards, amount, listed, names, short
from isocompute_jax.fit.results import Answer, AnswerRange, Choice, NextRun, ScheduleResult, SweepResult

MATERIAL = 0.01
"""Share of the range of rewards that a verdict calls a difference."""
RIVAL = 0.05
"""A configuration that is the best in at least this share of the draws is named as a rival."""
BEYOND = 1.05
"""Data that end less than this factor before a stop count as reaching it."""
UNITS = {"rollouts": "rollouts", "tokens": "tokens", "gpu_hours": "GPU-hours", "steps": "steps"}
MOST_ALTERNATIVES = 5


def rewards_of(result: SweepResult) -> Rewards:
    """How the rewards of a sweep are written."""
    measured = [reward[np.isfinite(reward)] for band in result.curves for _, reward in band.points]
    every = np.concatenate([np.empty(0), *measured])
    return Rewards.of(result.options.read.reward_range, float(np.ptp(every)) if len(every) else 0.0)


def unit_of(result: SweepResult) -> str:
    """What compute is counted in."""
    return UNITS.get(result.options.read.compute, result.options.read.compute)


def data_facts(result: SweepResult) -> dict[str, Any]:
    """What is said of the data."""
    data, say = result.data, rewards_of(result)
    every = [band.configuration for band in result.curves]
    sizes = sorted({each.group_size for each in every if each.group_size})
    least, most = data.seeds
    kind, _, samples = result.metric.partition("@")
    return {
        "runs": data.runs,
        "configurations": data.configurations,
        "seeds": str(least) if least == most else f"{least} to {most}",
        "one_seed": most == 1,
        "some_one_seed": least == 1,
        "evaluations": f"{data.evaluations:,}",
        "evaluations_per_run": data.evaluations_per_run,
        "curves": data.curves,
        "unit": unit_of(result),
        "data_end": amount(data.span[1]),
        "common_end": amount(data.common_end),
        "metric": result.metric,
        "kind": kind if samples.isdigit() else "",
        "samples": samples,
        "held_out": data.held_out,
        "equal": data.equal,
        "sizes": _span(sizes),
        "size_list": listed(sizes),
        "num_sizes": len(sizes),
        "n_varies": "group_size" in data.varies,
        "beside": [name for name in data.varies if name != "group_size"],
        "only_scheduled": data.only_scheduled,
        "rises": data.trend == "rise",
        "gain_bound": say.difference(max(data.gain[1], 0.0)),
        "gain_unknown": not math.isfinite(data.gain[1]),
        "fallen": names(data.fallen) if data.fallen else "",
        "left_out_rows": data.left_out_rows,
        "left_out_runs": data.left_out_runs,
        "notes": data.notes,
        "points": say.percent,
    }


def answer_facts(result: SweepResult, answer: Answer) -> dict[str, Any]:
    """What is said of one answer: some twenty facts, beside those of the data."""
    say, best = rewards_of(result), answer.advised
    config, data = best.configuration, data_facts(result)
    every = [band.configuration for band in result.curves]
    sizes = {each.group_size for each in every if each.group_size}
    rivals = [each for each in answer.choices[1:] if each.best_share >= RIVAL] or list(answer.choices[1:2])
    not_run = [each for each in (best, *rivals) if each.stop > BEYOND * each.data_end]
    far = float(max(band.data_end for band in result.curves))
    return data | {
        "budget": amount(answer.budget),
        "pick": short(config.name),
        "group_size": config.group_size,
        "problems": config.problems_per_batch,
        "steps": "" if best.num_steps is None else f"{best.num_steps:,}",
        "learning_rate": spoken_rate(float(f"{answer.learning_rate:.3g}")) if answer.learning_rate else "",
        "scaled_rate": answer.scaled_rate,
        "stop": amount(best.stop),
        "stops_early": best.stop < answer.budget / BEYOND,
        "verdict": answer.verdict,
        "reason": answer.reason,
        "named": names(answer.named),
        "several_named": len(answer.named) > 1,
        "all_named": len(answer.named) == len(answer.choices),
        "cheapest": short(answer.cheapest.name) if answer.cheapest else "",
        "cheapest_is_advised": answer.cheapest == config,
        "cheapest_by_steps": best.num_steps is not None,
        "rivals": names([each.configuration for each in rivals], "or", most=4) if rivals else "",
        "not_run": names([each.configuration for each in not_run], most=4) if not_run else "",
        "material": f"{MATERIAL * result.options.width:.3g}",
        "reward": say.value(best.reward),
        "interval": say.interval(best.interval95),
        "run_interval": say.interval(best.run95, like=best.interval95),
        "regret": say.difference(answer.expected_regret),
        "alternatives": _alternatives(answer, say),
        "beyond": f"{answer.budget / far:.1f}" if answer.budget > BEYOND * far else "",
        "stop_beyond": f"{best.beyond:.1f}" if best.beyond > BEYOND else "",
        "at_largest": len(sizes) > 1 and config.group_size == max(sizes),
        "at_smallest": len(sizes) > 1 and config.group_size == min(sizes) > 1,
        "rates": _rates(every),
        "batches": _span(sorted({each.problems_per_batch for each in every if each.problems_per_batch})),
        "best_row": _best_row(result, say),
        "next_asked": bool(result.next_runs),
    }


def _span(values: Sequence[int]) -> str:
    return " to ".join(str(value) for value in dict.fromkeys((values[0], values[-1]))) if values else ""


def _rates(every: Sequence[Configuration]) -> str:
    """How many learning rates were tried: `unknown`, `one`, `by size` (one for each n and batch), or `several`."""
    if not all(each.learning_rate for each in every):
        return "unknown"
    if len({each.learning_rate for each in every}) == 1:
        return "one"
    by_size: dict[tuple[int, int], set[float]] = {}
    for each in every:
        by_size.setdefault((each.group_size, each.problems_per_batch), set()).add(each.learning_rate)
    return "by size" if all(len(rates) == 1 for rates in by_size.values()) else "several"


def _alternatives(answer: Answer, say: Rewards) -> list[dict[str, str]]:
    """The price of choosing otherwise, the least first; of many the first ones and the last."""
    others = sorted(answer.choices[1:], key=lambda each: each.cost)
    if len(others) > MOST_ALTERNATIVES:
        others = [*others[: MOST_ALTERNATIVES - 1], others[-1]]
    return [_alternative(each, answer, say) for each in others]


def _alternative(each: Choice, answer: Answer, say: Rewards) -> dict[str, str]:
    early = each.stop < answer.budget / BEYOND
    return {
        "name": short(each.configuration.name),
        "stop": amount(each.stop) if early else "",
        "cost": say.difference(each.cost),
        "cost95": say.interval(each.cost95),
    }


def _best_row(result: SweepResult, say: Rewards) -> dict[str, str] | None:
    """The highest evaluation there is."""
    rows = []
    for band in result.curves:
        for seed, (compute, reward) in zip(band.seeds, band.points, strict=True):
            trained = np.flatnonzero((compute > 0) & np.isfinite(reward))
            if len(trained):
                best = trained[reward[trained].argmax()]
                rows.append((float(reward[best]), float(compute[best]), seed, band))
    if not rows:
        return None
    reward, compute, seed, band = max(rows, key=lambda row: row[0])
    seeds = str(seed) if len(band.seeds) > 1 else ""
    return {"name": short(band.configuration.name), "seed": seeds, "reward": say.value(reward), "at": amount(compute)}


def range_facts(ranges: Sequence[AnswerRange]) -> list[dict[str, str]]:
    """Neighbouring ranges with one advised configuration as one: its name, and where it ends."""
    groups = [list(group) for _, group in itertools.groupby(ranges, key=lambda each: each.advised)]
    return [
        {"name": short(group[0].advised.name), "from": amount(group[0].start), "to": amount(group[-1].end)}
        for group in groups
    ]


def next_facts(result: SweepResult, run: NextRun) -> dict[str, Any]:
    """A run to add."""
    say = rewards_of(result)
    tried = {band.configuration for band in result.curves}
    return {
        "name": short(run.configuration.name),
        "untried": run.configuration not in tried,
        "seeds": run.seeds,
        "compute": amount(run.compute),
        "cost": amount(run.cost),
        "before": say.difference(run.regret_before),
        "after": say.difference(run.regret_after),
        "unit": unit_of(result),
        "metric": result.metric,
    }


def schedule_facts(result: SweepResult, found: ScheduleResult) -> dict[str, Any]:
    """A schedule beside the best fixed n."""
    say = rewards_of(result)
    return {
        "name": short(found.schedule),
        "seeds": len(found.seeds),
        "compute": amount(found.compute),
        "reward": say.value(found.reward),
        "interval": say.interval(found.interval95),
        "fixed": short(found.best_fixed.name),
        "difference": say.difference(abs(found.difference)),
        "above": found.difference >= 0,
        "difference95": say.interval(found.difference95),
        "unit": unit_of(result),
        "metric": result.metric,
    }


def budgets_of(result: SweepResult) -> list[Answer]:
    """Every prepared answer, by budget: those of the grid and those that were asked for."""
    found = {answer.budget: answer for answer in (*result.grid, *result.asked)}
    return [found[budget] for budget in sorted(found)]


def in_order(configurations: Sequence[Configuration]) -> list[Configuration]:
    """By n, then by B_problem, then by name with the numbers in it as numbers."""

    def key(each: Configuration) -> tuple[int, int, list[tuple[str, float]]]:
        parts = re.findall(r"(\D*)(\d*\.?\d*)", each.name)
        return each.group_size, each.problems_per_batch, [(text, float(number or 0)) for text, number in parts]

    return sorted(configurations, key=key)
