"""Tables in: CSV, JSONL and Parquet files as blocks of columns, read from one end to the other in bounded memory.

CSV goes through Arrow's streaming reader in blocks of 4 MiB, Parquet by batches of a row group, JSONL by 10,000 lines.
A file ending in .gz is unpacked on the way. Lines are counted as records: a quoted cell that goes over several lines is
read as one cell, and the lines named after it are too low by its line breaks.
"""

from __future__ import annotations

import codecs
import contextlib
import csv
import dataclasses
import gzip
import io
import json
import pathlib
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, BinaryIO, cast

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from isocompute_jax.fit.read.cells import Values, take
from isocompute_jax.fit.read.notices import Notices, shown

SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet", ".csv.gz", ".tsv.gz", ".jsonl.gz")
READ_ERRORS = (OSError, EOFError, ValueError, OverflowError, RecursionError, MemoryError, zlib.error, pa.ArrowException)
"""What reading a damaged file raises, in Python's own readers and in Arrow's."""

BLOCK_BYTES = 1 << 22
BLOCK_LINES = 10_000
MAX_HEADER = 1 << 20
MAX_LINE = 1 << 26
_RECORD = re.compile(rb'(?:[^"\r\n]|"[^"]*(?:"|\Z))*')

Advance = Callable[[int], None]
"""Told how many bytes of the file have been read."""


@dataclasses.dataclass(frozen=True, eq=False)
class Block:
    """Some rows of a table: where they stand, the cells of each column, and the run of all of them if it is known."""

    lines: np.ndarray
    columns: dict[str, Values]
    run: str | None = None

    def keep(self, mask: np.ndarray) -> Block:
        """The rows where `mask` [n] is set."""
        if mask.all():
            return self
        rows = np.flatnonzero(mask)
        return Block(self.lines[rows], {name: take(values, rows) for name, values in self.columns.items()}, self.run)


class TableError(Exception):
    """A file that cannot be used as a table; says why."""


@dataclasses.dataclass(frozen=True, eq=False)
class Table:
    """A table whose header has been read.

    Attributes:
      path: its file.
      unit: word before a row's number in messages; "" for lines.
      headers: names of its columns in order, blank or repeated names included; None when only rows tell (JSONL).
      blocks: reads the columns with these numbers (every one of JSONL); names are those of `headers`.
    """

    path: pathlib.Path
    unit: str
    headers: tuple[str, ...] | None
    blocks: Callable[[Sequence[int], Notices, Advance], Iterator[Block]]

    def where(self, line: int) -> str:
        """`path:line`, or `path:row N`."""
        return f"{self.path}:{self.unit}{line}"


def is_table(path: pathlib.Path) -> bool:
    """Whether the name is one of a table."""
    return path.name.lower().endswith(SUFFIXES)


def open_table(path: pathlib.Path) -> Table:
    """Reads the header of a table.

    Raises:
      TableError: the file is empty, or not what its name says.
      READ_ERRORS: it cannot be read.
    """
    name = path.name.lower().removesuffix(".gz")
    if name.endswith(".parquet"):
        return _open_parquet(path)
    if name.endswith(".jsonl"):
        _check_text(path)
        return Table(path, "", None, lambda _, notices, advance: _json_blocks(path, notices, advance))
    return _open_csv(path)


def _check_text(path: pathlib.Path) -> bytes:
    """The first megabyte of a file.

    Raises:
      TableError: it is empty, or is not text in UTF-8.
    """
    with _unpacked(path) as (_, stream):
        start = stream.read(MAX_HEADER)
    if not start.strip(b"\r\n\t \xef\xbb\xbf"):
        raise TableError("the file is empty")
    if start.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise TableError("the file is in UTF-16; save it as UTF-8")
    for magic, kind in {b"PK\x03\x04": "a zip archive; unpack it", b"\x1f\x8b": "gzip; name it .gz"}.items():
        if start.startswith(magic):
            raise TableError(f"the file is {kind}")
    return start


@contextlib.contextmanager
def _unpacked(path: pathlib.Path) -> Iterator[tuple[BinaryIO, BinaryIO]]:
    """Opens a file, unpacking .gz: (the file, whose position tells the progress; the stream of its content)."""
    with open(path, "rb") as file:
        if path.name.lower().endswith(".gz"):
            with gzip.GzipFile(fileobj=file) as stream:
                yield file, cast(BinaryIO, stream)
        else:
            yield file, file


def _open_csv(path: pathlib.Path) -> Table:
    start = _check_text(path)
    begin = 3 if start.startswith(b"\xef\xbb\xbf") else 0
    blank = re.compile(rb"[\r\n]*").match(start, begin)
    begin = blank.end() if blank else begin
    found = _RECORD.match(start, begin)
    end = found.end() if found else begin
    if end == len(start) == MAX_HEADER:
        raise TableError("its first line is longer than a megabyte")
    text = start[begin:end].decode("utf-8", errors="replace")
    if "\0" in text:
        raise TableError("its first line has NUL bytes: it is not a table in text")
    unquoted = re.sub(r'"[^"]*"', "", text)
    delimiter = next((mark for mark in ",;\t" if mark in unquoted), ",")
    try:
        headers = tuple(next(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)))
    except csv.Error as error:
        raise TableError(f"its first line cannot be read ({error})") from None
    end += 2 if start[end : end + 2] == b"\r\n" else 1
    lines = len(re.findall(rb"\r\n|\r|\n", start[:end]))
    parts = _CsvParts(path, delimiter, len(headers), skip_bytes=end, skip_lines=lines)
    return Table(
        path, "", headers, lambda wanted, notices, advance: _csv_blocks(parts, headers, wanted, notices, advance)
    )


@dataclasses.dataclass(frozen=True)
class _CsvParts:
    """Where the rows of a CSV file begin, and how they are cut."""

    path: pathlib.Path
    delimiter: str
    num_columns: int
    skip_bytes: int
    skip_lines: int


class _Body(io.RawIOBase):
    """The rows of a CSV file, as valid UTF-8 (Arrow's handler of bad rows is lost without it).

    Counts quotation marks: an odd number means that one of them was never closed.
    """

    def __init__(self, stream: BinaryIO, skip: int) -> None:
        super().__init__()
        self._stream = stream
        stream.read(skip)
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._ended = False
        self._ready = b""
        self.quotes = 0
        self._fill()
        self.empty = not self._ready

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        self._fill()
        data, self._ready = (self._ready[:size], self._ready[size:]) if size >= 0 else (self._ready, b"")
        return data

    def _fill(self) -> None:
        while not self._ready and not self._ended:
            data = self._stream.read(BLOCK_BYTES)
            self._ended = not data
            plain = data.isascii() and not self._decoder.getstate()[0]
            self._ready = data if plain and data else self._decoder.decode(data, final=self._ended).encode()
            self.quotes += self._ready.count(b'"')


def _csv_blocks(
    parts: _CsvParts, headers: Sequence[str], wanted: Sequence[int], notices: Notices, advance: Advance
) -> Iterator[Block]:
    path = parts.path
    ragged: list[int] = []

    def skip(row: Any) -> str:
        line = row.number + parts.skip_lines
        ragged.append(line)
        text = f"{path}:{line}: row left out: it has {row.actual_columns} cells, and the header {row.expected_columns}"
        notices.finding(path, "row left out for its number of cells", text)
        return "skip"

    with _unpacked(path) as (file, stream):
        body = _Body(stream, parts.skip_bytes)
        if body.empty:
            return
        names = [str(i) for i in range(parts.num_columns)]
        reader = pa_csv.open_csv(
            body,
            read_options=pa_csv.ReadOptions(use_threads=False, block_size=BLOCK_BYTES, column_names=names),
            parse_options=pa_csv.ParseOptions(
                delimiter=parts.delimiter,
                newlines_in_values=True,
                ignore_empty_lines=False,  # so that lines can be counted
                invalid_row_handler=skip,
            ),
            convert_options=pa_csv.ConvertOptions(
                include_columns=[names[i] for i in wanted],
                column_types={name: pa.binary() for name in names},
                strings_can_be_null=True,
                null_values=[""],
            ),
        )
        line = parts.skip_lines + 1
        for batch in reader:
            lines = _line_numbers(line, batch.num_rows, np.array(ragged, dtype=np.int64))
            ragged[:] = [number for number in ragged if batch.num_rows and number > lines[-1]]
            line = int(lines[-1]) + 1 if batch.num_rows else line
            advance(file.tell())
            yield Block(lines, {headers[i]: batch.column(k) for k, i in enumerate(wanted)})
        if body.quotes % 2:
            text = f"{path}: a quotation mark is not closed, so rows may be missing; mend the file"
            notices.finding(path, "quotation mark", text)


def _line_numbers(first: int, count: int, ragged: np.ndarray) -> np.ndarray:
    """[count] lines from `first` on, without those [r] (increasing) whose rows were skipped."""
    k = np.arange(count)
    ragged = ragged[ragged >= first]
    passed = np.searchsorted(ragged - first - np.arange(len(ragged)), k, side="right")
    return first + k + passed


def _json_blocks(path: pathlib.Path, notices: Notices, advance: Advance) -> Iterator[Block]:
    rows: list[dict[str, Any]] = []
    lines: list[int] = []
    with _unpacked(path) as (file, stream):
        for number, line in enumerate(_lines(stream), 1):
            row = _json_row(line, number, path, notices)
            if row is not None:
                rows.append(row)
                lines.append(number)
            if len(rows) == BLOCK_LINES:
                advance(file.tell())
                yield _json_block(rows, lines)
                rows, lines = [], []
    if rows:
        yield _json_block(rows, lines)


def _lines(stream: BinaryIO) -> Iterator[bytes]:
    while line := stream.readline(MAX_LINE):
        if len(line) == MAX_LINE:
            raise TableError(f"a line is longer than {MAX_LINE >> 20} megabytes: it is not JSONL")
        yield line


def _json_row(line: bytes, number: int, path: pathlib.Path, notices: Notices) -> dict[str, Any] | None:
    text = line.decode("utf-8-sig" if number == 1 else "utf-8", errors="replace")
    if not text.strip():
        return None
    try:
        row = json.loads(text)
    except (ValueError, RecursionError) as error:
        reason = f"not JSON ({str(error)[:100]})"
    else:
        if isinstance(row, dict):
            return row
        reason = f"not a JSON object but {shown(row)}"
    notices.finding(path, "row left out that is not a JSON object", f"{path}:{number}: row left out: {reason}")
    return None


def _json_block(rows: list[dict[str, Any]], lines: list[int]) -> Block:
    names = dict.fromkeys(name for row in rows for name in row)
    return Block(np.array(lines, dtype=np.int64), {name: [row.get(name) for row in rows] for name in names})


def _open_parquet(path: pathlib.Path) -> Table:
    if path.stat().st_size == 0:
        raise TableError("the file is empty")
    with pq.ParquetFile(path) as file:
        headers = tuple(file.schema_arrow.names)
    return Table(path, "row ", headers, lambda wanted, _, advance: _parquet_blocks(path, headers, wanted, advance))


def _parquet_blocks(
    path: pathlib.Path, headers: Sequence[str], wanted: Sequence[int], advance: Advance
) -> Iterator[Block]:
    size = path.stat().st_size
    with pq.ParquetFile(path) as file:
        rows, row = max(file.metadata.num_rows, 1), 1
        names = [headers[i] for i in wanted]
        for batch in file.iter_batches(batch_size=1 << 16, columns=names, use_threads=False):
            batch.validate(full=True)  # a damaged file can give text that is none
            found = {name: batch.column(k) for k, name in reversed(list(enumerate(batch.schema.names)))}
            lines = np.arange(row, row + batch.num_rows)
            row += batch.num_rows
            advance(min(size * row // rows, size))
            yield Block(lines, {name: found[name] for name in names if name in found})
