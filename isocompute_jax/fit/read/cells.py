"""Columns of cells of any kind (Arrow arrays, or Python values from JSON) as numbers and as texts."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute

pc: Any = pyarrow.compute
"""Made at import, so that type checkers do not know its functions."""

Values = pa.Array | list[Any]
"""[n] cells: bytes, text or numbers in an Arrow array, or whatever JSON has; null, None and "" are blank."""

NUMBER = r"^[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?$"


def blank(values: Values) -> np.ndarray:
    """[n] bool: cells with nothing in them."""
    if isinstance(values, list):
        if set(map(type, values)) <= {int, float}:
            return np.zeros(len(values), dtype=bool)
        return np.array([value is None or value == "" for value in values], dtype=bool)
    empty = values.is_null()
    if _is_text(values.type):
        empty = pc.or_(empty, pc.equal(pc.fill_null(pc.binary_length(values), 0), 0))
    return _flags(empty)


def numbers(values: Values) -> np.ndarray:
    """[n] float64: finite numbers, NaN for anything else (text, `nan`, `inf`, `1,234`, truth values, blanks)."""
    if isinstance(values, list):
        return _from_json(values)
    kind = values.type
    if pa.types.is_dictionary(kind):
        return numbers(values.dictionary_decode())  # pyright: ignore[reportAttributeAccessIssue]
    if _is_text(kind):
        found = _parse(_decode(values))
    elif pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        found = values.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    else:
        return np.full(len(values), np.nan)
    return np.where(np.isfinite(found), found, np.nan)


def texts(values: Values) -> tuple[np.ndarray, list[str]]:
    """Codes [n] int64 into a list of distinct texts; -1 where blank. Whole numbers are written without a point."""
    if isinstance(values, list):
        places: dict[str, int] = {}
        found = [None if value is None or value == "" else _text(value) for value in values]
        codes = [-1 if text is None else places.setdefault(text, len(places)) for text in found]
        return np.array(codes, dtype=np.int64), list(places)
    encoded: Any = values
    if not pa.types.is_dictionary(values.type):
        encoded = _decode(values).dictionary_encode() if _is_text(values.type) else None
    if encoded is None or not _is_text(encoded.dictionary.type):
        return texts(values.to_pylist())
    distinct = _decode(encoded.dictionary).to_pylist()
    codes = pc.fill_null(encoded.indices, -1).to_numpy(zero_copy_only=False).astype(np.int64)
    filled = np.array([text != "" for text in distinct] + [False], dtype=bool)
    return np.where(filled[codes], codes, -1), distinct


def cell(values: Values, i: int) -> object:
    """One cell, as it stands."""
    value = values[i] if isinstance(values, list) else values[i].as_py()
    return value.decode("utf-8", errors="replace") if isinstance(value, bytes) else value


def join(parts: Sequence[Values]) -> Values:
    """Columns of one type, one below the other."""
    if isinstance(parts[0], list):
        return [value for part in parts for value in part]
    return pa.concat_arrays(parts)


def take(values: Values, rows: np.ndarray) -> Values:
    """The cells of some rows [m] (numbers of rows)."""
    return [values[i] for i in rows.tolist()] if isinstance(values, list) else values.take(pa.array(rows))


def _is_text(kind: pa.DataType) -> bool:
    return any(
        check(kind)
        for check in (
            pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary,
            pa.types.is_string_view, pa.types.is_binary_view,
        )
    )  # fmt: skip


def _decode(values: pa.Array) -> pa.Array:
    """As UTF-8; bytes that are none are replaced."""
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        plain: Sequence[bytes | None] = values.cast(pa.binary()).to_pylist()
        return pa.array([None if x is None else x.decode("utf-8", errors="replace") for x in plain], pa.string())


def _parse(values: pa.Array) -> np.ndarray:
    """Numbers from text. The quick way gives up at the first cell that is none; then what looks like one is cast."""
    try:
        return values.cast(pa.float64()).to_numpy(zero_copy_only=False)
    except pa.ArrowInvalid:
        trimmed = pc.utf8_trim_whitespace(values)
        likely = pc.match_substring_regex(trimmed, NUMBER)
        return pc.if_else(likely, trimmed, None).cast(pa.float64()).to_numpy(zero_copy_only=False)


def _from_json(values: list[Any]) -> np.ndarray:
    if set(map(type, values)) <= {int, float}:
        with contextlib.suppress(OverflowError):  # an integer beyond the largest float
            found = np.array(values, dtype=np.float64)
            return np.where(np.isfinite(found), found, np.nan)
    return np.array([_number(value) for value in values], dtype=np.float64)


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return math.nan
    if isinstance(value, str) and "_" in value:  # Python alone reads 1_000 as a number
        return math.nan
    try:
        found = float(value)
    except (ValueError, OverflowError):
        return math.nan
    return found if math.isfinite(found) else math.nan


def _text(value: Any) -> str:
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _flags(mask: pa.Array) -> np.ndarray:
    return mask.to_numpy(zero_copy_only=False).astype(bool)
