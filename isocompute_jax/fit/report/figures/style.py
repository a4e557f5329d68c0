"""How every picture looks: type, colours, panels, and what a reader sees who hovers over a mark.

A configuration has the colour of its group size n where that is known for all of them, else one of its own; with
several B_problem each of these has a panel.
"""

from __future__ import annotations

import contextlib
import io
import math
import pathlib
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeVar
from xml.etree import ElementTree

import matplotlib
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

from isocompute_jax.fit.report.wording import scale, shortened, unit
from isocompute_jax.fit.sweep_results import SweepResult
from isocompute_jax.records.run_files import write_atomic

INK, QUIET, PALE, GREY = "#22262b", "#9aa1a9", "#dfe7ee", "#cfd4d9"
PALETTE = LinearSegmentedColormap.from_list("calm", matplotlib.colormaps["viridis"](np.linspace(0.0, 0.85, 256)))
SCHEDULED = ("#c92a2a", "#e8590c", "#862e9c", "#5c3317")
"""Colours of schedules, outside of the palette: they have no n to stand for."""
STYLE = {
    "font.size": 11,
    "axes.edgecolor": QUIET,
    "axes.labelcolor": INK,
    "axes.titlesize": 11,
    "axes.titley": 1.0,  # fixed: to look whether a tick is in the way costs as much as to draw it
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
DASHED, DOTTED = (0, (3, 2)), (0, (2, 3))
WIDTH = 5.8
"""Inches of a figure: 11-point text stays legible at phone width."""
MOST_WITH_MINOR_TICKS = 4
"""Panels of a figure from which on their logarithmic axes have no minor ticks."""
MOST_PANELS = 12
MOST_NAMED = 12
"""Of more configurations without a group size only those on the frontier have a colour and a name."""

_SVG = "{http://www.w3.org/2000/svg}"
ElementTree.register_namespace("", _SVG[1:-1])
ElementTree.register_namespace("xlink", "http://www.w3.org/1999/xlink")
T = TypeVar("T")
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_HOVER = "hover:"
_BETWEEN = " \N{BROKEN BAR} "


def draw_all(
    drawings: Mapping[str, Callable[[T], Figure | None]], result: T, out_dir: pathlib.Path, *, png: bool = False
) -> dict[str, pathlib.Path]:
    """Draws every picture that the data allow, as NAME.svg in `out_dir`, and NAME.png where `png`: name -> SVG path.

    Pictures of an earlier analysis that this one does not have are removed.
    """
    paths = {}
    with in_style():
        for name, draw in drawings.items():
            figure = draw(result)
            for suffix in (".svg", ".png"):
                (out_dir / f"{name}{suffix}").unlink(missing_ok=True)
            if figure is not None:
                paths[name] = save_figure(figure, out_dir / f"{name}.svg", png=png)
    return paths


def save_figure(figure: Figure, path: pathlib.Path, *, png: bool = False) -> pathlib.Path:
    """Writes the figure as `path` (.svg), and beside it as .png where `png`; returns `path`."""
    FigureCanvasAgg(figure)
    for axis in (axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis) if not axis.get_label_text()):
        axis.set_label_coords(0.5, 0.5)  # else all ticks are measured once more, to place no label
    if (engine := figure.get_layout_engine()) is not None:
        engine.execute(figure)
    figure.set_layout_engine(None)  # laid out once: most of the time goes into walking through ticks
    for suffix, options in {".svg": {"metadata": {"Date": None}}, **({".png": {"dpi": 160}} if png else {})}.items():
        data = io.BytesIO()
        figure.savefig(data, format=suffix[1:], **options)
        found = data.getvalue()
        write_atomic(path.with_suffix(suffix), _titled(found) if suffix == ".svg" else found)
    return path


def hover(artist: Artist, texts: Sequence[str]) -> None:
    """What a reader sees who hovers over a line (one text) or over the points of a scatter (a text for each)."""
    artist.set_gid(_HOVER + _BETWEEN.join(texts))


def _titled(svg: bytes) -> bytes:
    """The SVG with a <title> for every mark that has a text; a scatter that was not drawn point by point has none."""
    root = ElementTree.fromstring(svg)
    for metadata in root.findall(f"{_SVG}metadata"):
        root.remove(metadata)
    for group in [g for g in root.iter(f"{_SVG}g") if g.get("id", "").startswith(_HOVER)]:
        texts = group.attrib.pop("id").removeprefix(_HOVER).split(_BETWEEN)
        marks = [(parent, mark) for parent in group.iter() for mark in parent if mark.tag == f"{_SVG}use"]
        if len(texts) == 1:
            _title(group, texts[0])
        elif len(marks) == len(texts):
            for (parent, mark), text in zip(marks, texts, strict=True):
                wrapped = ElementTree.Element(f"{_SVG}g")
                parent[list(parent).index(mark)] = wrapped
                wrapped.append(mark)
                _title(wrapped, text)
    return ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)


def _title(element: ElementTree.Element, text: str) -> None:
    title = ElementTree.Element(f"{_SVG}title")
    title.text = text
    element.insert(0, title)


def in_style() -> contextlib.AbstractContextManager[None]:
    """Makes this style the one that figures are drawn in."""
    return matplotlib.rc_context(typing.cast(dict[Any, Any], STYLE))


class NotebookFigure(Figure):
    """A figure that notebooks show without pyplot, whose global state nothing here touches."""

    def _repr_png_(self) -> bytes:
        data = io.BytesIO()
        with in_style():
            self.savefig(data, format="png", dpi=110, bbox_inches="tight")
        return data.getvalue()


def panels(rows: int = 1, columns: int = 1, *, height: float = 4.0, share: bool = True) -> tuple[Figure, list[Axes]]:
    """A figure of `WIDTH` inches and its panels, row by row."""
    figure = NotebookFigure(figsize=(WIDTH, height), layout="constrained")
    return figure, list(figure.subplots(rows, columns, sharex=share, sharey=share, squeeze=False).flat)


def multiples(count: int, *, panel: float = 1.9, columns: int = 2) -> tuple[Figure, list[Axes]]:
    """Small multiples on shared axes in at most two columns, `panel` inches high (one panel alone is higher)."""
    columns = min(columns, count)
    rows = math.ceil(count / columns)
    height = 4.0 if count == 1 else 1.1 + panel * rows
    figure, axes = panels(rows, columns, height=height)
    for unused in axes[count:]:
        unused.set_visible(False)
    for last in axes[max(0, count - columns) : count]:
        last.tick_params(labelbottom=True)
    if count > 1:
        axes[0].yaxis.set_major_locator(MaxNLocator(4))  # of all panels: they share it
    return figure, axes[:count]


def labels(figure: Figure, axes: Sequence[Axes], x: str, y: str) -> None:
    """Labels of one panel, or of all of them together."""
    if len(axes) == 1:
        axes[0].set(xlabel=x, ylabel=y)
    else:
        figure.supxlabel(x, fontsize=11)
        figure.supylabel(y, fontsize=11)


def picked(rows: Sequence[Any], most: int) -> list[Any]:
    """At most `most` of the rows, spread evenly, the ends included."""
    if len(rows) <= most:
        return list(rows)
    return [rows[i] for i in np.unique(np.linspace(0, len(rows) - 1, most).round().astype(int))]


def shades(values: Iterable[float]) -> dict[float, Any]:
    """value > 0 -> colour, ordered by its logarithm."""
    found = sorted(set(values))
    levels = np.log(found)
    span = levels[-1] - levels[0] or 1.0
    return {value: PALETTE((level - levels[0]) / span) for value, level in zip(found, levels, strict=True)}


def legend(figure: Figure, handles: Sequence[Artist], columns: int | None = None) -> None:
    """A legend above the panels, in as many even columns as its labels leave room for."""
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
    """A logarithmic axis, with plain numbers where it spans less than two decades."""
    axis = axes.xaxis if which == "x" else axes.yaxis
    axes.set(**{f"{which}scale": "log"})
    low, high = sorted(axis.get_view_interval())
    short = high < 100 * low
    if short:
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high > 6 * low else (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: scale(value) if short else _decade(value)))
    axis.set_minor_formatter(NullFormatter())
    several = len(axes.figure.axes) > MOST_WITH_MINOR_TICKS
    axis.set_minor_locator(NullLocator() if several else LogLocator(subs=(2.0, 5.0)))  # half of drawing is for ticks


def _decade(value: float) -> str:
    """10⁴ for 1e4, without mathtext, which takes longer than all else in a label."""
    exponent = round(math.log10(value)) if value > 0 else 0
    return f"10{str(exponent).translate(_RAISED)}" if math.isclose(value, 10.0**exponent) else ""


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


def schedule_strokes(result: SweepResult) -> dict[str, dict[str, Any]]:
    """Name -> how the line of each schedule beside the frontier is drawn."""
    return {
        each.name: {"color": SCHEDULED[i % len(SCHEDULED)], "linestyle": DASHED, "marker": "D", "markersize": 4}
        for i, each in enumerate(result.beside)
    }


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
