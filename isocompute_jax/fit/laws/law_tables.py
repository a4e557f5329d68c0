"""The laws as tables: for the terminal, and as CSV."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from isocompute_jax.fit.laws.analysis import LawAnalysis
from isocompute_jax.fit.laws.chinchilla_results import ChinchillaResult
from isocompute_jax.fit.laws.model_size_results import ModelSizeResult
from isocompute_jax.fit.laws.quotes import METHODS, estimates, reach, value_of
from isocompute_jax.fit.laws.results import Estimate
from isocompute_jax.fit.plain_data import fields_of, plain
from isocompute_jax.fit.report.csv_tables import csv_text
from isocompute_jax.fit.report.templating import told
from isocompute_jax.fit.report.terminal import table
from isocompute_jax.fit.report.wording import figures as number
from isocompute_jax.fit.report.wording import scale, wrapped


def law_table(analysis: LawAnalysis) -> str:
    """The law for a terminal: what was fitted, parameters with intervals, one line per model, then the findings."""
    result, options = analysis.result, analysis.options
    model_size = isinstance(result, ModelSizeResult)
    parts = _model_size_lines(result, options.metric) if model_size else _fit_lines(result, options.metric)
    found = told("laws/headline", result, options=options)
    return "\n".join([*parts, "", *(line for text in found for line in wrapped(text))])


def _model_size_lines(result: ModelSizeResult, metric: str) -> list[str]:
    law = result.law
    parameters = [
        (name, value_of(found, text), text(error) if found.identified else "-", reach(found, text))
        for name, found, error, text in (
            ("k_max", law.k_max, law.k_max_error, number),
            ("N0", law.n0, law.n0_error, scale),
        )
    ]
    rows = [
        (
            scale(line.model_params), str(line.num_runs), str(line.num_points), number(line.k), number(line.free_k),
            number(line.free_k_error), number(line.intercept),
        )
        for line in result.models
    ]  # fmt: skip
    return [
        "ln L = -k(N) ln X + E(N),  k(N) = k_max / (1 + N0 / N)",
        f"metric {metric}  X in {result.resource.unit}  points {law.num_points}  "
        f"R2 within models {number(law.r2)}  status {law.status}",
        "",
        *table(("parameter", "value", "s.e.", "95% interval"), parameters),
        "",
        *table(("model", "runs", "points", "k law", "k own", "s.e.", "E"), rows),
    ]


def _fit_lines(result: ChinchillaResult, metric: str) -> list[str]:
    rows = [
        (METHODS[fit.method], symbol, value_of(found), reach(found), fit.status)
        for fit in result.fits
        for symbol, found in estimates(fit)
    ]
    laws = [
        (
            f"L({row.variable})", value_of(row.alpha), reach(row.alpha), number(row.chinchilla_alpha),
            number(row.held_out_loss), value_of(row.forecast), number(row.chinchilla_forecast),
        )
        for row in result.convergence
    ]  # fmt: skip
    return [
        "L(N, D) = E + A / N^alpha + B / D^beta",
        f"metric {metric}  points {len(result.points.loss)}",
        "",
        *table(("fit", "parameter", "value", "95% interval", "status"), rows),
        "",
        "L(x) = E + A / x^alpha",
        "",
        *table(("law", "alpha", "95% interval", "expected", "largest: measured", "predicted", "Chinchilla"), laws),
    ]


def law_tables(analysis: LawAnalysis) -> dict[str, str]:
    """File name -> CSV text, of each table that has rows."""
    result = analysis.result
    if isinstance(result, ChinchillaResult):
        found: dict[str, Sequence[dict[str, Any]]] = {
            "chinchilla.csv": [_row(fit, leave_out=("predicted",)) for fit in result.fits],
            "chinchilla_optimal.csv": [_row(row) for row in result.optimal],
            "convergence.csv": [_row(row, leave_out=("x", "loss", "chinchilla_loss")) for row in result.convergence],
        }
    else:
        holdouts = {"intra_model": result.intra_model, "inter_model": result.inter_model}
        found = {
            "model_size.csv": [_row(result.law)],
            "models.csv": [_row(line, leave_out=("points",)) for line in result.models],
            "crossovers.csv": [_row(row) for row in result.crossovers],
            "extrapolation.csv": [
                {"kind": kind} | _row(row, leave_out=("points",)) for kind, rows in holdouts.items() for row in rows
            ],
            "predictions.csv": [_row(row) for row in result.predictions],
            "equal_data.csv": [_row(row) for row in result.equal_data],
        }
    return {name: csv_text(rows, list(rows[0])) for name, rows in found.items() if rows}


def _row(record: Any, *, leave_out: Sequence[str] = ()) -> dict[str, Any]:
    """A record as the cells of a row, its estimates first, each spread over four columns.

    A value that is not identified is left empty.
    """
    names = [name for name in fields_of(record) if name not in leave_out]
    spread = [name for name in names if isinstance(getattr(record, name), Estimate)]
    cells: dict[str, Any] = {}
    for name in spread:
        found: Estimate = getattr(record, name)
        cells[name] = found.value if found.identified else None
        cells |= {f"{name}_low": found.low, f"{name}_high": found.high, f"{name}_identified": found.identified}
    return plain(cells | {name: getattr(record, name) for name in names if name not in spread})
