"""The pictures, drawn from summary.json's content. Matplotlib is imported here alone, and no global state is set."""

from __future__ import annotations

import io
import math
import pathlib
import typing
from collections.abc import Iterable, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from isocompute_jax.fit.forms import FORMS
from isocompute_jax.fit.inputs import SOLVE_SHARES
from isocompute_jax.records.run_files import write_atomic

INK, QUIET = "#22262b", "#9aa1a9"
PALETTE = LinearSegmentedColormap.from_list("calm", matplotlib.colormaps["viridis"](np.linspace(0.0, 0.85, 256)))
STYLE = {
    "font.size": 11,
    "axes.edgecolor": QUIET,
    "axes.labelcolor": INK,
    "axes.titlesize": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#eceef0",
    "text.color": INK,
    "xtick.color": QUIET,
    "ytick.color": QUIET,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "legend.frameon": False,
    "svg.hashsalt": "isocompute",  # the same figure is the same file
}
COMPUTE = "compute C (rollouts)"


def draw_figures(summary: dict[str, Any], out_dir: pathlib.Path) -> dict[str, pathlib.Path]:
    """Draws every picture that the data allow, as NAME.svg and NAME.png in `out_dir`; returns name -> SVG path."""
    drawings = {
        "learning_curves": learning_curves,
        "optimal_group_size": optimal_group_size,
        "targets": targets,
        "epochs": switch_epochs,
        "entropy": entropy,
        "solve_rates": solve_rates,
    }
    paths = {}
    with matplotlib.rc_context(typing.cast(dict[Any, Any], STYLE)):
        for name, draw in drawings.items():
            figure = draw(summary)
            if figure is not None:
                paths[name] = save_figure(figure, out_dir / f"{name}.svg")
    return paths


def save_figure(figure: Figure, path: pathlib.Path) -> pathlib.Path:
    """Writes the figure as `path` (.svg) and beside it as .png; returns `path`."""
    FigureCanvasAgg(figure)
    for suffix, options in {".svg": {"metadata": {"Date": None}}, ".png": {"dpi": 160}}.items():
        data = io.BytesIO()
        figure.savefig(data, format=suffix[1:], bbox_inches="tight", **options)
        write_atomic(path.with_suffix(suffix), data.getvalue())
    return path


def learning_curves(summary: dict[str, Any]) -> Figure:
    """Every evaluation, the fitted curves coloured by n, and the frontier on top."""
    figure, (axes,) = _figure()
    colours = _colours(curve["group_size"] for curve in summary["curves"])
    curves = {curve["run"]: curve for curve in summary["curves"]}
    for curve in summary["curves"]:
        colour = colours[curve["group_size"]]
        compute, reward, used = (np.array(curve["points"][key]) for key in ("compute", "reward", "used"))
        trained = compute > 0
        axes.scatter(compute[used & trained], reward[used & trained], s=16, color=colour, linewidths=0, zorder=3)
        skipped = ~used & trained
        axes.scatter(
            compute[skipped], reward[skipped], s=16, facecolors="none", edgecolors=colour, linewidths=0.8, zorder=3
        )
        if curve["status"] != "failed":
            axes.plot(*_drawn(curve, curve["window"]), color=colour, linewidth=1.2, alpha=0.8)
    for segment in summary["frontier"]["segments"]:
        line = _drawn(curves[segment["run"]], (segment["start"], segment["end"]))
        axes.plot(*line, color="white", linewidth=5.5, zorder=4, solid_capstyle="butt")
        axes.plot(*line, color=colours[segment["group_size"]], linewidth=3.5, zorder=5, solid_capstyle="butt")
    for switch in summary["frontier"]["switches"]:
        if switch["cause"] == "crossing":
            axes.axvline(switch["compute"], color=QUIET, linewidth=0.9, linestyle=(0, (2, 3)), zorder=1)
    axes.set(xscale="log", xlabel=COMPUTE, ylabel=f"{summary['frontier']['metric']} ({summary['flags']['eval_set']})")
    _legend_of_sizes(figure, colours)
    return figure


def optimal_group_size(summary: dict[str, Any]) -> Figure | None:
    """n*(C) read off the frontier, its running average, and the sigmoid where there is one."""
    rows = summary["frontier"]["budgets"]
    if not rows:
        return None
    figure, (axes,) = _figure()
    compute = np.array([row["compute"] for row in rows])
    group_size = np.array([row["group_size"] for row in rows])
    axes.plot(
        compute, [row["smoothed_group_size"] for row in rows], color=QUIET, linewidth=1.2, label="running average"
    )
    allocation = summary["allocation"]
    if allocation["law"]["slope"] is not None:
        trusted = allocation["status"] == "ok"
        grid = np.geomspace(compute[0], compute[-1], 200)
        label = "sigmoid" if trusted else "sigmoid, not pinned down"
        axes.plot(
            grid,
            _law(allocation["law"], grid),
            color=INK,
            linewidth=1.6,
            linestyle="-" if trusted else "--",
            label=label,
        )
    reward = [row["reward"] for row in rows]
    dots = axes.scatter(
        compute,
        group_size,
        c=reward,
        cmap=PALETTE,
        s=64,
        zorder=4,
        edgecolors="white",
        linewidths=0.8,
        label="n* on the frontier",
    )
    bar = figure.colorbar(dots, ax=axes, pad=0.02, aspect=30)
    bar.set_label(f"{summary['frontier']['metric']} on the frontier")
    bar.outline.set_visible(False)
    sizes = sorted({curve["group_size"] for curve in summary["curves"]})
    axes.set(xscale="log", xlabel=COMPUTE, ylabel="optimal group size n*")
    _group_size_axis(axes, sizes)
    figure.legend(loc="outside upper center", ncols=3, handlelength=1.5, columnspacing=1.2)
    return figure


def targets(summary: dict[str, Any]) -> Figure | None:
    """For each target, the n that leads at each budget, and those that tie with it."""
    found = summary["targets"]
    if not found:
        return None
    figure, panels = _figure(rows=len(found), height=1.2 + 1.6 * len(found))
    sizes = sorted({curve["group_size"] for curve in summary["curves"]})
    for axes, (name, target) in zip(panels, found.items(), strict=True):
        for row in target["budgets"]:
            tied = row["tied_group_sizes"]
            axes.plot(
                [row["compute"]] * len(tied), tied, color="#c9ced3", linewidth=5, solid_capstyle="round", zorder=2
            )
            axes.plot(row["compute"], row["best_group_size"], "o", color=PALETTE(0.25), markersize=7, zorder=4)
        on_frontier = [row for row in target["budgets"] if row["frontier_group_size"] is not None]
        axes.step(
            [row["compute"] for row in on_frontier],
            [row["frontier_group_size"] for row in on_frontier],
            where="mid", color=PALETTE(0.7), linewidth=1.8, zorder=3,
        )  # fmt: skip
        axes.set_title(name, loc="left", fontweight="bold")
        axes.set(xscale="log", ylabel="n")
        _group_size_axis(axes, sizes)
    panels[-1].set_xlabel(COMPUTE)
    handles = [
        Line2D([], [], color=PALETTE(0.25), marker="o", linestyle="", label="best by evaluation"),
        Line2D([], [], color="#c9ced3", linewidth=5, label="ties within noise"),
        Line2D([], [], color=PALETTE(0.7), linewidth=1.8, label="fitted frontier"),
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=3, handlelength=1.5, columnspacing=1.2)
    return figure


def switch_epochs(summary: dict[str, Any]) -> Figure | None:
    """At how many epochs the frontier leaves each configuration: all seeds together, and each seed alone."""
    switches = [s for s in summary["frontier"]["switches"] if s["cause"] == "crossing" and s["epochs"]]
    if not switches:
        return None
    figure, (axes,) = _figure(height=1.5 + 0.55 * len(switches))
    for row, switch in enumerate(switches):
        per_rollout = switch["epochs"] / switch["compute"]
        alone = [compute * per_rollout for compute in switch["by_seed"].values() if compute is not None]
        axes.plot(alone, [row] * len(alone), "o", color="none", markeredgecolor=QUIET, markersize=8, zorder=3)
        axes.plot(switch["epochs"], row, "o", color=PALETTE(0.25), markersize=9, zorder=4)
    axes.axvline(1.0, color=QUIET, linewidth=1, linestyle=(0, (2, 3)), zorder=1)
    axes.set(xscale="log", xlabel="epochs over the training problems, C / (n D)")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_yticks(range(len(switches)), [f"{s['from_run']}  →  {s['to_run']}" for s in switches])
    axes.set_ylim(len(switches) - 0.5, -0.5)
    handles = [Line2D([], [], color=PALETTE(0.25), marker="o", linestyle="", label="mean of the seeds")]
    if any(compute is not None for switch in switches for compute in switch["by_seed"].values()):
        handles.append(Line2D([], [], color="none", marker="o", markeredgecolor=QUIET, label="one seed alone"))
    handles.append(Line2D([], [], color=QUIET, linestyle=(0, (2, 3)), label="one epoch"))
    figure.legend(handles=handles, loc="outside upper center", ncols=3, columnspacing=1.2)
    return figure


def entropy(summary: dict[str, Any]) -> Figure | None:
    """Entropy of the policy over training, by n."""
    rows = [row for row in summary["training"] if "entropy" in row["series"]]
    if not rows:
        return None
    figure, (axes,) = _figure()
    colours = _colours(row["group_size"] for row in rows)
    for row in rows:
        compute, mean = _trained(row["series"]["entropy"])
        axes.plot(compute, mean, "o-", color=colours[row["group_size"]], markersize=3.5, linewidth=1.5)
    axes.set(xscale="log", xlabel=COMPUTE, ylabel="entropy (nats per token)", ylim=(0, None))
    _legend_of_sizes(figure, colours)
    return figure


def solve_rates(summary: dict[str, Any], most: int = 6) -> Figure | None:
    """How the evaluation problems divide by solve rate over training, one panel per configuration (at most `most`)."""
    rows = [row for row in summary["training"] if all(name in row["series"] for name in SOLVE_SHARES)]
    if not rows:
        return None
    if len(rows) > most:
        rows = [rows[i] for i in np.unique(np.linspace(0, len(rows) - 1, most).round().astype(int))]
    columns = min(2, len(rows))
    figure, panels = _figure(
        rows=math.ceil(len(rows) / columns), columns=columns, height=1.0 + 1.9 * math.ceil(len(rows) / columns)
    )
    shades = [PALETTE(x) for x in (0.02, 0.35, 0.68, 1.0)]
    for axes, row in zip(panels, rows, strict=False):
        compute, _ = _trained(row["series"][SOLVE_SHARES[0]])
        axes.stackplot(compute, [_trained(row["series"][name])[1] for name in SOLVE_SHARES], colors=shades, linewidth=0)
        axes.set_title(row["run"], loc="left", fontweight="bold")
        axes.set(xscale="log", ylim=(0, 1), xlim=(compute[0], compute[-1]))
        axes.grid(False)
    for axes in panels[len(rows) :]:
        axes.set_visible(False)
    figure.supxlabel(COMPUTE, fontsize=11)
    figure.supylabel("share of evaluation problems", fontsize=11)
    labels = ("never solved", "less than half", "half or more", "always solved")
    handles = [
        Line2D([], [], color=shade, linewidth=7, label=label) for shade, label in zip(shades, labels, strict=True)
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=4, handlelength=0.8, columnspacing=1.0)
    return figure


def _figure(*, rows: int = 1, columns: int = 1, height: float = 4.0) -> tuple[Figure, list[Axes]]:
    """A figure 5.8 inches wide (11-point text stays legible at phone width) and its panels, row by row."""
    figure = Figure(figsize=(5.8, height), layout="constrained")
    return figure, list(figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).flat)


def _drawn(curve: dict[str, Any], window: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    compute = np.geomspace(window[0], window[1], 200)
    return compute, FORMS[curve["form"]].curve(compute, **curve["params"])


def _law(law: dict[str, float], compute: np.ndarray) -> np.ndarray:
    share = 1.0 / (1.0 + np.exp(-law["slope"] * (np.log10(compute) - law["midpoint"])))
    return 2.0 ** (law["span"] * share + law["floor"])


def _trained(series: dict[str, list[float]]) -> tuple[np.ndarray, np.ndarray]:
    """Compute and mean without the base model's evaluation, which a log axis cannot show."""
    compute, mean = np.array(series["compute"]), np.array(series["mean"])
    return compute[compute > 0], mean[compute > 0]


def _colours(group_sizes: Iterable[int]) -> dict[int, Any]:
    """group_size -> colour, ordered by log2 n."""
    sizes = sorted(set(group_sizes))
    levels = np.log2(sizes)
    span = levels[-1] - levels[0] or 1.0
    return {size: PALETTE((level - levels[0]) / span) for size, level in zip(sizes, levels, strict=True)}


def _legend_of_sizes(figure: Figure, colours: dict[int, Any]) -> None:
    handles = [
        Line2D([], [], color=colour, marker="o", linewidth=2, markersize=4, label=f"n = {n}")
        for n, colour in colours.items()
    ]
    columns = min(5, len(handles))
    figure.legend(handles=handles, loc="outside upper center", ncols=columns, handlelength=1.2, columnspacing=1.2)


def _group_size_axis(axes: Axes, sizes: Sequence[int]) -> None:
    """A log2 axis whose ticks are the group sizes of the sweep."""
    axes.set_yscale("log", base=2)
    axes.set_ylim(sizes[0] / 1.5, sizes[-1] * 1.5)
    axes.yaxis.set_major_locator(FixedLocator(list(sizes)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
