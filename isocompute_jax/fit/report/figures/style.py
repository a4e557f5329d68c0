"""How every picture looks: type, colours and panels. Matplotlib is imported in this folder alone."""

from __future__ import annotations

import contextlib
import io
import math
import pathlib
import typing
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import matplotlib
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

from isocompute_jax.fit.configurations import Configuration, scale
from isocompute_jax.records.run_files import write_atomic

INK, QUIET, PALE, GREY = "#22262b", "#9aa1a9", "#dfe7ee", "#cfd4d9"
PALETTE = LinearSegmentedColormap.from_list("calm", matplotlib.colormaps["viridis"](np.linspace(0.0, 0.85, 256)))
SCHEDULED = ("#c92a2a", "#e8590c", "#862e9c", "#5c3317")
"""Colours of schedules, outside of the palette: they have no n to stand for."""
STYLE = {
    "font.size": 11, "axes.titlesize": 11, "text.color": INK, "legend.frameon": False, "grid.color": "#eceef0",
    "axes.edgecolor": QUIET, "axes.labelcolor": INK, "axes.grid": True, "axes.axisbelow": True,
    "axes.spines.top": False, "axes.spines.right": False,
    "xtick.color": QUIET, "ytick.color": QUIET, "xtick.labelcolor": INK, "ytick.labelcolor": INK,
    "axes.titley": 1.0,  # fixed: to look whether a tick is in the way costs as much as to draw it
    "svg.hashsalt": "isocompute",  # the same figure is the same file
}  # fmt: skip
DASHED, DOTTED = (0, (3, 2)), (0, (2, 3))
WIDTH = 5.8
"""Inches of a figure: 11-point text stays legible at phone width."""
MOST_WITH_MINOR_TICKS = 4
"""Panels of a figure from which on their logarithmic axes have no minor ticks."""
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def save_figure(figure: Figure, path: pathlib.Path, *, png: bool = False) -> pathlib.Path:
    """Writes the figure as `path` (.svg), and as .png in the same folder where `png`; returns `path`."""
    FigureCanvasAgg(figure)
    for axis in (axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis) if not axis.get_label_text()):
        axis.set_label_coords(0.5, 0.5)  # else all ticks are measured once more, to place no label
    if (engine := figure.get_layout_engine()) is not None:
        engine.execute(figure)
    figure.set_layout_engine(None)  # laid out once: most of the time goes into walking through ticks
    for suffix, options in {".svg": {"metadata": {"Date": None}}, **({".png": {"dpi": 160}} if png else {})}.items():
        data = io.BytesIO()
        figure.savefig(data, format=suffix[1:], **options)
        write_atomic(path.with_suffix(suffix), data.getvalue())
    return path


def in_style() -> contextlib.AbstractContextManager[None]:
    """Makes this style the one that figures are drawn in."""
    return matplotlib.rc_context(typing.cast(dict[Any, Any], STYLE))


def panels(rows: int = 1, columns: int = 1, *, height: float = 4.0, share: bool = True) -> tuple[Figure, list[Axes]]:
    """Makes a figure of `WIDTH` inches and its panels, row by row."""
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    return figure, list(figure.subplots(rows, columns, sharex=share, sharey=share, squeeze=False).flat)


def multiples(count: int, *, panel: float = 1.9, columns: int = 2) -> tuple[Figure, list[Axes]]:
    """Makes small multiples on shared axes in at most two columns, `panel` inches high (one panel alone is higher)."""
    columns = min(columns, count)
    rows = math.ceil(count / columns)
    figure, axes = panels(rows, columns, height=4.0 if count == 1 else 1.1 + panel * rows)
    for unused in axes[count:]:
        unused.set_visible(False)
    for last in axes[max(0, count - columns) : count]:
        last.tick_params(labelbottom=True)
    if count > 1:
        axes[0].yaxis.set_major_locator(MaxNLocator(4))  # of all panels: they share it
    return figure, axes[:count]


def labels(figure: Figure, axes: Sequence[Axes], x: str, y: str) -> None:
    """Labels the axes of one panel, or of all of them together."""
    if len(axes) == 1:
        axes[0].set(xlabel=x, ylabel=y)
    else:
        figure.supxlabel(x, fontsize=11)
        figure.supylabel(y, fontsize=11)


def picked(rows: Sequence[Any], most: int) -> list[Any]:
    """Picks at most `most` of the rows, spread evenly, the ends included."""
    if len(rows) <= most:
        return list(rows)
    return [rows[i] for i in np.unique(np.linspace(0, len(rows) - 1, most).round().astype(int))]


def shades(values: Iterable[float]) -> dict[float, Any]:
    """Returns value > 0 -> colour, ordered by its logarithm."""
    found = sorted(set(values))
    levels = np.log(found)
    span = levels[-1] - levels[0] or 1.0
    return {value: PALETTE((level - levels[0]) / span) for value, level in zip(found, levels, strict=True)}


def colours(every: Sequence[Configuration]) -> dict[Configuration, Any]:
    """Returns configuration -> colour: by its n where n is known of all and varies, else one for each."""
    sizes = {each.group_size for each in every}
    if 0 not in sizes and len(sizes) > 1:
        by_size = shades(sizes)
        return {each: by_size[each.group_size] for each in every}
    return dict(zip(every, map(PALETTE, np.linspace(0.0, 1.0, max(2, len(every)))), strict=False))


def scheduled(place: int) -> str:
    """Returns the colour of a schedule by its place among them."""
    return SCHEDULED[place % len(SCHEDULED)]


def legend(figure: Figure, handles: Sequence[Artist], columns: int | None = None) -> None:
    """Puts a legend above the panels, in as many even columns as its labels leave room for."""
    if not handles:
        return
    longest = max(len(str(handle.get_label())) for handle in handles)
    most = columns or max(1, min(5, 66 // (longest + 6)))
    rows = math.ceil(len(handles) / most)
    figure.legend(
        handles=list(handles),
        loc="outside upper center",
        ncols=math.ceil(len(handles) / rows),
        handlelength=1.4,
        columnspacing=1.2,
    )


def log_axis(axes: Axes, which: Literal["x", "y"] = "x") -> None:
    """Makes an axis logarithmic, with plain numbers where it spans less than two decades."""
    axis = axes.xaxis if which == "x" else axes.yaxis
    axes.set(**{f"{which}scale": "log"})
    low, high = sorted(axis.get_view_interval())
    near = high < 100 * low
    if near:
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high > 6 * low else (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: scale(value) if near else _decade(value)))
    axis.set_minor_formatter(NullFormatter())
    several = len(axes.figure.axes) > MOST_WITH_MINOR_TICKS
    axis.set_minor_locator(NullLocator() if several else LogLocator(subs=(2.0, 5.0)))  # half of drawing is for ticks


def _decade(value: float) -> str:
    """Writes 10⁴ for 1e4 without mathtext, which takes longer than all else in a label."""
    exponent = round(math.log10(value)) if value > 0 else 0
    return f"10{str(exponent).translate(_RAISED)}" if math.isclose(value, 10.0**exponent) else ""


def size_axis(axes: Axes, sizes: Sequence[int], most: int = 8) -> None:
    """Labels a y axis of log2 n with the group sizes of the sweep, as many as there is room for."""
    shown = picked(sorted(set(sizes)), most)
    axes.set_yticks(np.log2(shown), [str(size) for size in shown])
    levels = np.log2([min(sizes), max(sizes)])
    axes.set_ylim(levels[0] - 0.6, levels[1] + 0.6)
