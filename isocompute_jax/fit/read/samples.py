"""Several numbers where a curve has one: lists in a cell, rows of one step, values carried on until the next one."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import numpy as np
import pyarrow as pa

from isocompute_jax.fit.read import cells
from isocompute_jax.fit.read.layout import one_row_a_run, shared_headers
from isocompute_jax.fit.read.notices import Notices
from isocompute_jax.fit.read.read_options import ReadOptions
from isocompute_jax.fit.read.run_curve import UNITS, Readings, mean_of_bins
from isocompute_jax.fit.read.tables import Table

ENDS = re.compile(r"final|(?<![a-z])(?:ends?|last|seeds?)(?![a-z])", re.IGNORECASE)
"""In the name of a list: it has ends of runs, and no curve."""
LEAST_CHANGES = 3
"""Values that change fewer times are not known to be carried on, and at so many only in equal blocks above two rows."""


def spread(table: Table, options: ReadOptions, notices: Notices) -> Table:
    """A table with a number in each cell of the metric.

    A list is a curve by position where no column says how far a run was trained, and its name does not say that it has
    ends. Else it has values of one evaluation: of a run with one row each is the end of a run of its own, which tells
    their noise; of a run with more rows the mean counts.
    """
    shared = shared_headers(table.headers, options)
    header = next((theirs for theirs, ours in shared.items() if ours == options.metric), None)
    if header is None or not len(table.lines):
        return table
    lists = _lists(table.columns[header])
    if lists is None:
        return table
    counts = np.array([len(each) for each in lists])
    place = [f"{header} of {table.path}, with {counts.min()} to {counts.max()} numbers each"]
    rows = np.repeat(np.arange(len(lists)), counts)
    position = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    flat = pa.chunked_array([pa.array([value for each in lists for value in each], pa.float64())])
    ends = ENDS.search(header) is not None
    if not ends and not {*UNITS.values()} & {*shared.values()}:
        notices.changed("column", "of lists, read as curves by position", place)
        return _repeated(table, rows, {header: flat, "step": pa.chunked_array([pa.array(position + 1)])})
    if not (ends or one_row_a_run(table, shared)):
        notices.changed("column", "of lists, of which the mean counts", place)
        means = pa.chunked_array([pa.array([float(np.mean(each)) if each else None for each in lists], pa.float64())])
        return dataclasses.replace(table, columns=table.columns | {header: means})
    own = next((theirs for theirs, ours in shared.items() if ours == "run"), "run")
    names = [
        cells.text(cells.cell(table.columns[own], i)) if own in table.columns else f"row {i + 1}" for i in rows.tolist()
    ]
    notices.changed("column", "of lists, read as ends of runs without curves", place)
    runs = pa.chunked_array([pa.array([f"{name} [{i + 1}]" for name, i in zip(names, position, strict=True)])])
    return _repeated(table, rows, {header: flat, own: runs})


def with_ends(table: Table, options: ReadOptions, notices: Notices) -> Table:
    """A table of ends over steps, where it says no steps: all runs are taken to end together."""
    shared = shared_headers(table.headers, options)
    if options.compute != "steps" or "step" in shared.values() or not one_row_a_run(table, shared):
        return table
    if options.metric not in shared.values():
        return table
    count = len(table.lines)
    found: dict[str, cells.Column] = {"step": pa.chunked_array([pa.array(np.ones(count))])}
    if "run" not in shared.values():
        found["run"] = [f"row {i + 1}" for i in range(count)]
    what = "read as ends of runs without steps, compared as if they had trained alike"
    notices.changed("file", what, [f"{table.path}, {count} rows"])
    headers = (*table.headers, *found)
    return dataclasses.replace(table, headers=headers, columns=table.columns | found)


def _repeated(table: Table, rows: np.ndarray, own: dict[str, cells.Column]) -> Table:
    columns = {name: cells.take(column, rows) for name, column in table.columns.items()} | own
    headers = (*table.headers, *(name for name in own if name not in table.headers))
    return dataclasses.replace(table, headers=headers, lines=table.lines[rows], columns=columns)


def _lists(column: cells.Column) -> list[list[float]] | None:
    """The finite numbers of each cell, where some cell is a list; None where none is."""
    if not isinstance(column, list):
        kind = str(column.type)
        if not kind.startswith(("list", "large_list", "fixed_size_list", "string")):
            return None
        column = column.to_pylist()
    if not any(isinstance(each, list) or (isinstance(each, str) and each.lstrip()[:1] == "[") for each in column):
        return None
    return [_numbers(each) for each in column]


def _numbers(cell: Any) -> list[float]:
    if isinstance(cell, str) and cell.lstrip()[:1] == "[":
        cell = re.split(r"[\s,;]+", cell.strip().strip("[]").strip())
    found = [cells.number(each) for each in (cell if isinstance(cell, list) else [cell])]
    return [value for value in found if value == value]


def settled(readings: Readings, options: ReadOptions, notices: Notices) -> Readings:
    """One row of each evaluation: the mean of neighbouring rows of one step, the first of values carried on."""
    return _without_carried(_means(readings, options.metric, notices), options.metric, notices)


def _means(readings: Readings, metric: str, notices: Notices) -> Readings:
    """The mean of rows of one step that follow each other and differ; equal ones are left as they are."""
    axis, reward = readings.axis, readings.columns[metric]
    first = np.append(True, axis[1:] != axis[:-1])
    starts = np.flatnonzero(first)
    if len(starts) == len(axis):
        return readings
    counts = np.diff(np.append(starts, len(axis)))
    spans = np.maximum.reduceat(reward, starts) - np.minimum.reduceat(reward, starts)
    if not (spans > 0).any():
        return readings
    most = int(counts.max())
    place = f"{readings.run} of {readings.where(int(starts[counts.argmax()]))}, with up to {most} rows a step"
    notices.changed("run", "given with several rows a step, of which the mean counts", [place])
    columns = {name: mean_of_bins(values, starts) for name, values in readings.columns.items()}
    return dataclasses.replace(readings, lines=readings.lines[starts], axis=axis[starts], columns=columns)


def _without_carried(readings: Readings, metric: str, notices: Notices) -> Readings:
    """The rows at which a value was measured, where it stays the same for a fixed number of rows at a time.

    Coarse rewards repeat too, but not all of them for equally many rows.
    """
    reward = readings.columns[metric]
    changes = np.flatnonzero(reward[1:] != reward[:-1]) + 1
    blocks = np.diff(changes)
    if len(changes) < LEAST_CHANGES or np.any(np.diff(readings.axis) < 0):
        return readings
    every = int(np.gcd.reduce(blocks))
    if every < 2 or changes[0] < 2 or (len(changes) == LEAST_CHANGES and (every == 2 or blocks.max() > every)):
        return readings
    place = f"{readings.run} of {readings.where(1)}, whose {metric} changes every {every} rows"
    what = "as values carried on from the evaluation before"
    notices.left_out("row", what, [place], count=len(reward) - len(changes) - 1)
    return readings.keep(np.append(0, changes))
