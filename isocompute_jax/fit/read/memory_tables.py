"""Tables that are already in memory: Arrow's, pandas' and every other data frame's, and mappings of columns."""

from __future__ import annotations

import dataclasses
import hashlib
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from isocompute_jax.fit.read.blocks import Advance, Block, TableFile
from isocompute_jax.fit.read.cells import Values
from isocompute_jax.fit.read.notices import Notices
from isocompute_jax.records.errors import InputError

NAME = "curves"
"""What messages call the table, which has no path."""

PANDAS_INDEX = "__index_level_"
"""Begins the name that Arrow gives an index without one: row numbers, and no column of the user's."""


@dataclasses.dataclass(frozen=True, eq=False)
class MemoryTable:
    """A table in memory, with what its readers ask of a file.

    Attributes:
      table: its columns; messages count its rows from 1.
      sha256: hash of its content.
    """

    table: TableFile
    sha256: str


def memory_table(curves: Any) -> MemoryTable:
    """A table from whatever has columns: an Arrow table or batch, a data frame, a mapping from names to columns.

    None, NaN and NaT are blank cells, as in pandas; a named index of a data frame is a column.

    Raises:
      InputError: `curves` is none of these, or its columns are not of one length.
    """
    table = None if isinstance(curves, Mapping) else _arrow_table(curves)
    if table is not None:
        kept = [name for name in dict.fromkeys(table.column_names) if not name.startswith(PANDAS_INDEX)]
        table = table.select([table.column_names.index(name) for name in kept])
        batches = [dict(zip(kept, batch.columns, strict=True)) for batch in table.to_batches()]
        return _memory_table(kept, batches)
    if not hasattr(curves, "items"):
        raise InputError(
            f"curves is of type {type(curves).__name__}; give a data frame, an Arrow table, a mapping from names to "
            "columns, or paths as for --runs"
        )
    columns = {str(name): _cells(str(name), values) for name, values in curves.items()}
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) > 1:
        raise InputError(f"curves: its columns differ in length: {lengths}")
    return _memory_table(list(columns), [columns])


def _arrow_table(curves: Any) -> pa.Table | None:
    """The table behind Arrow's protocol, which pandas, polars and DuckDB speak; None where Arrow cannot make one."""
    try:
        return pa.table(curves)
    except (pa.ArrowException, TypeError, ValueError):  # no table at all, or a column with cells of several types
        return None


def _cells(name: str, values: Any) -> Values:
    """One column; cells of several types stay Python's values."""
    if isinstance(values, str) or not (hasattr(values, "__array__") or hasattr(values, "__iter__")):
        raise InputError(f"curves: column {name} is {values!r}, and not a sequence with a value for each row")
    given = np.asarray(values) if hasattr(values, "__array__") else list(values)
    if isinstance(given, np.ndarray) and given.ndim != 1:
        raise InputError(f"curves: column {name} has the shape {given.shape}, and not one dimension")
    try:
        return pa.array(given, from_pandas=True)
    except (pa.ArrowException, OverflowError):
        return [_plain(value) for value in given]


def _plain(value: Any) -> Any:
    value = value.item() if isinstance(value, np.generic) else value
    return None if isinstance(value, float) and value != value else value


def _memory_table(headers: Sequence[str], batches: Sequence[Mapping[str, Values]]) -> MemoryTable:
    """The table of these batches of columns."""
    digest = hashlib.sha256(repr(headers).encode())
    blocks, row = [], 1
    for columns in batches:
        count = len(next(iter(columns.values()), ()))
        blocks.append(Block(np.arange(row, row + count), dict(columns)))
        row += count
        for values in columns.values():
            plain = repr(values).encode() if isinstance(values, list) else pa.record_batch([values], [""]).serialize()
            digest.update(plain)

    def read(wanted: Sequence[int], notices: Notices, advance: Advance) -> Iterator[Block]:
        del notices, advance  # nothing in memory is damaged, and nothing has to be waited for
        for block in blocks:
            yield Block(block.lines, {headers[i]: block.columns[headers[i]] for i in wanted})

    return MemoryTable(TableFile(pathlib.Path(NAME), "row ", tuple(headers), read), digest.hexdigest())
