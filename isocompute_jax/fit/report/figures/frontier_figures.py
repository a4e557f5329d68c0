"""What the frontier says about n, B_problem and M: over compute, in slices, by target, and where it switches."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, NullLocator

from isocompute_jax.fit.frontier_results import AllocationLaw, FrontierBudget, FrontierPoint
from isocompute_jax.fit.report.figures import by_configuration
from isocompute_jax.fit.report.figures.style import (
    DASHED,
    DOTTED,
    INK,
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
from isocompute_jax.fit.report.wording import amount
from isocompute_jax.fit.sweep_results import SweepResult

MOST_SLICES = 6
TIES = "#c9ced3"


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
        _sigmoid(axes, result.allocation.law, compute),
    ]  # fmt: skip
    reward = [row.point.reward for row in rows]
    dots = axes.scatter(
        compute, np.log2(size), c=reward, cmap=PALETTE, s=64, zorder=4, edgecolors="white", linewidths=0.8,
        label="n* on the frontier",
    )  # fmt: skip
    hover(dots, [_label(row.point) for row in rows])
    bar = figure.colorbar(dots, ax=axes, pad=0.02, aspect=30)
    bar.set_label(f"{result.metric} on the frontier")
    bar.outline.set_visible(False)
    axes.set(xlabel=by_configuration.compute_label(result), ylabel="optimal group size n*")
    by_configuration.size_axis(axes, result.group_sizes)
    log_axis(axes)
    handle = Line2D([], [], color=PALETTE(0.4), marker="o", linestyle="", markersize=7, label="n* on the frontier")
    legend(figure, [handle, *(artist for artist in shown if artist is not None)], columns=2)
    return figure


def _label(point: FrontierPoint) -> str:
    """What a reader sees who hovers over a budget."""
    return f"{point.run}: {point.reward:z.3f} at {amount(point.compute)}"


def _whiskers(axes: Axes, rows: Sequence[FrontierBudget]) -> Line2D | None:
    """Bootstrap intervals of n*, where they are wider than a point."""
    wide = [(row.compute, row.interval95) for row in rows if row.interval95]
    wide = [(compute, ends) for compute, ends in wide if 0 < ends[0] < ends[1]]
    for compute, ends in wide:
        axes.plot([compute] * 2, np.log2(ends), color=TIES, linewidth=4, solid_capstyle="round")
    return Line2D([], [], color=TIES, linewidth=4, label="95% of replicates") if wide else None


def _sigmoid(axes: Axes, found: AllocationLaw, x: np.ndarray) -> Line2D | None:
    """The law over the range of `x`; dashed where the data do not pin it down."""
    if not np.isfinite(found.law.slope) or len(x) < 2:
        return None
    trusted = found.status == "ok"
    grid = np.linspace(x[0], x[-1], 200) if found.axis == "steps" else np.geomspace(x[0], x[-1], 200)
    (line,) = axes.plot(
        grid, found.fit.octaves(grid), color=INK, linewidth=1.6, linestyle="-" if trusted else DASHED,
        label="sigmoid" if trusted else "sigmoid, not pinned down",
    )  # fmt: skip
    return line


def batches(result: SweepResult) -> Figure | None:
    """B_problem and M of the configuration on the frontier; none where the steps of a row cannot be told."""
    rows = result.frontier.budgets
    steps = [row.point.num_steps for row in rows if row.point.num_steps is not None]
    if not rows or not result.several_batches or len(steps) < len(rows):
        return None
    figure, (upper, lower) = panels(2, height=4.8, share=False)
    colours = by_configuration.colours(result)
    compute = [row.compute for row in rows]
    shades = [colours[row.run] for row in rows]
    texts = [f"{row.run}, {m:,.0f} steps at {amount(row.compute)}" for row, m in zip(rows, steps, strict=True)]
    values = np.log2([row.problems_per_batch for row in rows]), steps
    for axes, y in zip((upper, lower), values, strict=True):
        axes.plot(compute, y, color=QUIET, linewidth=1.0, zorder=2)
        hover(axes.scatter(compute, y, c=shades, s=40, zorder=3, linewidths=0), texts)
        log_axis(axes)
    upper.set(ylabel="B_problem*")
    by_configuration.size_axis(upper, [curve.problems_per_batch for curve in result.curves])
    lower.set(xlabel=by_configuration.compute_label(result), ylabel="steps M*")
    log_axis(lower, "y")
    legend(figure, by_configuration.handles(result))
    return figure


def slices_by_problems(result: SweepResult) -> Figure | None:
    """n*(C) among the configurations with the same B_problem, one panel each."""
    return _slices(result, "problems_per_batch", "B_problem = ", by_configuration.compute_label(result))


def slices_by_rollouts(result: SweepResult) -> Figure | None:
    """n*(M) among the configurations with the same number of rollouts per step, one panel each."""
    return _slices(result, "rollouts_per_step", "B = ", "steps M")


def _slices(result: SweepResult, kind: str, title: str, label: str) -> Figure | None:
    steps = kind == "rollouts_per_step"
    parts = result.slices_of(kind)
    if steps:
        parts = [part for part in parts if all(row.num_steps is not None for row in part.budgets)]
    rows = picked(parts, MOST_SLICES)
    if not rows:
        return None
    figure, axes = multiples(len(rows), panel=1.7)
    laws = []
    for panel, part in zip(axes, rows, strict=True):
        x = np.array([row.num_steps if steps else row.compute for row in part.budgets])
        y = np.log2([row.group_size for row in part.budgets])
        dots = panel.scatter(x, y, s=22, color=PALETTE(0.3), linewidths=0, zorder=3)
        hover(dots, [_label(row) for row in part.budgets])
        laws.append(_sigmoid(panel, part.allocation, x))
        panel.set_title(f"{title}{part.value}", loc="left", fontweight="bold")
        by_configuration.size_axis(panel, result.group_sizes, most=6)
        log_axis(panel)
    labels(figure, axes, label, "n*")
    by_label = {line.get_label(): line for line in laws if line is not None}
    handle = Line2D([], [], color=PALETTE(0.3), marker="o", linestyle="", label="n* read off")
    legend(figure, [handle, *by_label.values()])
    return figure


def targets(result: SweepResult) -> Figure | None:
    """For each target, the n that leads at each budget, and those that tie with it."""
    found = result.targets
    if not found or not result.several_sizes:
        return None
    figure, axes = panels(rows=len(found), height=1.2 + 1.6 * len(found))
    sizes = result.group_sizes
    for panel, (name, target) in zip(axes, found.items(), strict=True):
        for row in target.budgets:
            tied = np.log2(row.best.tied_group_sizes)
            panel.plot([row.best.compute] * len(tied), tied, color=TIES, linewidth=5, solid_capstyle="round", zorder=2)
        rows = [row.best for row in target.budgets]
        best = panel.scatter(
            [row.compute for row in rows], np.log2([row.best_group_size for row in rows]), s=42,
            color=PALETTE(0.25), linewidths=0, zorder=4,
        )  # fmt: skip
        hover(best, [f"{row.best_run}: {row.reward:z.3f} at {amount(row.compute)}" for row in rows])
        led = [(row.best.compute, n) for row in target.budgets if (n := row.frontier_group_size) is not None]
        panel.step(
            [compute for compute, _ in led], np.log2([n for _, n in led]),
            where="mid", color=PALETTE(0.7), linewidth=1.8, zorder=3,
        )  # fmt: skip
        panel.set_title(name, loc="left", fontweight="bold")
        panel.set(ylabel="n")
        by_configuration.size_axis(panel, sizes, most=6)
        log_axis(panel)
    axes[-1].set_xlabel(by_configuration.compute_label(result))
    legend(figure, [
        Line2D([], [], color=PALETTE(0.25), marker="o", linestyle="", label="best by evaluation"),
        Line2D([], [], color=TIES, linewidth=5, label="ties within noise"),
        Line2D([], [], color=PALETTE(0.7), linewidth=1.8, label="fitted frontier"),
    ])  # fmt: skip
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
        dot = axes.scatter(switch.row.epochs, row, s=70, color=PALETTE(0.25), linewidths=0, zorder=4)
        hover(dot, [f"{switch.row.epochs:.3g} epochs, {amount(switch.row.compute)}"])
    axes.axvline(1.0, color=QUIET, linewidth=1, linestyle=DOTTED, zorder=1)
    axes.set(xlabel="epochs over the training problems, C / (n D)", ylim=(len(switches) - 0.5, -0.5))
    log_axis(axes)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_yticks(range(len(switches)), [f"{s.row.from_run}  →  {s.row.to_run}" for s in switches])
    axes.yaxis.set_minor_locator(NullLocator())
    shown: list[Artist] = [Line2D([], [], color=PALETTE(0.25), marker="o", linestyle="", label="mean of the seeds")]
    if intervals:
        shown.append(Patch(color=TIES, label="95% of replicates"))
    if alone:
        shown.append(Line2D([], [], color="none", marker="o", markeredgecolor=QUIET, label="one seed alone"))
    shown.append(Line2D([], [], color=QUIET, linestyle=DOTTED, label="one epoch"))
    legend(figure, shown, columns=2)
    return figure
