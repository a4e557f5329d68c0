"""How far the fits can be trusted: profiles of A, residuals, other forms of curve, and steepness under one A."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from isocompute_jax.fit.report.figures import by_configuration
from isocompute_jax.fit.report.figures.style import (
    DASHED,
    INK,
    PALETTE,
    QUIET,
    WIDTH,
    hover,
    labels,
    legend,
    log_axis,
    multiples,
    panels,
    picked,
)
from isocompute_jax.fit.report.wording import amount, shortened
from isocompute_jax.fit.sweep_results import SweepResult

MOST_RESIDUALS = 6
BEYOND = 2.2
"""Profiles are drawn as far as so many times their 95% limit."""


def profiles(result: SweepResult) -> Figure | None:
    """How much worse each fit becomes as A is moved away from its estimate, in units of the 95% limit."""
    rows = {curve.run: (curve, curve.profile) for curve in result.curves if curve.profile}
    groups = [(title, [run for run in runs if run in rows]) for title, runs in by_configuration.by_batch(result)]
    groups = [(title, runs) for title, runs in groups if runs]
    if not groups:
        return None
    figure, axes = multiples(len(groups), panel=2.2)
    colours = by_configuration.colours(result)
    for panel, (title, runs) in zip(axes, groups, strict=True):
        panel.axhspan(-1, 1, color="#f2f4f6", linewidth=0, zorder=0)
        for run in runs:
            curve, profile = rows[run]
            t, known = profile.scaled, curve.identified()
            inside = np.abs(t) <= BEYOND
            (line,) = panel.plot(
                profile.asymptote[inside],
                t[inside],
                color=colours[run],
                linewidth=1.6,
                linestyle="-" if known else DASHED,
            )
            hover(line, [run if known else f"{run}: not identified"])
            if known:
                panel.plot(curve.fit.asymptote, 0, "o", color=colours[run], markersize=6, zorder=4)
        panel.set_title(title, loc="left", fontweight="bold")
        panel.set(ylim=(-BEYOND, BEYOND))
    labels(figure, axes, "asymptote A", "t / its 95% limit")
    doubtful = [curve for curve, _ in rows.values() if not curve.identified()]
    note = [Line2D([], [], color=INK, linestyle=DASHED, label="A not identified")] if doubtful else []
    legend(figure, [*by_configuration.handles(result), *note])
    return figure


def residuals(result: SweepResult) -> Figure | None:
    """What the fitted curves leave, in units of the noise, one panel for each configuration."""
    rows = result.with_noise
    if not rows:
        return None
    rows = picked(rows, MOST_RESIDUALS)
    figure, axes = multiples(len(rows), panel=1.15 if len(rows) > 2 else 1.9)
    colours = by_configuration.colours(result)
    for panel, curve in zip(axes, rows, strict=True):
        rest, colour = curve.residuals, colours[curve.run]
        compute, left, used = rest.compute, rest.reward, rest.used
        panel.axhspan(-2, 2, color="#f2f4f6", linewidth=0, zorder=0)
        panel.axhline(0, color=QUIET, linewidth=0.9, zorder=1)
        panel.plot(compute[used], left[used], color=colour, linewidth=0.8, alpha=0.6, zorder=2)
        for fitted in (True, False):
            where = used == fitted
            if where.any():
                dots = panel.scatter(
                    compute[where], left[where], s=16, zorder=3, linewidths=0.9, edgecolors=colour,
                    facecolors=colour if fitted else "white",
                )  # fmt: skip
                hover(dots, [f"{t:+z.2f} at {amount(c)}" for c, t in zip(compute[where], left[where], strict=True)])
        panel.set_title(shortened(curve.run, 24), loc="left", fontsize=10)
        log_axis(panel)
    labels(figure, axes, by_configuration.compute_label(result), "residual / noise")
    return figure


def forms(result: SweepResult) -> Figure | None:
    """AICc of every form against the lowest, and how far each misses the evaluations that were held out."""
    found = result.scored_forms
    if len(found) < 2:
        return None
    held = [name for name, row in found.items() if row.holdout_mean_abs_error is not None]
    figure, axes = panels(1, 2 if held else 1, height=1.0 + 0.42 * len(found), share=False)
    names = list(found)
    _bars(axes[0], names, list(result.aicc_above_lowest.values()), "AICc above the lowest", "{:,.0f}")
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


def comparison(result: SweepResult) -> Figure | None:
    """ln F against ln C with lines of slope B, and each B with its interval, all under one asymptote."""
    found = result.comparison
    rows = [row for row in found.curves if len(row.log_compute)] if found else []
    if sum(row.identified for row in rows) < 2:
        return None
    figure = Figure(figsize=(WIDTH, 3.4 + 0.26 * len(rows)), layout="constrained")
    upper, lower = figure.subplots(2, 1, height_ratios=[2.8, 0.6 + 0.26 * len(rows)])
    colours = by_configuration.colours(result)
    for place, row in enumerate(rows):
        colour, known = colours[row.run], row.identified
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
