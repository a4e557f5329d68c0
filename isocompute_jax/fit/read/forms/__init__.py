"""Which form a file has, by its content, and its table: one module for each form that is no table yet.

A name counts only between forms of text that the content leaves open (CSV, TSV, JSONL), and for what a folder offers.
"""

from __future__ import annotations

import pathlib
import re
from collections.abc import Callable
from typing import Literal

from isocompute_jax.fit.read.forms import console, events, json_logs, trackio
from isocompute_jax.fit.read.notices import Notices
from isocompute_jax.fit.read.tables import BYTE_ORDER_MARK, MAX_HEADER, READ_ERRORS, DigestedFile, Table, read_plain

TABLES = (".csv", ".tsv", ".jsonl", ".parquet", ".csv.gz", ".tsv.gz", ".jsonl.gz")
"""Names of files that are tables."""
Form = Literal["csv", "jsonl", "parquet", "json", "trackio", "events", "console"]
NAMES: dict[Form, str] = {
    "json": "JSON", "trackio": "trackio's store", "events": "TensorBoard's event files", "console": "console logs",
}  # fmt: skip
"""What messages call the forms that are no tables, those that say most first: a folder gives files of one."""
LOOKED_INTO = (".json", ".json.gz", ".db", ".log", ".out", ".txt", ".log.gz")
"""Names of files in folders that may be of these forms, beside event files."""

READERS: dict[Form, Callable[[pathlib.Path, Notices], Table]] = {
    "json": json_logs.read, "trackio": trackio.read, "events": events.read, "console": console.read,
}  # fmt: skip


def read_table(path: pathlib.Path, notices: Notices) -> Table:
    """Reads a file of any form; rows that are none are left out, and what was recognised is said.

    Raises:
      TableError: the file is empty or too large, or not what it seems.
      READ_ERRORS: it cannot be read.
    """
    form = form_of(path) or "csv"
    return READERS[form](path, notices) if form in READERS else read_plain(path, form, notices)


def is_table(path: pathlib.Path) -> bool:
    """Whether a file has the name of a table."""
    return path.name.lower().endswith(TABLES)


def found_in_folder(path: pathlib.Path) -> Form | None:
    """The form of a file that a folder or a glob offers and that is no table by its name; None of what has no curve."""
    name = path.name.lower()
    if is_table(path) or not (name.endswith(LOOKED_INTO) or events.IN_NAME in name) or not path.is_file():
        return None
    try:
        form, start = form_of(path), _start(path)
    except READ_ERRORS:
        return None
    known = {"json": json_logs.has_curves, "console": console.has_steps, "trackio": bool, "events": bool}
    return form if form in known and known[form](start) else None


def form_of(path: pathlib.Path) -> Form | None:
    """The form of a file's content; None of what none of them can be. An empty file is what its name says."""
    name, start = path.name.lower().removesuffix(".gz"), _start(path)
    if start.startswith(trackio.MAGIC):
        return "trackio"
    if events.MAGIC in start[:64]:
        return "events"
    if name.endswith(".parquet") or start.startswith(b"PAR1"):
        return "parquet"
    text = start.decode("utf-8", errors="replace").lstrip()
    if is_table(path):
        if not name.endswith(".jsonl"):
            return "csv"
        return "json" if re.match(r"\[\s*\{", text) else "jsonl"
    if not name.endswith(".json") and console.has_steps(start):
        return "console"
    first, _, rest = text.partition("\n")
    if name.endswith(".json") or re.match(r"\{\s*[\"}]|\[\s*[{\[]", text):
        return "jsonl" if first.rstrip().endswith("}") and rest.lstrip().startswith("{") else "json"
    if not text or "\0" in text:
        return None
    return "csv" if any(0 < first.count(mark) == rest.partition("\n")[0].count(mark) for mark in ",;\t") else None


def _start(path: pathlib.Path) -> bytes:
    with DigestedFile(path).open() as stream:
        return stream.read(MAX_HEADER).removeprefix(BYTE_ORDER_MARK)
