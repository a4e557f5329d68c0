"""Learning curves and the frontier, n*(C), B_problem and M along it, its switches; forms, steepness, solve rates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, NullLocator

from isocompute_jax.fit.read import SOLVE_SHARES
from isocompute_jax.fit.report.figures.series import MOST_FITS, STROKES, law_series
from isocompute_jax.fit.report.figures.style import (
    DASHED,
    DOTTED,
    INK,
    PALETTE,
    QUIET,
    WIDTH,
    by_batch,
    colours,
    compute_label,
    handles,
    hover,
    labels,
    legend,
    log_axis,
    multiples,
    panels,
    picked,
    schedule_strokes,
    size_axis,
)
from isocompute_jax.fit.report.wording import amount, reached, shortened
from isocompute_jax.fit.results import AllocationFit
from isocompute_jax.fit.sweep_results import CurveResult, FrontierBudget, SweepResult

MOST_STACKED = 3
"""So many panels of learning curves stand one above another; more stand in two columns."""
TIES = "#c9ced3"


def learning_curves(result: SweepResult) -> Figure:
    """Every evaluation, the fitted curves coloured by n, the answers on top; one panel for each B_problem."""
    by_panel = by_batch(result)
    figure, axes = multiples(len(by_panel), panel=2.4, columns=1 if len(by_panel) <= MOST_STACKED else 2)
    colour_of = colours(result)
    curves, strokes = {curve.run: curve for curve in result.curves}, schedule_strokes(result)
    for panel, (title, runs) in zip(axes, by_panel, strict=True):
        panel.set_title(title, loc="left", fontweight="bold")
        for run in runs:
            _points(panel, curves[run], colour_of[run], small=len(curves) > 8)
            if curves[run].fit.status != "failed":
                (line,) = panel.plot(*drawn(curves[run], curves[run].fit.window), color=colour_of[run], linewidth=1.2)
                line.set_alpha(0.8)
                hover(line, [run])
            _peak(panel, curves[run], colour_of[run])
        for run, start, end in result.leads:
            compute, reward = drawn(curves[run], (start, end))
            if run not in runs:
                panel.plot(compute, reward, color=QUIET, linewidth=1.2, linestyle=DOTTED, zorder=4)
                continue
            panel.plot(compute, reward, color="white", linewidth=5.5, zorder=4, solid_capstyle="butt")
            (line,) = panel.plot(compute, reward, color=colour_of[run], linewidth=3.5, zorder=5, solid_capstyle="butt")
            hover(line, [f"the answer: {run}, {amount(start)} to {amount(end)}"])
        for each in result.beside:
            trained = each.compute > 0
            compute, reward = each.compute[trained], each.reward[trained]
            (line,) = panel.plot(compute, reward, zorder=8, linewidth=1.6, **strokes[each.name])
            hover(line, [reached(each.name, reward[-1], compute[-1])])
        if len(by_panel) == 1:
            for switch in result.frontier.crossings:
                panel.axvline(switch.compute, color=QUIET, linewidth=0.9, linestyle=DOTTED, zorder=1)
        log_axis(panel)
    label = f"{result.metric} ({result.options.read.eval_set})"
    labels(figure, axes, compute_label(result), label)
    beside = [Line2D([], [], linewidth=1.6, label=shortened(name), **stroke) for name, stroke in strokes.items()]
    legend(figure, [*handles(result), *beside])
    return figure


def _points(axes: Axes, curve: CurveResult, colour: Any, *, small: bool) -> None:
    """Evaluations: filled where they were fitted, hollow where not."""
    compute, reward, used = curve.points.compute, curve.points.reward, curve.points.used
    size = 12 if small else 20
    looks = (
        {"color": colour, "edgecolors": "white", "linewidths": 0.4},
        {"facecolors": "none", "edgecolors": colour, "linewidths": 0.8},
    )
    for fitted, look in zip((True, False), looks, strict=True):
        some = (used == fitted) & (compute > 0)
        if some.any():
            dots = axes.scatter(compute[some], reward[some], s=size, zorder=6, **look)
            hover(dots, [reached(curve.run, r, c) for c, r in zip(compute[some], reward[some], strict=True)])


def _peak(axes: Axes, curve: CurveResult, colour: Any) -> None:
    """Marks where a curve begins to fall."""
    fall = curve.fit.fall
    if fall:
        dot = axes.scatter(
            fall.compute, fall.reward, marker="v", s=70, color=colour, edgecolors=INK, linewidths=0.8, zorder=7
        )
        hover(dot, [f"{curve.run} {fall.text()}"])


def drawn(curve: CurveResult, window: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    """Compute and fitted reward over a window."""
    compute = np.geomspace(window[0], window[1], 200)
    return compute, curve.fit.reward(compute)


def optimal_group_size(result: SweepResult) -> Figure | None:
    """n*(C) read off the frontier with its interval, its running average, and the sigmoid where there is one."""
    rows = result.frontier.budgets
    if not rows or not result.several_sizes:
        return None
    figure, (axes,) = panels()
    compute = np.array([row.compute for row in rows])
    size = np.array([row.group_size for row in rows])
    shown = [
        _whiskers(axes, rows),
        axes.plot(
            compute, np.log2([row.smoothed_group_size or np.nan for row in rows]), color=QUIET, linewidth=1.2,
            label="running average",
        )[0],
        *_sigmoid(axes, result.allocation, compute),
    ]  # fmt: skip
    reward = [row.reward for row in rows]
    dots = axes.scatter(
        compute, np.log2(size), c=reward, cmap=PALETTE, s=64, zorder=4, edgecolors="white", linewidths=0.8,
        label="n* on the frontier",
    )  # fmt: skip
    hover(dots, [reached(row.run, row.reward, row.compute) for row in rows])
    bar = figure.colorbar(dots, ax=axes, pad=0.02, aspect=30)
    bar.set_label(f"{result.metric} on the frontier")
    bar.outline.set_visible(False)
    axes.set(xlabel=compute_label(result), ylabel="optimal group size n*")
    size_axis(axes, result.group_sizes)
    log_axis(axes)
    handle = Line2D([], [], color=PALETTE(0.4), marker="o", linestyle="", markersize=7, label="n* on the frontier")
    legend(figure, [handle, *(artist for artist in shown if artist is not None)], columns=2)
    return figure


def _whiskers(axes: Axes, rows: Sequence[FrontierBudget]) -> Line2D | None:
    """Bootstrap intervals of n*, where they are wider than a point."""
    wide = [(row.compute, row.interval95) for row in rows if row.interval95]
    wide = [(compute, ends) for compute, ends in wide if 0 < ends[0] < ends[1]]
    for compute, ends in wide:
        axes.plot([compute] * 2, np.log2(ends), color=TIES, linewidth=4, solid_capstyle="round")
    return Line2D([], [], color=TIES, linewidth=4, label="95% of replicates") if wide else None


def _sigmoid(axes: Axes, found: AllocationFit, x: np.ndarray) -> list[Line2D]:
    """The law over the range of `x`; none without one."""
    return [
        axes.plot(each.x, np.log2(each.y), color=INK, linewidth=1.6, label=each.name, **STROKES[each.look])[0]
        for each in law_series(found, x)
    ]


def batches(result: SweepResult) -> Figure | None:
    """B_problem and M of the configuration on the frontier; none where the steps of a row cannot be told."""
    rows = result.frontier.budgets
    steps = [row.num_steps for row in rows if row.num_steps is not None]
    if not rows or not result.several_batches or len(steps) < len(rows):
        return None
    figure, (upper, lower) = panels(2, height=4.8, share=False)
    colour_of = colours(result)
    compute = [row.compute for row in rows]
    shades = [colour_of[row.run] for row in rows]
    texts = [f"{row.run}, {m:,.0f} steps at {amount(row.compute)}" for row, m in zip(rows, steps, strict=True)]
    values = np.log2([row.problems_per_batch for row in rows]), steps
    for axes, y in zip((upper, lower), values, strict=True):
        axes.plot(compute, y, color=QUIET, linewidth=1.0, zorder=2)
        hover(axes.scatter(compute, y, c=shades, s=40, zorder=3, linewidths=0), texts)
        log_axis(axes)
    upper.set(ylabel="B_problem*")
    size_axis(upper, [curve.problems_per_batch for curve in result.curves])
    lower.set(xlabel=compute_label(result), ylabel="steps M*")
    log_axis(lower, "y")
    legend(figure, handles(result))
    return figure


def switch_epochs(result: SweepResult) -> Figure | None:
    """At how many epochs the frontier leaves each configuration: with its interval, and in each seed alone."""
    switches = result.frontier.with_epochs
    if not switches:
        return None
    figure, (axes,) = panels(height=1.5 + 0.45 * len(switches))
    intervals = alone = False
    for row, switch in enumerate(switches):
        ends, each = switch.epoch_interval95, switch.epochs_by_seed
        if ends:
            axes.plot(ends, [row, row], color=TIES, linewidth=5, solid_capstyle="round", zorder=2)
            intervals = True
        axes.plot(each, [row] * len(each), "o", color="none", markeredgecolor=QUIET, markersize=8, zorder=3)
        alone |= bool(each)
        dot = axes.scatter(switch.epochs, row, s=70, color=PALETTE(0.25), linewidths=0, zorder=4)
        hover(dot, [f"{switch.epochs:.3g} epochs, {amount(switch.compute)}"])
    axes.axvline(1.0, color=QUIET, linewidth=1, linestyle=DOTTED, zorder=1)
    axes.set(xlabel="epochs over the training problems, C / (n D)", ylim=(len(switches) - 0.5, -0.5))
    log_axis(axes)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_yticks(range(len(switches)), [f"{s.from_run}  →  {s.to_run}" for s in switches])
    axes.yaxis.set_minor_locator(NullLocator())
    shown: list[Artist] = [Line2D([], [], color=PALETTE(0.25), marker="o", linestyle="", label="mean of the seeds")]
    if intervals:
        shown.append(Patch(color=TIES, label="95% of replicates"))
    if alone:
        shown.append(Line2D([], [], color="none", marker="o", markeredgecolor=QUIET, label="one seed alone"))
    shown.append(Line2D([], [], color=QUIET, linestyle=DOTTED, label="one epoch"))
    legend(figure, shown, columns=2)
    return figure


def forms(result: SweepResult) -> Figure | None:
    """AICc of every form against the lowest, and how far each misses the evaluations that were held out."""
    found = {name: row for name, row in result.forms.items() if np.isfinite(row.aicc)}
    if len(found) < 2:
        return None
    held = [name for name, row in found.items() if row.holdout_mean_abs_error is not None]
    figure, axes = panels(1, 2 if held else 1, height=1.0 + 0.42 * len(found), share=False)
    names, least = list(found), min(row.aicc for row in found.values())
    _bars(axes[0], names, [row.aicc - least for row in found.values()], "AICc above the lowest", "{:,.0f}")
    if held:
        errors = [found[name].holdout_mean_abs_error for name in names]
        _bars(axes[1], names, errors, "mean error, held out", "{:.3f}")
        axes[1].set_yticks(range(len(names)), [""] * len(names))
    return figure


def _bars(axes: Axes, names: Sequence[str], values: Sequence[float | None], label: str, text: str) -> None:
    """Horizontal bars with their values; the lowest one dark. A form that could not be scored has no bar."""
    known = [value for value in values if value is not None]
    for row, value in enumerate(values):
        if value is not None:
            axes.barh(row, value, color=PALETTE(0.25) if value == min(known) else "#c2ccd4", height=0.62)
            axes.annotate(
                text.format(value), (value, row), xytext=(4, 0), textcoords="offset points", va="center", fontsize=9
            )
    axes.set_yticks(range(len(names)), names)
    axes.set(xlabel=label, ylim=(len(names) - 0.5, -0.5), xlim=(0, 1.25 * max(known) or 1.0))
    axes.locator_params(axis="x", nbins=4)
    axes.grid(axis="y", visible=False)


def steepness(result: SweepResult) -> Figure | None:
    """ln F against ln C with lines of slope B, and each B with its interval, all under one asymptote."""
    found = result.comparison
    rows = [row for row in found.curves if len(row.log_compute)] if found else []
    if sum(row.identified for row in rows) < 2:
        return None
    figure = Figure(figsize=(WIDTH, 3.4 + 0.26 * len(rows)), layout="constrained")
    upper, lower = figure.subplots(2, 1, height_ratios=[2.8, 0.6 + 0.26 * len(rows)])
    colour_of = colours(result)
    for place, row in enumerate(rows):
        colour, known = colour_of[row.run], row.identified
        x, y = row.log_compute, row.log_f
        upper.scatter(x, y, s=11, color=colour, linewidths=0, alpha=0.8, zorder=3)
        if known:
            ends = np.array([x.min(), x.max()])
            (line,) = upper.plot(ends, row.steepness * ends, color=colour, linewidth=1.2)  # F = C^B
            hover(line, [f"{row.run}: B = {row.steepness:z.3g}"])
            lower.plot(row.steepness, place, "o", color=colour, markersize=6, zorder=3)
        if np.isfinite(row.interval95).all():
            lower.plot(row.interval95, [place, place], color=colour, linewidth=2, linestyle="-" if known else DASHED)
    upper.set(xlabel="ln C", ylabel="ln F")
    lower.set(xlabel="steepness B, 95% interval", ylim=(len(rows) - 0.5, -0.5))
    lower.set_yticks(range(len(rows)), [shortened(row.run) for row in rows], fontsize=10)
    lower.grid(axis="y", visible=False)
    return figure


def solve_rates(result: SweepResult) -> Figure | None:
    """How the evaluation problems divide by solve rate over training, one panel for each of a few configurations."""
    rows = []
    for configuration, series in result.training.items():
        shares = [curve.only(curve.compute > 0) for name in SOLVE_SHARES if (curve := series.get(name)) is not None]
        if len(shares) == len(SOLVE_SHARES) and len(shares[0].compute) > 1:  # one point spans no area
            rows.append((configuration.name, shares))
    if not rows:
        return None
    rows = picked(rows, MOST_FITS)
    figure, axes = multiples(len(rows))
    shades = [PALETTE(x) for x in (0.02, 0.35, 0.68, 1.0)]
    for panel, (run, shares) in zip(axes, rows, strict=True):
        compute = shares[0].compute
        panel.stackplot(compute, [share.reward for share in shares], colors=shades, linewidth=0)
        panel.set_title(shortened(run, 22), loc="left", fontweight="bold")
        panel.set(ylim=(0, 1), xlim=(compute[0], compute[-1]))
        log_axis(panel)
        panel.grid(False)
    labels(figure, axes, compute_label(result), "share of evaluation problems")
    names = ("never solved", "less than half", "half or more", "always solved")
    handles = [
        Line2D([], [], color=shade, linewidth=7, label=label) for shade, label in zip(shades, names, strict=True)
    ]
    legend(figure, handles, columns=4)
    return figure
