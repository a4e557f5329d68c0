"""Logs that grow while they are read: each call reads what was appended since the last.

Numbers are kept in columns, since a page draws columns and a sweep has many lines. Texts stay in the file.
"""

from __future__ import annotations

import json
import math
import os
import pathlib
from array import array
from collections.abc import Iterator, Mapping
from typing import Any

from isocompute_jax.records import run_files


class GrowingFile:
    """The whole lines of a JSONL file, which need not exist yet, as they come."""

    def __init__(self, path: pathlib.Path):
        self.path = path
        self._read = 0
        self._file = (0, 0)

    def lines(self) -> tuple[bool, list[tuple[int, dict[str, Any]]]]:
        """Whether the file was begun anew (a run that resumed has cut it back), and (offset, line) of what is new.

        A line that is no JSON object is left out: it is for the reader of the run to report.
        """
        try:
            if not self.path.is_file():  # opening a pipe would wait for who writes to it
                raise FileNotFoundError(self.path)
            with open(self.path, "rb") as file:
                status = os.fstat(file.fileno())
                identity = status.st_dev, status.st_ino
                anew = identity != self._file or status.st_size < self._read
                if anew:
                    self._read, self._file = 0, identity
                file.seek(self._read)
                data = file.read()
        except OSError:
            anew, data = self._read > 0, b""
            self._read = 0
        return anew, list(self._whole(data))

    def _whole(self, data: bytes) -> Iterator[tuple[int, dict[str, Any]]]:
        for text in data.splitlines(keepends=True):
            if not text.endswith(b"\n"):  # the end of it is still to come
                return
            start, self._read = self._read, self._read + len(text)
            try:
                line = json.loads(text)
            except (ValueError, RecursionError):
                continue
            if isinstance(line, dict) and isinstance(line.get("step"), int):
                yield start, line


class Columns:
    """Numbers by column; a column that a line lacks has NaN there."""

    def __init__(self) -> None:
        self.last: dict[str, Any] = {}  # the last line, whole
        self._columns: dict[str, array[float]] = {}
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __contains__(self, name: str) -> bool:
        return name in self._columns

    @property
    def names(self) -> list[str]:
        """Of the columns, in the order of coming."""
        return list(self._columns)

    def add(self, line: Mapping[str, Any]) -> None:
        """Appends a line."""
        self.last = dict(line)
        for name, value in run_files.numbers_in(line):
            if name not in self._columns:
                self._columns[name] = array("d", [math.nan]) * self._size
            self._columns[name].append(value)
        self._size += 1
        for column in self._columns.values():
            if len(column) < self._size:
                column.append(math.nan)

    def column(self, name: str) -> array[float]:
        """Of any name; one that no line has is empty of numbers."""
        return self._columns.get(name) or array("d", [math.nan]) * self._size
