"""The facts that sentences are made of: numbers and names of a sweep, and of one answer, ready to be said.

A sentence has no number of its own: terminal, page and README fill the same macros with the same facts.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from isocompute_jax.fit.configurations import Configuration, spoken_rate
from isocompute_jax.fit.frontier.answers import LIKELY, MATERIAL, REACHED
from isocompute_jax.fit.report.wording import Rewards, amount, names, short
from isocompute_jax.fit.results import AnswerRange, BudgetAnswer, NextRun, ScheduleResult, SweepResult

UNITS = {"rollouts": "rollouts", "tokens": "tokens", "gpu_hours": "GPU-hours", "steps": "steps"}
MOST_ALTERNATIVES = 5


def rewards_of(result: SweepResult) -> Rewards:
    """Returns how the rewards of a sweep are written."""
    measured = [reward[np.isfinite(reward)] for band in result.curves for _, reward in band.points]
    every = np.concatenate([np.empty(0), *measured])
    return Rewards.of(result.options.read.reward_range, float(np.ptp(every)) if len(every) else 0.0)


def unit_of(result: SweepResult) -> str:
    """Returns the word for what compute is counted in."""
    return UNITS[result.options.read.compute]


def data_facts(result: SweepResult) -> dict[str, Any]:
    """Returns what sentences say about the data."""
    data, say = result.data, rewards_of(result)
    sizes = sorted({band.configuration.group_size for band in result.curves} - {0})
    least, most = data.seeds
    kind, _, samples = result.metric.partition("@")
    return {field.name: getattr(data, field.name) for field in dataclasses.fields(data)} | {
        "seed_count": str(least) if least == most else f"{least} to {most}",
        "one_seed": most == 1,
        "evaluation_count": f"{data.evaluations:,}",
        "unit": unit_of(result),
        "data_end": amount(data.span[1]),
        "common_compute": amount(data.common_end),
        "metric": result.metric,
        "kind": kind if samples.isdigit() else "",
        "samples": samples,
        "sizes": _span(sizes),
        "num_sizes": len(sizes),
        "n_varies": "group_size" in data.varies,
        "beside": [name for name in data.varies if name != "group_size"],
        "rises": data.trend == "rise",
        "gain_bound": say.difference(max(data.gain[1], 0.0)),
        "gain_unknown": not math.isfinite(data.gain[1]),
        "fallen_names": names(data.fallen) if data.fallen else "",
        "points": say.percent,
    }


def answer_facts(result: SweepResult, answer: BudgetAnswer) -> dict[str, Any]:
    """Returns what sentences say about one answer: some thirty facts, and those of the data."""
    say, best = rewards_of(result), answer.advised
    config, data = best.configuration, data_facts(result)
    every = [band.configuration for band in result.curves]
    sizes = {each.group_size for each in every} - {0}
    rivals = [each for each in answer.choices[1:] if each.best_share >= LIKELY] or list(answer.choices[1:2])
    not_run = [each for each in (best, *rivals) if each.stop > REACHED * each.data_end]
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
        "stops_early": best.stop < answer.budget / REACHED,
        "verdict": answer.verdict,
        "reason": answer.reason,
        "named": names(answer.named),
        "several_named": len(answer.named) > 1,
        "all_named": len(answer.named) == len(answer.choices),
        "cheapest": short(answer.cheapest.name) if answer.cheapest else "",
        "cheapest_by_steps": best.num_steps is not None,
        "rivals": names([each.configuration for each in rivals], "or", most=4) if rivals else "",
        "not_run": names([each.configuration for each in not_run], most=4) if not_run else "",
        "material": f"{MATERIAL * result.options.width:.3g}",
        "reward": say.value(best.reward),
        "interval": say.interval(best.interval95),
        "run_interval": say.interval(best.run95, like=best.interval95),
        "alternatives": _alternatives(answer, say),
        "beyond": f"{answer.budget / far:.1f}" if answer.budget > REACHED * far else "",
        "stop_beyond": f"{best.beyond:.1f}" if best.beyond > REACHED else "",
        "at_largest": len(sizes) > 1 and config.group_size == max(sizes),
        "rates": _rates(every),
        "batches": _span(sorted({each.problems_per_batch for each in every if each.problems_per_batch})),
        "best_row": _best_row(result, say),
        "next_asked": bool(result.next_runs),
    }


def _span(values: Sequence[int]) -> str:
    return " to ".join(str(value) for value in dict.fromkeys((values[0], values[-1]))) if values else ""


def _rates(every: Sequence[Configuration]) -> str:
    """Says how many learning rates were tried: `unknown`, `one`, `by size` (one for each n and batch), or `several`."""
    if not all(each.learning_rate for each in every):
        return "unknown"
    if len({each.learning_rate for each in every}) == 1:
        return "one"
    by_size: dict[tuple[int, int], set[float]] = {}
    for each in every:
        by_size.setdefault((each.group_size, each.problems_per_batch), set()).add(each.learning_rate)
    return "by size" if all(len(rates) == 1 for rates in by_size.values()) else "several"


def _alternatives(answer: BudgetAnswer, say: Rewards) -> list[dict[str, str]]:
    """Returns the price of choosing otherwise, the least first; of many the first ones and the last."""
    others = sorted(answer.choices[1:], key=lambda each: each.cost)
    if len(others) > MOST_ALTERNATIVES:
        others = [*others[: MOST_ALTERNATIVES - 1], others[-1]]
    return [
        {
            "name": short(each.configuration.name),
            "stop": amount(each.stop) if each.stop < answer.budget / REACHED else "",
            "cost": say.difference(each.cost),
        }
        for each in others
    ]


def _best_row(result: SweepResult, say: Rewards) -> dict[str, str] | None:
    """Finds the highest evaluation."""
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
    """Joins neighbouring ranges with one advised configuration: its name, and where it begins and ends."""
    groups = [list(group) for _, group in itertools.groupby(ranges, key=lambda each: each.advised)]
    called = [short(group[0].advised.name) for group in groups]
    if all(re.fullmatch(r"n = \d+", name) for name in called):
        called[1:] = [name.removeprefix("n = ") for name in called[1:]]
    return [
        {"name": name, "from": amount(group[0].start), "to": amount(group[-1].end)}
        for name, group in zip(called, groups, strict=True)
    ]


def next_facts(result: SweepResult, run: NextRun) -> dict[str, Any]:
    """Returns what sentences say about a run to add."""
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
    }


def schedule_facts(result: SweepResult, found: ScheduleResult) -> dict[str, Any]:
    """Returns what sentences say about a schedule and the best fixed n."""
    say = rewards_of(result)
    return {
        "name": short(found.schedule),
        "seeds": len(found.seeds),
        "compute": amount(found.compute),
        "reward": say.value(found.reward),
        "fixed": short(found.best_fixed.name),
        "difference": say.difference(abs(found.difference)),
        "above": found.difference >= 0,
        "difference95": say.interval(found.difference95),
        "metric": result.metric,
    }


def budgets_of(result: SweepResult) -> list[BudgetAnswer]:
    """Returns every prepared answer, by budget: those of the grid and those that were asked for."""
    found = {answer.budget: answer for answer in (*result.grid, *result.asked)}
    return [found[budget] for budget in sorted(found)]


def in_order(configurations: Sequence[Configuration]) -> list[Configuration]:
    """Sorts configurations by n, B_problem and learning rate, then by name."""
    return sorted(configurations, key=lambda e: (e.group_size, e.problems_per_batch, e.learning_rate, e.name))
