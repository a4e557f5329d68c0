"""Parquet in: by batches of rows, so that memory grows neither with the file nor with its number of columns."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow.parquet as pq

from isocompute_jax.fit.read.blocks import Advance, Block, TableError, TableFile
from isocompute_jax.fit.read.notices import Notices

BATCH_CELLS = 1 << 20
LEAST_ROWS = 1 << 8


def open_parquet(path: pathlib.Path) -> TableFile:
    """Reads the schema of a Parquet file.

    Raises:
      TableError: it is empty.
    """
    if path.stat().st_size == 0:
        raise TableError("the file is empty")
    with pq.ParquetFile(path) as file:
        headers = tuple(file.schema_arrow.names)
    return TableFile(path, "row ", headers, _ParquetFile(path, headers).blocks)


@dataclasses.dataclass(frozen=True)
class _ParquetFile:
    """A Parquet file whose schema has been read."""

    path: pathlib.Path
    headers: tuple[str, ...]

    def blocks(self, wanted: Sequence[int], notices: Notices, advance: Advance) -> Iterator[Block]:
        """The columns with these numbers, in their own types."""
        del notices  # a row cannot be damaged alone
        size = self.path.stat().st_size
        names = [self.headers[i] for i in wanted]
        with pq.ParquetFile(self.path) as file:
            rows, row = max(file.metadata.num_rows, 1), 1
            batch_size = max(BATCH_CELLS // max(len(names), 1), LEAST_ROWS)
            for batch in file.iter_batches(batch_size=batch_size, columns=names, use_threads=False):
                batch.validate(full=True)  # a damaged file can give text that is none
                found = {name: batch.column(k) for k, name in reversed(list(enumerate(batch.schema.names)))}
                lines = np.arange(row, row + batch.num_rows)
                row += batch.num_rows
                advance(min(size * row // rows, size))
                yield Block(lines, {name: found[name] for name in names if name in found})
