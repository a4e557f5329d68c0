"""report.html: one file that opens offline and prints well, for a reader who has not read the papers.

Its script shows every curve, and the answer at each budget of a grid, in words: that is JSON in the page.
"""

from __future__ import annotations

import dataclasses
import importlib.resources
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.colors import to_hex

from isocompute_jax.fit.answer_results import Chart
from isocompute_jax.fit.plain_data import plain
from isocompute_jax.fit.report.answers import AnswerText, answer_text, pick, range_cells
from isocompute_jax.fit.report.figures import DRAWINGS
from isocompute_jax.fit.report.figures.style import colours
from isocompute_jax.fit.report.tables import versions
from isocompute_jax.fit.report.templating import Html, Section, render
from isocompute_jax.fit.report.wording import amount, spent, unit
from isocompute_jax.fit.sweep_results import SweepResult

Figures = Mapping[str, pathlib.Path]

OPTIONAL = (
    "batches", "slices_by_problems", "slices_by_rollouts", "targets", "entropy", "solve_rates", "profiles",
    "residuals", "forms", "holdout", "comparison",
)  # fmt: skip
"""Sections that stand in the report where they have a picture."""

DIGITS = 5
"""Significant digits of a number that is only drawn."""


def section_names(result: SweepResult, figures: Figures) -> list[str]:
    """The report's sections, in order; each is a template of that name."""
    first = ["learning_curves", *(["optimal_group_size"] if "optimal_group_size" in figures else [])]
    several = ["switches", "choices", "ties"] if result.several else []
    shown = [name for name in OPTIONAL if name in figures and (name != "targets" or len(result.targets) > 1)]
    return [*first, *several, *shown]


def render_report(
    result: SweepResult, figures: Figures, *, before: Sequence[Section] = (), after: Sequence[Section] = ()
) -> str:
    """The HTML text of an analysis.

    Args:
      result: of the analysis.
      figures: name -> picture, as `draw_figures` returns them.
      before: sections about how the runs were made.
      after: sections about what the analysis does not show.
    """
    options = result.options
    bins = f" (bin width {options.bin_width})" if options.bin_width else ""
    return render(
        "sweep.html.j2",
        title=options.title,
        result=result,
        figures=dict.fromkeys(DRAWINGS) | dict(figures),
        answers=[answer_text(result, found) for found in result.asked],
        range_rows=[range_cells(result, row) for row in result.ranges],
        sections=section_names(result, figures),
        folded=True,
        before=before,
        after=[*comparison_sections(result, figures), *after],
        data=Html(interactive_data(result)),
        drawing=Html((importlib.resources.files("isocompute_jax.records") / "drawing.js").read_text("utf-8")),
        runs=len(result.runs),
        choices=f"metric {options.metric} on {options.read.eval_set}; evaluations fitted: {options.records}{bins}; "
        f"seed {options.seed}",
        versions=versions(),
    )


def comparison_sections(result: SweepResult, figures: Mapping[str, pathlib.Path]) -> list[Section]:
    """A section for each answer to a question beside the frontier.

    Args:
      result: of the analysis.
      figures: name -> picture, as `draw_figures` returns them.
    """
    found = []
    for name, each in result.named_comparisons.items():
        rows = tuple(tuple(row.get(key) for key in each.columns) for row in each.rows)
        found.append(
            Section(
                title=each.title,
                paragraphs=(each.about,),
                figure=figures.get(name),
                alt=each.alt,
                how_to_read=each.how_to_read,
                findings=each.findings,
                columns=tuple(each.columns.values()),
                rows=rows,
            )
        )
    return found


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
    colour_of = colours(result)
    batches = sorted({curve.problems_per_batch for curve in chart.curves})
    places = {curve.run: i for i, curve in enumerate(chart.curves)}
    main = chart.metric == result.metric
    return {
        "curves": [
            {
                "name": curve.run,
                "colour": to_hex(colour_of[curve.run]),
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
