"""Columns of cells of any kind as numbers, as texts, and as codes of the distinct cells.

A column is an Arrow array; where its cells have several types, which Arrow's columns cannot, it is a list of Python's
values. Null, None and "" are blank.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute

pc: Any = pyarrow.compute  # its functions are made at import, so that type checkers do not know them

Column = pa.ChunkedArray | list[Any]
"""[n] cells."""

NUMBER = r"^[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?$"


def column_of(values: Any, *, from_pandas: bool = False) -> Column:
    """A column of Python's or NumPy's values; of pandas' and NumPy's, NaN and NaT are blank."""
    try:
        kinds = set(map(type, values)) - {type(None)} if isinstance(values, list) else set()
        if bool in kinds and len(kinds) > 1:  # Arrow would take True for 1 beside 0.5
            raise TypeError
        made = pa.array(values, from_pandas=from_pandas)
    except (pa.ArrowException, OverflowError, ValueError, TypeError):  # several types, or one that Arrow has not
        plain = [value.item() if isinstance(value, np.generic) else value for value in values]
        return [None if from_pandas and isinstance(value, float) and value != value else value for value in plain]
    return made if isinstance(made, pa.ChunkedArray) else pa.chunked_array([made])


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


def keep(column: Column, mask: np.ndarray) -> Column:
    """The cells where `mask` [n] is set."""
    if isinstance(column, list):
        return [value for value, kept in zip(column, mask.tolist(), strict=True) if kept]
    return column.filter(pa.array(mask))


def take(column: Column, rows: np.ndarray) -> Column:
    """The cells of some rows [m] (numbers of rows)."""
    return [column[i] for i in rows.tolist()] if isinstance(column, list) else column.take(pa.array(rows))


def cell(column: Column, i: int) -> Any:
    """One cell, as it stands."""
    return _decoded(column[i] if isinstance(column, list) else column[i].as_py())


def blank(column: Column) -> np.ndarray:
    """[n] bool: cells with nothing in them."""
    if isinstance(column, list):
        return np.array([_is_blank(value) for value in column], dtype=bool)
    if pa.types.is_dictionary(column.type):
        return distinct(column)[0] < 0
    empty = column.is_null()
    if _is_text(column.type):
        empty = pc.or_(empty, pc.equal(pc.fill_null(pc.binary_length(column), 0), 0))
    return empty.to_numpy().astype(bool)


def numbers(column: Column) -> np.ndarray:
    """[n] float64: finite numbers, NaN for anything else (text, `nan`, `inf`, `1,234`, truth values, blanks)."""
    if isinstance(column, list):
        return np.array([number(value) for value in column], dtype=np.float64)
    if pa.types.is_dictionary(column.type):
        codes, values = distinct(column)
        return np.array([*map(number, values), math.nan])[codes]
    return np.concatenate([np.empty(0), *(_array_numbers(chunk) for chunk in column.chunks)])


def number(value: Any) -> float:
    """A cell's finite number; NaN for anything else."""
    value = _decoded(value)
    if value is None or isinstance(value, bool | list | dict):
        return math.nan
    if isinstance(value, str):
        value = value.strip()
        if not re.match(NUMBER, value):
            return math.nan
    try:
        found = float(value)
    except (ValueError, OverflowError, TypeError):
        return math.nan
    return found if math.isfinite(found) else math.nan


def distinct(column: Column) -> tuple[np.ndarray, list[Any]]:
    """Codes [n] int32 into a list of the distinct cells; -1 where blank. For columns of few distinct ones."""
    if not isinstance(column, list):
        try:
            encoded: Any = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
            encoded = encoded.combine_chunks()
        except pa.ArrowException:  # of lists, and of other kinds that Arrow has no codes for
            return distinct(column.to_pylist())
        codes = pc.fill_null(encoded.indices, -1).to_numpy(zero_copy_only=False).astype(np.int32)
        cells = [_decoded(value) for value in encoded.dictionary.to_pylist()]
        if any(map(_is_blank, cells)):
            codes = np.array([-1 if _is_blank(value) else i for i, value in enumerate(cells)] + [-1], np.int32)[codes]
        return codes, cells
    places: dict[tuple[type, str], int] = {}
    found = [-1 if _is_blank(value) else places.setdefault((type(value), str(value)), len(places)) for value in column]
    codes = np.array(found, dtype=np.int32)
    _, first = np.unique(codes[codes >= 0], return_index=True)
    return codes, [_decoded(column[i]) for i in np.flatnonzero(codes >= 0)[first].tolist()]


def texts(column: Column) -> tuple[np.ndarray, list[str]]:
    """Codes [n] int32 into a list of distinct texts; -1 where blank. Whole numbers are written without a point."""
    codes, cells = distinct(column)
    places: dict[str, int] = {}
    own = [places.setdefault(text(value), len(places)) for value in cells]
    return np.array([*own, -1], dtype=np.int32)[codes], list(places)


def _is_blank(value: Any) -> bool:
    return value is None or (isinstance(value, str | bytes) and not value)


def _decoded(value: Any) -> Any:
    return value.decode("utf-8", errors="replace") if isinstance(value, bytes) else value


def text(value: Any) -> str:
    """A cell as text; whole numbers are written without a point."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _is_text(kind: pa.DataType) -> bool:
    return any(
        check(kind)
        for check in (
            pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary,
            pa.types.is_string_view, pa.types.is_binary_view,
        )
    )  # fmt: skip


def _array_numbers(values: pa.Array) -> np.ndarray:
    kind = values.type
    if _is_text(kind):
        found = _parse(values)
    elif pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        found = values.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    else:
        return np.full(len(values), np.nan)
    return found if np.isfinite(found).all() else np.where(np.isfinite(found), found, np.nan)


def _parse(values: pa.Array) -> np.ndarray:
    """Numbers from text. The quick way gives up at the first cell that is none; then what looks like one is cast."""
    try:
        valid = values.cast(pa.string())
    except pa.ArrowInvalid:  # bytes that are no UTF-8
        valid = pa.array([_decoded(value) for value in values.to_pylist()], pa.string())
    try:
        return valid.cast(pa.float64()).to_numpy(zero_copy_only=False)
    except pa.ArrowInvalid:
        trimmed = pc.utf8_trim_whitespace(valid)
        likely = pc.match_substring_regex(trimmed, NUMBER)
        return pc.if_else(likely, trimmed, None).cast(pa.float64()).to_numpy(zero_copy_only=False)
