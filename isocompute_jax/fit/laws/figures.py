"""Pictures of the laws, drawn from their results."""

from __future__ import annotations

import math
import pathlib
import typing
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, NullFormatter

from isocompute_jax.fit.laws.analysis import LawAnalysis
from isocompute_jax.fit.laws.chinchilla_results import ChinchillaResult
from isocompute_jax.fit.laws.model_size_results import ModelSizeResult
from isocompute_jax.fit.laws.quotes import METHODS
from isocompute_jax.fit.report.figures.style import (
    DASHED,
    INK,
    PALE,
    PALETTE,
    QUIET,
    WIDTH,
    draw_all,
    legend,
    log_axis,
    panels,
    picked,
    shades,
)
from isocompute_jax.fit.report.wording import scale

MOST_LABELLED = 10
LINE_POINTS = 100


def draw_law_figures(analysis: LawAnalysis, out_dir: pathlib.Path, *, png: bool = False) -> dict[str, pathlib.Path]:
    """Draws every picture of the law that the data allow: see `draw_all`."""
    model_size = {"lines": model_lines, "slopes": slopes, "holdout": holdout}
    kind = analysis.options.analysis
    pretraining = {"prediction": prediction, "optimal": optimal, "convergence": convergence}
    drawings = model_size if kind == "model_size" else pretraining
    named = {f"{kind}_{name}": draw for name, draw in drawings.items()}
    drawn = draw_all(named, analysis, out_dir, png=png)
    return {name.removeprefix(f"{kind}_"): path for name, path in drawn.items()}


def model_lines(analysis: LawAnalysis) -> Figure:
    """Loss against X on logarithmic axes, with the law's line for each model size."""
    result = _model_size(analysis)
    figure, (axes,) = panels(height=4.2)
    colours = _model_colours(result)
    for line in result.models:
        colour = colours[line.model_params]
        axes.scatter(line.points.x, line.points.loss, s=14, color=colour, alpha=0.65, linewidths=0, zorder=3)
        axes.plot(line.drawn.x, line.drawn.loss, color=colour, linewidth=1.8, zorder=4)
    for row in result.crossings_inside:
        axes.plot(row.x, row.loss, "o", color="none", markeredgecolor=INK, markersize=9, zorder=5)
    options = analysis.options
    unit = result.resource.unit
    axes.set(
        xlabel=f"training compute X, {unit}" if result.resource.kind == "compute" else f"data X, {unit}",
        ylabel=f"1 - {options.reward_name}" if options.loss == "one_minus_metric" else options.metric,
    )
    log_axis(axes)
    log_axis(axes, "y")
    _size_legend(figure, colours)
    return figure


def slopes(analysis: LawAnalysis) -> Figure | None:
    """k(N): the models' own slopes with 95% intervals, and the law with its region."""
    result = _model_size(analysis)
    band, law = result.slopes, result.law
    if not len(band.model_params):
        return None
    figure, (axes,) = panels(height=3.8)
    if math.isfinite(band.low[0]):
        axes.fill_between(band.model_params, band.low, band.high, color=PALE, linewidth=0)
    looks = "-" if law.identified else "--"
    axes.plot(band.model_params, band.k, color=PALETTE(0.25), linewidth=1.8, linestyle=looks)
    for line in result.models:
        error = 2 * line.free_k_error if math.isfinite(line.free_k_error) else 0.0
        axes.errorbar(line.model_params, line.free_k, yerr=error, fmt="o", color=INK, markersize=6, capsize=3)
    for row in result.inter_model:
        k, n = row.predicted_k, row.model_params
        if math.isfinite(k.low):
            axes.vlines(n * 1.06, k.low, k.high, color=QUIET, linewidth=2)
        axes.plot(n * 1.06, k.value, "D", color="white", markeredgecolor=INK, markersize=7)
    label = "law, 95% region" if law.identified else "law, not identified"
    handles = [
        Line2D([], [], color=INK, marker="o", linestyle="", label="own slope ± 2 s.e."),
        Line2D([], [], color=PALETTE(0.25), linestyle=looks, label=label),
    ]
    if law.k_max.identified:
        axes.axhline(law.k_max.value, color=QUIET, linewidth=1, linestyle=DASHED)
        handles.append(Line2D([], [], color=QUIET, linestyle=DASHED, label="k_max"))
    if result.inter_model:
        handles.append(Line2D([], [], color="none", marker="D", markeredgecolor=INK, label="predicted from smaller"))
    axes.set(xscale="log", xlabel="parameters N", ylabel="slope k(N)")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: scale(value)))
    legend(figure, handles, columns=2)
    return figure


def holdout(analysis: LawAnalysis) -> Figure | None:
    """Predicted against measured reward of evaluations that were not fitted."""
    result, options = _model_size(analysis), analysis.options
    kinds = {"later evaluations": result.intra_model, "a larger model": result.inter_model}
    colours = _model_colours(result)
    panels = {
        name: [(row.points.reward, row.points.predicted, colours[row.model_params]) for row in rows]
        for name, rows in kinds.items()
        if rows
    }
    reward = options.metric if options.loss == "one_minus_metric" else f"1 - {options.metric}"
    return _against(panels, f"measured {reward}", "predicted", colours) if panels else None


def prediction(analysis: LawAnalysis) -> Figure:
    """Predicted against measured loss, one panel per method."""
    result = _chinchilla(analysis)
    sizes = result.points.model_params.tolist()
    colours = shades(sizes)
    marks = [colours[n] for n in sizes]
    fits = [fit for fit in result.fits if fit.status != "failed"]
    panels = {METHODS[fit.method]: [(result.points.loss, fit.predicted, marks)] for fit in fits}
    return _against(panels, "measured loss L", "loss of the law", colours)


def _against(
    panels: Mapping[str, Sequence[tuple[np.ndarray, np.ndarray, Any]]], x: str, y: str, colours: dict[float, Any]
) -> Figure:
    """Title -> (measured [P], predicted [P], colours) of groups of points, on equal axes with the line of no error."""
    figure = Figure(figsize=(WIDTH, 3.7), layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False, sharex=True, sharey=True)[0]
    for panel, (title, groups) in zip(axes, panels.items(), strict=True):
        for measured, predicted, colour in groups:
            panel.scatter(measured, predicted, s=16, color=colour, linewidths=0, alpha=0.8, zorder=3)
        panel.axline((0, 0), slope=1, color=QUIET, linewidth=1, linestyle=DASHED)
        panel.set_title(title, loc="left", fontweight="bold")
        panel.set(xlabel=x)
    limits = _limits(*(values for groups in panels.values() for group in groups for values in group[:2]))
    axes[0].set(ylabel=y, xlim=limits, ylim=limits)
    _size_legend(figure, colours)
    return figure


def optimal(analysis: LawAnalysis) -> Figure | None:
    """Lines of equal loss over N and D, the points, and the compute-optimal path; where it is identified."""
    result = _chinchilla(analysis)
    surface, points = result.surface, result.points
    if surface is None:
        return None
    figure, (axes,) = panels(height=4.2)
    n, d = surface.model_params, surface.tokens
    levels = np.quantile(surface.loss, np.linspace(0.05, 0.95, 9))
    # scales first: labels are placed on the axes as they stand
    axes.set(
        xscale="log", yscale="log", xlabel="parameters N", ylabel="tokens D", xlim=(n[0], n[-1]), ylim=(d[0], d[-1])
    )
    lines = axes.contour(n, d, surface.loss, levels=levels, colors=QUIET, linewidths=0.9)
    axes.clabel(lines, fmt="%.3g", fontsize=9, colors=INK)
    axes.scatter(points.model_params, points.tokens, s=18, color=PALETTE(0.5), linewidths=0, zorder=3)
    looks = {
        "squares": {"color": PALETTE(0.3), "linewidth": 4, "alpha": 0.45},
        "huber": {"color": INK, "linewidth": 1.5},
    }
    for method, look in looks.items():
        path = result.path(method)
        if path:
            label = f"compute-optimal ({METHODS[method]})"
            axes.plot([row.model_params for row in path], [row.tokens for row in path], zorder=4, label=label, **look)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: scale(value)))
        axis.set_minor_formatter(NullFormatter())
    figure.legend(loc="outside upper center", ncols=1)
    return figure


def convergence(analysis: LawAnalysis) -> Figure | None:
    """The laws of N, D and C alone, each with what it predicts for its largest x from the others."""
    rows = [row for row in _chinchilla(analysis).convergence if row.status != "failed"]
    if not rows:
        return None
    figure, axes = panels(1, len(rows), height=3.6, share=False)
    unit = {"N": "parameters N", "D": "tokens D", "C": "compute C = 6 N D"}
    for panel, row in zip(axes, rows, strict=True):
        x = np.geomspace(row.x[0], row.x[-1], LINE_POINTS)
        panel.scatter(row.x, row.loss, s=18, color=PALETTE(0.5), linewidths=0, zorder=3)
        panel.plot(x, row.predicted(x), color=INK, linewidth=1.5)
        panel.plot(row.x, row.chinchilla_loss, color=QUIET, linestyle=DASHED, linewidth=1.3)
        if math.isfinite(row.forecast.low):
            panel.vlines(row.held_out_x * 1.1, row.forecast.low, row.forecast.high, color=QUIET, linewidth=2)
        panel.plot(row.held_out_x * 1.1, row.forecast.value, "D", color="white", markeredgecolor=INK, markersize=6)
        panel.set_title(f"L({row.variable})", loc="left", fontweight="bold")
        panel.set(xlabel=unit[row.variable])
        log_axis(panel)
        log_axis(panel, "y")
    axes[0].set(ylabel="loss L")
    legend(figure, [
        Line2D([], [], color=INK, label="law of one variable"),
        Line2D([], [], color=QUIET, linestyle=DASHED, label="pre-training law"),
        Line2D([], [], color="none", marker="D", markeredgecolor=INK, label="the largest, predicted"),
    ])  # fmt: skip
    return figure


def _model_size(analysis: LawAnalysis) -> ModelSizeResult:
    return typing.cast(ModelSizeResult, analysis.result)


def _chinchilla(analysis: LawAnalysis) -> ChinchillaResult:
    return typing.cast(ChinchillaResult, analysis.result)


def _limits(*values: np.ndarray) -> tuple[float, float]:
    """Of both axes: all values, and a margin around them."""
    low, high = min(v.min() for v in values), max(v.max() for v in values)
    margin = 0.05 * (high - low or 1.0)
    return low - margin, high + margin


def _model_colours(result: ModelSizeResult) -> dict[float, Any]:
    """model_params -> colour, ordered by ln N."""
    return shades([line.model_params for line in result.models])


def _size_legend(figure: Figure, colours: dict[float, Any]) -> None:
    legend(figure, [
        Line2D([], [], color=colour, marker="o", linewidth=2, markersize=4, label=f"N = {scale(size)}")
        for size, colour in picked(list(colours.items()), MOST_LABELLED)
    ])  # fmt: skip
