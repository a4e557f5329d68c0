"""JSONL in: Arrow's JSON reader, a block of lines at a time, and Python's own for a block that it refuses.

The fields of an object in a row are columns, `data.loss` of {"data": {"loss": 1}}: some loggers wrap what they log.

What Arrow refuses is a line that is no JSON object, and a column that changes its type, which JSON may. Such a block is
read line by line, so that what is wrong is reported with its line and the rest is kept.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.json as pa_json

from isocompute_jax.fit.read.cells import column_of, stack
from isocompute_jax.fit.read.notices import Notices, shown
from isocompute_jax.fit.read.tables import (
    BYTE_ORDER_MARK,
    Advance,
    Table,
    TableError,
    TableFile,
    check_text,
    text_pieces,
    until_damage,
)

BLOCK_BYTES = 1 << 18
"""Small: one line that Arrow refuses sends its whole block to Python."""
MAX_LINE = 1 << 26
MAX_OPENINGS = 256
"""Opening brackets in a line that Arrow gets to see: it recurses, and overflows the stack at some thousands."""
NEWLINE, RETURN, OPENING, CLOSING = b"\n\r{}"


def open_jsonl(path: pathlib.Path, sha256: str) -> TableFile:
    """Checks that a JSONL file is text. Its columns are known when it is read.

    Raises:
      TableError: it is empty or too large, or is not text.
    """
    start = check_text(path)

    def read(names: Sequence[str], notices: Notices, advance: Advance) -> Table:
        del names
        skip = len(BYTE_ORDER_MARK) if start.startswith(BYTE_ORDER_MARK) else 0
        blocks, first = [], 1
        for text in until_damage(_whole_lines(text_pieces(path, BLOCK_BYTES, advance, skip=skip)), path, notices):
            blocks.append(_arrow_block(text, first) or _block_by_lines(text, first, path, notices))
            first += text.count(b"\n")
        return _below_each_other(blocks)

    return TableFile(path, sha256, "", None, read)


def _below_each_other(blocks: list[Table]) -> Table:
    """The rows of all blocks; blank where a block lacks a column."""
    blocks = [block for block in blocks if len(block.lines)]
    if not blocks:
        return Table(np.empty(0, np.int64), {})
    names = dict.fromkeys(name for block in blocks for name in block.columns)
    nothing = [pa.chunked_array([pa.nulls(len(block.lines))]) for block in blocks]
    columns = {
        name: stack([block.columns.get(name, nulls) for block, nulls in zip(blocks, nothing, strict=True)])
        for name in names
    }
    return Table(np.concatenate([block.lines for block in blocks]), columns)


def _block_by_lines(text: bytes, first: int, path: pathlib.Path, notices: Notices) -> Table:
    rows = {}
    for line, row in enumerate(text.split(b"\n"), first):
        if row.strip():
            try:
                rows[line] = _flat(_parsed(row))
            except ValueError as error:
                message = f"{path}:{line}: row left out: {error}"
                notices.finding(path, "row left out that is not a JSON object", message)
    names = dict.fromkeys(name for row in rows.values() for name in row)
    lines = np.array(list(rows), dtype=np.int64)
    return Table(lines, {name: column_of([row.get(name) for row in rows.values()]) for name in names})


def _whole_lines(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """The content in pieces that end where a line does."""
    parts: list[bytes] = []
    for data in pieces:
        end = data.rfind(b"\n") + 1
        if end:
            yield b"".join([*parts, data[:end]])
            parts = []
        parts.append(data[end:])
        if sum(map(len, parts)) > MAX_LINE:
            raise TableError(f"a line is longer than {MAX_LINE >> 20} megabytes: it is not JSONL")
    if any(parts):
        yield b"".join(parts)


def _parsed(text: bytes) -> dict[str, Any]:
    try:
        row = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON ({str(error)[:100]})") from None
    if not isinstance(row, dict):
        raise ValueError(f"not a JSON object but {shown(row)}")
    return row


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    """A row with the fields of its objects in their place; of a name given twice, the first."""
    found: dict[str, Any] = {}
    for name, value in row.items():
        inner = {f"{name}.{field}": each for field, each in value.items()} if isinstance(value, dict) else {name: value}
        found |= {key: each for key, each in inner.items() if key not in found}
    return found


def _arrow_block(text: bytes, first: int) -> Table | None:
    """The rows of some lines, the first of them numbered `first`; None where only Python can tell what they are."""
    rows = _object_lines(text)
    if rows is None:
        return None
    try:
        table = _read(text, None)
        dates = [field.name for field in table.schema if pa.types.is_timestamp(field.type)]
        if dates:  # a run's name, say, that is a date
            as_text = pa.schema([(name, pa.string()) for name in dates])
            table = _read(text, as_text).select(table.column_names)
    except pa.ArrowException:
        return None
    if table.num_rows != len(rows):
        return None
    if any(pa.types.is_struct(field.type) for field in table.schema):
        table = table.flatten()
    places = {name: i for i, name in reversed(list(enumerate(table.column_names)))}  # of a name given twice, the first
    return Table(first + rows, {name: table.column(places[name]) for name in table.column_names})


def _object_lines(text: bytes) -> np.ndarray | None:
    """[n] places, from 0, of the lines that are not blank; None unless each looks like one object that is not too deep.

    A line that begins with { and ends with } is one object or several, never a part of one: between two lines within
    an object there is something else at the end of the first or at the start of the second.
    """
    content = np.frombuffer(text, np.uint8)
    ends = np.flatnonzero(content == NEWLINE)
    ends = ends if text.endswith(b"\n") else np.append(ends, len(content))
    starts = np.append(0, ends[:-1] + 1)
    rows = np.flatnonzero(ends > starts)
    starts, ends = starts[rows], ends[rows]
    ends = ends - (content[ends - 1] == RETURN)
    if not len(rows) or not np.all(content[starts] == OPENING) or not np.all(content[ends - 1] == CLOSING):
        return None
    openings = np.add.reduceat((content | 0x20) == OPENING, starts, dtype=np.int32)  # of [ and {, which this bit tells
    return rows if openings.max() <= MAX_OPENINGS else None


def _read(text: bytes, schema: pa.Schema | None) -> pa.Table:
    options = pa_json.ReadOptions(use_threads=False, block_size=len(text) + 1)
    parse = pa_json.ParseOptions(explicit_schema=schema, newlines_in_values=False)
    return pa_json.read_json(pa.BufferReader(text), read_options=options, parse_options=parse)
