"""What a table file is read as: blocks of rows, each with the lines that they stand on."""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import pathlib
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import BinaryIO, cast

import numpy as np
import pyarrow as pa

from isocompute_jax.fit.read.cells import Values, take
from isocompute_jax.fit.read.notices import Notices

READ_ERRORS = (OSError, EOFError, ValueError, OverflowError, RecursionError, MemoryError, zlib.error, pa.ArrowException)
"""What reading a damaged file raises, in Python's own readers and in Arrow's."""

MAX_HEADER = 1 << 20
BYTE_ORDER_MARK = b"\xef\xbb\xbf"

Advance = Callable[[int], None]
"""Told how many bytes of the file have been read."""


@dataclasses.dataclass(frozen=True, eq=False)
class Block:
    """Some rows of a table: the lines [n] that they stand on, and the cells [n] of each column."""

    lines: np.ndarray
    columns: dict[str, Values]

    def keep(self, mask: np.ndarray) -> Block:
        """The rows where `mask` [n] is set."""
        return self if mask.all() else self.take(np.flatnonzero(mask))

    def take(self, rows: np.ndarray) -> Block:
        """The rows with these numbers [m], repeated where a number is."""
        return Block(self.lines[rows], {name: take(values, rows) for name, values in self.columns.items()})


class TableError(Exception):
    """A file that cannot be used as a table; says why."""


@dataclasses.dataclass(frozen=True, eq=False)
class TableFile:
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


def check_text(path: pathlib.Path) -> bytes:
    """The first megabyte of a file.

    Raises:
      TableError: it is empty, or is not text in UTF-8.
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
    return start


@contextlib.contextmanager
def unpacked(path: pathlib.Path) -> Iterator[tuple[BinaryIO, BinaryIO]]:
    """Opens a file, unpacking .gz: (the file, whose position tells the progress; the stream of its content)."""
    with open(path, "rb") as file:
        if path.name.lower().endswith(".gz"):
            with gzip.GzipFile(fileobj=file) as stream:
                yield file, cast(BinaryIO, stream)
        else:
            yield file, file
