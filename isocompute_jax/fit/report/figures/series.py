"""Small multiples: panels of lines, steps, marks and their intervals, as values; those of comparisons and of fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from isocompute_jax.fit.comparisons.comparison import ComparisonResult, DrawnSeries, Look, Panel, Picture, Tone
from isocompute_jax.fit.report.figures.style import (
    DASHED,
    DOTTED,
    GREY,
    INK,
    MOST_PANELS,
    PALE,
    PALETTE,
    QUIET,
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
    size_axis,
)
from isocompute_jax.fit.report.wording import amount, reached, shortened
from isocompute_jax.fit.results import AllocationFit
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
MOST_FITS = 6
"""Panels of single configurations, or slices, at most."""
BEYOND = 2.2
"""Profiles are drawn as far as so many times their 95% limit."""


def draw_comparison(result: SweepResult, found: ComparisonResult) -> Figure | None:
    """The picture of an answer; None where it has none."""
    return None if found.picture is None else draw_series(result, found.series, found.picture)


def draw_series(result: SweepResult, drawn: Sequence[DrawnSeries], picture: Picture) -> Figure:
    """Panels with lines, steps, marks and their intervals, and a legend of those that are no configuration's."""
    figure, axes = _panels(result, drawn, picture)
    colours, apart = _colours(result, drawn), _apart(drawn, picture)
    named: dict[str, Artist] = {}
    for key, panel in axes.items():
        spec = picture.panel or picture.stacked[key]
        for series in [each for each in drawn if each.panel == key]:
            handle = _draw(panel, spec, series, colours[series.tone], apart.get(series.name, 0.0), picture)
            if not _of_configuration(series.tone) and series.look != "cells":
                named.setdefault(series.name, handle)
        _finish(panel, spec, most=8 if len(axes) == 1 or picture.stacked else 6)
    if any(_of_configuration(series.tone) for series in drawn):
        legend(figure, [*handles(result), *named.values()])
    else:
        legend(figure, list(named.values()))
    if picture.shade:
        every = list(axes.values())
        figure.colorbar(every[0].collections[0], ax=every, label=picture.shade, location="top", shrink=0.5, aspect=40)
    return figure


def _panels(result: SweepResult, drawn: Sequence[DrawnSeries], picture: Picture) -> tuple[Figure, dict[str, Axes]]:
    """Axes by the title of their panel."""
    compute = compute_label(result)
    if picture.panel is None:
        figure, axes = panels(len(picture.stacked), height=1.4 + 2.5 * len(picture.stacked), share=False)
        for panel, spec in zip(axes, picture.stacked.values(), strict=True):
            panel.set(ylabel=spec.y, xlabel=spec.x)
            if not spec.x and panel is not axes[0]:
                panel.sharex(axes[0])
        over_compute = [panel for panel, spec in zip(axes, picture.stacked.values(), strict=True) if not spec.x]
        over_compute[-1].set(xlabel=compute)
        return figure, dict(zip(picture.stacked, axes, strict=True))
    keys = picked(list(dict.fromkeys(series.panel for series in drawn)), picture.most)
    figure, axes = multiples(len(keys), panel=picture.height, columns=picture.columns)
    for panel, key in zip(axes, keys, strict=True):
        panel.set_title(key, loc="left", fontweight="bold")
    labels(figure, axes, picture.panel.x or compute, picture.panel.y)
    return figure, dict(zip(keys, axes, strict=True))


def _colours(result: SweepResult, drawn: Sequence[DrawnSeries]) -> dict[Tone, Any]:
    by_run = colours(result)
    by_size = {curve.group_size: by_run[curve.run] for curve in result.curves} if result.known_sizes else {}
    known = {"ink": INK, "quiet": QUIET} | by_run | by_size
    return {
        tone: PALETTE(tone) if isinstance(tone, float) else known.get(tone, GREY)
        for tone in {series.tone for series in drawn}
    }


def _of_configuration(tone: Tone) -> bool:
    """Whether it is the colour of a configuration, which has its own legend."""
    return not isinstance(tone, float) and tone not in ("ink", "quiet")


def _apart(drawn: Sequence[DrawnSeries], picture: Picture) -> dict[str, float]:
    """Name -> octaves by which its steps are moved, so that lines that coincide are seen."""
    names = list(dict.fromkeys(series.name for series in drawn if series.look == "steps"))
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
    if series.look == "spans" and low is not None and high is not None:
        panel.vlines(series.x, low, high, color=colour, alpha=0.5, linewidth=5, capstyle="round", zorder=2)
        return Line2D([], [], color=colour, alpha=0.5, linewidth=5, label=series.name)
    steps = "steps" in series.look
    if low is not None and high is not None and (picture.panel is None or not steps):
        step = "mid" if steps else None
        panel.fill_between(series.x, low, high, step=step, color=colour, alpha=0.2, linewidth=0)
    stroke = {"color": colour, "linewidth": 1.5, **STROKES[series.look]}
    marker = "_" if len(series.x) == 1 else None  # a point alone has no line
    (line,) = panel.plot(series.x, y, **stroke, marker=marker, label=series.name)
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
    if spec.band:
        panel.axhspan(*spec.band, color=PALE, alpha=0.4, linewidth=0, zorder=0)
    if spec.zero:
        panel.axhline(0.0, color=QUIET, linewidth=0.9)
    if spec.sizes:
        size_axis(panel, spec.sizes, most=most)
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


def slices(result: SweepResult, kind: Literal["problems_per_batch", "rollouts_per_step"]) -> Figure | None:
    """n* among the configurations with the same B_problem over C, or the same B over M, one panel each."""
    steps, drawn = kind == "rollouts_per_step", []
    for part in result.slices_of(kind):
        x = [row.num_steps if steps else row.compute for row in part.budgets]
        if None in x:  # steps that cannot be told
            continue
        panel = f"{'B' if steps else 'B_problem'} = {part.value}"
        at, sizes = np.array(x, float), np.array([row.group_size for row in part.budgets])
        hovers = tuple(reached(row.run, row.reward, row.compute) for row in part.budgets)
        drawn.append(DrawnSeries("n* read off", at, sizes, panel, look="dots", tone=0.3, hover=hovers))
        drawn += law_series(part.allocation, at, panel)
    picture = Picture(Panel("n*", result.group_sizes, x="steps M" if steps else ""), most=MOST_FITS, height=1.7)
    return draw_series(result, drawn, picture) if drawn else None


def law_series(found: AllocationFit, x: np.ndarray, panel: str = "") -> list[DrawnSeries]:
    """The sigmoid over the range of `x`, dashed where the data do not pin it down; none without one."""
    if not np.isfinite(found.slope) or len(x) < 2:
        return []
    grid = np.linspace(x[0], x[-1], 200) if found.axis == "steps" else np.geomspace(x[0], x[-1], 200)
    size = 2.0 ** found.octaves(grid)
    if found.status == "ok":
        return [DrawnSeries("sigmoid", grid, size, panel)]
    return [DrawnSeries("sigmoid, not pinned down", grid, size, panel, look="dashed")]


def targets(result: SweepResult) -> Figure | None:
    """For each target, the n that leads at each budget, and those that tie with it."""
    if not result.targets or not result.several_sizes:
        return None
    drawn = []
    for name, target in result.targets.items():
        rows = target.budgets
        compute, best = np.array([row.compute for row in rows]), np.array([row.best_group_size for row in rows])
        low, high = np.array([(min(row.tied_group_sizes), max(row.tied_group_sizes)) for row in rows]).T
        leaders = [(row.compute, target.frontier.leader_at(row.compute)) for row in rows]
        led = [(at, leader.group_size) for at, leader in leaders if leader is not None]
        at, n = np.array(led).reshape(-1, 2).T
        hovers = tuple(reached(row.best_run, row.reward, row.compute) for row in rows)
        drawn += [
            DrawnSeries("ties within noise", compute, best, name, low, high, look="spans", tone="quiet"),
            DrawnSeries("fitted frontier", at, n, name, look="steps", tone=0.7),
            DrawnSeries("best by evaluation", compute, best, name, look="dots", tone=0.25, hover=hovers),
        ]
    return draw_series(result, drawn, Picture(Panel("n", result.group_sizes), columns=1, height=1.6))


def entropy(result: SweepResult) -> Figure | None:
    """Entropy of the policy over training."""
    rows = [(each.name, series["entropy"]) for each, series in result.training.items() if "entropy" in series]
    rows = [(run, curve.only(curve.compute > 0)) for run, curve in rows]
    drawn = [DrawnSeries(run, curve.compute, curve.reward, tone=run, hover=(run,)) for run, curve in rows]
    return draw_series(result, drawn, Picture(Panel("entropy (nats per token)", zero=True))) if drawn else None


def holdout(result: SweepResult) -> Figure | None:
    """Evaluations before and after the cut, and what the curve fitted before it predicts, with 95% intervals."""
    drawn = []
    for curve in result.curves:
        if not curve.holdout:
            continue
        found, panel = curve.holdout, shortened(curve.run, 22)
        compute, reward = curve.points.compute, curve.points.reward
        early, late = (compute > 0) & (compute <= found.cut), compute > found.cut
        low, high = found.predicted - found.half_width, found.predicted + found.half_width
        hovers = tuple(reached("", r, c) for c, r in zip(compute[late], reward[late], strict=True))
        drawn += [
            DrawnSeries("fitted", compute[early], reward[early], panel, look="dots", tone="quiet"),
            DrawnSeries("predicted", found.compute, found.predicted, panel, low, high, tone=0.25),
            DrawnSeries("held out", compute[late], reward[late], panel, look="dots", hover=hovers),
        ]
    return draw_series(result, drawn, Picture(Panel(result.metric), most=MOST_FITS)) if drawn else None


def residuals(result: SweepResult) -> Figure | None:
    """What the fitted curves leave, in units of the noise, one panel for each configuration."""
    drawn = []
    for curve in result.with_noise:
        rest, panel = curve.residuals, shortened(curve.run, 24)
        kinds: tuple[tuple[str, Look, np.ndarray], ...] = (
            ("fitted", "dots", rest.used), ("not fitted", "rings", ~rest.used)
        )  # fmt: skip
        for name, look, own in kinds:
            compute, left = rest.compute[own], rest.reward[own]
            if len(left):
                hovers = tuple(f"{t:+z.2f} at {amount(c)}" for c, t in zip(compute, left, strict=True))
                drawn.append(DrawnSeries(name, compute, left, panel, look=look, tone=0.3, hover=hovers))
    picture = Picture(Panel("residual / noise", zero=True, band=(-2, 2)), most=MOST_FITS, height=1.15)
    return draw_series(result, drawn, picture) if drawn else None


def profiles(result: SweepResult) -> Figure | None:
    """How much worse each fit becomes as A is moved away from its estimate, in units of the 95% limit."""
    curves, drawn = {curve.run: curve for curve in result.curves}, []
    for panel, runs in by_batch(result):
        for run in runs:
            curve, profile = curves[run], curves[run].profile
            if not profile:
                continue
            inside, known = np.abs(profile.scaled) <= BEYOND, curve.identified()
            line = profile.asymptote[inside], profile.scaled[inside]
            if known:
                drawn.append(DrawnSeries(run, *line, panel, tone=run, hover=(run,)))
                at = np.array([curve.fit.asymptote])
                drawn.append(DrawnSeries(run, at, np.zeros(1), panel, look="dots", tone=run))
            else:
                text = f"{run}: not identified"
                drawn.append(DrawnSeries(run, *line, panel, look="dashed", tone=run, hover=(text,)))
    panel = Panel("t / its 95% limit", x="asymptote A", linear=True, band=(-1, 1))
    return draw_series(result, drawn, Picture(panel, most=MOST_PANELS, height=2.2)) if drawn else None
