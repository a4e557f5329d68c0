"""TensorBoard's event files: scalars by step. All event files of one folder are one run, as TensorBoard has it.

A file is a sequence of records: length (8 bytes), its checksum (4), the record, its checksum (4).
"""

from __future__ import annotations

import importlib
import pathlib
import struct
from typing import Any

from isocompute_jax.fit.read.notices import Notices
from isocompute_jax.fit.read.tables import DigestedFile, Table, TableError, columns_of

MAGIC = b"brain.Event:"
"""Stands in the first record."""
IN_NAME = "tfevents"
EXTRA = "TensorBoard's event files need tensorboardX, which is not installed: pip install 'isocompute-jax[track]'"


def read(path: pathlib.Path, notices: Notices) -> Table:
    """A row a step, a column a tag; the file's digest is of the first file.

    Raises:
      TableError: tensorboardX is not there, or no file has a scalar.
    """
    try:
        event_of = importlib.import_module("tensorboardX.proto.event_pb2").Event
    except ImportError:
        raise TableError(EXTRA) from None
    files = siblings(path)
    rows: dict[tuple[int, int], dict[str, Any]] = {}
    sha256 = ""
    for file in files:
        source = DigestedFile(file)
        _scalars(source, event_of, rows, notices)
        sha256 = sha256 or source.sha256()
    if not rows:
        raise TableError("it has no scalars")
    tags = len({tag for row in rows.values() for tag in row}) - 1
    place = f"{path}, {len(files)} in its folder, {tags} scalars at {len({step for step, _ in rows})} steps"
    notices.changed("file", "read as TensorBoard's events, which are one run in each folder", [place])
    headers, lines, columns = columns_of(iter(enumerate(rows.values(), 1)), path, notices)
    return Table(path, sha256, "row ", headers, lines, columns)


def siblings(path: pathlib.Path) -> list[pathlib.Path]:
    """The event files of a file's folder, in order of their names, which begin with the time."""
    found = sorted(file for file in path.parent.iterdir() if IN_NAME in file.name)
    return found if path in found else [path]


def _scalars(
    source: DigestedFile, event_of: Any, rows: dict[tuple[int, int], dict[str, Any]], notices: Notices
) -> None:
    """Adds the scalars of a file, of a tag that is given again at a step on a row of its own."""
    with source.open() as stream:
        while head := stream.read(12):
            size = int.from_bytes(head[:8], "little")
            record = stream.read(size + 4)[:size] if size < 1 << 30 else b""
            try:
                if len(record) < size or len(head) < 12:
                    raise TableError(f"a record of {size} bytes has {len(record)}")
                event = event_of.FromString(record)
            except Exception as error:  # protobuf's own class of errors comes with tensorboardX
                place = f"{source.path}: {error}"
                notices.changed("file", "read up to a place where it is damaged", [place], finding=True)
                return
            for tag, number in ((value.tag, _number(value)) for value in event.summary.value):
                again = 0
                while tag in rows.get((event.step, again), {}):
                    again += 1
                if number is not None:
                    rows.setdefault((event.step, again), {"step": event.step})[tag] = number


def _number(value: Any) -> float | None:
    """A scalar's number: a field of its own, or as newer writers have it, a tensor of no dimension."""
    if value.WhichOneof("value") == "simple_value":
        return value.simple_value
    if value.WhichOneof("value") != "tensor":
        return None
    tensor = value.tensor
    given = [*tensor.float_val, *tensor.double_val]
    size = {1: "<f", 2: "<d"}.get(tensor.dtype, "")
    if not given and size and len(tensor.tensor_content) == struct.calcsize(size):
        given = struct.unpack(size, tensor.tensor_content)
    return float(given[0]) if len(given) == 1 else None
