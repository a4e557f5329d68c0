"""The picture of a held-out quarter: a panel for each configuration."""

from __future__ import annotations

import pathlib

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from isocompute_jax.fit.comparisons.held_out import HeldOut
from isocompute_jax.fit.report.figures.by_configuration import compute_label
from isocompute_jax.fit.report.figures.style import (
    INK,
    PALE,
    PALETTE,
    QUIET,
    hover,
    in_style,
    labels,
    legend,
    log_axis,
    multiples,
    picked,
    save_figure,
)
from isocompute_jax.fit.report.wording import amount, shortened
from isocompute_jax.fit.sweep_results import SweepResult

MOST_PANELS = 8
LINE, BAND = PALETTE(0.25), "#b9cbdb"


def draw(result: SweepResult, found: HeldOut, path: pathlib.Path) -> pathlib.Path:
    """Means up to the cut, and after it what was predicted and what was measured; of many configurations some."""
    shown = picked(np.flatnonzero(found.known.any(axis=1)).tolist(), MOST_PANELS)
    with in_style():
        figure, axes = multiples(len(shown))
        for panel, k in zip(axes, shown, strict=True):
            _panel(panel, found, k)
        labels(figure, axes, compute_label(result), f"{result.metric} ({result.options.read.eval_set})")
        legend(figure, _handles(found))
        return save_figure(figure, path)


def _panel(panel: Axes, found: HeldOut, k: int) -> None:
    name, known = found.configurations[k].name, found.known[k]
    compute, measured, mean = found.compute[known], found.measured[k, known], found.mean[k, known]
    panel.axvspan(found.cut, found.compute[-1] * 1.1, color=PALE, alpha=0.5, linewidth=0, zorder=0)
    panel.plot(found.fitted_compute, found.fitted[k], "o", color=QUIET, markersize=3.5)
    panel.fill_between(compute, *found.interval95[:, k, known], color=BAND, linewidth=0, zorder=1)
    panel.plot(compute, found.predicted[k, known], color=LINE, linewidth=1.4, zorder=3)
    dots = panel.scatter(compute, measured, s=22, color=INK, linewidths=0, zorder=5)
    hover(dots, [f"{name}: {r:z.3f} at {amount(c)}" for c, r in zip(compute, measured, strict=True)])
    fell = mean < measured
    panel.scatter(compute[fell], mean[fell], s=18, facecolors="none", edgecolors=INK, linewidths=0.8, zorder=4)
    panel.set_title(shortened(name, 22), loc="left", fontweight="bold")
    log_axis(panel)


def _handles(found: HeldOut) -> list[Line2D | Patch]:
    """Of the legend."""
    handles = [
        Line2D([], [], color=QUIET, marker="o", markersize=4, linestyle="", label="fitted"),
        Line2D([], [], color=LINE, label="predicted"),
        Patch(color=BAND, label="95%"),
        Line2D([], [], color=INK, marker="o", markersize=5, linestyle="", label="measured"),
    ]
    if found.best_so_far and np.any(found.mean[found.known] < found.measured[found.known]):
        handles.append(
            Line2D([], [], color=INK, marker="o", markersize=5, linestyle="", markerfacecolor="none", label="mean")
        )
    return handles
