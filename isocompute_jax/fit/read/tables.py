"""Tables in, whole, as columns and the line of each row: CSV, JSONL, Parquet, and tables in memory.

Text ending in .gz is unpacked on the way. A damaged file is read up to the place where it is damaged.
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import gzip
import hashlib
import io
import json
import pathlib
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO, TypeVar, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from isocompute_jax.fit.read import cells
from isocompute_jax.fit.read.cells import Column, arrow_column, column_of, pc
from isocompute_jax.fit.read.notices import Notices, shown
from isocompute_jax.records.errors import InputError

MAX_BYTES = 2_000_000_000
"""Of a table, unpacked."""

READ_ERRORS = (
    OSError, EOFError, ValueError, OverflowError, RecursionError, MemoryError, zlib.error, csv.Error, pa.ArrowException,
)  # fmt: skip
"""What reading a damaged file raises."""

CHUNK = 1 << 14
"""Rows of text that become columns at a time, which take less memory."""

BATCH_CELLS = 1 << 20
"""Cells of a Parquet file that are read at a time."""

MAX_HEADER = 1 << 20
MAX_LINE = 1 << 26
BYTE_ORDER_MARK = b"\xef\xbb\xbf"

IN_MEMORY = "curves"
"""What messages call a table in memory, which has no path."""

PANDAS_INDEX = "__index_level_"
"""Begins the name that Arrow gives an index without one: row numbers, and no column of the user's."""

COMMA = r"^\s*[+-]?[0-9]*,[0-9]+(?:[eE][+-]?[0-9]+)?\s*$"
"""One comma, as the decimal mark or as the mark of thousands ..."""
DECIMAL_COMMA = (
    r"^\s*[+-]?[0-9]*,(?:[0-9]{1,2}|[0-9]{4,})(?:[eE][+-]?[0-9]+)?\s*$"
    r"|^\s*[+-]?0*,[0-9]+(?:[eE][+-]?[0-9]+)?\s*$"
)
"""... and one that cannot mark thousands: other than three digits follow it, or nothing but zeros precede it."""
POINT = COMMA.replace(",", r"\.", 1)
NOT_THOUSANDS_POINT = DECIMAL_COMMA.replace("*,", r"*\.")

T = TypeVar("T")


class TableError(Exception):
    """A file that cannot be used as a table; says why."""


@dataclasses.dataclass(frozen=True, eq=False)
class Table:
    """n rows: the lines [n] that they stand on, and the cells [n] of each column."""

    path: pathlib.Path
    sha256: str  # of its content
    unit: str  # word before a row's number in messages; "" for lines
    headers: tuple[str, ...]  # in order, blank and repeated ones included
    lines: np.ndarray
    columns: dict[str, Column]  # of a header given twice the first
    differing: frozenset[str] = frozenset()  # headers given twice with other cells

    def where(self, line: int) -> str:
        """`path:line`, or `path:row N`."""
        return f"{self.path}:{self.unit}{line}"

    def keep(self, mask: np.ndarray) -> Table:
        """The rows where `mask` [n] is set."""
        if mask.all():
            return self
        columns = {name: cells.take(column, np.flatnonzero(mask)) for name, column in self.columns.items()}
        return dataclasses.replace(self, lines=self.lines[mask], columns=columns)


class MemoryTable(Table):
    """A table in memory; messages count its rows from 1."""


class DigestedFile:
    """A file that is read once, from its beginning to its end, and digested on the way; .gz is unpacked."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        self._digest, self._size = hashlib.sha256(), 0

    def sha256(self) -> str:
        """The digest of the whole file; one that was left at a damaged place is read again for it."""
        if self._size != self.path.stat().st_size:
            with open(self.path, "rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest()
        return self._digest.hexdigest()

    def feed(self, content: bytes | memoryview) -> None:
        """Takes the next bytes of the file."""
        self._digest.update(content)
        self._size += len(content)

    @contextlib.contextmanager
    def open(self) -> Iterator[BinaryIO]:
        """The unpacked bytes."""
        with open(self.path, "rb", buffering=0) as file:
            whole = io.BufferedReader(_Fed(file, self), 1 << 18)
            if not self.path.name.lower().endswith(".gz"):
                yield whole
                return
            with gzip.GzipFile(fileobj=whole) as stream:
                yield cast(BinaryIO, stream)


class _Fed(io.RawIOBase):
    """A raw file whose bytes a source takes as they are read."""

    def __init__(self, file: io.FileIO, source: DigestedFile) -> None:
        self._file, self._source = file, source

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        size = self._file.readinto(buffer) or 0
        self._source.feed(memoryview(buffer)[:size])
        return size


def read_plain(path: pathlib.Path, kind: str, notices: Notices) -> Table:
    """Reads a file that is CSV or TSV (`csv`), `jsonl` or `parquet`; rows that are none are left out and reported.

    Raises:
      TableError: the file is empty or too large, or not what its name says.
      READ_ERRORS: it cannot be read.
    """
    source = DigestedFile(path)
    if kind == "parquet":
        headers, lines, columns = _read_parquet(source, notices)
        return Table(path, source.sha256(), "row ", headers, lines, columns)
    start = check_text(path)
    if kind == "jsonl":
        read, differing = _read_jsonl(source, notices), set()
    else:
        read, differing = _read_csv(source, start, notices)
    return Table(path, source.sha256(), "", *read, frozenset(differing))


Parts = tuple[tuple[str, ...], np.ndarray, dict[str, Column]]
"""Headers, lines [n] and columns [n] of a table."""


def check_text(path: pathlib.Path) -> bytes:
    """The first megabyte of a file that is text in UTF-8, neither empty nor too large."""
    with DigestedFile(path).open() as stream:
        start = stream.read(MAX_HEADER).removeprefix(BYTE_ORDER_MARK)
    if not start.strip(b"\r\n\t "):
        raise TableError("the file is empty")
    if start.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise TableError("the file is in UTF-16; save it as UTF-8")
    for magic, kind in {b"PK\x03\x04": "a zip archive; unpack it", b"\x1f\x8b": "gzip; name it .gz"}.items():
        if start.startswith(magic):
            raise TableError(f"the file is {kind}")
    if not path.name.lower().endswith(".gz"):
        _check_size(path.stat().st_size)
    return start


def _check_size(size: int, least: str = "") -> None:
    if size > MAX_BYTES:
        raise TableError(
            f"it has {least}{size / 1e9:.1f} GB unpacked, and tables are read whole, up to {MAX_BYTES / 1e9:g} GB; "
            "split it into files of whole runs, or keep only the rows with evaluations and the columns that are needed"
        )


def text_lines(source: DigestedFile) -> Iterator[str]:
    """The lines of a text file with their ends; bytes that are no UTF-8 are replaced."""
    size = 0
    with source.open() as stream, io.TextIOWrapper(stream, "utf-8-sig", errors="replace", newline="") as text:
        while line := text.readline(MAX_LINE):
            if len(line) == MAX_LINE:
                raise TableError(f"a line is longer than {MAX_LINE >> 20} megabytes: it is not a table")
            size += len(line)
            _check_size(size, "more than ")
            yield line


def _until_damage(parts: Iterable[T], path: pathlib.Path, notices: Notices) -> Iterator[T]:
    """The parts of a file up to a place where it cannot be read, which is reported."""
    try:
        yield from parts
    except READ_ERRORS as error:
        place = f"{path}: {reason(error)}"
        notices.changed("file", "read up to a place where it is damaged", [place], finding=True)


def reason(error: BaseException) -> str:
    """Why a file cannot be read, in a line."""
    if isinstance(error, TableError):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error).split("\n")[0][:200] or type(error).__name__


def _chunks(rows: Iterator[tuple[int, T]]) -> Iterator[tuple[list[int], list[T]]]:
    """Lines and rows, some thousands at a time; those before an error come before it is raised."""
    lines: list[int] = []
    found: list[T] = []
    try:
        for line, row in rows:
            lines.append(line)
            found.append(row)
            if len(lines) == CHUNK:
                yield lines, found
                lines, found = [], []
    except (TableError, *READ_ERRORS):
        if lines:
            yield lines, found
        raise
    if lines:
        yield lines, found


def _stacked(chunks: Sequence[tuple[list[int], dict[str, Column]]]) -> tuple[np.ndarray, dict[str, Column]]:
    """The rows of all chunks below each other, blank where a chunk lacks a column."""
    if not chunks:
        return np.empty(0, np.int64), {}
    nothing = [pa.chunked_array([pa.nulls(len(lines))]) for lines, _ in chunks]
    names = dict.fromkeys(name for _, columns in chunks for name in columns)
    stacked = {
        name: cells.stack([columns.get(name, nulls) for (_, columns), nulls in zip(chunks, nothing, strict=True)])
        for name in names
    }
    return np.concatenate([np.array(lines, np.int64) for lines, _ in chunks]), stacked


def _read_csv(source: DigestedFile, start: bytes, notices: Notices) -> tuple[Parts, set[str]]:
    """CSV or TSV, and the headers that are given twice with other cells.

    The separator is what the header has most of: comma, semicolon or tab.
    """
    path = source.path
    csv.field_size_limit(MAX_LINE)
    head = re.match(r'[\r\n]*((?:[^"\r\n]|"[^"]*(?:"|\Z))*)', start.decode("utf-8", errors="replace"))
    text = head[1] if head else ""
    if head and head.end() >= MAX_HEADER:
        raise TableError("its first line is longer than a megabyte")
    if "\0" in text:
        raise TableError("its first line has NUL bytes: it is not a table in text")
    delimiter = max(",;\t", key=re.sub(r'"[^"]*"', "", text).count)
    quotes = 0

    def counted() -> Iterator[str]:
        nonlocal quotes
        for line in text_lines(source):
            quotes += line.count('"')
            yield line

    reader = csv.reader(counted(), delimiter=delimiter)
    headers = tuple(next(row for row in reader if row))

    def rows() -> Iterator[tuple[int, list[str]]]:
        end = reader.line_num
        for row in reader:
            line, end = end + 1, reader.line_num
            if len(row) == len(headers):
                yield line, row
            elif row:
                split = len(row) > len(headers) and delimiter == ","
                hint = (
                    "; a decimal comma makes two cells of a number: quote it, or separate cells by ;" if split else ""
                )
                place = f"{path}:{line}: it has {len(row)} cells, and the header {len(headers)}{hint}"
                notices.rows_seen += 1
                notices.left_out("row", "for the number of cells", [place])

    places = {name: headers.index(name) for name in headers}  # of a name given twice the first
    again = [(i, places[name]) for i, name in enumerate(headers) if i != places[name]]
    differing: set[str] = set()
    chunks = []
    for lines, found in _until_damage(_chunks(rows()), path, notices):
        chunks.append((lines, {name: column_of([row[place] for row in found]) for name, place in places.items()}))
        differing |= {headers[i] for i, first in again if any(row[i] != row[first] for row in found)}
    if quotes % 2:
        notices.say(f"A quotation mark in {path} is not closed, so that rows may be missing; fix the file.")
    lines, columns = _stacked(chunks)
    return (headers, lines, _with_points(columns, lines, path, notices)), differing


def _with_points(
    columns: dict[str, Column], lines: np.ndarray, path: pathlib.Path, notices: Notices
) -> dict[str, Column]:
    """The columns with points in place of decimal commas, where there are some."""
    found = _decimal_commas(columns, lines)
    if not found:
        return columns
    i = int(_rows(columns[found[0]], COMMA)[0])
    place = f"{path}:{lines[i]}: {found[0]} is {shown(cells.cell(columns[found[0]], i))}"
    notices.changed("column", f"read with decimal commas ({', '.join(found)})", [place], count=len(found))
    pointed = {}
    for name in found:
        column = columns[name]
        comma = pc.match_substring_regex(column, COMMA)
        pointed[name] = pc.if_else(comma, pc.replace_substring(column, ",", "."), column)
    return columns | pointed


def _decimal_commas(columns: Mapping[str, Any], lines: np.ndarray) -> list[str]:
    """The columns whose numbers have decimal commas, where some comma of the table cannot mark thousands.

    Columns with decimal points are left as they are. Another column that has nothing but points which may mark
    thousands, as in 1.024, makes the table ambiguous: TableError.
    """
    with_comma = [name for name, column in columns.items() if pc.any(pc.match_substring(column, ",")).as_py()]
    found = [name for name in with_comma if len(_rows(columns[name], COMMA)) and not len(_rows(columns[name], POINT))]
    if not any(len(_rows(columns[name], DECIMAL_COMMA)) for name in found):
        return []
    for name, column in columns.items():
        points = _rows(column, POINT)
        if len(points) and not len(_rows(column, NOT_THOUSANDS_POINT)):
            i, j = int(_rows(columns[found[0]], COMMA)[0]), int(points[0])
            raise TableError(
                f"line {lines[i]}: {found[0]} is {shown(cells.cell(columns[found[0]], i))}, with a decimal comma, so "
                f"that line {lines[j]}: {name} is {shown(cells.cell(column, j))} may mean thousands; write numbers "
                "with decimal points and without marks of thousands"
            )
    return found


def _rows(column: Any, pattern: str) -> np.ndarray:
    """Numbers of the cells that match."""
    return np.flatnonzero(pc.fill_null(pc.match_substring_regex(column, pattern), False))


def _read_jsonl(source: DigestedFile, notices: Notices) -> Parts:
    """A JSON object per line; the fields of an object in it are columns, `data.loss` of {"data": {"loss": 1}}."""

    def rows() -> Iterator[tuple[int, dict[str, Any]]]:
        for line, text in enumerate(text_lines(source), 1):
            if text.strip():
                try:
                    yield line, flat(_parsed(text))
                except ValueError as error:
                    notices.rows_seen += 1
                    notices.left_out("row", "that cannot be read", [f"{source.path}:{line}: {error}"])

    return columns_of(rows(), source.path, notices)


def columns_of(rows: Iterator[tuple[int, dict[str, Any]]], path: pathlib.Path, notices: Notices) -> Parts:
    """Lines and rows as columns, up to a place where the file is damaged."""
    chunks = []
    for lines, found in _until_damage(_chunks(rows), path, notices):
        names = dict.fromkeys(name for row in found for name in row)
        chunks.append((lines, {name: column_of([row.get(name) for row in found]) for name in names}))
    lines, columns = _stacked(chunks)
    return tuple(columns), lines, columns


def _parsed(text: str) -> dict[str, Any]:
    try:
        row = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON ({str(error)[:100]})") from None
    if not isinstance(row, dict):
        raise ValueError(f"not a JSON object but {shown(row)}")
    return row


def flat(row: dict[str, Any]) -> dict[str, Any]:
    """A row with the fields of its objects in their place; of a name given twice, the first."""
    found: dict[str, Any] = {}
    for name, value in row.items():
        inner = {f"{name}.{field}": each for field, each in value.items()} if isinstance(value, dict) else {name: value}
        found |= {key: each for key, each in inner.items() if key not in found}
    return found


def _read_parquet(source: DigestedFile, notices: Notices) -> Parts:
    """Batches of rows, in the columns' own types, as far as the file is sound."""
    _check_size(source.path.stat().st_size)
    with source.open() as stream:  # whole, because its parts are read out of order
        content = stream.read()
    if not content:
        raise TableError("the file is empty")
    with pq.ParquetFile(pa.BufferReader(content)) as file:
        schema = file.schema_arrow
        batches = list(_until_damage(_batches(file), source.path, notices))
    table = pa.Table.from_batches(batches, schema if not batches else None)
    return tuple(schema.names), np.arange(1, table.num_rows + 1), _first_of_each(table)


def _batches(file: pq.ParquetFile) -> Iterator[pa.RecordBatch]:
    size, width = 0, max(len(file.schema_arrow.names), 1)
    for batch in file.iter_batches(batch_size=max(BATCH_CELLS // width, 1), use_threads=False):
        batch.validate(full=True)  # a damaged file can give text that is none
        size += batch.nbytes
        _check_size(size, "more than ")
        yield batch


def _first_of_each(table: pa.Table) -> dict[str, Column]:
    """The columns by name, of a name given twice the first."""
    return {name: arrow_column(table.column(i)) for i, name in reversed(list(enumerate(table.column_names)))}


def memory_table(curves: Any) -> MemoryTable:
    """Makes a table of what has columns: an Arrow table or batch, a data frame, a mapping from names to columns.

    None, NaN and NaT are blank cells, as in pandas; a named index of a data frame is a column.

    Raises:
      InputError: `curves` is none of these, or its columns are not of one length.
    """
    table = None
    if not isinstance(curves, Mapping):
        with contextlib.suppress(pa.ArrowException, TypeError, ValueError):  # no table, or cells of several types
            table = pa.table(curves)  # pandas, polars and DuckDB speak Arrow's protocol
    if table is not None:
        names = [name for name in dict.fromkeys(table.column_names) if not name.startswith(PANDAS_INDEX)]
        first = _first_of_each(table)
        columns: dict[str, Column] = {name: first[name] for name in names}
    elif hasattr(curves, "items"):
        columns = {str(name): _memory_column(str(name), values) for name, values in curves.items()}
    else:
        raise InputError(
            f"curves is of type {type(curves).__name__}; give a data frame, an Arrow table, a mapping from names to "
            "columns, or paths as for --runs"
        )
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) > 1:
        raise InputError(f"curves: its columns differ in length: {lengths}")
    digest = hashlib.sha256(repr(list(columns)).encode())
    for column in columns.values():
        chunks = [column] if isinstance(column, list) else column.chunks
        for chunk in chunks:
            digest.update(
                repr(chunk).encode() if isinstance(chunk, list) else pa.record_batch([chunk], [""]).serialize()
            )
    lines = np.arange(1, max(lengths.values(), default=0) + 1)
    return MemoryTable(pathlib.Path(IN_MEMORY), digest.hexdigest(), "row ", tuple(columns), lines, columns)


def _memory_column(name: str, values: Any) -> Column:
    if isinstance(values, str) or not (hasattr(values, "__array__") or hasattr(values, "__iter__")):
        raise InputError(f"curves: column {name} is {values!r}, and not a sequence with a value for each row")
    given = np.asarray(values) if hasattr(values, "__array__") else list(values)
    if isinstance(given, np.ndarray) and given.ndim != 1:
        raise InputError(f"curves: column {name} has the shape {given.shape}, and not one dimension")
    return column_of(given, from_pandas=True)
