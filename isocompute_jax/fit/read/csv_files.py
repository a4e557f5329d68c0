"""CSV in: Arrow's streaming reader, fed so that it counts lines and says which rows it leaves out.

Lines are counted as records: a quoted cell that goes over several lines is read as one cell, and the lines named after
it are too low by its line breaks.
"""

from __future__ import annotations

import codecs
import csv
import dataclasses
import io
import pathlib
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv

from isocompute_jax.fit.read.blocks import (
    BYTE_ORDER_MARK,
    MAX_HEADER,
    Advance,
    Block,
    TableError,
    TableFile,
    check_text,
    unpacked,
)
from isocompute_jax.fit.read.decimal_commas import decimal_commas, first_comma, with_points
from isocompute_jax.fit.read.notices import Notices, shown

BLOCK_BYTES = 1 << 22
_RECORD = re.compile(rb'(?:[^"\r\n]|"[^"]*(?:"|\Z))*')


def open_csv(path: pathlib.Path) -> TableFile:
    """Reads the header of a CSV or TSV file, whichever of comma, semicolon and tab it has most of.

    Raises:
      TableError: it is empty, or not a table in text.
    """
    start = check_text(path)
    begin = len(BYTE_ORDER_MARK) if start.startswith(BYTE_ORDER_MARK) else 0
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
    delimiter = max(",;\t", key=unquoted.count)
    try:
        headers = tuple(next(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)))
    except csv.Error as error:
        raise TableError(f"its first line cannot be read ({error})") from None
    end += 2 if start[end : end + 2] == b"\r\n" else 1
    lines = len(re.findall(rb"\r\n|\r|\n", start[:end]))
    file = _CsvFile(path, delimiter, headers, skip_bytes=end, skip_lines=lines)
    return TableFile(path, "", headers, file.blocks)


@dataclasses.dataclass(frozen=True)
class _CsvFile:
    """Where the rows of a CSV file begin, and how they are cut."""

    path: pathlib.Path
    delimiter: str
    headers: tuple[str, ...]
    skip_bytes: int
    skip_lines: int

    def blocks(self, wanted: Sequence[int], notices: Notices, advance: Advance) -> Iterator[Block]:
        """The columns with these numbers, as bytes."""
        ragged: list[int] = []

        def skip(row: Any) -> str:
            line = row.number + self.skip_lines
            ragged.append(line)
            count = f"it has {row.actual_columns} cells, and the header {row.expected_columns}"
            split = row.actual_columns > row.expected_columns and self.delimiter == ","
            hint = "; a decimal comma makes two cells of a number: quote it, or separate cells by ;" if split else ""
            text = f"{self.path}:{line}: row left out: {count}{hint}"
            notices.finding(self.path, "row left out for its number of cells", text)
            return "skip"

        with unpacked(self.path) as (file, stream):
            body = _Body(stream, self.skip_bytes)
            if body.empty:
                return
            line = self.skip_lines + 1
            commas: list[str] | None = None
            for batch in self._batches(body, wanted, skip):
                lines = _line_numbers(line, batch.num_rows, np.array(ragged, dtype=np.int64))
                ragged[:] = [number for number in ragged if batch.num_rows and number > lines[-1]]
                line = int(lines[-1]) + 1 if batch.num_rows else line
                advance(file.tell())
                columns = {self.headers[i]: batch.column(k) for k, i in enumerate(wanted)}
                if commas is None and batch.num_rows:
                    commas = self._decimal_commas(columns, lines, notices)
                yield Block(lines, columns | {name: with_points(columns[name]) for name in commas or ()})
            if body.quotes % 2:
                text = f"{self.path}: a quotation mark is not closed, so rows may be missing; fix the file"
                notices.finding(self.path, "quotation mark", text)

    def _decimal_commas(self, columns: dict[str, pa.Array], lines: np.ndarray, notices: Notices) -> list[str]:
        """The columns with decimal commas by the first block, which are named."""
        found = decimal_commas(columns, lines)
        if found:
            i, cell = first_comma(columns[found[0]])
            text = (
                f"{self.path}:{lines[i]}: {found[0]} is {shown(cell)}: commas in {', '.join(found)} are decimal points"
            )
            notices.note(self.path, "decimal commas", text)
        return found

    def _batches(self, body: _Body, wanted: Sequence[int], skip: Callable[[Any], str]) -> Iterator[pa.RecordBatch]:
        names = [str(i) for i in range(len(self.headers))]  # headers may be blank or repeated
        return pa_csv.open_csv(
            body,
            read_options=pa_csv.ReadOptions(use_threads=False, block_size=BLOCK_BYTES, column_names=names),
            parse_options=pa_csv.ParseOptions(
                delimiter=self.delimiter,
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


def _line_numbers(first: int, count: int, ragged: np.ndarray) -> np.ndarray:
    """[count] lines from `first` on, without those [r] (increasing) whose rows were skipped."""
    k = np.arange(count)
    ragged = ragged[ragged >= first]
    passed = np.searchsorted(ragged - first - np.arange(len(ragged)), k, side="right")
    return first + k + passed
