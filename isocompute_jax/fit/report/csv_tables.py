"""The tables beside summary.json: fits.csv, frontier.csv, switches.csv and allocation.csv."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

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
    "interval95_low", "interval95_high", "beyond", "status", "reasons",
)  # fmt: skip


def tables(summary: dict[str, Any]) -> dict[str, str]:
    """File name -> CSV text. fits.csv has one row per parameter, allocation.csv one per recommended budget."""
    return {
        "fits.csv": csv_text(_fits(summary), FIT_COLUMNS),
        "frontier.csv": csv_text([_ends(r, "group_size") for r in summary["frontier"]["budgets"]], FRONTIER_COLUMNS),
        "switches.csv": csv_text([_ends(r) for r in summary["frontier"]["switches"]], SWITCH_COLUMNS),
        "allocation.csv": csv_text(
            [_ends(r) | {"reasons": " ".join(r["reasons"])} for r in summary["allocation"]["recommendations"]],
            ALLOCATION_COLUMNS,
        ),
    }


def _fits(summary: dict[str, Any]) -> list[dict[str, Any]]:
    """One row per curve and parameter; one that is not identified has an interval and no value."""
    rows = []
    for curve in summary["curves"]:
        whole = {"num_seeds": len(curve["seeds"]), "window_start": curve["window"][0], "window_end": curve["window"][1]}
        for name, value in curve["params"].items():
            low, high = curve["interval95"][name]
            known = curve["identified"][name]
            rows.append(curve | whole | {
                "parameter": name,
                "value": value if known else None,
                "stderr": curve["stderr"][name] if known else None,
                "interval95_low": low,
                "interval95_high": high,
                "identified": known,
            })  # fmt: skip
    return rows


def _ends(row: dict[str, Any], name: str = "interval95") -> dict[str, Any]:
    """A row with the two ends of its interval as columns of their own."""
    low, high = row.get("interval95") or (None, None)
    return row | {f"{name}_low": low, f"{name}_high": high}


def csv_text(rows: Sequence[dict[str, Any]], columns: Sequence[str]) -> str:
    """CSV text with these columns of the rows; other keys are left out."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
