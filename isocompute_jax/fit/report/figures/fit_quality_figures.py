"""How far the fits can be trusted: profiles of A, residuals, other forms of curve, and steepness under one A."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from isocompute_jax.fit.curves.forms import FORMS
from isocompute_jax.fit.report.figures import by_configuration
from isocompute_jax.fit.report.figures.style import (
    DASHED,
    INK,
    PALETTE,
    QUIET,
    WIDTH,
    hover,
    legend,
    log_axis,
    multiples,
    panels,
    picked,
)
from isocompute_jax.fit.report.wording import amount, shortened

Summary = dict[str, Any]
MOST_RESIDUALS = 12
BEYOND = 2.2
"""Profiles are drawn as far as so many times their 95% limit."""


def profiles(summary: Summary) -> Figure | None:
    """How much worse each fit becomes as A is moved away from its estimate, in units of the 95% limit."""
    rows = {curve["run"]: curve for curve in summary["curves"] if curve["profile"]}
    groups = [(title, [run for run in runs if run in rows]) for title, runs in by_configuration.by_batch(summary)]
    groups = [(title, runs) for title, runs in groups if runs]
    if not groups:
        return None
    figure, axes = multiples(len(groups), panel=2.2)
    colours = by_configuration.colours(summary)
    for panel, (title, runs) in zip(axes, groups, strict=True):
        panel.axhspan(-1, 1, color="#f2f4f6", linewidth=0, zorder=0)
        for run in runs:
            profile, known = rows[run]["profile"], rows[run]["identified"].get("asymptote", False)
            t = np.array(profile["t"], dtype=float) / profile["critical"]
            inside = np.abs(t) <= BEYOND
            asymptote = np.array(profile["asymptote"])[inside]
            (line,) = panel.plot(
                asymptote, t[inside], color=colours[run], linewidth=1.6, linestyle="-" if known else DASHED
            )
            hover(line, [run if known else f"{run}: not identified"])
            if known:
                panel.plot(rows[run]["params"]["asymptote"], 0, "o", color=colours[run], markersize=6, zorder=4)
        panel.set_title(title, loc="left", fontweight="bold")
        panel.set(ylim=(-BEYOND, BEYOND))
    if len(axes) == 1:
        axes[0].set(xlabel="asymptote A", ylabel="t / its 95% limit")
    else:
        figure.supxlabel("asymptote A", fontsize=11)
        figure.supylabel("t / its 95% limit", fontsize=11)
    doubtful = [run for run in rows if not rows[run]["identified"].get("asymptote", False)]
    note = [Line2D([], [], color=INK, linestyle=DASHED, label="A not identified")] if doubtful else []
    legend(figure, [*by_configuration.handles(summary), *note])
    return figure


def residuals(summary: Summary) -> Figure | None:
    """What the fitted curves leave, in units of the noise, one panel for each configuration."""
    rows = [curve for curve in summary["curves"] if curve["status"] != "failed" and curve["noise"]]
    if not rows:
        return None
    rows = picked(rows, MOST_RESIDUALS)
    figure, axes = multiples(len(rows), panel=1.15 if len(rows) > 2 else 1.9)
    colours = by_configuration.colours(summary)
    for panel, curve in zip(axes, rows, strict=True):
        compute, reward, used = (np.array(curve["points"][key]) for key in ("compute", "reward", "used"))
        some = compute > 0
        compute, reward, used = compute[some], reward[some], used[some]
        left = (reward - FORMS[curve["form"]].curve(compute, **curve["params"])) / curve["noise"]
        panel.axhspan(-2, 2, color="#f2f4f6", linewidth=0, zorder=0)
        panel.axhline(0, color=QUIET, linewidth=0.9, zorder=1)
        panel.plot(compute[used], left[used], color=colours[curve["run"]], linewidth=0.8, alpha=0.6, zorder=2)
        for fitted in (True, False):
            where = used == fitted
            if where.any():
                dots = panel.scatter(
                    compute[where], left[where], s=16, zorder=3, linewidths=0.9, edgecolors=colours[curve["run"]],
                    facecolors=colours[curve["run"]] if fitted else "white",
                )  # fmt: skip
                hover(dots, [f"{t:+z.2f} at {amount(c)}" for c, t in zip(compute[where], left[where], strict=True)])
        panel.set_title(shortened(curve["run"], 24), loc="left", fontsize=10)
        log_axis(panel)
    figure.supxlabel(by_configuration.compute_label(summary), fontsize=11)
    figure.supylabel("residual / noise", fontsize=11)
    return figure


def forms(summary: Summary) -> Figure | None:
    """AICc of every form against the lowest, and how far each misses the evaluations that were held out."""
    found = {name: row for name, row in summary["forms"].items() if row["aicc"] is not None}
    if len(found) < 2:
        return None
    held = [name for name, row in found.items() if row["holdout_mean_abs_error"] is not None]
    figure, axes = panels(1, 2 if held else 1, height=1.0 + 0.42 * len(found), share=False)
    names = list(found)
    least = min(row["aicc"] for row in found.values())
    _bars(axes[0], names, [found[name]["aicc"] - least for name in names], "AICc above the lowest", "{:,.0f}")
    if held:
        errors = [found[name]["holdout_mean_abs_error"] for name in names]
        _bars(axes[1], names, errors, "mean error, held out", "{:.3f}")
        axes[1].set_yticks(range(len(names)), [""] * len(names))
    return figure


def _bars(axes: Axes, names: list[str], values: list[float | None], label: str, text: str) -> None:
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


def comparison(summary: Summary) -> Figure | None:
    """ln F against ln C with lines of slope B, and each B with its interval, all under one asymptote."""
    found = summary["comparison"]
    rows = [row for row in found["curves"] if row["log_compute"]] if found else []
    if sum(row["identified"] for row in rows) < 2:
        return None
    figure = Figure(figsize=(WIDTH, 3.4 + 0.26 * len(rows)), layout="constrained")
    upper, lower = figure.subplots(2, 1, height_ratios=[2.8, 0.6 + 0.26 * len(rows)])
    colours = by_configuration.colours(summary)
    for place, row in enumerate(rows):
        colour, known = colours[row["run"]], row["identified"]
        x, y = np.array(row["log_compute"]), np.array(row["log_f"])
        upper.scatter(x, y, s=11, color=colour, linewidths=0, alpha=0.8, zorder=3)
        if known:
            ends = np.array([x.min(), x.max()])
            (line,) = upper.plot(ends, row["steepness"] * ends, color=colour, linewidth=1.2)  # F = C^B
            hover(line, [f"{row['run']}: B = {row['steepness']:z.3g}"])
            lower.plot(row["steepness"], place, "o", color=colour, markersize=6, zorder=3)
        if None not in row["interval95"]:
            lower.plot(row["interval95"], [place, place], color=colour, linewidth=2, linestyle="-" if known else DASHED)
    upper.set(xlabel="ln C", ylabel="ln F")
    lower.set(xlabel="steepness B, 95% interval", ylim=(len(rows) - 0.5, -0.5))
    lower.set_yticks(range(len(rows)), [shortened(row["run"]) for row in rows], fontsize=10)
    lower.grid(axis="y", visible=False)
    return figure
