"""The pictures: what was measured and drawn, what each choice gives, n*(C), the paper's frontier, questions, a law."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from isocompute_jax.fit.configurations import scale
from isocompute_jax.fit.laws import LawResult
from isocompute_jax.fit.report import facts
from isocompute_jax.fit.report.figures import style
from isocompute_jax.fit.report.wording import say, short, words
from isocompute_jax.fit.results import BudgetAnswer, CurveBand, SweepResult

MOST_PANELS = 8
MOST_BANDS = 8
"""Of more configurations in a panel only the advised and its rivals have bands."""
MOST_NAMED = 12
FINE = 0.35
"""Opacity of dots where there are many."""


def draw_figures(result: SweepResult, out: pathlib.Path, *, png: bool = False) -> dict[str, pathlib.Path]:
    """Draws every picture that the data allow as NAME.svg in `out`, and as NAME.png where `png`; name -> SVG path."""
    drawings: dict[str, Callable[[], Figure | None]] = {
        "curves": lambda: draw_curves(result, result.asked[0]),
        "choices": lambda: draw_choices(result, result.asked[0]),
        "optimal_n": lambda: draw_optimal(result),
        "paper": lambda: draw_paper(result),
    }
    for place, question in enumerate(result.questions):
        drawings[f"question_{place + 1}"] = lambda question=question: draw_series(result, question.series)
    return _saved(drawings, out, png=png)


def draw_law(result: LawResult, out: pathlib.Path, *, png: bool = False) -> dict[str, pathlib.Path]:
    """Draws the law's picture, if it has one."""
    return _saved({"law": lambda: _law(result)}, out, png=png)


def _saved(drawings: Mapping[str, Callable[[], Figure | None]], out: pathlib.Path, *, png: bool) -> dict:
    with style.in_style():
        drawn = {name: figure for name, draw in drawings.items() if (figure := draw()) is not None}
        return {name: style.save_figure(figure, out / f"{name}.svg", png=png) for name, figure in drawn.items()}


def draw_curves(result: SweepResult, answer: BudgetAnswer) -> Figure:
    """Draws evaluations as dots, the draws as bands that follow them, the advised thick; a panel for each B_problem."""
    by_panel = _by_batch(result.curves)
    figure, axes = style.multiples(len(by_panel), panel=2.4, columns=1 if len(by_panel) <= 2 else 2)
    colour_of = style.colours([band.configuration for band in result.curves])
    advised, many = answer.advised, len(result.curves) > MOST_BANDS
    near = {each.configuration for each in answer.choices if each.best_share >= facts.LIKELY} | {advised.configuration}
    end = max(answer.budget, *(band.data_end for band in result.curves))
    for panel, (title, bands) in zip(axes, by_panel, strict=True):
        panel.set_title(title, loc="left", fontweight="bold")
        for band in bands:
            colour = colour_of[band.configuration]
            _dots(panel, band, colour, fine=many or len(bands) > MOST_BANDS)
            if result.data.curves:
                _band(panel, band, colour, end, shaded=not many or band.configuration in near)
            if band.configuration == advised.configuration and result.data.curves and result.data.trend == "rise":
                _advised(panel, band, colour, advised.stop)
        style.log_axis(panel)
    for place, each in enumerate(result.scheduled):
        for panel in axes:
            for compute, reward in each.points:
                panel.plot(compute, reward, color=style.scheduled(place), linestyle=style.DASHED, linewidth=1.3)
    known = facts.data_facts(result)
    style.labels(figure, axes, say("compute_label", known), say("label", known))
    style.legend(figure, _handles(result))
    return figure


def _by_batch(bands: Sequence[CurveBand]) -> list[tuple[str, list[CurveBand]]]:
    """Returns title and configurations of each panel; one without a title where all B_problem are alike."""
    found: dict[int, list[CurveBand]] = {}
    for band in bands:
        found.setdefault(band.configuration.problems_per_batch, []).append(band)
    if len(found) == 1:
        return [("", list(bands))]
    return style.picked([(f"B = {batch}", some) for batch, some in sorted(found.items())], MOST_PANELS)


def _dots(axes: Axes, band: CurveBand, colour: Any, *, fine: bool) -> None:
    for compute, reward in band.points:
        trained = compute > 0
        opacity = FINE if fine or len(compute) > 100 else 0.6
        axes.scatter(compute[trained], reward[trained], s=6 if fine else 12, color=colour, alpha=opacity, linewidths=0)


def _band(axes: Axes, band: CurveBand, colour: Any, end: float, *, shaded: bool) -> None:
    """Draws the mean of the draws with its interval, dotted beyond the configuration's data."""
    first = min((compute[compute > 0].min() for compute, _ in band.points if (compute > 0).any()), default=0.0)
    inside = (band.compute >= 0.999 * first) & (band.compute <= 1.001 * band.data_end)
    beyond = (band.compute >= 0.999 * band.compute[inside].max(initial=0.0)) & (band.compute <= 1.001 * end)
    axes.plot(band.compute[inside], band.mean[inside], color=colour, linewidth=1.2)
    axes.plot(band.compute[beyond], band.mean[beyond], color=colour, linewidth=1.2, linestyle=style.DOTTED)
    if shaded:
        part = inside | beyond
        axes.fill_between(band.compute[part], band.low[part], band.high[part], color=colour, alpha=0.18, linewidth=0)


def _advised(axes: Axes, band: CurveBand, colour: Any, stop: float) -> None:
    """Draws a thick line up to the stop, and marks that."""
    part = band.compute <= 1.001 * stop
    axes.plot(band.compute[part], band.mean[part], color="white", linewidth=5.5, zorder=4)
    axes.plot(band.compute[part], band.mean[part], color=colour, linewidth=3.5, zorder=5, solid_capstyle="butt")
    reward = float(np.interp(np.log(stop), np.log(band.compute), band.mean))
    axes.axvline(stop, color=style.INK, linewidth=0.9, linestyle=style.DASHED, zorder=3)
    axes.scatter([stop], [reward], s=55, color=style.INK, zorder=7, linewidths=0)
    axes.annotate(
        words()["stop"], (stop, axes.get_ylim()[0]), xytext=(-4, 4), textcoords="offset points", ha="right", fontsize=9
    )


def _handles(result: SweepResult) -> list[Line2D]:
    """Returns legend entries of the colours, and of the schedules."""
    every = [band.configuration for band in result.curves]
    colour_of = style.colours(every)
    sizes = {each.group_size for each in every}
    if 0 not in sizes and len(sizes) > 1:
        named = {f"n = {each.group_size}": colour_of[each] for each in facts.in_order(every)}
    else:
        named = {short(each.name, 30): colour_of[each] for each in every[:MOST_NAMED]}
    found = [Line2D([], [], color=c, marker="o", linewidth=2, markersize=4, label=text) for text, c in named.items()]
    return found + [
        Line2D([], [], color=style.scheduled(place), linestyle=style.DASHED, label=short(each.schedule, 30))
        for place, each in enumerate(result.scheduled)
    ]


def draw_choices(result: SweepResult, answer: BudgetAnswer) -> Figure | None:
    """Draws what each configuration gives for a budget: expected reward, and intervals of many runs and of one."""
    if len(answer.choices) < 2:
        return None
    choice_of = {each.configuration: each for each in answer.choices}
    every = facts.in_order(list(choice_of))
    figure, (axes,) = style.panels(height=1.0 + 0.26 * len(every))
    colour_of = style.colours([band.configuration for band in result.curves])
    for row, configuration in enumerate(every):
        each, colour = choice_of[configuration], colour_of[configuration]
        axes.plot(list(each.run95), [row, row], color=colour, linewidth=1.2, solid_capstyle="butt")
        axes.plot(list(each.interval95), [row, row], color=colour, linewidth=6, alpha=0.45, solid_capstyle="butt")
        axes.scatter([each.reward], [row], s=42, color=colour, zorder=4, linewidths=0)
    names = [short(each.name, 28) for each in every]
    axes.set_yticks(range(len(every)), names)
    axes.get_yticklabels()[every.index(answer.advised.configuration)].set_fontweight("bold")
    axes.set(xlabel=say("label", facts.data_facts(result)), ylim=(len(every) - 0.5, -0.5))
    axes.grid(axis="y", visible=False)
    return figure


def draw_optimal(result: SweepResult) -> Figure | None:
    """Draws n*(C) with the n of 95% of the draws, and its sigmoid where there is one."""
    found = result.optimal
    if found is None or len(found.budgets) < 2:
        return None
    figure, (axes,) = style.panels(height=3.4)
    low, high = np.log2(found.interval95).T
    axes.fill_between(found.budgets, low, high, step="mid", color=style.PALE, linewidth=0)
    axes.plot(found.budgets, np.log2(found.group_size), drawstyle="steps-mid", color=style.PALETTE(0.3), linewidth=2.2)
    law, shown = found.law, [Line2D([], [], color=style.PALETTE(0.3), linewidth=2.2, label=words()["optimal_point"])]
    shown = [*shown, Patch(color=style.PALE, label=words()["optimal_band"])]
    if law:
        x = np.geomspace(found.budgets[0], found.budgets[-1], 200)
        height = law["span"] / (1 + np.exp(-law["slope"] * (np.log10(x) - law["midpoint"]))) + law["floor"]
        shown += axes.plot(x, height, color=style.INK, linewidth=1.1, linestyle=style.DASHED, label="sigmoid")
    axes.set(xlabel=say("compute_label", facts.data_facts(result)), ylabel=words()["group_size"])
    style.size_axis(axes, [band.configuration.group_size for band in result.curves])
    style.log_axis(axes)
    style.legend(figure, shown)
    return figure


def draw_paper(result: SweepResult) -> Figure | None:
    """Draws the curves of evaluations that beat all earlier ones, and their upper envelope."""
    paper = result.paper
    if paper is None:
        return None
    figure, (axes,) = style.panels()
    colour_of = style.colours(list(paper.configurations))
    fit_of = dict(zip(paper.configurations, paper.fits, strict=True))
    for configuration, (compute, reward) in zip(paper.configurations, paper.records, strict=True):
        axes.scatter(compute[compute > 0], reward[compute > 0], s=9, color=colour_of[configuration], linewidths=0)
    whole = [(configuration, *fit.window) for configuration, fit in fit_of.items() if fit.status != "failed"]
    for stretches, width in ((whole, 1.2), (paper.segments, 4.0)):
        for configuration, start, end in stretches:
            compute = np.geomspace(start, end, 100)
            axes.plot(compute, fit_of[configuration].reward(compute), color=colour_of[configuration], linewidth=width)
    known = facts.data_facts(result)
    axes.set(xlabel=say("compute_label", known), ylabel=say("label", known))
    style.log_axis(axes)
    envelope = Line2D([], [], color=style.QUIET, linewidth=4, label=words()["paper_envelope"])
    style.legend(figure, [*_handles(result), envelope])
    return figure


def draw_series(result: SweepResult, series: Sequence[Mapping[str, Any]]) -> Figure | None:
    """Draws lines with bands over compute, in a panel for each kind of value."""
    kinds = list(dict.fromkeys(each["panel"] for each in series))
    if not kinds:
        return None
    names = list(dict.fromkeys(each["name"] for each in series))
    colour_of: dict[str, Any] = dict(
        zip(names, map(style.PALETTE, np.linspace(0, 1, max(len(names), 2))), strict=False)
    )
    figure, axes = style.panels(len(kinds), height=1.2 + 2.3 * len(kinds), share=False)
    for kind, panel in zip(kinds, axes, strict=True):
        sizes = kind == "group_size"
        for each in (each for each in series if each["panel"] == kind):
            value, low, high = (np.log2(each[k]) if sizes else np.asarray(each[k]) for k in ("value", "low", "high"))
            step: Any = {"step": "mid"} if sizes else {}
            colour = colour_of[each["name"]]
            panel.fill_between(each["compute"], low, high, color=colour, alpha=0.15, linewidth=0, **step)
            panel.plot(each["compute"], value, color=colour, drawstyle="steps-mid" if sizes else "default")
        if sizes:
            style.size_axis(
                panel, [band.configuration.group_size for band in result.curves if band.configuration.group_size]
            )
        panel.set_ylabel(words()["panels"].get(kind, kind))
        style.log_axis(panel)
    axes[-1].set_xlabel(say("compute_label", facts.data_facts(result)))
    said = words()["panel_names"]
    style.legend(figure, [Line2D([], [], color=colour_of[name], label=short(said.get(name, name))) for name in names])
    return figure


def _law(result: LawResult) -> Figure | None:
    """Draws every model's losses and the lines of the law."""
    if not result.series:
        return None
    figure, (axes,) = style.panels()
    colour_of = style.shades(each["model_params"] for each in result.series)
    handles: list[Artist] = []
    for each in result.series:
        colour = colour_of.get(each["model_params"], style.GREY)
        axes.scatter(each["x"], each["loss"], s=10, color=colour, alpha=0.6, linewidths=0)
        axes.plot(each["line_x"], each["line_loss"], color=colour)
        handles.append(Line2D([], [], color=colour, marker="o", markersize=4, label=scale(each["model_params"])))
    axes.set(xlabel=str(result.facts["unit"]), ylabel=words()["loss"])
    for which in ("x", "y"):
        style.log_axis(axes, which)
    style.legend(figure, style.picked(handles, MOST_NAMED))
    return figure
