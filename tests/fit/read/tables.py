"""Tables of every format, written and read."""

from __future__ import annotations

import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq

from isocompute_jax.fit.read import ReadOptions, read_curves

HEADER = "run,group_size,problems_per_batch,seed,compute,avg@4"


def read(*sources, **options):
    """The runs, and the sentences about what was left out."""
    runs, notes = read_curves([str(source) for source in sources], ReadOptions(**options))
    return runs, list(notes.texts)


def write(path, *lines, end="\n"):
    path.write_bytes((end.join(lines) + end).encode())
    return path


def write_rows(path, rows):
    """In the format of the path's name."""
    name = path.name.removesuffix(".gz")
    if name.endswith(".parquet"):
        pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=5)
        return path
    if name.endswith(".jsonl"):
        text = "".join(json.dumps(row) + "\n" for row in rows)
    else:
        mark = "\t" if name.endswith(".tsv") else ","
        text = "\n".join([mark.join(rows[0]), *(mark.join(map(str, row.values())) for row in rows)]) + "\n"
    path.write_bytes(gzip.compress(text.encode()) if path.name.endswith(".gz") else text.encode())
    return path
