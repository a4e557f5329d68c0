"""CSV in: Arrow's reader, fed so that it counts lines and says which rows it leaves out; numbers with decimal commas.

Lines are counted as records: a quoted cell that goes over several lines is read as one cell, and the lines named after
it are too low by its line breaks.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import pathlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv

from isocompute_jax.fit.read import cells
from isocompute_jax.fit.read.cells import pc
from isocompute_jax.fit.read.notices import Notices, shown
from isocompute_jax.fit.read.tables import (
    BYTE_ORDER_MARK,
    MAX_HEADER,
    Advance,
    Table,
    TableError,
    TableFile,
    check_text,
    text_pieces,
    until_damage,
)

BLOCK_BYTES = 1 << 22
_RECORD = re.compile(rb'(?:[^"\r\n]|"[^"]*(?:"|\Z))*')

COMMA = r"^\s*[+-]?[0-9]*,[0-9]+(?:[eE][+-]?[0-9]+)?\s*$"
"""One comma, as the decimal mark or as the mark of thousands ..."""
DECIMAL_COMMA = (
    r"^\s*[+-]?[0-9]*,(?:[0-9]{1,2}|[0-9]{4,})(?:[eE][+-]?[0-9]+)?\s*$"
    r"|^\s*[+-]?0*,[0-9]+(?:[eE][+-]?[0-9]+)?\s*$"
)
"""... and one that cannot mark thousands: other than three digits follow it, or nothing but zeros precede it."""
POINT = COMMA.replace(",", r"\.", 1)
NOT_THOUSANDS_POINT = DECIMAL_COMMA.replace("*,", r"*\.")


def open_csv(path: pathlib.Path, sha256: str) -> TableFile:
    """Reads the header of a CSV or TSV file; its separator is what that has most of: comma, semicolon or tab.

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
    return TableFile(path, sha256, "", headers, file.read)


@dataclasses.dataclass(frozen=True)
class _CsvFile:
    """Where the rows of a CSV file begin, and how they are cut."""

    path: pathlib.Path
    delimiter: str
    headers: tuple[str, ...]
    skip_bytes: int
    skip_lines: int

    def read(self, names: Sequence[str], notices: Notices, advance: Advance) -> Table:
        """The columns of these names as text, of a name given twice the first."""
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

        body = _Body(text_pieces(self.path, BLOCK_BYTES, advance, skip=self.skip_bytes))
        batches = list(until_damage(self._batches(body, names, skip), self.path, notices))
        if not batches:
            return Table(np.empty(0, np.int64), {})
        columns = dict(zip(names, pa.Table.from_batches(batches).columns, strict=True))
        lines = _line_numbers(self.skip_lines + 1, len(next(iter(columns.values()))), np.array(ragged, dtype=np.int64))
        columns = self._with_points(columns, lines, notices)
        if body.quotes % 2:
            text = f"{self.path}: a quotation mark is not closed, so rows may be missing; fix the file"
            notices.finding(self.path, "quotation mark", text)
        return Table(lines, columns)

    def _batches(self, body: _Body, names: Sequence[str], skip: Callable[[Any], str]) -> Iterator[pa.RecordBatch]:
        if body.empty():
            return
        places = [str(i) for i in range(len(self.headers))]  # headers may be blank or repeated
        yield from pa_csv.open_csv(
            body,
            read_options=pa_csv.ReadOptions(use_threads=False, block_size=BLOCK_BYTES, column_names=places),
            parse_options=pa_csv.ParseOptions(
                delimiter=self.delimiter,
                newlines_in_values=True,
                ignore_empty_lines=False,  # so that lines can be counted
                invalid_row_handler=skip,
            ),
            convert_options=pa_csv.ConvertOptions(
                include_columns=[places[self.headers.index(name)] for name in names],
                column_types=dict.fromkeys(places, pa.binary()),
                strings_can_be_null=True,
                null_values=[""],
            ),
        )

    def _with_points(self, columns: Mapping[str, Any], lines: np.ndarray, notices: Notices) -> dict[str, Any]:
        """The columns with points in place of decimal commas; those that have some, by the first block, are named."""
        found = decimal_commas({name: column.chunk(0) for name, column in columns.items()}, lines)
        if found:
            i, cell = _first_comma(columns[found[0]])
            text = (
                f"{self.path}:{lines[i]}: {found[0]} is {shown(cell)}: commas in {', '.join(found)} are decimal points"
            )
            notices.note(self.path, "decimal commas", text)
        return {name: _point_for_comma(column) if name in found else column for name, column in columns.items()}


class _Body(io.RawIOBase):
    """The rows of a CSV file, as Arrow reads them (its handler of bad rows is lost where they are not valid UTF-8).

    Counts quotation marks: an odd number means that one of them was never closed.
    """

    def __init__(self, pieces: Iterator[bytes]) -> None:
        super().__init__()
        self._pieces = pieces
        self._ready = b""
        self.quotes = 0

    def empty(self) -> bool:
        self._fill()
        return not self._ready

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        self._fill()
        data, self._ready = (self._ready[:size], self._ready[size:]) if size >= 0 else (self._ready, b"")
        return data

    def _fill(self) -> None:
        while not self._ready and (piece := next(self._pieces, None)) is not None:
            self._ready = piece
            self.quotes += piece.count(b'"')


def _line_numbers(first: int, count: int, ragged: np.ndarray) -> np.ndarray:
    """[count] lines from `first` on, without those [r] (increasing) whose rows were skipped."""
    k = np.arange(count)
    if not len(ragged):
        return first + k
    return first + k + np.searchsorted(ragged - first - np.arange(len(ragged)), k, side="right")


def decimal_commas(columns: Mapping[str, Any], lines: np.ndarray) -> list[str]:
    """The columns whose numbers have decimal commas, where some comma of the table cannot mark thousands.

    Columns with decimal points are left as they are.

    Args:
      columns: name -> [n] cells of text.
      lines: [n] where they stand.

    Raises:
      TableError: there are such columns, and another has nothing but points that may mark thousands, as in 1.024.
    """
    with_comma = {name: column for name, column in columns.items() if pc.any(pc.match_substring(column, ",")).as_py()}
    found = [name for name, column in with_comma.items() if len(_rows(column, COMMA)) and not len(_rows(column, POINT))]
    if not any(len(_rows(columns[name], DECIMAL_COMMA)) for name in found):
        return []
    for name, column in columns.items():
        points = _rows(column, POINT)
        if len(points) and not len(_rows(column, NOT_THOUSANDS_POINT)):
            (i, comma), j = _first_comma(columns[found[0]]), int(points[0])
            raise TableError(
                f"line {lines[i]}: {found[0]} is {shown(comma)}, with a decimal comma, so that line {lines[j]}: "
                f"{name} is {shown(cells.cell(column, j))} may mean thousands; write numbers with decimal points and "
                "without marks of thousands"
            )
    return found


def _rows(column: Any, pattern: str) -> np.ndarray:
    """Numbers of the cells that match."""
    return np.flatnonzero(pc.fill_null(pc.match_substring_regex(column, pattern), False))


def _first_comma(column: Any) -> tuple[int, object]:
    """Number of the first cell with a decimal comma, and the cell."""
    i = int(_rows(column, COMMA)[0])
    return i, cells.cell(column, i)


def _point_for_comma(column: Any) -> Any:
    return pc.if_else(pc.match_substring_regex(column, COMMA), pc.replace_substring(column, ",", "."), column)
