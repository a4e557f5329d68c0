"""The answer for a terminal: a compact table and the findings."""

from __future__ import annotations

from typing import Any

from isocompute_jax.fit import findings


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
