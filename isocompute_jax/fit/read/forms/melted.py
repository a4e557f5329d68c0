"""Melted tables: a row a number, with the metric's name in a column of its own, as W&B and pandas export them.

They become a row a step of a run, with a column a metric, so that the values of one are never taken for another's.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pyarrow as pa

from isocompute_jax.fit.read import cells
from isocompute_jax.fit.read.layout import is_ours
from isocompute_jax.fit.read.notices import Notices
from isocompute_jax.fit.read.read_options import ReadOptions
from isocompute_jax.fit.read.tables import Table, TableError

NAMES = ("metric", "metric_name", "variable", "key", "tag", "measure")
VALUES = ("value", "metric_value", "val")
MAX_METRICS = 2000


def pivoted(table: Table, options: ReadOptions, notices: Notices) -> Table:
    """A melted table with a column a metric; another one as it is.

    Raises:
      TableError: it has more than `MAX_METRICS` metrics.
    """
    free = {each.lower(): each for each in table.columns if each not in options.columns}
    name, value = (next((free[each] for each in names if each in free), None) for names in (NAMES, VALUES))
    if name is None or value is None or np.isfinite(cells.numbers(table.columns[name])).any():
        return table
    metrics, names = cells.distinct(table.columns[name])
    if len(names) > MAX_METRICS:
        raise TableError(f"column {name} has {len(names)} texts, too many for names of metrics")
    rows = np.flatnonzero(metrics >= 0)
    kept = [each for each in table.columns if each not in (name, value) and (is_ours(each) or each in options.columns)]
    place = np.zeros(len(rows), dtype=np.int64)
    for each in kept:
        codes = cells.distinct(table.columns[each])[0][rows]
        place = np.unique(place * (codes.max(initial=0) + 2) + codes + 1, return_inverse=True)[1]
    again = _times(place * len(names) + metrics[rows])  # a metric that is given again at a step has a row of its own
    _, first, place = np.unique(place * (again.max(initial=0) + 1) + again, return_index=True, return_inverse=True)
    order = np.argsort(first, kind="stable")
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    columns = {each: cells.take(table.columns[each], rows[first[order]]) for each in kept}
    for i, metric in enumerate(names):
        own = np.flatnonzero(metrics[rows] == i)
        at = np.full(len(order), -1)
        at[rank[place[own]]] = rows[own]
        columns[metric] = _blank_where_negative(table.columns[value], at)
    place = f"{table.path}, {len(rows)} numbers of {len(names)} metrics"
    notices.changed("file", "read as a melted table, with a column for each metric", [place])
    return dataclasses.replace(table, headers=tuple(columns), lines=table.lines[rows[first[order]]], columns=columns)


def _times(keys: np.ndarray) -> np.ndarray:
    """How often each key came before."""
    order = np.argsort(keys, kind="stable")
    new = np.append(True, np.diff(keys[order]) != 0)[: len(keys)]
    starts = np.flatnonzero(new)
    found = np.empty(len(keys), dtype=np.int64)
    found[order] = np.arange(len(keys)) - starts[np.cumsum(new) - 1] if len(keys) else 0
    return found


def _blank_where_negative(column: cells.Column, rows: np.ndarray) -> cells.Column:
    if isinstance(column, list):
        return [column[i] if i >= 0 else None for i in rows.tolist()]
    return column.take(pa.array(rows, mask=rows < 0))
