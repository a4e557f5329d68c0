"""Where the analysis meets the disk: one call reads runs and writes tables, pictures, summary.json and report.html."""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from isocompute_jax.fit.analysis import analyse_runs
from isocompute_jax.fit.analysis_options import AnalysisOptions
from isocompute_jax.fit.comparisons.questions import with_comparisons
from isocompute_jax.fit.report.figures import draw_figures
from isocompute_jax.fit.report.page import render_report
from isocompute_jax.fit.report.tables import summary_of, tables
from isocompute_jax.fit.report.templating import Section
from isocompute_jax.fit.report.terminal import headline, headline_tables
from isocompute_jax.fit.sweep_results import SweepResult
from isocompute_jax.records.errors import InputError
from isocompute_jax.records.run_files import write_atomic

SUMMARY, REPORT, FIGURES = "summary.json", "report.html", "figures"
HEADLINE, TABLES = "headline.txt", "tables.txt"

Figures = Mapping[str, pathlib.Path]


class Written(NamedTuple):
    """The content of summary.json, what to print, and what that rests on; of a law it is printed itself."""

    summary: dict[str, Any]
    text: str
    tables: str = ""


def analyse(
    runs: Sequence[str | os.PathLike[str]],
    out_dir: str | os.PathLike[str],
    options: AnalysisOptions | None = None,
    *,
    before: Sequence[Section] = (),
    after: Sequence[Section] | Callable[[SweepResult], Sequence[Section]] = (),
    png: bool = False,
    progress: bool = False,
) -> Written:
    """Analyses the runs below `runs` and writes everything into `out_dir`.

    Files: ranges.csv, fits.csv, frontier.csv, switches.csv, allocation.csv, next.csv, ties.csv, comparisons.csv,
    summary.json, headline.txt (the answer), tables.txt (what it rests on), figures/*.svg, and report.html, each written
    under a temporary name and renamed.

    Args:
      runs: run directories, folders that hold them at any depth, tables (.csv, .jsonl, .parquet), or globs.
      out_dir: created if it does not exist.
      options: inputs, curves, frontier; None for the defaults.
      before: further sections of the report, before the analysis.
      after: further sections, after it; or what makes them from the analysis.
      png: write every picture as figures/*.png too.
      progress: show how far reading is.

    Raises:
      InputError: nothing usable was found, or `out_dir` is not a directory.
    """
    found = analyse_runs([os.fspath(root) for root in runs], options or AnalysisOptions(), progress=progress)
    result = with_comparisons(found)
    written = Written(summary_of(result), headline(result), headline_tables(result))

    def draw(folder: pathlib.Path) -> Figures:
        return draw_figures(result, folder, png=png)

    def render(figures: Figures) -> str:
        return render_report(result, figures, before=before, after=after(result) if callable(after) else after)

    texts = {HEADLINE: f"{written.text}\n", TABLES: f"{written.tables}\n"}
    write(pathlib.Path(out_dir), written.summary, tables(result) | texts, draw, render)
    return written


def write(
    out: pathlib.Path,
    summary: dict[str, Any],
    texts: Mapping[str, str],
    draw: Callable[[pathlib.Path], Figures],
    render: Callable[[Figures], str],
) -> None:
    """Every file of an analysis; the report last."""
    try:
        (out / FIGURES).mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise InputError(f"--out: {out} cannot be made a directory ({error.strerror})") from error
    for name, text in texts.items():
        write_atomic(out / name, text)
    figures = draw(out / FIGURES)
    write_atomic(out / SUMMARY, json.dumps(summary, indent=1, allow_nan=False) + "\n")
    write_atomic(out / REPORT, render(figures))
