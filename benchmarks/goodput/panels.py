"""What the picture shows: a quantity that changes, the others as `assumptions` have them; and the picture."""

from __future__ import annotations

import dataclasses
import math
import pathlib
from collections.abc import Iterable, Iterator
from typing import Any

from benchmarks.goodput import assumptions
from benchmarks.goodput.model import DAY_S, Cluster, simulate
from benchmarks.shared import save_picture

WINDOWS = (0, 2, 8)
"""Values of k, where k is not what changes."""
PUBLISHED = assumptions.FAILURES_OF_GPU * (assumptions.LEARNER_HOSTS * assumptions.GPUS_OF_HOST + assumptions.SERVERS)
"""Failures a day of all 1,024 GPUs."""
PANELS: dict[str, list[float]] = {
    "failures": [PUBLISHED, 8, 32, 128],
    "window": [0, 1, 2, 3, 4, 6, 8, 12, 16],
    "group_size": [4, 16, 64, 256],
    "tail": [0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5],
}
LABELS = {
    "failures": "failures a day",
    "window": "window k",
    "group_size": "group size n",
    "tail": "length tail sigma",
}
MOST_DAYS, MEANT_FAILURES = 1.5, 32
HEAD = ("", "", "k", "steps/h", "goodput", "the learner learns", "slots that draw", "failures: learner", "servers")

Point = dict[str, Any]


def points(panel: str, steps: int, known: Iterable[Point]) -> Iterator[Point]:
    """The points of a panel, one after the other; what is `known` is not simulated again."""
    found = {(point["value"], point["k"]): point for point in known}
    for value in PANELS[panel]:
        for k in (int(value),) if panel == "window" else WINDOWS:
            yield found.get((value, k)) or _point(panel, value, k, steps)


def _point(panel: str, value: float, k: int, steps: int) -> Point:
    cluster = _cluster(panel, value, k)
    if panel == "failures":
        settled = simulate(_cluster("window", k, k), steps=20, warm_up=_warm_up(k)).step_s
        steps = math.ceil(min(MOST_DAYS, MEANT_FAILURES / value) * DAY_S / settled)
    result = simulate(cluster, steps=steps, warm_up=_warm_up(k))
    return {"value": value, "k": k, "ideal_s": cluster.ideal_s, "step_s": result.step_s, **dataclasses.asdict(result)}


def _warm_up(k: int) -> int:
    """Steps until the window is full of batches of every age."""
    return 2 + 2 * k


def _cluster(panel: str, value: float, k: int) -> Cluster:
    match panel:
        case "failures":
            return assumptions.cluster(staleness=k, failures=value)
        case "group_size":
            return assumptions.cluster(staleness=k, group_size=int(value))
        case "tail":
            return assumptions.cluster(staleness=k, sigma=value)
        case _:
            return assumptions.cluster(staleness=k)


def cells(panel: str, point: Point) -> list[str]:
    """The cells of `HEAD`."""
    found = [LABELS[panel], f"{point['value']:.3g}", f"{point['k']}", f"{3600 / point['step_s']:.1f}"]
    found += [f"{point[name]:.1%}" for name in ("goodput", "learning", "busy")]
    return [*found, f"{point['learner_failures']}", f"{point['server_failures']}"]


def draw(found: dict[str, list[Point]], path: pathlib.Path) -> None:
    """Goodput of every panel; of the window, the learner's share too."""
    from matplotlib.lines import Line2D
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator, PercentFormatter

    from isocompute_jax.fit.report.figures import style

    with style.in_style():
        figure, axes = style.panels(2, 2, height=5.8, share=False)
        colours = {k: style.PALETTE(level) for k, level in zip(WINDOWS, (0.1, 0.5, 0.9), strict=True)}
        for axis, panel in zip(axes, found, strict=False):
            for k, colour in {None: style.INK}.items() if panel == "window" else colours.items():
                drawn = [point for point in found[panel] if k is None or point["k"] == k]
                values = [point["value"] for point in drawn]
                axis.plot(values, [p["goodput"] for p in drawn], "o-", color=colour, linewidth=2, markersize=4)
                if k is None:
                    shares = [point["learning"] for point in drawn]
                    axis.plot(values, shares, linestyle=style.DASHED, color=style.QUIET, linewidth=1.5)
            if panel in ("failures", "group_size"):
                axis.set_xscale("log")
                axis.xaxis.set_major_locator(FixedLocator(PANELS[panel]))
                axis.xaxis.set_minor_locator(NullLocator())
                axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _short(value)))
            axis.set_ylim(0, 1.05)
            axis.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
            axis.set_title(LABELS[panel], loc="left", fontweight="bold")
        figure.supylabel("goodput: steps of those that an ideal would make", fontsize=11)
        marked = {**{f"k = {k}": colour for k, colour in colours.items()}, "every k": style.INK}
        handles = [Line2D([], [], color=c, marker="o", markersize=4, label=name) for name, c in marked.items()]
        handles.append(Line2D([], [], color=style.QUIET, linestyle=style.DASHED, label="the learner learns"))
        style.legend(figure, handles, columns=5)
        save_picture(figure, path)


def _short(value: float) -> str:
    return f"{value:.2g}" if value < 1 else f"{value:.0f}"
