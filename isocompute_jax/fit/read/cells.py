"""Columns of cells of any kind as numbers, as texts, and as codes of the distinct cells.

A column is an Arrow array; where its cells have several types, which Arrow's columns cannot, it is a list of Python's
values. Null, None and "" are blank.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute

pc: Any = pyarrow.compute  # its functions are made at import, so that type checkers do not know them

Column = pa.ChunkedArray | list[Any]
"""[n] cells; text is Arrow's `string`, or `str` in a list."""

NUMBER = r"^[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?$"


def column_of(values: Any, *, from_pandas: bool = False) -> Column:
    """A column of Python's or NumPy's values; of pandas' and NumPy's, NaN and NaT are blank."""
    try:
        kinds = set(map(type, values)) - {type(None)} if isinstance(values, list) else set()
        if bool in kinds and len(kinds) > 1:  # Arrow would take True for 1 beside 0.5
            raise TypeError
        made = pa.array(values, from_pandas=from_pandas)
    except (pa.ArrowException, OverflowError, ValueError, TypeError):  # several types, or one that Arrow has not
        plain = [value.item() if isinstance(value, np.generic) else _decoded(value) for value in values]
        return [None if from_pandas and isinstance(value, float) and value != value else value for value in plain]
    return arrow_column(made if isinstance(made, pa.ChunkedArray) else pa.chunked_array([made]))


def arrow_column(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """An Arrow array without codes of categories, and with all kinds of text as one; bytes are UTF-8."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return arrow_column(column.cast(kind.value_type))
    if not any(getattr(pa.types, f"is_{name}")(kind) for name in TEXTS):
        return column
    try:
        return column.cast(pa.string())
    except pa.ArrowException:  # bytes that are no UTF-8
        return pa.chunked_array([pa.array(map(_decoded, column.to_pylist()), pa.string())])


TEXTS = ("large_string", "string_view", "binary", "large_binary", "binary_view", "fixed_size_binary")
"""Arrow's types of text beside `string`."""


def stack(parts: Sequence[Column]) -> Column:
    """Columns one below the other."""
    arrays = [part for part in parts if not isinstance(part, list)]
    if len(arrays) == len(parts):
        kinds = {array.type for array in arrays} - {pa.null()}
        if len(kinds) == 1:
            kind = kinds.pop()
            chunks = [chunk for array in arrays for chunk in array.chunks]
            return pa.chunked_array([c if c.type == kind else pa.nulls(len(c), kind) for c in chunks], kind)
        try:
            tables = [pa.table([array], [""]) for array in arrays]
            return pa.concat_tables(tables, promote_options="permissive").column(0)
        except pa.ArrowException:
            pass
    return [value for part in parts for value in (part if isinstance(part, list) else part.to_pylist())]


def take(column: Column, rows: np.ndarray) -> Column:
    """The cells of some rows, [m] numbers."""
    return [column[i] for i in rows.tolist()] if isinstance(column, list) else column.take(pa.array(rows))


def cell(column: Column, i: int) -> Any:
    """One cell, as it stands."""
    return column[i] if isinstance(column, list) else column[i].as_py()


def blank(column: Column) -> np.ndarray:
    """[n] bool: cells with nothing in them."""
    if isinstance(column, list):
        return np.array([value is None or value == "" for value in column], dtype=bool)
    empty = column.is_null()
    if pa.types.is_string(column.type):
        empty = pc.or_(empty, pc.fill_null(pc.equal(column, ""), True))
    return empty.to_numpy().astype(bool)


def numbers(column: Column) -> np.ndarray:
    """[n] float64: finite numbers, NaN for anything else (text, `nan`, `inf`, `1,234`, truth values, blanks)."""
    if isinstance(column, list):
        return np.array([number(value) for value in column], dtype=np.float64)
    kind = column.type
    if pa.types.is_string(kind):
        found = _parsed(column)
    elif pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        found = column.cast(pa.float64(), safe=False).to_numpy()
    else:
        return np.full(len(column), np.nan)
    return found if np.isfinite(found).all() else np.where(np.isfinite(found), found, np.nan)


def number(value: Any) -> float:
    """A cell's finite number; NaN for anything else."""
    if value is None or isinstance(value, bool | list | dict):
        return math.nan
    if isinstance(value, str) and not re.match(NUMBER, value := value.strip()):
        return math.nan
    try:
        found = float(value)
    except (ValueError, OverflowError, TypeError):
        return math.nan
    return found if math.isfinite(found) else math.nan


def _parsed(column: pa.ChunkedArray) -> np.ndarray:
    """Numbers from text. The quick way gives up at the first cell that is none; then what looks like one is cast."""
    try:
        return column.cast(pa.float64()).to_numpy()
    except pa.ArrowInvalid:
        trimmed = pc.utf8_trim_whitespace(column)
        likely = pc.match_substring_regex(trimmed, NUMBER)
        return pc.if_else(likely, trimmed, None).cast(pa.float64()).to_numpy()


def text(value: Any) -> str:
    """A cell as text; whole numbers are written without a point."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def distinct(column: Column, value: Callable[[Any], Any] = text) -> tuple[np.ndarray, list[Any]]:
    """Codes [n] of what `value` makes of each cell, -1 where blank, and a list of these; for columns of few of them."""
    if not isinstance(column, list):
        try:
            encoded: Any = column.dictionary_encode().combine_chunks()
        except pa.ArrowException:  # of lists, and of other kinds that Arrow has no codes for
            return distinct(column.to_pylist(), value)
        given = encoded.dictionary.to_pylist()
        codes = pc.fill_null(encoded.indices, -1).to_numpy(zero_copy_only=False)
    else:
        kinds = {(type(each), str(each)): each for each in column}
        places = {key: i for i, key in enumerate(kinds)}
        given = list(kinds.values())
        codes = np.array([places[type(each), str(each)] for each in column], dtype=np.int64)
    found: dict[Any, int] = {}
    own = [-1 if each is None or each == "" else found.setdefault(value(each), len(found)) for each in given]
    return np.array([*own, -1], dtype=np.int64)[codes], list(found)


def _decoded(value: Any) -> Any:
    return value.decode("utf-8", errors="replace") if isinstance(value, bytes) else value
