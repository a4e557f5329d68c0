"""Learning curves with their frontier, and how well the first part of each predicts the rest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from isocompute_jax.fit.curve_results import CurveResult
from isocompute_jax.fit.report.figures import by_configuration
from isocompute_jax.fit.report.figures.style import (
    DOTTED,
    INK,
    PALE,
    PALETTE,
    QUIET,
    hover,
    labels,
    legend,
    log_axis,
    multiples,
    picked,
)
from isocompute_jax.fit.report.wording import amount, shortened
from isocompute_jax.fit.sweep_results import SweepResult

MOST_HOLDOUTS = 6
MOST_STACKED = 3
"""So many panels of learning curves stand one above another; more stand in two columns."""


def learning_curves(result: SweepResult) -> Figure:
    """Every evaluation, the fitted curves coloured by n, the answers on top; one panel for each B_problem."""
    panels = by_configuration.by_batch(result)
    figure, axes = multiples(len(panels), panel=2.4, columns=1 if len(panels) <= MOST_STACKED else 2)
    colours = by_configuration.colours(result)
    curves = {curve.run: curve for curve in result.curves}
    for panel, (title, runs) in zip(axes, panels, strict=True):
        panel.set_title(title, loc="left", fontweight="bold")
        for run in runs:
            _points(panel, curves[run], colours[run], small=len(curves) > 8)
            if curves[run].fit.status != "failed":
                (line,) = panel.plot(*drawn(curves[run], curves[run].fit.window), color=colours[run], linewidth=1.2)
                line.set_alpha(0.8)
                hover(line, [run])
            _peak(panel, curves[run], colours[run])
        for run, start, end in result.leads:
            compute, reward = drawn(curves[run], (start, end))
            if run not in runs:
                panel.plot(compute, reward, color=QUIET, linewidth=1.2, linestyle=DOTTED, zorder=4)
                continue
            panel.plot(compute, reward, color="white", linewidth=5.5, zorder=4, solid_capstyle="butt")
            (line,) = panel.plot(compute, reward, color=colours[run], linewidth=3.5, zorder=5, solid_capstyle="butt")
            hover(line, [f"the answer: {run}, {amount(start)} to {amount(end)}"])
        if len(panels) == 1:
            for switch in result.frontier.crossings:
                panel.axvline(switch.row.compute, color=QUIET, linewidth=0.9, linestyle=DOTTED, zorder=1)
        log_axis(panel)
    label = f"{result.metric} ({result.options.read.eval_set})"
    labels(figure, axes, by_configuration.compute_label(result), label)
    legend(figure, by_configuration.handles(result))
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
            hover(
                dots,
                [f"{curve.run}: {r:z.3f} at {amount(c)}" for c, r in zip(compute[some], reward[some], strict=True)],
            )


def _peak(axes: Axes, curve: CurveResult, colour: Any) -> None:
    """Marks where a curve begins to fall."""
    fall = curve.fit.fall
    if fall:
        dot = axes.scatter(
            fall.compute, fall.reward, marker="v", s=70, color=colour, edgecolors=INK, linewidths=0.8, zorder=7
        )
        hover(dot, [f"{curve.run} {fall.text()}"])


def holdout(result: SweepResult) -> Figure | None:
    """Evaluations before and after the cut, and what the curve fitted before it predicts, with 95% intervals."""
    rows = [(curve, curve.holdout.own) for curve in result.curves if curve.holdout]
    if not rows:
        return None
    rows = picked(rows, MOST_HOLDOUTS)
    figure, axes = multiples(len(rows))
    for panel, (curve, found) in zip(axes, rows, strict=True):
        compute, reward = curve.points.compute, curve.points.reward
        shown = compute > 0
        early = shown & (compute <= found.cut)
        panel.plot(compute[early], reward[early], "o", color=QUIET, markersize=3.5)
        panel.fill_between(
            found.compute, found.predicted - found.half_width, found.predicted + found.half_width,
            color=PALE, linewidth=0, zorder=1,
        )  # fmt: skip
        panel.plot(found.compute, found.predicted, "_-", color=PALETTE(0.25), markersize=9, linewidth=1.4, zorder=3)
        late = shown & ~early
        dots = panel.scatter(compute[late], reward[late], s=22, color=INK, linewidths=0, zorder=4)
        hover(dots, [f"{r:z.3f} at {amount(c)}" for c, r in zip(compute[late], reward[late], strict=True)])
        panel.axvline(found.cut, color=QUIET, linewidth=0.9, linestyle=DOTTED)
        panel.set_title(shortened(curve.run, 22), loc="left", fontweight="bold")
        log_axis(panel)
    labels(figure, axes, by_configuration.compute_label(result), result.metric)
    legend(figure, [
        Line2D([], [], color=QUIET, marker="o", markersize=4, linestyle="", label="fitted"),
        Line2D([], [], color=INK, marker="o", markersize=5, linestyle="", label="held out"),
        Line2D([], [], color=PALETTE(0.25), label="predicted"),
        Patch(color=PALE, label="95% of evaluations"),
    ])  # fmt: skip
    return figure


def drawn(curve: CurveResult, window: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    """Compute and fitted reward over a window."""
    compute = np.geomspace(window[0], window[1], 200)
    return compute, curve.fit.reward(compute)
