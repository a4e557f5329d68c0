"""Rows of data files as JSON values: JSONL, JSON, CSV and Parquet, read one after the other.

A number is kept as it stands in the file (`Number`), so that an answer of 3 stays `3` and one of 2.50 stays `2.50`;
`plain` gives numbers back. Columns of other names are found by their paths (`at_path`, `renamed`).
"""

from __future__ import annotations

import csv
import io
import json
import math
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from isocompute_jax.records.errors import InputError

SUFFIXES = (".jsonl", ".json", ".csv", ".parquet")
PARQUET_ROWS = 1024
"""Rows of a Parquet file that are in memory at a time."""


ABSENT = object()
"""What `at_path` gives where there is nothing."""


class Number(str):
    """A number's text as it stands in the file."""


def as_in_file(value: Any) -> Any:
    """A number of a Parquet file as `Number`, and what has its spelling as it is."""
    return Number(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


class Row(NamedTuple):
    """One row."""

    number: int  # from 1; the line of a JSONL or CSV file
    where: str  # its place, for messages
    columns: dict[str, Any]  # its values by name


def read_rows(path: pathlib.Path, *, wanted: Callable[[str], bool] = lambda name: True) -> Iterator[Row]:
    """Reads a file of one of `SUFFIXES`, never the whole of it at once (but for .json).

    Args:
      path: the file.
      wanted: name -> whether the column is wanted; of a Parquet file others are not even read.

    Raises:
      InputError: the file is missing or not what its name says; names file, line (Parquet: row) and what to do.
    """
    try:
        if path.suffix == ".parquet":
            yield from _parquet_rows(path, wanted)
            return
        read = {".json": _json_rows, ".csv": _csv_rows}.get(path.suffix, _jsonl_rows)
        for number, where, row in read(path):
            yield Row(number, where, {name: value for name, value in row.items() if wanted(name)})
    except FileNotFoundError:
        raise InputError(f"{path}: no such problem set; check the path") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error}); give a readable file") from error


def plain(value: Any, where: str) -> Any:
    """A value as JSON has it: numbers again, no NaN, and the text of what JSON has no type for, such as dates.

    Raises:
      InputError: a text has half of a surrogate pair, which cannot be written.
    """
    if isinstance(value, Number):
        return _number(value)
    if isinstance(value, str):
        return checked_text(value, where)
    if isinstance(value, Mapping):
        return {str(key): plain(inner, where) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner, where) for inner in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int) else str(value)


def checked_text(value: str, where: str) -> str:
    """The text itself.

    Raises:
      InputError: it has half of a surrogate pair, so that it cannot be encoded.
    """
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InputError(f"{where}: has half of a surrogate pair, which is not text; fix the line") from None
    return value


def parquet_bytes(rows: Sequence[Mapping[str, Any]], *, floats: Iterable[str]) -> bytes:
    """A Parquet file of rows; columns that a row lacks are null in it.

    Args:
      rows: values as JSON has them.
      floats: columns of 64-bit floats, whatever their values look like.

    Raises:
      InputError: the values of a column have several types; names the column.
    """
    import pyarrow
    import pyarrow.parquet

    columns = {}
    for name in dict.fromkeys(name for row in rows for name in row):
        try:
            kind = pyarrow.float64() if name in floats else None
            columns[name] = pyarrow.array([row.get(name) for row in rows], kind)
        except (pyarrow.ArrowException, OverflowError) as error:
            raise InputError(f"{name}: Parquet has one type per column ({error}); write .jsonl") from error
    buffer = io.BytesIO()
    try:
        pyarrow.parquet.write_table(pyarrow.table(columns), buffer)
    except pyarrow.ArrowException as error:  # an object without fields, say
        raise InputError(f"Parquet has no room for these columns ({error}); write .jsonl") from error
    return buffer.getvalue()


def _jsonl_rows(path: pathlib.Path) -> Iterator[Row]:
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            text = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
            if text.strip():
                yield _object(_parsed(text, f"{path}:{number}", "fix or delete the line"), number, f"{path}:{number}")


def _json_rows(path: pathlib.Path) -> Iterator[Row]:
    """Of a list of objects, or of one object."""
    found = _parsed(path.read_bytes().removeprefix(b"\xef\xbb\xbf"), str(path), "fix the file")
    for number, row in enumerate(found if isinstance(found, list) else [found], 1):
        yield _object(row, number, f"{path}: row {number}" if isinstance(found, list) else str(path))


def _csv_rows(path: pathlib.Path) -> Iterator[Row]:
    """Cells are text, empty ones missing; a row's number is that of the line it ends on."""
    csv.field_size_limit(2**31 - 1)  # tests of programs are long
    with open(path, encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, strict=True)
        try:
            names = next(reader, [])
            _check_names(path, names)
            for cells in reader:
                where = f"{path}:{reader.line_num}"
                if len(cells) > len(names):
                    raise InputError(f"{where}: has {len(cells)} cells under {len(names)} names; fix the line")
                if cells:
                    row = {name: cell or None for name, cell in zip(names, cells, strict=False)}
                    yield Row(reader.line_num, where, row)
        except (csv.Error, UnicodeDecodeError) as error:
            raise InputError(f"{path}:{reader.line_num}: not CSV in UTF-8 ({error}); fix the file") from error


def _parquet_rows(path: pathlib.Path, wanted: Callable[[str], bool]) -> Iterator[Row]:
    import pyarrow
    import pyarrow.parquet

    with open(path, "rb") as source:
        try:
            file = pyarrow.parquet.ParquetFile(source)
            names = file.schema_arrow.names
            _check_names(path, names)
            kept = [name for name in names if wanted(name)]
            number = 0
            for batch in file.iter_batches(PARQUET_ROWS, columns=kept) if kept else ():
                for row in batch.to_pylist():
                    number += 1
                    # Data frames mark a missing cell with NaN.
                    missing = [name for name, value in row.items() if isinstance(value, float) and math.isnan(value)]
                    yield Row(number, f"{path}: row {number}", row | dict.fromkeys(missing))
        except pyarrow.ArrowException as error:
            raise InputError(f"{path}: not a Parquet file that can be read ({error}); write it again") from error


def _check_names(path: pathlib.Path, names: Sequence[str]) -> None:
    repeated = [name for name in names if names.count(name) > 1]
    if repeated:
        raise InputError(f"{path}: the column {repeated[0]!r} occurs twice; rename one")


def _parsed(text: bytes, where: str, remedy: str) -> Any:
    try:
        return json.loads(text.decode(), parse_int=Number, parse_float=Number, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: not JSON in UTF-8 ({error}); {remedy}") from error


def _object(row: Any, number: int, where: str) -> Row:
    if not isinstance(row, dict):
        raise InputError(f"{where}: not a JSON object; write one object with prompt, answer and task per line")
    return Row(number, where, row)


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


def _number(text: str) -> int | float | str:
    """The number of a text; what no float holds stays text, since JSON has no infinity."""
    try:
        return int(text)
    except ValueError:
        return float(text) if math.isfinite(float(text)) else str(text)


# --- columns by other names


def at_path(value: Any, path: str) -> Any:
    """What stands at a dotted path, such as `reward_model.ground_truth` or `prompt.0.content`; ABSENT if nothing does.

    A name that has dots itself is found too: the longest that is there counts.
    """
    if not path:
        return value
    if isinstance(value, list):
        head, _, rest = path.partition(".")
        inside = head.isdecimal() and int(head) < len(value)
        return at_path(value[int(head)], rest) if inside else ABSENT
    if not isinstance(value, Mapping):
        return ABSENT
    names = path.split(".")
    for length in range(len(names), 0, -1):
        name = ".".join(names[:length])
        if name in value:
            return at_path(value[name], ".".join(names[length:]))
    return ABSENT


def renamed(row: Mapping[str, Any], columns: Mapping[str, str]) -> tuple[dict[str, Any], set[str]]:
    """A row under our names, and which of theirs it had.

    What is not renamed keeps its name, unless another column takes that name.
    """
    found = {theirs: value for theirs in columns if (value := at_path(row, theirs)) is not ABSENT}
    ours: dict[str, Any] = {}
    for theirs, value in found.items():
        if ours.get(columns[theirs]) is None:
            ours[columns[theirs]] = value
    rest = {name: value for name, value in row.items() if name not in columns and name not in ours}
    return ours | rest, set(found)
