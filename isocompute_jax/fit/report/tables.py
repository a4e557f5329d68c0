"""What is written beside the page: summary.json, a dump of the results field by field, and tables as CSV.

docs/fitter.md documents the keys of summary.json; null is unknown.
"""

from __future__ import annotations

import csv
import dataclasses
import importlib.metadata
import io
import platform
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from isocompute_jax import __version__
from isocompute_jax.fit.advice import BudgetRange
from isocompute_jax.fit.comparisons.comparison import ComparisonResult, Value
from isocompute_jax.fit.plain_data import fields_of, plain
from isocompute_jax.fit.sweep_results import SweepResult

if TYPE_CHECKING:
    from isocompute_jax.fit.read import RunCurve

SCHEMA_VERSION = 2

FIT_COLUMNS = (
    "run", "group_size", "problems_per_batch", "num_seeds", "form", "parameter", "value", "stderr", "interval95_low",
    "interval95_high", "identified", "window_start", "window_end", "num_points", "sse", "r2", "aicc", "bic", "status",
    "message",
)  # fmt: skip
FRONTIER_COLUMNS = (
    "compute", "run", "group_size", "problems_per_batch", "num_steps", "reward", "smoothed_group_size",
    "group_size_low", "group_size_high", "leader_share",
)  # fmt: skip
SWITCH_COLUMNS = (
    "compute", "interval95_low", "interval95_high", "share", "from_group_size", "to_group_size",
    "from_problems_per_batch", "to_problems_per_batch", "from_run", "to_run", "reward", "epochs", "cause",
    "beyond_noise", "established",
)  # fmt: skip
ALLOCATION_COLUMNS = (
    "budget", "run", "group_size", "problems_per_batch", "num_steps", "learning_rate", "law_group_size", "reward",
    "interval95_low", "interval95_high", "beyond", "stop", "expected_regret", "best_share", "status",
    "reasons",
)  # fmt: skip
RANGE_COLUMNS = (
    "start", "end", "run", "group_size", "reward_at_start", "reward_at_end", "share", "confidence", "tied_group_sizes",
    "beyond", "stop",
)  # fmt: skip
TIE_COLUMNS = (
    "compute", "best_run", "best_group_size", "reward", "tied_runs", "seed_sd", "compared", "best_in_each_seed",
)  # fmt: skip

NEXT_COLUMNS = (
    "budget", "expected_regret_now", "run", "group_size", "problems_per_batch", "seeds", "compute", "num_steps", "cost",
    "expected_regret", "untried",
)  # fmt: skip
COMPARISON_COLUMNS = (
    "question", "part", "row", "column", "value", "interval95_low", "interval95_high", "stderr", "text",
)  # fmt: skip


def summary_of(result: SweepResult) -> dict[str, Any]:
    """The content of summary.json: dicts, lists, strings, numbers and None only."""
    return plain({
        "schema_version": SCHEMA_VERSION,
        "analysis": "frontier",
        "compute_unit": result.options.read.compute,
        "inputs": [input_row(run) for run in result.every_run],
        "flags": result.options.flags(),
        "versions": versions(),
        "seed": result.options.seed,
        "warnings": result.warnings,
        **fields_of(result),
    })  # fmt: skip


def versions() -> dict[str, str]:
    """Of this package, Python and the libraries that compute."""
    found = {name: importlib.metadata.version(name) for name in ("jax", "numpy", "scipy")}
    return {"isocompute_jax": __version__, "python": platform.python_version(), **found}


def input_row(run: RunCurve) -> dict[str, Any]:
    """A run that was read: where it stands, its hash, and its facts."""
    return {
        "run": run.run,
        "path": run.source,
        "sha256": run.sha256,
        **dataclasses.asdict(run.facts),
        "finished": run.finished,
        "evaluations": len(run.compute),
        "max_compute": run.compute[-1],
        **({"schedule": run.schedule} if run.schedule else {}),
    }


class Rows(NamedTuple):
    """A table as rows, some of whose keys may not be among its columns."""

    rows: Sequence[dict[str, Any]]
    columns: Sequence[str]


def tables(result: SweepResult) -> dict[str, str]:
    """File name -> CSV text."""
    return {f"{name}.csv": csv_text(*table) for name, table in table_rows(result).items()}


def table_rows(result: SweepResult) -> dict[str, Rows]:
    """Name -> table: `ranges` has one row per range of budgets with one answer, `fits` one per parameter."""
    frontier, advice = result.frontier, result.recommendations
    by_seed = {row.compute: "; ".join(row.best_run.values()) for row in result.per_seed.budgets}
    return {
        "ranges": Rows([_range(row) for row in result.ranges], RANGE_COLUMNS),
        "fits": Rows(_fits(result), FIT_COLUMNS),
        "frontier": Rows([_row(row, "group_size") for row in frontier.budgets], FRONTIER_COLUMNS),
        "switches": Rows([_row(switch) for switch in frontier.switches], SWITCH_COLUMNS),
        "allocation": Rows([_row(r) | {"reasons": " ".join(r.reasons)} for r in advice], ALLOCATION_COLUMNS),
        "next": Rows(
            [
                {"budget": asked.budget, "expected_regret_now": asked.expected_regret} | _row(run)
                for asked in result.next_runs
                for run in asked.proposals
            ],
            NEXT_COLUMNS,
        ),
        "ties": Rows(
            [
                _row(row) | {"tied_runs": "; ".join(row.rivals), "best_in_each_seed": by_seed.get(row.compute)}
                for row in result.main.budgets
            ],
            TIE_COLUMNS,
        ),
        "comparisons": Rows(
            [cell for found in result.comparisons for cell in _comparison_cells(found)], COMPARISON_COLUMNS
        ),
    }


def _comparison_cells(found: ComparisonResult) -> Iterator[dict[str, Any]]:
    """A row for each cell of a comparison's table, and for each number of the whole (without the number of a row)."""
    where = {"question": found.question, "part": found.part}
    for number, row in [(None, found.numbers), *enumerate(found.rows, 1)]:
        for column, cell in row.items():
            row_of = where | {"row": number, "column": column}
            if isinstance(cell, Value):
                low, high = cell.low, cell.high
                values = {"value": cell.value, "interval95_low": low, "interval95_high": high, "stderr": cell.stderr}
                yield row_of | plain(values) | {"text": str(cell)}
            elif isinstance(cell, str | None):
                yield row_of | {"text": cell}
            else:
                yield row_of | plain({"value": float(cell)})


def _fits(result: SweepResult) -> list[dict[str, Any]]:
    """One row per curve and parameter; one that is not identified has an interval and no value."""
    rows = []
    for curve in result.curves:
        fit, (start, end) = curve.fit, curve.fit.window
        whole = plain(fields_of(curve) | {"num_seeds": len(curve.seeds), "window_start": start, "window_end": end})
        for name, value in fit.params.items():
            low, high = fit.interval95[name]
            known = curve.identified(name)
            rows.append(whole | plain({
                "parameter": name,
                "value": value if known else None,
                "stderr": fit.stderr[name] if known else None,
                "interval95_low": low,
                "interval95_high": high,
                "identified": known,
            }))  # fmt: skip
    return rows


def _range(found: BudgetRange) -> dict[str, Any]:
    """A range of budgets as a row, with its two rewards and the n of its ties as columns of their own."""
    first, last = plain(list(found.rewards))
    tied = "; ".join(map(str, found.tied_group_sizes))
    return plain(found) | {"reward_at_start": first, "reward_at_end": last, "tied_group_sizes": tied}


def _row(record: Any, name: str = "interval95") -> dict[str, Any]:
    """A record as a row, with the two ends of its interval as columns of their own."""
    row = plain(record)
    low, high = row.get("interval95") or (None, None)
    return row | {f"{name}_low": low, f"{name}_high": high}


def csv_text(rows: Sequence[dict[str, Any]], columns: Sequence[str]) -> str:
    """CSV text with these columns of the rows; other keys are left out.

    A text that a spreadsheet would take for a formula has a quotation mark before it: names come with the data.
    """
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({key: f"'{cell}" if _is_formula(cell) else cell for key, cell in row.items()})
    return text.getvalue()


def _is_formula(cell: Any) -> bool:
    return isinstance(cell, str) and cell.startswith(("=", "+", "-", "@", "\t", "\r"))
