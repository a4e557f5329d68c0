"""An ablation's table, files and picture."""

from __future__ import annotations

import dataclasses
import io
import json
import math
import pathlib
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from isocompute_jax.ablation.analysis import AblationResult, ParameterEstimate, VariantResult
from isocompute_jax.fit.plain_data import plain
from isocompute_jax.fit.report.figures import style
from isocompute_jax.fit.report.wording import amount, figures
from isocompute_jax.records.printing import printable
from isocompute_jax.records.run_files import write_atomic

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SUMMARY, TABLE, PICTURE = "ablation.json", "ablation.txt", "ablation"
WIDEST = 200
"""Columns of the table's text."""
LEAST_HEIGHT = 2.2


def write(result: AblationResult, out: pathlib.Path) -> str:
    """Writes `ablation.json`, `ablation.txt`, `ablation.svg` and `ablation.png`; returns the text of the table."""
    out.mkdir(parents=True, exist_ok=True)
    text = table(result)
    with style.in_style():
        style.save_figure(draw(result), out / f"{PICTURE}.svg", png=True)
    write_atomic(out / TABLE, f"{text}\n")
    write_atomic(out / SUMMARY, json.dumps(plain(summary(result)), indent=1, allow_nan=False) + "\n")
    return text


def summary(result: AblationResult) -> dict[str, Any]:
    """The content of `ablation.json`; what is unknown is null."""
    return {
        "metric": result.metric,
        "common_asymptote": result.asymptote,
        "variants": [dataclasses.asdict(row) for row in result.variants],
        "warnings": list(result.warnings),
    }


def table(result: AblationResult) -> str:
    """One row for each variant, as text."""
    shown = Table(box=SIMPLE_HEAD, pad_edge=False)
    shown.add_column("variant")
    for column in ("seeds", f"{result.metric} at {amount(result.variants[0].compute)}", "difference"):
        shown.add_column(column, justify="right")
    for column in ("A", "B", "C_mid", "verdict"):
        shown.add_column(column)
    for row in result.variants:
        shown.add_row(*_cells(row))
    text = io.StringIO()
    Console(file=text, width=WIDEST).print(shown)
    lines = [
        f"Ablation of {len(result.variants) - 1} changes; B and C_mid under the common asymptote "
        f"A = {figures(result.asymptote)}, in brackets 95% intervals.",
        *text.getvalue().rstrip().splitlines(),
        *(f"note: {warning}" for warning in result.warnings),
    ]
    return "\n".join(printable(line.rstrip()) for line in lines)


def draw(result: AblationResult) -> Figure:
    """The curves and, below them, B under the common asymptote and A, each with its 95% interval."""
    from matplotlib.figure import Figure

    rows = result.variants
    figure = Figure(figsize=(1.5 * style.WIDTH, 3.6 + 0.34 * len(rows)), layout="constrained")
    grid = figure.add_gridspec(2, 2, height_ratios=[3.2, max(LEAST_HEIGHT, 0.34 * len(rows) + 0.6)])
    upper, steep, ceiling = (
        figure.add_subplot(grid[0, :]),
        figure.add_subplot(grid[1, 0]),
        figure.add_subplot(grid[1, 1]),
    )
    colours = [style.INK, *(style.PALETTE(i / max(len(rows) - 2, 1)) for i in range(len(rows) - 1))]
    for place, (row, colour) in enumerate(zip(rows, colours, strict=True)):
        curve, fit = result.curves[row.name]
        trained = curve.compute > 0
        upper.scatter(curve.compute[trained], curve.reward[trained], s=11, color=colour, linewidths=0)
        if fit.status != "failed":
            at = np.geomspace(*fit.window, 200)
            upper.plot(at, fit.reward(at), color=colour, linewidth=2.2 if place == 0 else 1.2, label=row.name)
        _interval(steep, place, row.steepness, colour)
        _interval(ceiling, place, row.asymptote, colour)
    upper.set(xscale="log", xlabel="compute (rollouts)", ylabel=result.metric)
    upper.legend(fontsize=9)
    names = [row.name for row in rows]
    for axes, label in ((steep, f"B at A = {result.asymptote:.3f}, 95%"), (ceiling, "A, 95%")):
        axes.set(xlabel=label, ylim=(len(rows) - 0.5, -0.5))
        axes.set_yticks(range(len(rows)), names if axes is steep else [""] * len(rows), fontsize=10)
        axes.grid(axis="y", visible=False)
    return figure


def _interval(axes: Any, place: int, estimate: ParameterEstimate, colour: Any) -> None:
    """A dot and its interval, dashed where the data do not pin the number down."""
    if not math.isfinite(estimate.value):
        return
    axes.plot(
        estimate.value, place, "o", color=colour, markersize=6, fillstyle="full" if estimate.identified else "none"
    )
    if np.isfinite(estimate.interval95).all():
        line = "-" if estimate.identified else style.DASHED
        axes.plot(estimate.interval95, [place, place], color=colour, linewidth=2, linestyle=line)


def _cells(row: VariantResult) -> list[str]:
    error = f" +- {row.difference_stderr:.3f}" if math.isfinite(row.difference_stderr) else ""
    return [
        row.name,
        str(row.seeds),
        f"{row.reward:.3f}",
        "" if row.verdict == "the recipe" else f"{row.difference:+.3f}{error}",
        _text(row.asymptote, "{:.3f}"),
        _text(row.steepness, "{:.3f}"),
        _text(row.midpoint, "{:,.0f}"),
        row.verdict,
    ]


def _text(estimate: ParameterEstimate, form: str) -> str:
    """`0.61 (0.60 .. 0.63)`; without a value where the data do not pin it down."""
    low, high = estimate.interval95
    if not math.isfinite(estimate.value):
        return "-"
    ends = f" ({form.format(low)} .. {form.format(high)})" if math.isfinite(low + high) else ""
    return f"{form.format(estimate.value)}{ends}" if estimate.identified else f"not identified{ends}"
