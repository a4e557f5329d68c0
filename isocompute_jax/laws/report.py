"""What a law's results become: summary.json, CSV tables, text for a terminal, pictures, and the page."""

from __future__ import annotations

import dataclasses
import functools
import math
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jinja2
import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, NullFormatter

from isocompute_jax.fit.outputs import HEADLINE, Written, write
from isocompute_jax.fit.plain_data import fields_of, plain
from isocompute_jax.fit.read import ReadOptions, read_curves
from isocompute_jax.fit.report.figures.style import (
    DASHED,
    INK,
    PALE,
    PALETTE,
    QUIET,
    draw_all,
    legend,
    log_axis,
    panels,
    picked,
    shades,
)
from isocompute_jax.fit.report.tables import SCHEMA_VERSION, csv_text, input_row, versions
from isocompute_jax.fit.report.templating import environment, render, told
from isocompute_jax.fit.report.terminal import table
from isocompute_jax.fit.report.wording import figures as number
from isocompute_jax.fit.report.wording import reach, scale, value_of, wrapped
from isocompute_jax.fit.results import Estimate
from isocompute_jax.laws.analysis import ChinchillaResult, LawOptions, LawResult, ModelSizeResult, analyse_law

TITLES = {
    "model_size": "How does the gain from training depend on the size of the model?",
    "chinchilla": "How does the loss depend on model size and tokens?",
}
SECTIONS = {
    "model_size": ("lines", "slopes", "holdout", "reuse"),
    "chinchilla": ("prediction", "optimal", "convergence"),
}
"""Of the page of each law, each a template of that name."""
MOST_LABELLED = 10
LINE_POINTS = 100
SURFACE_POINTS = 80


def write_law(
    runs: Sequence[str | os.PathLike[str]],
    out_dir: str | os.PathLike[str],
    read: ReadOptions,
    options: LawOptions,
    *,
    png: bool = False,
    progress: bool = False,
) -> Written:
    """Fits the law of `options.analysis` and writes summary.json, tables, figures/ and report.html into `out_dir`.

    Args:
      runs: run directories, folders that hold them at any depth, tables (.csv, .jsonl, .parquet), or globs.
      out_dir: created if it does not exist.
      read: how runs are read.
      options: the law, and what is left to choose.
      png: write every picture as figures/*.png too.
      progress: show how far reading is.

    Raises:
      InputError: nothing usable was found, or `out_dir` is not a directory.
    """
    curves, warnings = read_curves([os.fspath(root) for root in runs], read, progress=progress)
    result = analyse_law(curves, warnings, options)
    summary, text = law_summary(result), law_table(result)
    write(
        pathlib.Path(out_dir),
        summary,
        {**law_tables(result), HEADLINE: f"{text}\n"},
        lambda folder: draw_law_figures(result, folder, png=png),
        lambda figures: render_law_report(result, figures),
    )
    return Written(summary, text)


@functools.cache
def _templates() -> jinja2.Environment:
    """The report's templates and those of this room, with the sentences that these share as `law_say`."""
    found = environment(pathlib.Path(__file__).parents[1])
    found.globals["law_say"] = found.get_template("laws/templates/sentences.html.j2").module
    return found


def findings(name: str, result: LawResult) -> list[str]:
    """What the data say in a section, or in the `headline`, as plain sentences."""
    return told(f"laws/templates/{name}", result, templates=_templates(), options=result.options)


def law_summary(result: LawResult) -> dict[str, Any]:
    """The content of summary.json: dicts, lists, strings, numbers and None only."""
    options = result.options
    return plain({
        "schema_version": SCHEMA_VERSION,
        "analysis": options.analysis,
        "inputs": [input_row(run) for run in result.runs],
        "flags": dataclasses.asdict(options),
        "versions": versions(),
        "seed": options.seed if options.analysis == "chinchilla" else None,  # the model-size law draws no numbers
        "warnings": result.warnings,
        **fields_of(result),
    })  # fmt: skip


def law_tables(result: LawResult) -> dict[str, str]:
    """File name -> CSV text, of each table that has rows."""
    if isinstance(result, ChinchillaResult):
        tables: dict[str, Sequence[Any]] = {
            "chinchilla": result.fits,
            "chinchilla_optimal": result.optimal,
            "convergence": result.convergence,
        }
    else:
        holdouts = {"intra_model": result.intra_model, "inter_model": result.inter_model}
        tables = {
            "model_size": [result.law],
            "models": result.models,
            "crossovers": result.crossovers,
            "extrapolation": [{"kind": kind} | _cells(row) for kind, rows in holdouts.items() for row in rows],
            "predictions": result.predictions,
            "equal_data": result.equal_data,
        }
    cells = {name: [_cells(row) for row in rows] for name, rows in tables.items() if rows}
    return {f"{name}.csv": csv_text(rows, list(rows[0])) for name, rows in cells.items()}


def _cells(record: Any) -> dict[str, Any]:
    """A record or mapping as the cells of a row: estimates first, each spread over four columns; arrays are left out.

    A value that is not identified is left empty.
    """
    if not isinstance(record, Mapping):
        record = fields_of(record)
    spread: dict[str, Any] = {}
    for name, value in record.items():
        if isinstance(value, Estimate):
            spread[name] = value.value if value.identified else None
            spread |= {f"{name}_low": value.low, f"{name}_high": value.high, f"{name}_identified": value.identified}
    alone = {name: v for name, v in record.items() if not isinstance(v, Estimate | np.ndarray | Mapping)}
    return plain(spread | alone)


def law_table(result: LawResult) -> str:
    """The law for a terminal: what was fitted, parameters with intervals, one line per model, then the findings."""
    parts = _model_size_lines(result) if isinstance(result, ModelSizeResult) else _chinchilla_lines(result)
    return "\n".join([*parts, "", *(line for text in findings("headline", result) for line in wrapped(text))])


def _model_size_lines(result: ModelSizeResult) -> list[str]:
    law = result.law
    parameters = [
        (
            name,
            value_of(estimate, text),
            text(error) if estimate.identified else "-",
            reach(estimate.low, estimate.high, text),
        )
        for name, estimate, error, text in (
            ("k_max", law.k_max, law.k_max_error, number),
            ("N0", law.n0, law.log_n0_error * law.n0.value, scale),
        )
    ]
    lines = zip(law.model_params, law.k, law.free_k, law.free_k_error, law.intercept, strict=True)
    rows = [
        (scale(size), str(model["num_runs"]), str(model["num_points"]), *map(number, line))
        for model, (size, *line) in zip(result.models, lines, strict=True)
    ]
    return [
        "ln L = -k(N) ln X + E(N),  k(N) = k_max / (1 + N0 / N)",
        f"metric {result.options.metric}  X in {result.resource['unit']}  points {law.num_points}  "
        f"R2 within models {number(law.r2)}  status {law.status}",
        "",
        *table(("parameter", "value", "s.e.", "95% interval"), parameters),
        "",
        *table(("model", "runs", "points", "k law", "k own", "s.e.", "E"), rows),
    ]


def _chinchilla_lines(result: ChinchillaResult) -> list[str]:
    rows = [
        (fit.name, symbol, value_of(estimate), reach(estimate.low, estimate.high), fit.status)
        for fit in result.fits
        for symbol, estimate in fit.estimates()
    ]
    laws = [
        (
            f"L({row.variable})", value_of(row.alpha), reach(row.alpha.low, row.alpha.high),
            *map(number, (row.chinchilla_alpha, row.held_out_loss)), value_of(row.forecast),
            number(row.chinchilla_forecast),
        )
        for row in result.convergence
    ]  # fmt: skip
    return [
        "L(N, D) = E + A / N^alpha + B / D^beta",
        f"metric {result.options.metric}  points {len(result.points['loss'])}",
        "",
        *table(("fit", "parameter", "value", "95% interval", "status"), rows),
        "",
        "L(x) = E + A / x^alpha",
        "",
        *table(("law", "alpha", "95% interval", "expected", "largest: measured", "predicted", "Chinchilla"), laws),
    ]


def render_law_report(result: LawResult, figures: Mapping[str, pathlib.Path]) -> str:
    """The HTML text of a law's page; `figures` as `draw_law_figures` returns them."""
    options = result.options
    names = SECTIONS[options.analysis]
    return render(
        "laws/templates/page.html.j2",
        templates=_templates(),
        title=options.title or TITLES[options.analysis],
        result=result,
        options=options,
        figures=dict.fromkeys(names) | dict(figures),
        headline=findings("headline", result),
        sections=names,
        folded=False,
        warnings=result.warnings,
        runs=len(result.runs),
        choices=f"metric {options.metric}",
        versions=versions(),
    )


def draw_law_figures(result: LawResult, out_dir: pathlib.Path, *, png: bool = False) -> dict[str, pathlib.Path]:
    """Draws every picture of the law that the data allow: see `draw_all`."""
    drawings: dict[str, dict[str, Callable[[Any], Figure | None]]] = {
        "model_size": {"lines": _model_lines, "slopes": _slopes, "holdout": _holdout},
        "chinchilla": {"prediction": _prediction, "optimal": _optimal, "convergence": _convergence},
    }
    kind = result.options.analysis
    named = {f"{kind}_{name}": draw for name, draw in drawings[kind].items()}
    drawn = draw_all(named, result, out_dir, png=png)
    return {name.removeprefix(f"{kind}_"): path for name, path in drawn.items()}


def _model_lines(result: ModelSizeResult) -> Figure:
    """Loss against X on logarithmic axes, with the law's line for each model size between its first and last X."""
    figure, (axes,) = panels(height=4.2)
    options, law, colours = result.options, result.law, shades(result.law.model_params.tolist())
    for index, (model, colour) in enumerate(zip(result.models, colours.values(), strict=True)):
        x = np.array([law.first_x[index], law.last_x[index]])
        axes.scatter(
            model["points"]["x"], model["points"]["loss"], s=14, color=colour, alpha=0.65, linewidths=0, zorder=3
        )
        axes.plot(x, law.loss(index, x), color=colour, linewidth=1.8, zorder=4)
    for row in result.crossings_inside:
        axes.plot(row.x, row.loss, "o", color="none", markeredgecolor=INK, markersize=9, zorder=5)
    name = "training compute X" if result.resource["kind"] == "compute" else "data X"
    loss = f"1 - {options.reward_name}" if options.loss == "one_minus_metric" else options.metric
    axes.set(xlabel=f"{name}, {result.resource['unit']}", ylabel=loss)
    log_axis(axes)
    log_axis(axes, "y")
    _size_legend(figure, colours)
    return figure


def _slopes(result: ModelSizeResult) -> Figure | None:
    """k(N): the models' own slopes with 95% intervals, and the law with its region."""
    band, law = result.slopes, result.law
    if not len(band["k"]):
        return None
    figure, (axes,) = panels(height=3.8)
    if math.isfinite(band["low"][0]):
        axes.fill_between(band["model_params"], band["low"], band["high"], color=PALE, linewidth=0)
    looks = "-" if law.identified else "--"
    axes.plot(band["model_params"], band["k"], color=PALETTE(0.25), linewidth=1.8, linestyle=looks)
    for size, k, error in zip(law.model_params, law.free_k, 2 * np.nan_to_num(law.free_k_error), strict=True):
        axes.errorbar(size, k, yerr=error, fmt="o", color=INK, markersize=6, capsize=3)
    for row in result.inter_model:
        k, n = row.predicted_k, row.model_params
        if math.isfinite(k.low):
            axes.vlines(n * 1.06, k.low, k.high, color=QUIET, linewidth=2)
        axes.plot(n * 1.06, k.value, "D", color="white", markeredgecolor=INK, markersize=7)
    label = "law, 95% region" if law.identified else "law, not identified"
    handles = [
        Line2D([], [], color=INK, marker="o", linestyle="", label="own slope ± 2 s.e."),
        Line2D([], [], color=PALETTE(0.25), linestyle=looks, label=label),
    ]
    if law.k_max.identified:
        axes.axhline(law.k_max.value, color=QUIET, linewidth=1, linestyle=DASHED)
        handles.append(Line2D([], [], color=QUIET, linestyle=DASHED, label="k_max"))
    if result.inter_model:
        handles.append(Line2D([], [], color="none", marker="D", markeredgecolor=INK, label="predicted from smaller"))
    axes.set(xscale="log", xlabel="parameters N", ylabel="slope k(N)")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: scale(value)))
    legend(figure, handles, columns=2)
    return figure


def _holdout(result: ModelSizeResult) -> Figure | None:
    """Predicted against measured reward of evaluations that were not fitted."""
    kinds = {"later evaluations": result.intra_model, "a larger model": result.inter_model}
    colours = shades(result.law.model_params.tolist())
    groups = {
        name: [(row.points["reward"], row.points["predicted"], colours[row.model_params]) for row in rows]
        for name, rows in kinds.items()
        if rows
    }
    metric = result.options.metric
    reward = metric if result.options.loss == "one_minus_metric" else f"1 - {metric}"
    return _against(groups, f"measured {reward}", "predicted", colours) if groups else None


def _prediction(result: ChinchillaResult) -> Figure:
    """Predicted against measured loss, one panel per method."""
    sizes = result.points["model_params"].tolist()
    colours = shades(sizes)
    marks = [colours[n] for n in sizes]
    fits = [fit for fit in result.fits if fit.status != "failed"]
    groups = {fit.name: [(result.points["loss"], fit.predicted, marks)] for fit in fits}
    return _against(groups, "measured loss L", "loss of the law", colours)


def _against(
    panel_groups: Mapping[str, Sequence[tuple[np.ndarray, np.ndarray, Any]]],
    x: str,
    y: str,
    colours: dict[float, Any],
) -> Figure:
    """Title -> (measured [P], predicted [P], colours) of groups of points, on equal axes with the line of no error."""
    figure, axes = panels(1, len(panel_groups), height=3.7)
    for panel, (title, groups) in zip(axes, panel_groups.items(), strict=True):
        for measured, predicted, colour in groups:
            panel.scatter(measured, predicted, s=16, color=colour, linewidths=0, alpha=0.8, zorder=3)
        panel.axline((0, 0), slope=1, color=QUIET, linewidth=1, linestyle=DASHED)
        panel.set_title(title, loc="left", fontweight="bold")
        panel.set(xlabel=x)
    values = np.concatenate([v for groups in panel_groups.values() for group in groups for v in group[:2]])
    margin = 0.05 * (np.ptp(values) or 1.0)
    limits = values.min() - margin, values.max() + margin
    axes[0].set(ylabel=y, xlim=limits, ylim=limits)
    _size_legend(figure, colours)
    return figure


def _optimal(result: ChinchillaResult) -> Figure | None:
    """Lines of equal loss over N and D, the points, and the compute-optimal path; where it is identified."""
    identified = [fit for fit in result.fits if fit.exponent.identified]
    if not identified:
        return None
    figure, (axes,) = panels(height=4.2)
    sizes, tokens = result.points["model_params"], result.points["tokens"]
    n, d = (np.geomspace(v.min() / 2, v.max() * 2, SURFACE_POINTS) for v in (sizes, tokens))
    loss = identified[-1].loss(n[None, :], d[:, None])  # of the Huber fit where it is there
    # scales first: labels are placed on the axes as they stand
    axes.set(
        xscale="log", yscale="log", xlabel="parameters N", ylabel="tokens D", xlim=(n[0], n[-1]), ylim=(d[0], d[-1])
    )
    levels = np.quantile(loss, np.linspace(0.05, 0.95, 9))
    axes.clabel(
        axes.contour(n, d, loss, levels=levels, colors=QUIET, linewidths=0.9), fmt="%.3g", fontsize=9, colors=INK
    )
    axes.scatter(sizes, tokens, s=18, color=PALETTE(0.5), linewidths=0, zorder=3)
    looks = {
        "squares": {"color": PALETTE(0.3), "linewidth": 4, "alpha": 0.45},
        "huber": {"color": INK, "linewidth": 1.5},
    }
    for fit in identified:
        path, label = result.path(fit.method), f"compute-optimal ({fit.name})"
        axes.plot(
            [p["model_params"] for p in path], [p["tokens"] for p in path], zorder=4, label=label, **looks[fit.method]
        )
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: scale(value)))
        axis.set_minor_formatter(NullFormatter())
    figure.legend(loc="outside upper center", ncols=1)
    return figure


def _convergence(result: ChinchillaResult) -> Figure | None:
    """The laws of N, D and C alone, each with what it predicts for its largest x from the others."""
    rows = [row for row in result.convergence if row.status != "failed"]
    if not rows:
        return None
    figure, axes = panels(1, len(rows), height=3.6, share=False)
    unit = {"N": "parameters N", "D": "tokens D", "C": "compute C = 6 N D"}
    for panel, row in zip(axes, rows, strict=True):
        x = np.geomspace(row.x[0], row.x[-1], LINE_POINTS)
        panel.scatter(row.x, row.loss, s=18, color=PALETTE(0.5), linewidths=0, zorder=3)
        panel.plot(x, row.predicted(x), color=INK, linewidth=1.5)
        panel.plot(row.x, row.chinchilla_loss, color=QUIET, linestyle=DASHED, linewidth=1.3)
        if math.isfinite(row.forecast.low):
            panel.vlines(row.held_out_x * 1.1, row.forecast.low, row.forecast.high, color=QUIET, linewidth=2)
        panel.plot(row.held_out_x * 1.1, row.forecast.value, "D", color="white", markeredgecolor=INK, markersize=6)
        panel.set_title(f"L({row.variable})", loc="left", fontweight="bold")
        panel.set(xlabel=unit[row.variable])
        log_axis(panel)
        log_axis(panel, "y")
    axes[0].set(ylabel="loss L")
    legend(figure, [
        Line2D([], [], color=INK, label="law of one variable"),
        Line2D([], [], color=QUIET, linestyle=DASHED, label="pre-training law"),
        Line2D([], [], color="none", marker="D", markeredgecolor=INK, label="the largest, predicted"),
    ])  # fmt: skip
    return figure


def _size_legend(figure: Figure, colours: dict[float, Any]) -> None:
    legend(figure, [
        Line2D([], [], color=colour, marker="o", linewidth=2, markersize=4, label=f"N = {scale(size)}")
        for size, colour in picked(list(colours.items()), MOST_LABELLED)
    ])  # fmt: skip
