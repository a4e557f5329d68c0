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

from isocompute_jax.fit.curves.seeds import aligned, average_seeds
from isocompute_jax.fit.frontier.envelope import carried
from isocompute_jax.fit.plain_data import plain
from isocompute_jax.fit.report.answers import AnswerText, answer_text, pick, range_cells
from isocompute_jax.fit.report.figures import DRAWINGS
from isocompute_jax.fit.report.figures.style import colours, schedule_strokes
from isocompute_jax.fit.report.tables import versions
from isocompute_jax.fit.report.templating import Html, Section, render
from isocompute_jax.fit.report.wording import amount, spent, unit
from isocompute_jax.fit.results import CurveFit
from isocompute_jax.fit.stages import MetricAnalysis
from isocompute_jax.fit.sweep_results import SweepResult

Figures = Mapping[str, pathlib.Path]

OPTIONAL = (
    "batches", "slices_by_problems", "slices_by_rollouts", "targets", "entropy", "solve_rates", "profiles",
    "residuals", "forms", "holdout", "comparison",
)  # fmt: skip
"""Sections that stand in the report where they have a picture."""

DIGITS = 5
"""Significant digits of a number that is only drawn."""

LINE_POINTS = 48
"""Of a curve's line."""


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
        runs=len(result.every_run),
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
    return [
        Section(
            title=each.title,
            paragraphs=(each.about,),
            figure=figures.get(name),
            alt=each.alt,
            how_to_read=each.how_to_read,
            findings=each.findings,
            columns=tuple(each.columns.values()),
            rows=[[row.get(key) for key in each.columns] for row in each.rows],
        )
        for name, each in result.named_comparisons.items()
    ]


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
        "metrics": {name: _metric(result, found, budgets) for name, found in result.metrics.items()},
    }
    return json.dumps(plain(content), separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _metric(result: SweepResult, found: MetricAnalysis, budgets: list[float]) -> dict[str, Any]:
    colour_of = colours(result)
    batches = sorted({each.problems_per_batch for each in found.configurations})
    places = {each.name: i for i, each in enumerate(found.configurations)}
    main = found.metric == result.metric
    return {
        "curves": [
            {
                "name": curve.configuration.name,
                "colour": to_hex(colour_of[curve.configuration.name]),
                "dash": batches.index(curve.configuration.problems_per_batch),
                "x": _short(curve.compute),
                "y": _short(curve.reward),
                "used": used.astype(int),
                "lineX": _short(line := _line(fit)),
                "lineY": _short(fit.reward(line)) if len(line) else [],
                "peak": (fit.fall.compute, fit.fall.reward) if fit.fall else None,
            }
            for curve, used, fit in zip(found.curves, found.used, found.fits, strict=True)
        ]
        + _schedules(result, found.metric),
        "segments": [(places[run], start, end) for run, start, end in _leads(result, found)],
        "answers": [_own(result, i) if main else _other(result, found, budget) for i, budget in enumerate(budgets)],
    }


def _schedules(result: SweepResult, metric: str) -> list[dict[str, Any]]:
    """The scheduled runs beside the curves: their mean evaluations, and a line through these."""
    drawn = []
    for each in result.beside:
        curve = average_seeds(each.group, metric)
        compute, rewards = aligned(curve) if curve is not None else (np.empty(0), np.empty((0, 0)))
        if not (compute > 0).any():
            continue
        x, y = _short(compute), _short(rewards.mean(axis=0))
        line = [(at, reward) for at, reward in zip(x, y, strict=True) if at > 0]
        drawn.append({
            "name": each.name, "colour": schedule_strokes(result)[each.name]["color"], "dash": 1, "x": x, "y": y,
            "used": [1] * len(x), "lineX": [at for at, _ in line], "lineY": [reward for _, reward in line],
            "peak": None,
        })  # fmt: skip
    return drawn


def _line(fit: CurveFit) -> np.ndarray:
    """Computes at which a fitted curve is drawn; none of one that failed."""
    if fit.status == "failed" or not fit.window[0] < fit.window[1]:
        return np.empty(0)
    return np.geomspace(*fit.window, LINE_POINTS)


def _leads(result: SweepResult, found: MetricAnalysis) -> list[tuple[str, float, float]]:
    """Who is best from where to where: the answers, where one n is the best; of other metrics the fitted frontier."""
    if found.metric == result.metric and result.ranges:
        return result.leads
    return [(segment.run, segment.start, segment.end) for segment in found.frontier.segments]


def _own(result: SweepResult, index: int) -> dict[str, Any]:
    """The metric's own answer, with the reward and interval to draw."""
    found = result.answers[index]
    row = found.recommendation
    return dataclasses.asdict(answer_text(result, found)) | {
        "reward": row.reward,
        "interval": row.interval95,
        "stop": row.stop,
    }


def _other(result: SweepResult, found: MetricAnalysis, budget: float) -> dict[str, Any]:
    """Who leads in another metric: its curves are fitted, and not resampled."""
    question, index = f"With up to {spent(result, budget)}", found.leader(budget)
    if index is None:
        text = AnswerText(question, "not known", expectation=f"No curve of {found.metric} reaches this budget.")
        return dataclasses.asdict(text) | {"reward": None, "interval": None}
    leader = found.configurations[index]
    reward = float(found.fits[index].reward(carried(found.fits, budget)[index]))
    text = AnswerText(
        question,
        pick(result, leader.group_size, leader.name),
        expectation=f"Its fitted curve reaches {found.metric} {reward:z.3f} there; no interval was computed.",
        level="unknown",
        label="Not resampled",
        certainty=f"Steps, intervals and ties are given for {result.metric} alone.",
    )
    return dataclasses.asdict(text) | {"reward": reward, "interval": None}


def _short(values: np.ndarray) -> list[float]:
    return [float(f"{value:.{DIGITS}g}") for value in values]
