"""Runs that change n themselves, budget by budget: what they are below the best fixed n, and which n they had.

`frontier.schedules` says how they are compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from isocompute_jax.fit.comparisons.comparison import ComparisonResult, DrawnSeries, Panel, Picture, Value
from isocompute_jax.fit.frontier.schedules import ScheduleBudget, ScheduleResult
from isocompute_jax.fit.read import RunCurve
from isocompute_jax.fit.report.templating import answer
from isocompute_jax.fit.sweep_results import SweepResult

SIZES = "train/group_size"
"""Column of a recorded sweep: mean n of the steps since the evaluation before."""


def compare_schedules(result: SweepResult) -> Iterator[ComparisonResult]:
    """One where there are scheduled runs."""
    found = result.scheduled or ()
    if not found:
        return
    tones = {each.name: i / max(len(found) - 1, 1) for i, each in enumerate(found)}
    drawings = (_difference, _sizes)
    series = [each for one in found for drawing in drawings for each in drawing(one, tones[one.name])]
    panels = {"difference": Panel("reward above best fixed n", zero=True), "n": Panel("n", _powers(series))}
    panels = {name: panel for name, panel in panels.items() if any(each.panel == name for each in series)}
    yield answer(
        result,
        "schedules",
        verdict=_verdict(found),
        columns={
            "schedule": "schedule", "compute": "compute", "reward": "reward", "frontier_run": "best fixed n",
            "frontier": "its reward", "difference": "difference", "held_out": "n chosen on other seeds",
        },
        rows=[_row(each, budget) for each in found for budget in each.budgets],
        series=series,
        picture=Picture(stacked=panels) if panels else None,
        found=found,
    )  # fmt: skip


def _row(each: ScheduleResult, budget: ScheduleBudget) -> dict[str, Value | float | str | None]:
    differences = {
        "difference": (budget.difference, budget.interval95),
        "held_out": (budget.difference_held_out, budget.held_out95),
    }
    return {
        "schedule": each.name,
        "compute": budget.compute,
        "reward": budget.reward,
        "frontier_run": budget.frontier_run,
        "frontier": budget.frontier,
        **{name: None if value is None else Value.within(value, ends) for name, (value, ends) in differences.items()},
    }


def _verdict(found: Sequence[ScheduleResult]) -> str | None:
    """Where the schedules end against the best fixed n: `below`, `alike`, `above`, `mixed`; None without an interval.

    Where seeds suffice, against the n that was chosen on other seeds.
    """
    words = set()
    for each in found:
        row = each.last_compared
        if row is None:
            continue
        value, ends = row.difference_held_out, row.held_out95
        if value is None:
            value, ends = row.difference, row.interval95
        if value is not None and ends is not None:
            words.add({1: "above", 0: "alike", -1: "below"}[Value.within(value, ends).sign])
    return None if not words else words.pop() if len(words) == 1 else "mixed"


def _difference(each: ScheduleResult, tone: float) -> Iterator[DrawnSeries]:
    """Over compute, against the n that leads at each budget."""
    rows = [row for row in each.budgets if row.difference is not None]
    if not rows:
        return
    ends = [row.interval95 for row in rows if row.interval95 is not None]
    low, high = np.array(ends).T if len(ends) == len(rows) else (None, None)
    compute, difference = (np.array([getattr(row, name) for row in rows]) for name in ("compute", "difference"))
    yield DrawnSeries(each.name, compute, difference, "difference", low, high, tone=tone)


def _sizes(each: ScheduleResult, tone: float) -> Iterator[DrawnSeries]:
    """n over compute of each run that says it."""
    for run in each.group.runs:
        x, y = sizes_of(run)
        if len(x):
            yield DrawnSeries(each.name, x, y, "n", tone=tone, hover=(run.run,))


def sizes_of(run: RunCurve) -> tuple[np.ndarray, np.ndarray]:
    """The corners [P] of n over compute as steps: compute, above 0, and n; of a table, means between evaluations."""
    trained = run.compute[run.compute > 0]
    if run.group_sizes is not None:
        starts, size = run.group_sizes.T
        ends = np.append(starts[1:], run.compute[-1])
    elif SIZES in run.columns:
        known = np.isfinite(run.columns[SIZES]) & (run.compute > 0)
        size, ends = run.columns[SIZES][known], run.compute[known]
        starts = np.append(0.0, ends)[: len(ends)]
    else:
        return np.empty(0), np.empty(0)
    first = trained[0] if len(trained) else 1.0
    drawn = ends > np.minimum(first, ends[-1:])
    drawn |= np.arange(len(ends)) == len(ends) - 1
    x = np.stack([np.maximum(starts, np.minimum(first, ends)), ends], axis=1)[drawn]
    return x.ravel(), np.repeat(size[drawn], 2)


def _powers(series: Sequence[DrawnSeries]) -> list[int]:
    """Powers of two that span the n of the pictures."""
    sizes = [each.y for each in series if each.panel == "n"]
    if not sizes:
        return []
    low, high = np.log2([np.min(np.concatenate(sizes)), np.max(np.concatenate(sizes))])
    return [2**power for power in range(int(np.floor(low)), int(np.ceil(high)) + 1)]
