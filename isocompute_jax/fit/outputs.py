"""Where an analysis meets the disk: summary.json, tables, pictures and report.html, of which none is half-written."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import os
import pathlib
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from isocompute_jax.fit.analysis import analyze
from isocompute_jax.fit.laws import LawOptions, fit_law
from isocompute_jax.fit.options import AnalysisOptions
from isocompute_jax.fit.plain_data import fields_of, plain
from isocompute_jax.fit.read import ReadOptions, RunCurve, read_curves
from isocompute_jax.fit.report import facts
from isocompute_jax.fit.report.tables import paper_rows
from isocompute_jax.fit.report.terminal import headline, law_text, tables
from isocompute_jax.fit.report.wording import Section, versions
from isocompute_jax.fit.results import SweepResult
from isocompute_jax.records.errors import InputError

SUMMARY, REPORT, FIGURES = "summary.json", "report.html", "figures"
HEADLINE, TABLES = "headline.txt", "tables.txt"
SCHEMA = 3
"""Version of summary.json."""


class Written(NamedTuple):
    """What to print, what that rests on, and the content of summary.json."""

    text: str
    tables: str
    summary: dict[str, Any]


def analyse(
    runs: Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    options: AnalysisOptions | None = None,
    *,
    before: Sequence[Section] = (),
    after: Callable[[SweepResult], Sequence[Section]] = lambda _: (),
    png: bool = False,
) -> Written:
    """Analyses the runs below `runs` (see `analyze`) and writes everything into `out` (see `write`).

    Raises:
      InputError: nothing usable was found, or `out` is not a directory.
    """
    result = analyze([os.fspath(root) for root in runs], options)
    return write(result, out, png=png, before=before, after=after(result))


def write(
    result: SweepResult,
    out: str | os.PathLike[str],
    *,
    png: bool = False,
    before: Sequence[Section] = (),
    after: Sequence[Section] = (),
) -> Written:
    """Writes everything that was found of a sweep into `out`, which is made if it does not exist.

    Files: summary.json, answers.csv, choices.csv, curves.csv, optimal_n.csv, switches.csv, paper_fits.csv, next.csv,
    headline.txt (the answer), tables.txt (what it rests on), figures/NAME.svg, and report.html.

    Args:
      result: of the analysis.
      out: a directory; what an earlier analysis wrote there is replaced.
      png: write every picture as figures/NAME.png too.
      before: further sections of the page, on how the runs were made.
      after: further sections, on what the analysis does not show.

    Raises:
      InputError: `out` is not a directory.
    """
    from isocompute_jax.fit.report.figures import draw_figures
    from isocompute_jax.fit.report.page import render_page

    written = Written(headline(result), tables(result), summary_of(result))

    def fill(folder: pathlib.Path) -> None:
        figures = draw_figures(result, folder / FIGURES, png=png)
        (folder / REPORT).write_text(render_page(result, figures, before=before, after=after), encoding="utf-8")

    _write(pathlib.Path(out), written, {name: _csv(rows) for name, rows in table_rows(result).items()}, fill)
    return written


def write_law(
    runs: Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    read: ReadOptions,
    options: LawOptions,
    *,
    png: bool = False,
) -> Written:
    """Fits a law to the runs below `runs`, and writes summary.json, its tables, its picture, and report.html."""
    from isocompute_jax.fit.report.figures import draw_law
    from isocompute_jax.fit.report.page import render_law

    curves, notes = read_curves([os.fspath(root) for root in runs], read)
    options = dataclasses.replace(options, metric=(notes.read or read).metric)
    result = fit_law(curves, options)
    result = dataclasses.replace(result, notes=(*notes.texts, *result.notes))
    first = {
        "schema": SCHEMA,
        "metric": options.metric,
        "analysis": options.analysis,
        "options": dataclasses.asdict(options),
        "inputs": [_input(run, options.metric) for run in result.runs],
        "versions": versions(),
        "warnings": result.notes,
    }
    written = Written(*law_text(result), plain(first | fields_of(result)))

    def fill(folder: pathlib.Path) -> None:
        figures = draw_law(result, folder / FIGURES, png=png)
        (folder / REPORT).write_text(render_law(result, figures), encoding="utf-8")

    csv_files = {name: _csv(plain(result.rows(name))) for name in ("parameters", *result.tables)}
    _write(pathlib.Path(out), written, csv_files, fill)
    return written


def summary_of(result: SweepResult) -> dict[str, Any]:
    """The content of summary.json: dicts, lists, strings, numbers and None only."""
    first = {
        "schema": SCHEMA,
        "metric": result.metric,
        "compute_unit": result.options.read.compute,
        "options": result.options.flags(),
        "inputs": [_input(run, result.metric) for run in result.runs],
        "versions": versions(),
        "warnings": result.data.notes,
    }
    return plain(first | fields_of(result))


def _input(run: RunCurve, metric: str) -> dict[str, Any]:
    """A run that was read: where it stands, its hash, and its facts."""
    values, given = run.columns.get(metric, np.empty(0)), dataclasses.asdict(run.facts)
    return {
        "run": run.run,
        "source": run.source,
        "sha256": run.sha256,
        **{name: given[name] for name in ("group_size", "problems_per_batch", "seed", "problem_set_size")},
        "evaluations": int(np.isfinite(values).sum()),
        "compute_end": float(run.compute[-1]) if len(run.compute) else None,
    }


def table_rows(result: SweepResult) -> dict[str, list[dict[str, Any]]]:
    """Name -> rows of plain cells, of each CSV file; an interval is two columns, a configuration its name."""
    answers = facts.budgets_of(result)
    asked = {answer.budget for answer in result.asked}
    found: dict[str, list[dict[str, Any]]] = {
        "answers": [
            {"asked": each.budget in asked, **fields_of(each.advised), "advised_rate": each.learning_rate}
            | {name: value for name, value in fields_of(each).items() if name not in ("choices", "learning_rate")}
            for each in answers
        ],
        "choices": [{"budget": each.budget, **fields_of(one)} for each in answers for one in each.choices],
        "curves": [row for band in result.curves for row in _rows(band, CURVE, name=band.configuration.name)],
        "optimal_n": _rows(result.optimal, OPTIMAL) if result.optimal else [],
        "switches": [fields_of(each) for each in result.switches],
        "paper_fits": paper_rows(result),
        "next": [fields_of(each) for each in result.next_runs],
    }
    return {name: [_flat(row) for row in rows] for name, rows in found.items()}


CURVE = ("compute", "mean", "low", "high", "run_low", "run_high")
OPTIMAL = ("budgets", "group_size", "interval95", "problems_per_batch", "num_steps")


def _rows(record: Any, names: Sequence[str], **same: Any) -> list[dict[str, Any]]:
    """Arrays of one length as rows."""
    columns = [getattr(record, name).tolist() for name in names]
    return [same | dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    """Plain cells: an interval as its two ends, configurations by their names, settings as name=value."""
    found: dict[str, Any] = {}
    for name, value in row.items():
        if name.endswith("95"):
            found |= dict(zip((f"{name}_low", f"{name}_high"), plain(list(value or (None, None))), strict=True))
        elif isinstance(value, tuple):
            found[name] = "; ".join(each.name if hasattr(each, "name") else "=".join(map(str, each)) for each in value)
        else:
            found[name] = value.name if dataclasses.is_dataclass(value) else plain(value)  # pyright: ignore
    return found


def _csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """CSV text of rows, with every key that one of them has.

    A text that a spreadsheet would take for a formula has a quotation mark before it: names come with the data.
    """
    columns = list(dict.fromkeys(key for row in rows for key in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=columns, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({key: f"'{value}" if _is_formula(value) else value for key, value in row.items()})
    return text.getvalue()


def _is_formula(value: Any) -> bool:
    return isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r"))


def _write(
    out: pathlib.Path, written: Written, csv_files: dict[str, str], fill: Callable[[pathlib.Path], None]
) -> None:
    """Writes everything into a folder beside its place, and then moves it there file by file, the report last."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise InputError(f"--out: {out} cannot be made a directory ({error.strerror})") from error
    folder = pathlib.Path(tempfile.mkdtemp(dir=out, prefix=".unfinished."))
    try:
        (folder / FIGURES).mkdir()
        texts = {f"{name}.csv": text for name, text in csv_files.items()}
        texts |= {HEADLINE: f"{written.text}\n", TABLES: f"{written.tables}\n"}
        texts[SUMMARY] = json.dumps(written.summary, indent=1, allow_nan=False) + "\n"
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
        fill(folder)
        _moved(folder, out)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _moved(folder: pathlib.Path, out: pathlib.Path) -> None:
    old = out / FIGURES
    if old.is_dir() and not old.is_symlink():  # pictures that this analysis does not have must not stay
        for path in (*old.glob("*.svg"), *old.glob("*.png")):
            path.unlink()
    (out / FIGURES).mkdir(exist_ok=True)
    for path in sorted((folder / FIGURES).iterdir()):
        os.replace(path, old / path.name)
    for path in sorted((each for each in folder.iterdir() if each.is_file()), key=lambda each: each.name == REPORT):
        os.replace(path, out / path.name)
