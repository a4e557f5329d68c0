"""Tables in: CSV, JSONL and Parquet files as blocks of columns, read from one end to the other in bounded memory.

Each format goes through Arrow's own reader (`csv_files`, `jsonl_files`, `parquet_files`). A file ending in .gz is
unpacked on the way.
"""

from __future__ import annotations

import pathlib

from isocompute_jax.fit.read.blocks import TableFile
from isocompute_jax.fit.read.csv_files import open_csv
from isocompute_jax.fit.read.jsonl_files import open_jsonl
from isocompute_jax.fit.read.parquet_files import open_parquet

SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet", ".csv.gz", ".tsv.gz", ".jsonl.gz")


def is_table(path: pathlib.Path) -> bool:
    """Whether the name is one of a table."""
    return path.name.lower().endswith(SUFFIXES)


def open_table(path: pathlib.Path) -> TableFile:
    """Reads the header of a table.

    Raises:
      TableError: the file is empty, or not what its name says.
      READ_ERRORS: it cannot be read.
    """
    name = path.name.lower().removesuffix(".gz")
    if name.endswith(".parquet"):
        return open_parquet(path)
    return open_jsonl(path) if name.endswith(".jsonl") else open_csv(path)
