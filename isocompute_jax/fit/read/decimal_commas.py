"""Numbers with commas in them, as spreadsheets write them: decimal commas are read, what may be thousands is not."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute

from isocompute_jax.fit.read import cells
from isocompute_jax.fit.read.blocks import TableError
from isocompute_jax.fit.read.notices import shown

pc: Any = pyarrow.compute
"""Made at import, so that type checkers do not know its functions."""

COMMA = r"^\s*[+-]?[0-9]*,[0-9]+(?:[eE][+-]?[0-9]+)?\s*$"
"""One comma, as the decimal mark or as the mark of thousands ..."""
DECIMAL_COMMA = (
    r"^\s*[+-]?[0-9]*,(?:[0-9]{1,2}|[0-9]{4,})(?:[eE][+-]?[0-9]+)?\s*$"
    r"|^\s*[+-]?0*,[0-9]+(?:[eE][+-]?[0-9]+)?\s*$"
)
"""... and one that cannot mark thousands: other than three digits follow it, or nothing but zeros precede it."""
POINT = r"^\s*[+-]?[0-9]*\.[0-9]+(?:[eE][+-]?[0-9]+)?\s*$"
NOT_THOUSANDS_POINT = (
    r"^\s*[+-]?[0-9]*\.(?:[0-9]{1,2}|[0-9]{4,})(?:[eE][+-]?[0-9]+)?\s*$"
    r"|^\s*[+-]?0*\.[0-9]+(?:[eE][+-]?[0-9]+)?\s*$"
)
OF_PEOPLE = re.compile(r"\s*[+-]?[0-9]*(?:,[0-9]+)+(?:\.[0-9]*)?\s*")


def decimal_commas(columns: Mapping[str, pa.Array], lines: np.ndarray) -> list[str]:
    """The columns whose numbers have decimal commas, where some comma of the table cannot mark thousands.

    Columns with decimal points are left as they are.

    Args:
      columns: name -> [n] cells of text.
      lines: [n] where they stand.

    Raises:
      TableError: there are such columns, and another has nothing but points that may mark thousands, as in 1.024.
    """
    with_comma = [name for name, values in columns.items() if pc.any(pc.match_substring(values, ",")).as_py()]
    found = [name for name in with_comma if not len(_rows(columns[name], POINT))]
    found = [name for name in found if len(_rows(columns[name], COMMA))]
    if not any(len(_rows(columns[name], DECIMAL_COMMA)) for name in found):
        return []
    for name, values in columns.items():
        points = _rows(values, POINT)
        if len(points) and not len(_rows(values, NOT_THOUSANDS_POINT)):
            (i, comma), j = first_comma(columns[found[0]]), int(points[0])
            raise TableError(
                f"line {lines[i]}: {found[0]} is {shown(comma)}, with a decimal comma, so that line {lines[j]}: "
                f"{name} is {shown(cells.cell(values, j))} may mean thousands; write numbers with decimal points and "
                "without marks of thousands"
            )
    return found


def with_points(values: pa.Array) -> pa.Array:
    """The cells with decimal points in place of decimal commas."""
    return pc.if_else(pc.match_substring_regex(values, COMMA), pc.replace_substring(values, ",", "."), values)


def first_comma(values: pa.Array) -> tuple[int, object]:
    """Number of the first cell with a decimal comma, and the cell."""
    i = int(_rows(values, COMMA)[0])
    return i, cells.cell(values, i)


def comma_remedy(values: cells.Values, i: int) -> str:
    """What to do about a cell that is no number because of its comma; empty for any other cell."""
    found = cells.cell(values, i)
    if not isinstance(found, str) or not OF_PEOPLE.fullmatch(found):
        return ""
    return "; write it with a decimal point and without marks of thousands"


def _rows(values: pa.Array, pattern: str) -> np.ndarray:
    """Numbers of the cells that match."""
    matches = pc.fill_null(pc.match_substring_regex(values, pattern), False)
    return np.flatnonzero(matches.to_numpy(zero_copy_only=False))
