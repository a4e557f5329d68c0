"""The picture of a comparison, whatever its question: panels, lines, steps, marks and their intervals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from isocompute_jax.fit.comparisons.comparison import ComparisonResult, DrawnSeries, Panel, Picture, Tone
from isocompute_jax.fit.report.figures import by_configuration
from isocompute_jax.fit.report.figures.style import (
    DASHED,
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
    panels,
    picked,
)
from isocompute_jax.fit.sweep_results import SweepResult

STROKES: Mapping[str, Mapping[str, Any]] = {
    "line": {},
    "dashed": {"linestyle": DASHED},
    "dotted": {"linestyle": DOTTED},
    "steps": {"drawstyle": "steps-mid"},
    "wide steps": {"drawstyle": "steps-mid", "linewidth": 3.0, "alpha": 0.4},
}
MARKS = {"dots": 16.0, "rings": 20.0, "discs": 150.0}
"""Areas, in square points; rings around discs are as large as these."""
APART = 0.12
"""Octaves by which steps that may coincide are moved, at most."""


def draw_comparison(result: SweepResult, found: ComparisonResult) -> Figure | None:
    """The picture of an answer; None where it has none."""
    picture = found.picture
    if picture is None:
        return None
    figure, axes = _panels(result, found, picture)
    colours, apart = _colours(result, found), _apart(found, picture)
    handles: dict[str, Artist] = {}
    for key, panel in axes.items():
        spec = picture.panel or picture.stacked[key]
        for series in [each for each in found.series if each.panel == key]:
            handle = _draw(panel, spec, series, colours[series.tone], apart.get(series.name, 0.0), picture)
            if not _of_configuration(series.tone) and series.look != "cells":
                handles.setdefault(series.name, handle)
        _finish(panel, spec, most=8 if len(axes) == 1 or picture.stacked else 6)
    if any(_of_configuration(series.tone) for series in found.series):
        legend(figure, [*by_configuration.handles(result), *handles.values()])
    else:
        legend(figure, list(handles.values()))
    if picture.shade:
        drawn = list(axes.values())
        figure.colorbar(drawn[0].collections[0], ax=drawn, label=picture.shade, location="top", shrink=0.5, aspect=40)
    return figure


def _panels(result: SweepResult, found: ComparisonResult, picture: Picture) -> tuple[Figure, dict[str, Axes]]:
    """Axes by the title of their panel."""
    compute = by_configuration.compute_label(result)
    if picture.panel is None:
        figure, axes = panels(len(picture.stacked), height=1.4 + 2.5 * len(picture.stacked), share=False)
        for panel, spec in zip(axes, picture.stacked.values(), strict=True):
            panel.set(ylabel=spec.y, xlabel=spec.x)
            if not spec.x and panel is not axes[0]:
                panel.sharex(axes[0])
        over_compute = [panel for panel, spec in zip(axes, picture.stacked.values(), strict=True) if not spec.x]
        over_compute[-1].set(xlabel=compute)
        return figure, dict(zip(picture.stacked, axes, strict=True))
    keys = picked(list(dict.fromkeys(series.panel for series in found.series)), picture.most)
    figure, axes = multiples(len(keys), panel=picture.height, columns=picture.columns)
    for panel, key in zip(axes, keys, strict=True):
        panel.set_title(key, loc="left", fontweight="bold")
    labels(figure, axes, picture.panel.x or compute, picture.panel.y)
    return figure, dict(zip(keys, axes, strict=True))


def _colours(result: SweepResult, found: ComparisonResult) -> dict[Tone, Any]:
    by_run = by_configuration.colours(result)
    by_size = {curve.group_size: by_run[curve.run] for curve in result.curves} if result.known_sizes else {}
    known = {"ink": INK, "quiet": QUIET} | by_run | by_size
    return {
        tone: PALETTE(tone) if isinstance(tone, float) else known.get(tone, by_configuration.GREY)
        for tone in {series.tone for series in found.series}
    }


def _of_configuration(tone: Tone) -> bool:
    """Whether it is the colour of a configuration, which has its own legend."""
    return not isinstance(tone, float) and tone not in ("ink", "quiet")


def _apart(found: ComparisonResult, picture: Picture) -> dict[str, float]:
    """Name -> octaves by which its steps are moved, so that lines that coincide are seen."""
    names = list(dict.fromkeys(series.name for series in found.series if series.look == "steps"))
    if picture.stacked or len(names) < 2:
        return {}
    return dict(zip(names, np.linspace(-APART, APART, len(names)).tolist(), strict=True))


def _draw(panel: Axes, spec: Panel, series: DrawnSeries, colour: Any, apart: float, picture: Picture) -> Artist:
    """Draws numbers into a panel, and returns what stands for them in a legend."""
    ends = [None if each is None else np.asarray(each, float) for each in (series.y, series.low, series.high)]
    y, low, high = [None if each is None else np.log2(each) + apart for each in ends] if spec.sizes else ends
    assert y is not None
    if picture.held_out_from is not None and series.look == "line":
        panel.axvspan(picture.held_out_from, series.x[-1] * 1.1, color=PALE, alpha=0.5, linewidth=0, zorder=0)
    if series.look in MARKS:
        return _marks(panel, series, y, colour, MARKS["discs" if spec.x_sizes else series.look])
    if series.look == "cells" and series.shade is not None:
        edges = np.append(y - y[0], y[-1] + y[0])
        panel.grid(False)
        return panel.pcolormesh(_edges(series.x), edges, series.shade, cmap=PALETTE, vmin=0, vmax=1, rasterized=True)
    if series.look == "bars":
        half = None if low is None else y - low
        return panel.errorbar(
            series.x, y, yerr=half, color=colour, marker="o", markersize=3.5, linewidth=1.5, elinewidth=0.8, capsize=0
        ).lines[0]
    steps = "steps" in series.look
    if low is not None and high is not None and (picture.panel is None or not steps):
        step = "mid" if steps else None
        panel.fill_between(series.x, low, high, step=step, color=colour, alpha=0.2, linewidth=0)
    (line,) = panel.plot(series.x, y, **{"color": colour, "linewidth": 1.5, **STROKES[series.look]}, label=series.name)
    if series.hover:
        hover(line, list(series.hover))
    return line


def _marks(panel: Axes, series: DrawnSeries, y: np.ndarray, colour: Any, area: float) -> Artist:
    hollow = series.look == "rings"
    face, edge = ("none", colour) if hollow else (colour, "none")
    areas = area if series.shade is None else area * series.shade
    dots = panel.scatter(series.x, y, s=areas, facecolors=face, edgecolors=edge, linewidths=0.9 * hollow, zorder=4)
    if series.hover:
        hover(dots, list(series.hover))
    return Line2D([], [], color=colour, marker="o", linestyle="", markersize=5, markerfacecolor=face, label=series.name)


def _finish(panel: Axes, spec: Panel, *, most: int) -> None:
    """Scales and ticks, and a line at 0."""
    if spec.zero:
        panel.axhline(0.0, color=QUIET, linewidth=0.9)
    if spec.sizes:
        by_configuration.size_axis(panel, spec.sizes, most=most)
    if spec.x_sizes:
        panel.set_xscale("log")
        panel.set_xticks(sorted(set(spec.x_sizes)), [str(size) for size in sorted(set(spec.x_sizes))])
        panel.minorticks_off()
        panel.margins(x=0.15)
    elif not spec.linear:
        log_axis(panel)


def _edges(compute: np.ndarray) -> np.ndarray:
    """[E + 1] borders halfway between evaluations, in log compute."""
    log = np.log(compute)
    if len(log) < 2:
        return compute[0] * np.array([0.9, 1.1])
    middle = (log[1:] + log[:-1]) / 2
    return np.exp(np.concatenate([[2 * log[0] - middle[0]], middle, [2 * log[-1] - middle[-1]]]))
