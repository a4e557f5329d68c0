"""Tables in, whole: what all formats have in common, Parquet, and tables in memory (CSV and JSONL stand apart).

What is read is columns, and the line of each row. Text ending in .gz is unpacked on the way.
"""

from __future__ import annotations

import codecs
import contextlib
import dataclasses
import gzip
import hashlib
import pathlib
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO, TypeVar, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from isocompute_jax.fit.read import cells
from isocompute_jax.fit.read.cells import Column, column_of
from isocompute_jax.fit.read.notices import Notices
from isocompute_jax.records.errors import InputError

MAX_BYTES = 2_000_000_000
"""Of a table, unpacked."""

READ_ERRORS = (OSError, EOFError, ValueError, OverflowError, RecursionError, MemoryError, zlib.error, pa.ArrowException)
"""What reading a damaged file raises, in Python's own readers and in Arrow's."""

MAX_HEADER = 1 << 20
BYTE_ORDER_MARK = b"\xef\xbb\xbf"

BATCH_CELLS = 1 << 20
"""Cells of a Parquet file that are read at a time."""

IN_MEMORY = "curves"
"""What messages call a table in memory, which has no path."""

PANDAS_INDEX = "__index_level_"
"""Begins the name that Arrow gives an index without one: row numbers, and no column of the user's."""

Advance = Callable[[int], None]
"""Called with the number of bytes of the file that have been read."""

T = TypeVar("T")


class TableError(Exception):
    """A file that cannot be used as a table; says why."""


@dataclasses.dataclass(frozen=True, eq=False)
class Table:
    """n rows: the lines [n] that they stand on, and the cells [n] of each column."""

    lines: np.ndarray
    columns: dict[str, Column]

    def keep(self, mask: np.ndarray) -> Table:
        """The rows where `mask` [n] is set."""
        if mask.all():
            return self
        return Table(self.lines[mask], {name: cells.keep(column, mask) for name, column in self.columns.items()})


@dataclasses.dataclass(frozen=True, eq=False)
class TableFile:
    """A table whose header has been read."""

    path: pathlib.Path
    sha256: str  # of its content
    unit: str  # word before a row's number in messages; "" for lines
    headers: tuple[str, ...] | None  # in order, blank and repeated ones included; None of JSONL, where rows name them
    read: Callable[[Sequence[str], Notices, Advance], Table]  # the columns of these names; of JSONL, every one

    def where(self, line: int) -> str:
        """`path:line`, or `path:row N`."""
        return f"{self.path}:{self.unit}{line}"


class MemoryTable(TableFile):
    """A table in memory; messages count its rows from 1."""


def check_text(path: pathlib.Path) -> bytes:
    """The first megabyte of a file.

    Raises:
      TableError: it is empty or too large, or is not text in UTF-8.
    """
    with unpacked(path) as (_, stream):
        start = stream.read(MAX_HEADER)
    if not start.strip(b"\r\n\t " + BYTE_ORDER_MARK):
        raise TableError("the file is empty")
    if start.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise TableError("the file is in UTF-16; save it as UTF-8")
    for magic, kind in {b"PK\x03\x04": "a zip archive; unpack it", b"\x1f\x8b": "gzip; name it .gz"}.items():
        if start.startswith(magic):
            raise TableError(f"the file is {kind}")
    if not is_packed(path):
        check_size(path.stat().st_size)
    return start


def is_packed(path: pathlib.Path) -> bool:
    """Whether the name says gzip."""
    return path.name.lower().endswith(".gz")


def check_size(size: int, least: str = "") -> None:
    """Refuses a table of more than `MAX_BYTES`; `least` stands before the size where the end has not been seen.

    Raises:
      TableError: says its size, the largest one, and what to do.
    """
    if size > MAX_BYTES:
        raise TableError(
            f"it has {least}{size / 1e9:.1f} GB unpacked, and tables are read whole, up to {MAX_BYTES / 1e9:g} GB; "
            "split it into files of whole runs, or keep only the rows with evaluations and the columns that are needed"
        )


@contextlib.contextmanager
def unpacked(path: pathlib.Path) -> Iterator[tuple[BinaryIO, BinaryIO]]:
    """Opens a file, unpacking .gz: (the file, whose position tells the progress; the stream of its content)."""
    with open(path, "rb") as file:
        if is_packed(path):
            with gzip.GzipFile(fileobj=file) as stream:
                yield file, cast(BinaryIO, stream)
        else:
            yield file, file


def text_pieces(path: pathlib.Path, piece_bytes: int, advance: Advance, *, skip: int) -> Iterator[bytes]:
    """The content of a text file after its first `skip` bytes, in pieces, as valid UTF-8: other bytes are replaced.

    Raises:
      TableError: it is too large.
    """
    decoder, size = codecs.getincrementaldecoder("utf-8")(errors="replace"), 0
    with unpacked(path) as (file, stream):
        stream.read(skip)
        while data := stream.read(piece_bytes):
            size += len(data)
            check_size(size, "more than ")
            advance(file.tell())
            plain = data.isascii() and not decoder.getstate()[0]
            yield data if plain else decoder.decode(data).encode()
    if rest := decoder.decode(b"", final=True):
        yield rest.encode()


def until_damage(parts: Iterable[T], path: pathlib.Path, notices: Notices) -> Iterator[T]:
    """The parts of a file up to a place where it cannot be read, which is reported."""
    try:
        yield from parts
    except READ_ERRORS as error:
        text = f"{path}: read up to a place where it is damaged: {reason(error)}"
        notices.finding(path, "file", text)


def reason(error: BaseException) -> str:
    """Why a file cannot be read, in a line."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error).split("\n")[0][:200] or type(error).__name__


def open_parquet(path: pathlib.Path, sha256: str) -> TableFile:
    """Reads the schema of a Parquet file.

    Raises:
      TableError: it is empty.
    """
    if path.stat().st_size == 0:
        raise TableError("the file is empty")
    with pq.ParquetFile(path) as file:
        headers = tuple(file.schema_arrow.names)

    def read(names: Sequence[str], notices: Notices, advance: Advance) -> Table:
        batches = list(until_damage(_parquet_batches(path, names, advance), path, notices))
        if not batches:
            return Table(np.empty(0, np.int64), {})
        table = pa.Table.from_batches(batches)
        return Table(np.arange(1, table.num_rows + 1), _first_of_each(table, names))

    return TableFile(path, sha256, "row ", headers, read)


def _parquet_batches(path: pathlib.Path, names: Sequence[str], advance: Advance) -> Iterator[pa.RecordBatch]:
    """Batches of rows, in the columns' own types: a damaged file is then read as far as it is sound."""
    size, unpacked_size, row = path.stat().st_size, 0, 0
    with pq.ParquetFile(path) as file:
        batch_size = max(BATCH_CELLS // max(len(names), 1), 1)
        for batch in file.iter_batches(batch_size=batch_size, columns=list(names), use_threads=False):
            batch.validate(full=True)  # a damaged file can give text that is none
            unpacked_size, row = unpacked_size + batch.nbytes, row + batch.num_rows
            check_size(unpacked_size, "more than ")
            advance(size * row // max(file.metadata.num_rows, row, 1))
            yield batch


def memory_table(curves: Any) -> MemoryTable:
    """A table from whatever has columns: an Arrow table or batch, a data frame, a mapping from names to columns.

    None, NaN and NaT are blank cells, as in pandas; a named index of a data frame is a column.

    Raises:
      InputError: `curves` is none of these, or its columns are not of one length.
    """
    table = None if isinstance(curves, Mapping) else _arrow_table(curves)
    if table is not None:
        return _memory_table({
            name: column
            for name, column in _first_of_each(table, table.column_names).items()
            if not name.startswith(PANDAS_INDEX)
        })  # fmt: skip
    if not hasattr(curves, "items"):
        raise InputError(
            f"curves is of type {type(curves).__name__}; give a data frame, an Arrow table, a mapping from names to "
            "columns, or paths as for --runs"
        )
    columns = {str(name): _memory_column(str(name), values) for name, values in curves.items()}
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) > 1:
        raise InputError(f"curves: its columns differ in length: {lengths}")
    return _memory_table(columns)


def _arrow_table(curves: Any) -> pa.Table | None:
    """The table behind Arrow's protocol, which pandas, polars and DuckDB speak; None where Arrow cannot make one."""
    try:
        return pa.table(curves)
    except (pa.ArrowException, TypeError, ValueError):  # no table at all, or a column with cells of several types
        return None


def _memory_column(name: str, values: Any) -> Column:
    if isinstance(values, str) or not (hasattr(values, "__array__") or hasattr(values, "__iter__")):
        raise InputError(f"curves: column {name} is {values!r}, and not a sequence with a value for each row")
    given = np.asarray(values) if hasattr(values, "__array__") else list(values)
    if isinstance(given, np.ndarray) and given.ndim != 1:
        raise InputError(f"curves: column {name} has the shape {given.shape}, and not one dimension")
    return column_of(given, from_pandas=True)


def _memory_table(columns: dict[str, Column]) -> MemoryTable:
    digest = hashlib.sha256(repr(list(columns)).encode())
    for column in columns.values():
        chunks = [column] if isinstance(column, list) else column.chunks
        for chunk in chunks:
            plain = repr(chunk).encode() if isinstance(chunk, list) else pa.record_batch([chunk], [""]).serialize()
            digest.update(plain)
    lines = np.arange(1, len(next(iter(columns.values()), ())) + 1)

    def read(names: Sequence[str], notices: Notices, advance: Advance) -> Table:
        del notices, advance  # nothing in memory is damaged, and nothing has to be waited for
        return Table(lines, {name: columns[name] for name in names})

    return MemoryTable(pathlib.Path(IN_MEMORY), digest.hexdigest(), "row ", tuple(columns), read)


def _first_of_each(table: pa.Table, names: Sequence[str]) -> dict[str, Column]:
    """The columns of these names, of a name given twice the first."""
    places = {name: i for i, name in reversed(list(enumerate(table.column_names)))}
    return {name: table.column(places[name]) for name in names if name in places}
