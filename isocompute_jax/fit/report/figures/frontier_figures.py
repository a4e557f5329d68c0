"""What the frontier says about n, B_problem and M: over compute, in slices, by target, and where it switches."""

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

from isocompute_jax.fit.report.figures import by_configuration
from isocompute_jax.fit.report.figures.style import (
    DASHED,
    DOTTED,
    INK,
    PALETTE,
    QUIET,
    hover,
    legend,
    log_axis,
    multiples,
    panels,
    picked,
)
from isocompute_jax.fit.report.wording import amount

Summary = dict[str, Any]
MOST_SLICES = 6
TIES = "#c9ced3"


def optimal_group_size(summary: Summary) -> Figure | None:
    """n*(C) read off the frontier with its interval, its running average, and the sigmoid where there is one."""
    rows = summary["frontier"]["budgets"]
    if not rows or not by_configuration.several_sizes(summary):
        return None
    figure, (axes,) = panels()
    compute = np.array([row["compute"] for row in rows])
    size = np.array([row["group_size"] for row in rows])
    shown = [
        _whiskers(axes, rows),
        axes.plot(
            compute, np.log2([row["smoothed_group_size"] for row in rows]), color=QUIET, linewidth=1.2,
            label="running average",
        )[0],
        _sigmoid(axes, summary["allocation"], compute),
    ]  # fmt: skip
    reward = [row["reward"] for row in rows]
    dots = axes.scatter(
        compute, np.log2(size), c=reward, cmap=PALETTE, s=64, zorder=4, edgecolors="white", linewidths=0.8,
        label="n* on the frontier",
    )  # fmt: skip
    hover(dots, [f"{row['run']}: {row['reward']:z.3f} at {amount(row['compute'])}" for row in rows])
    bar = figure.colorbar(dots, ax=axes, pad=0.02, aspect=30)
    bar.set_label(f"{summary['frontier']['metric']} on the frontier")
    bar.outline.set_visible(False)
    axes.set(xlabel=by_configuration.compute_label(summary), ylabel="optimal group size n*")
    by_configuration.size_axis(axes, [curve["group_size"] for curve in summary["curves"]])
    log_axis(axes)
    handle = Line2D([], [], color=PALETTE(0.4), marker="o", linestyle="", markersize=7, label="n* on the frontier")
    legend(figure, [handle, *(artist for artist in shown if artist is not None)], columns=2)
    return figure


def _whiskers(axes: Axes, rows: Sequence[dict[str, Any]]) -> Line2D | None:
    """Bootstrap intervals of n*, where they are wider than a point."""
    wide = [row for row in rows if row.get("interval95") and row["interval95"][0] and row["interval95"][1]]
    wide = [row for row in wide if row["interval95"][0] < row["interval95"][1]]
    for row in wide:
        axes.plot([row["compute"]] * 2, np.log2(row["interval95"]), color=TIES, linewidth=4, solid_capstyle="round")
    return Line2D([], [], color=TIES, linewidth=4, label="95% of replicates") if wide else None


def _sigmoid(axes: Axes, allocation: dict[str, Any], x: np.ndarray) -> Line2D | None:
    """The law over the range of `x`; dashed where the data do not pin it down."""
    law = allocation["law"]
    if law["slope"] is None or len(x) < 2:
        return None
    trusted = allocation["status"] == "ok"
    steps = allocation["axis"] == "steps"
    grid = np.linspace(x[0], x[-1], 200) if steps else np.geomspace(x[0], x[-1], 200)
    share = 1.0 / (1.0 + np.exp(-law["slope"] * ((grid if steps else np.log10(grid)) - law["midpoint"])))
    (line,) = axes.plot(
        grid, law["span"] * share + law["floor"], color=INK, linewidth=1.6, linestyle="-" if trusted else DASHED,
        label="sigmoid" if trusted else "sigmoid, not pinned down",
    )  # fmt: skip
    return line


def batches(summary: Summary) -> Figure | None:
    """B_problem and M of the configuration on the frontier; none where the steps of a row cannot be told."""
    rows = summary["frontier"]["budgets"]
    if not rows or not by_configuration.several_batches(summary) or any(row["num_steps"] is None for row in rows):
        return None
    figure, (upper, lower) = panels(2, height=4.8, share=False)
    colours = by_configuration.colours(summary)
    compute = [row["compute"] for row in rows]
    shades = [colours[row["run"]] for row in rows]
    texts = [f"{row['run']}, {row['num_steps']:,.0f} steps at {amount(row['compute'])}" for row in rows]
    values = np.log2([row["problems_per_batch"] for row in rows]), [row["num_steps"] for row in rows]
    for axes, y in zip((upper, lower), values, strict=True):
        axes.plot(compute, y, color=QUIET, linewidth=1.0, zorder=2)
        hover(axes.scatter(compute, y, c=shades, s=40, zorder=3, linewidths=0), texts)
        log_axis(axes)
    upper.set(ylabel="B$_{problem}$*")
    by_configuration.size_axis(upper, [curve["problems_per_batch"] for curve in summary["curves"]])
    lower.set(xlabel=by_configuration.compute_label(summary), ylabel="steps M*")
    log_axis(lower, "y")
    legend(figure, by_configuration.handles(summary))
    return figure


def slices_by_problems(summary: Summary) -> Figure | None:
    """n*(C) among the configurations with the same B_problem, one panel each."""
    return _slices(summary, "problems_per_batch", "B$_{problem}$ = ", by_configuration.compute_label(summary))


def slices_by_rollouts(summary: Summary) -> Figure | None:
    """n*(M) among the configurations with the same number of rollouts per step, one panel each."""
    return _slices(summary, "rollouts_per_step", "B = ", "steps M")


def _slices(summary: Summary, kind: str, title: str, label: str) -> Figure | None:
    x_name = "num_steps" if kind == "rollouts_per_step" else "compute"
    parts = [part for part in summary["slices"] if part["kind"] == kind and part["budgets"]]
    rows = picked([part for part in parts if all(row[x_name] is not None for row in part["budgets"])], MOST_SLICES)
    if not rows:
        return None
    figure, axes = multiples(len(rows), panel=1.7)
    laws = []
    for panel, part in zip(axes, rows, strict=True):
        x = np.array([row[x_name] for row in part["budgets"]])
        y = np.log2([row["group_size"] for row in part["budgets"]])
        dots = panel.scatter(x, y, s=22, color=PALETTE(0.3), linewidths=0, zorder=3)
        hover(dots, [f"{row['run']}: {row['reward']:z.3f} at {amount(row['compute'])}" for row in part["budgets"]])
        laws.append(_sigmoid(panel, part["allocation"], x))
        panel.set_title(f"{title}{part['value']}", loc="left", fontweight="bold")
        by_configuration.size_axis(panel, [curve["group_size"] for curve in summary["curves"]], most=6)
        log_axis(panel)
    figure.supxlabel(label, fontsize=11)
    figure.supylabel("n*", fontsize=11)
    by_label = {line.get_label(): line for line in laws if line is not None}
    handle = Line2D([], [], color=PALETTE(0.3), marker="o", linestyle="", label="n* read off")
    legend(figure, [handle, *by_label.values()])
    return figure


def targets(summary: Summary) -> Figure | None:
    """For each target, the n that leads at each budget, and those that tie with it."""
    found = summary["targets"]
    if not found or not by_configuration.several_sizes(summary):
        return None
    figure, axes = panels(rows=len(found), height=1.2 + 1.6 * len(found))
    sizes = [curve["group_size"] for curve in summary["curves"]]
    for panel, (name, target) in zip(axes, found.items(), strict=True):
        for row in target["budgets"]:
            tied = np.log2(row["tied_group_sizes"])
            panel.plot([row["compute"]] * len(tied), tied, color=TIES, linewidth=5, solid_capstyle="round", zorder=2)
        rows = target["budgets"]
        best = panel.scatter(
            [row["compute"] for row in rows], np.log2([row["best_group_size"] for row in rows]), s=42,
            color=PALETTE(0.25), linewidths=0, zorder=4,
        )  # fmt: skip
        hover(best, [f"{row['best_run']}: {row['reward']:z.3f} at {amount(row['compute'])}" for row in rows])
        led = [row for row in rows if row["frontier_group_size"] is not None]
        panel.step(
            [row["compute"] for row in led], np.log2([row["frontier_group_size"] for row in led]),
            where="mid", color=PALETTE(0.7), linewidth=1.8, zorder=3,
        )  # fmt: skip
        panel.set_title(name, loc="left", fontweight="bold")
        panel.set(ylabel="n")
        by_configuration.size_axis(panel, sizes, most=6)
        log_axis(panel)
    axes[-1].set_xlabel(by_configuration.compute_label(summary))
    legend(figure, [
        Line2D([], [], color=PALETTE(0.25), marker="o", linestyle="", label="best by evaluation"),
        Line2D([], [], color=TIES, linewidth=5, label="ties within noise"),
        Line2D([], [], color=PALETTE(0.7), linewidth=1.8, label="fitted frontier"),
    ])  # fmt: skip
    return figure


def switch_epochs(summary: Summary) -> Figure | None:
    """At how many epochs the frontier leaves each configuration: with its interval, and in each seed alone."""
    switches = [s for s in summary["frontier"]["switches"] if s["cause"] == "crossing" and s["epochs"]]
    if not switches:
        return None
    figure, (axes,) = panels(height=1.5 + 0.45 * len(switches))
    scaled = summary["compute_unit"] == "rollouts"  # only then are epochs proportional to compute
    intervals = alone = False
    for row, switch in enumerate(switches):
        per_unit = switch["epochs"] / switch["compute"]
        ends = switch["interval95"] or (None, None)
        if scaled and None not in ends:
            axes.plot(np.array(ends) * per_unit, [row, row], color=TIES, linewidth=5, solid_capstyle="round", zorder=2)
            intervals = True
        each = [compute * per_unit for compute in switch["by_seed"].values() if compute is not None and scaled]
        axes.plot(each, [row] * len(each), "o", color="none", markeredgecolor=QUIET, markersize=8, zorder=3)
        alone |= bool(each)
        dot = axes.scatter(switch["epochs"], row, s=70, color=PALETTE(0.25), linewidths=0, zorder=4)
        hover(dot, [f"{switch['epochs']:.3g} epochs, {amount(switch['compute'])}"])
    axes.axvline(1.0, color=QUIET, linewidth=1, linestyle=DOTTED, zorder=1)
    axes.set(xlabel="epochs over the training problems, C / (n D)", ylim=(len(switches) - 0.5, -0.5))
    log_axis(axes)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_yticks(range(len(switches)), [f"{s['from_run']}  →  {s['to_run']}" for s in switches])
    axes.yaxis.set_minor_locator(NullLocator())
    shown: list[Artist] = [Line2D([], [], color=PALETTE(0.25), marker="o", linestyle="", label="mean of the seeds")]
    if intervals:
        shown.append(Patch(color=TIES, label="95% of replicates"))
    if alone:
        shown.append(Line2D([], [], color="none", marker="o", markeredgecolor=QUIET, label="one seed alone"))
    shown.append(Line2D([], [], color=QUIET, linestyle=DOTTED, label="one epoch"))
    legend(figure, shown, columns=2)
    return figure
