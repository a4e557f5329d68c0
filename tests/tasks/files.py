"""Files of rows, as other programs write them."""

import json
import pathlib

import pyarrow
import pyarrow.parquet


def write_rows(path: pathlib.Path, *rows: dict) -> pathlib.Path:
    """JSONL or Parquet; columns that a row lacks are null in the latter."""
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        columns = dict.fromkeys(name for row in rows for name in row)
        pyarrow.parquet.write_table(pyarrow.table({name: [row.get(name) for row in rows] for name in columns}), path)
    return path
