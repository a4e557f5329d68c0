"""Where the analysis meets the disk: one call reads runs and writes tables, pictures, summary.json and report.html."""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Sequence
from typing import Any

from isocompute_jax.fit import findings
from isocompute_jax.fit.analysis import Analysis, Options, analyse_runs
from isocompute_jax.fit.plots import draw_figures
from isocompute_jax.fit.report import render_report
from isocompute_jax.fit.sections import Section
from isocompute_jax.fit.summary import summarise, tables
from isocompute_jax.records.errors import InputError
from isocompute_jax.records.run_files import write_atomic

SUMMARY, REPORT, FIGURES = "summary.json", "report.html", "figures"


def analyse(
    runs: Sequence[str | os.PathLike[str]],
    out_dir: str | os.PathLike[str],
    options: Options | None = None,
    *,
    before: Sequence[Section] = (),
    after: Sequence[Section] = (),
) -> Analysis:
    """Analyses the runs below `runs` and writes everything into `out_dir`.

    Files: fits.csv, frontier.csv, switches.csv, summary.json, figures/*.svg and *.png, and report.html, each written
    under a temporary name and renamed.

    Args:
      runs: run directories, folders that hold them at any depth, or long-form .csv / .jsonl tables.
      out_dir: created if it does not exist.
      options: metric, evaluation set and choices; None for the defaults.
      before: further sections of the report, before the analysis.
      after: further sections, after it.

    Raises:
      InputError: nothing usable was found, or `out_dir` is not a directory.
    """
    analysis = analyse_runs([os.fspath(root) for root in runs], options or Options())
    out = pathlib.Path(out_dir)
    try:
        (out / FIGURES).mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise InputError(f"--out: {out} cannot be made a directory ({error.strerror})") from error
    summary = summarise(analysis)
    for name, text in tables(summary).items():
        write_atomic(out / name, text)
    figures = draw_figures(summary, out / FIGURES)
    write_atomic(out / SUMMARY, json.dumps(summary, indent=1, allow_nan=False) + "\n")
    write_atomic(out / REPORT, render_report(summary, figures, before=before, after=after))
    return analysis


def headline_table(summary: dict[str, Any]) -> str:
    """The answer for a terminal: one line per configuration, then the findings."""
    leads: dict[str, list[float]] = {}
    for row in summary["frontier"]["budgets"]:
        leads.setdefault(row["run"], []).append(row["compute"])
    header = ("configuration", "seeds", "R0", "A", "C_mid", "B", "last", "leads at C", "status")
    rows: list[tuple[str, ...]] = [header]
    for curve in summary["curves"]:
        values = curve["params"].values()
        led = leads.get(curve["run"], [])
        rows.append((
            curve["run"],
            str(len(curve["seeds"])),
            *("-" if value is None else f"{value:.3g}" for value in values),
            f"{curve['points']['reward'][-1]:.3f}",
            f"{min(led):.2e} .. {max(led):.2e}" if led else "-",
            curve["status"],
        ))  # fmt: skip
    widths = [max(len(row[i]) for row in rows) for i in range(len(header))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    lines.insert(1, "-" * len(lines[0]))
    return "\n".join([*lines, "", *findings.headline(summary)])
