"""What the report's script knows: every curve, and the answer at each budget of a grid, in words, as JSON."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
from matplotlib.colors import to_hex

from isocompute_jax.fit.answer_results import Chart
from isocompute_jax.fit.plain_data import plain
from isocompute_jax.fit.report.answers import AnswerText, answer_text, pick
from isocompute_jax.fit.report.figures import by_configuration
from isocompute_jax.fit.report.wording import amount, spent, unit
from isocompute_jax.fit.sweep_results import SweepResult

DIGITS = 5
"""Significant digits of a number that is only drawn."""


def interactive_data(result: SweepResult) -> str:
    """JSON that may stand inside of a script element: no `<` is in it."""
    budgets = [answer.budget for answer in result.answers]
    if not budgets:
        return ""
    start = budgets.index(result.asked[0].budget) if result.asked else len(budgets) - 1
    content = {
        "unit": unit(result),
        "metric": result.metric,
        "budgets": budgets,
        "labels": [amount(budget) for budget in budgets],
        "start": start,
        "asked": [budgets.index(answer.budget) for answer in result.asked],
        "metrics": {name: _metric(result, chart, budgets) for name, chart in result.charts.items()},
    }
    return json.dumps(plain(content), separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _metric(result: SweepResult, chart: Chart, budgets: list[float]) -> dict[str, Any]:
    colours = by_configuration.colours(result)
    batches = sorted({curve.problems_per_batch for curve in chart.curves})
    places = {curve.run: i for i, curve in enumerate(chart.curves)}
    main = chart.metric == result.metric
    return {
        "curves": [
            {
                "name": curve.run,
                "colour": to_hex(colours[curve.run]),
                "dash": batches.index(curve.problems_per_batch),
                "x": _short(curve.compute),
                "y": _short(curve.reward),
                "used": curve.used.astype(int),
                "lineX": _short(curve.line_compute),
                "lineY": _short(curve.line_reward),
                "peak": curve.peak,
            }
            for curve in chart.curves
        ],
        "segments": [(places[run], start, end) for run, start, end in _leads(result, chart)],
        "answers": [_own(result, i) if main else _other(result, chart, budget) for i, budget in enumerate(budgets)],
    }


def _leads(result: SweepResult, chart: Chart) -> list[tuple[str, float, float]]:
    """Who is best from where to where: the answers, where one n is the best; of other metrics the fitted frontier."""
    if chart.metric == result.metric and result.ranges:
        return result.leads
    return [(segment.run, segment.start, segment.end) for segment in chart.segments]


def _own(result: SweepResult, index: int) -> dict[str, Any]:
    """The metric's own answer, with the reward and interval to draw."""
    found = result.answers[index]
    row = found.recommendation
    return dataclasses.asdict(answer_text(result, found)) | {
        "reward": row.reward,
        "interval": row.interval95,
        "stop": row.stop,
    }


def _other(result: SweepResult, chart: Chart, budget: float) -> dict[str, Any]:
    """Who leads in another metric: its curves are fitted, and not resampled."""
    question = f"With up to {spent(result, budget)}"
    if budget not in chart.leaders:
        text = AnswerText(question, "not known", expectation=f"No curve of {chart.metric} reaches this budget.")
        return dataclasses.asdict(text) | {"reward": None, "interval": None}
    run, reward = chart.leaders[budget]
    size = next(curve.group_size for curve in chart.curves if curve.run == run)
    text = AnswerText(
        question,
        pick(result, size, run),
        expectation=f"Its fitted curve reaches {chart.metric} {reward:z.3f} there; no interval was computed.",
        level="unknown",
        label="Not resampled",
        certainty=f"Steps, intervals and ties are given for {result.metric} alone.",
    )
    return dataclasses.asdict(text) | {"reward": reward, "interval": None}


def _short(values: np.ndarray) -> list[float]:
    return [float(f"{value:.{DIGITS}g}") for value in values]
