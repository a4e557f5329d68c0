"""Which colour, panel and place each configuration has in the pictures of a sweep.

By group size n where it is known for all of them, else by name. With several B_problem each has a panel of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from isocompute_jax.fit.report.figures.style import PALETTE, picked, shades
from isocompute_jax.fit.report.wording import shortened, unit
from isocompute_jax.fit.sweep_results import SweepResult

MOST_PANELS = 12
GREY = "#cfd4d9"
MOST_NAMED = 12
"""Of more configurations without a group size only those on the frontier have a colour and a name."""


def colours(result: SweepResult) -> dict[str, Any]:
    """run -> colour."""
    curves = result.curves
    if result.known_sizes:
        by_size = shades(curve.group_size for curve in curves)
        return {curve.run: by_size[curve.group_size] for curve in curves}
    named = _named(result)
    places = np.linspace(0.0, 1.0, max(2, len(named)))
    by_name = {run: PALETTE(place) for run, place in zip(named, places, strict=False)}
    return {curve.run: by_name.get(curve.run, GREY) for curve in curves}


def handles(result: SweepResult) -> list[Line2D]:
    """What a legend says about the colours."""
    by_run = colours(result)
    if result.known_sizes:
        by_size = {curve.group_size: by_run[curve.run] for curve in result.curves}
        labels = {f"n = {size}": by_size[size] for size in sorted(by_size)}
    else:
        named = _named(result)
        labels = {shortened(run): by_run[run] for run in named}
        if len(named) < len(result.curves):
            labels["never on the frontier"] = GREY
    return [Line2D([], [], color=c, marker="o", linewidth=2, markersize=4, label=text) for text, c in labels.items()]


def _named(result: SweepResult) -> list[str]:
    runs = [curve.run for curve in result.curves]
    if len(runs) <= MOST_NAMED:
        return runs
    leaders = {segment.run for segment in result.frontier.segments}
    return [run for run in runs if run in leaders]


def by_batch(result: SweepResult) -> list[tuple[str, list[str]]]:
    """(title, runs) of each panel: one for each B_problem where several are known, else a single one without title."""
    batches: dict[int, list[str]] = {}
    for curve in result.curves:
        batches.setdefault(curve.problems_per_batch, []).append(curve.run)
    if not result.several_batches:
        return [("", [curve.run for curve in result.curves])]
    rows = [(f"B_problem = {batch}", runs) for batch, runs in sorted(batches.items())]
    return picked(rows, MOST_PANELS)


def compute_label(result: SweepResult) -> str:
    """The label of an axis of compute."""
    return f"compute C ({unit(result)})"


def size_axis(axes: Axes, sizes: Sequence[int], most: int = 8) -> None:
    """Labels a y axis of log2 n with the group sizes of the sweep, as many as there is room for."""
    shown = picked(sorted(set(sizes)), most)
    axes.set_yticks(np.log2(shown), [str(size) for size in shown])
    levels = np.log2([min(sizes), max(sizes)])
    axes.set_ylim(levels[0] - 0.6, levels[1] + 0.6)
