"""Pictures of the laws, drawn from summary.json's content."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, NullFormatter

from isocompute_jax.fit.laws.findings import METHODS
from isocompute_jax.fit.report.figures.style import (
    DASHED,
    INK,
    PALE,
    PALETTE,
    QUIET,
    WIDTH,
    draw_all,
    legend,
    log_axis,
    panels,
    picked,
    shades,
)
from isocompute_jax.fit.report.wording import scale

Summary = dict[str, Any]
MOST_LABELLED = 10


def draw_law_figures(summary: Summary, out_dir: pathlib.Path) -> dict[str, pathlib.Path]:
    """Draws every picture of the law that the data allow as NAME.svg and NAME.png; returns name -> SVG path."""
    model_size = {"lines": model_lines, "slopes": slopes, "holdout": holdout}
    drawings = model_size if summary["analysis"] == "model_size" else {"prediction": prediction, "optimal": optimal}
    named = {f"{summary['analysis']}_{name}": draw for name, draw in drawings.items()}
    prefix = len(summary["analysis"]) + 1
    return {name[prefix:]: path for name, path in draw_all(named, summary, out_dir).items()}


def model_lines(summary: Summary) -> Figure:
    """Loss against X on logarithmic axes, with the law's line for each model size."""
    figure, (axes,) = panels(height=4.2)
    colours = _colours(summary)
    for row in summary["models"]:
        colour = colours[row["model_params"]]
        x, loss = np.array(row["points"]["x"]), np.array(row["points"]["loss"])
        axes.scatter(x, loss, s=14, color=colour, alpha=0.65, linewidths=0, zorder=3)
        ends = np.array([row["first_x"], row["last_x"]])
        axes.plot(ends, _line(row, ends), color=colour, linewidth=1.8, zorder=4)
    for row in summary["crossovers"]:
        if row["inside"]:
            by_size = {m["model_params"]: m for m in summary["models"]}
            y = _line(by_size[row["smaller"]], np.array([row["x"]]))
            axes.plot(row["x"], y, "o", color="none", markeredgecolor=INK, markersize=9, zorder=5)
    axes.set(xlabel=_resource(summary), ylabel=_loss(summary))
    log_axis(axes)
    log_axis(axes, "y")
    _size_legend(figure, colours)
    return figure


def slopes(summary: Summary) -> Figure | None:
    """k(N): the models' own slopes with 95% intervals, and the law with its region."""
    curve = summary["slopes"]
    if not curve["model_params"]:
        return None
    figure, (axes,) = panels(height=3.8)
    law = summary["law"]
    if curve["low"][0] is not None:
        axes.fill_between(curve["model_params"], curve["low"], curve["high"], color=PALE, linewidth=0)
    trusted = law["k_max"]["identified"] and law["n0"]["identified"]
    axes.plot(curve["model_params"], curve["k"], color=PALETTE(0.25), linewidth=1.8, linestyle="-" if trusted else "--")
    for row in summary["models"]:
        error = 2 * row["free_k_error"] if row["free_k_error"] is not None else 0.0
        axes.errorbar(row["model_params"], row["free_k"], yerr=error, fmt="o", color=INK, markersize=6, capsize=3)
    for row in summary["inter_model"]:
        k, n = row["predicted_k"], row["model_params"]
        if k["low"] is not None:
            axes.vlines(n * 1.06, k["low"], k["high"], color=QUIET, linewidth=2)
        axes.plot(n * 1.06, k["value"], "D", color="white", markeredgecolor=INK, markersize=7)
    handles = [
        Line2D([], [], color=INK, marker="o", linestyle="", label="own slope ± 2 s.e."),
        Line2D([], [], color=PALETTE(0.25), linestyle="-" if trusted else "--", label="law, 95% region"
               if trusted else "law, not identified"),
    ]  # fmt: skip
    if law["k_max"]["identified"]:
        axes.axhline(law["k_max"]["value"], color=QUIET, linewidth=1, linestyle=DASHED)
        handles.append(Line2D([], [], color=QUIET, linestyle=DASHED, label="k_max"))
    if summary["inter_model"]:
        handles.append(Line2D([], [], color="none", marker="D", markeredgecolor=INK, label="predicted from smaller"))
    axes.set(xscale="log", xlabel="parameters N", ylabel="slope k(N)")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: scale(value)))
    legend(figure, handles, columns=2)
    return figure


def holdout(summary: Summary) -> Figure | None:
    """Predicted against measured reward of evaluations that were not fitted."""
    kinds = {"later evaluations": summary["intra_model"], "a larger model": summary["inter_model"]}
    kinds = {name: rows for name, rows in kinds.items() if rows}
    if not kinds:
        return None
    figure = Figure(figsize=(WIDTH, 3.6), layout="constrained")
    panels = figure.subplots(1, len(kinds), squeeze=False, sharex=True, sharey=True)[0]
    colours = _colours(summary)
    for axes, (name, rows) in zip(panels, kinds.items(), strict=True):
        for row in rows:
            x, y = row["points"]["reward"], row["points"]["predicted"]
            axes.scatter(x, y, s=16, color=colours[row["model_params"]], linewidths=0, alpha=0.8, zorder=3)
        axes.axline((0, 0), slope=1, color=QUIET, linewidth=1, linestyle=DASHED)
        axes.set_title(name, loc="left", fontweight="bold")
        axes.set(xlabel=f"measured {_reward(summary)}")
    every = [v for rows in kinds.values() for row in rows for v in row["points"]["reward"] + row["points"]["predicted"]]
    margin = 0.05 * (max(every) - min(every) or 1.0)
    limits = min(every) - margin, max(every) + margin
    panels[0].set(ylabel="predicted", xlim=limits, ylim=limits)
    _size_legend(figure, colours)
    return figure


def prediction(summary: Summary) -> Figure:
    """Predicted against measured loss, one panel per method."""
    figure = Figure(figsize=(WIDTH, 3.7), layout="constrained")
    fits = [fit for fit in summary["fits"] if fit["status"] != "failed"]
    panels = figure.subplots(1, len(fits), squeeze=False, sharex=True, sharey=True)[0]
    points = summary["points"]
    colours = _colours(summary)
    shades = [colours[n] for n in points["model_params"]]
    for axes, fit in zip(panels, fits, strict=True):
        axes.scatter(points["loss"], fit["predicted"], s=16, c=shades, linewidths=0, alpha=0.85, zorder=3)
        axes.axline((1, 1), slope=1, color=QUIET, linewidth=1, linestyle=DASHED)
        axes.set_title(METHODS[fit["method"]], loc="left", fontweight="bold")
        axes.set(xlabel="measured loss L")
    every = points["loss"] + [v for fit in fits for v in fit["predicted"]]
    margin = 0.05 * (max(every) - min(every) or 1.0)
    panels[0].set(ylabel="loss of the law", xlim=(min(every) - margin, max(every) + margin),
                  ylim=(min(every) - margin, max(every) + margin))  # fmt: skip
    _size_legend(figure, colours)
    return figure


def optimal(summary: Summary) -> Figure | None:
    """Lines of equal loss over N and D, the points, and the compute-optimal path; where it is identified."""
    fits = [fit for fit in summary["fits"] if fit["exponent"]["identified"]]
    if not fits:
        return None
    fit = fits[-1]  # Huber where it is there: outliers move its lines least
    figure, (axes,) = panels(height=4.2)
    points = summary["points"]
    n = np.geomspace(min(points["model_params"]) / 2, max(points["model_params"]) * 2, 80)
    d = np.geomspace(min(points["tokens"]) / 2, max(points["tokens"]) * 2, 80)
    e, a, b, alpha, beta = (fit[name]["value"] for name in ("e", "a", "b", "alpha", "beta"))
    loss = e + a / n[None, :] ** alpha + b / d[:, None] ** beta
    levels = np.quantile(loss, np.linspace(0.05, 0.95, 9))
    # scales first: labels are placed on the axes as they stand
    axes.set(
        xscale="log", yscale="log", xlabel="parameters N", ylabel="tokens D", xlim=(n[0], n[-1]), ylim=(d[0], d[-1])
    )
    lines = axes.contour(n, d, loss, levels=levels, colors=QUIET, linewidths=0.9)
    axes.clabel(lines, fmt="%.3g", fontsize=9, colors=INK)
    axes.scatter(points["model_params"], points["tokens"], s=18, color=PALETTE(0.5), linewidths=0, zorder=3)
    looks = {
        "squares": {"color": PALETTE(0.3), "linewidth": 4, "alpha": 0.45},
        "huber": {"color": INK, "linewidth": 1.5},
    }
    for row in fits:
        path = [r for r in summary["optimal"] if r["method"] == row["method"]]
        n_star, d_star = ([r[name] for r in path] for name in ("model_params", "tokens"))
        label = f"compute-optimal ({METHODS[row['method']]})"
        axes.plot(n_star, d_star, zorder=4, label=label, **looks[row["method"]])
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: scale(value)))
        axis.set_minor_formatter(NullFormatter())
    figure.legend(loc="outside upper center", ncols=1)
    return figure


def _line(row: dict[str, Any], x: np.ndarray) -> np.ndarray:
    return np.exp(row["intercept"] - row["k"] * np.log(x))


def _resource(summary: Summary) -> str:
    kind, unit = summary["resource"]["kind"], summary["resource"]["unit"]
    return f"training compute X, {unit}" if kind == "compute" else f"data X, {unit}"


def _reward(summary: Summary) -> str:
    metric = summary["flags"]["metric"]
    return metric if summary["flags"]["loss"] == "one_minus_metric" else f"1 - {metric}"


def _loss(summary: Summary) -> str:
    metric = summary["flags"]["metric"]
    return f"1 - {metric}" if summary["flags"]["loss"] == "one_minus_metric" else metric


def _colours(summary: Summary) -> dict[float, Any]:
    """model_params -> colour, ordered by ln N."""
    if summary["analysis"] == "model_size":
        sizes = [row["model_params"] for row in summary["models"]]
    else:
        sizes = sorted(set(summary["points"]["model_params"]))
    return shades(sizes)


def _size_legend(figure: Figure, colours: dict[float, Any]) -> None:
    legend(figure, [
        Line2D([], [], color=colour, marker="o", linewidth=2, markersize=4, label=f"N = {scale(size)}")
        for size, colour in picked(list(colours.items()), MOST_LABELLED)
    ])  # fmt: skip
