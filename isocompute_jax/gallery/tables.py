"""What a file of the gallery holds: a row for each evaluation of each run, and what the runs were.

Columns are those that `isocompute_jax.fit` reads (run, seed, group_size, problems_per_batch, compute, avg@4, ...), one
for each config field in which the runs differ, and

    solve_counts    [problems] how many of `samples` completions solved each problem, in the order of the set
    train/NAME      mean of a column of metrics.jsonl over the steps since the evaluation before

Under `METADATA` the schema has a JSON object, the fields of `Facts`.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from isocompute_jax.records.errors import InputError

METADATA = b"isocompute_jax"
SUFFIX = ".parquet"


@dataclasses.dataclass(frozen=True)
class Facts:
    """What the runs of a sweep were.

    Attributes:
      shared: dotted config field -> value, where it is the same for all runs. Files are named by their checksum.
      runs: name of a run -> its other fields, the seed among them.
      pass_rates: checksum of a problem set -> how many of its problems the base model solved at each measured rate
        ({"0.0625": 120, ...}), where the set says.
    """

    shared: Mapping[str, Any]
    runs: Mapping[str, Mapping[str, Any]]
    pass_rates: Mapping[str, Mapping[str, int]]

    def fields(self, run: str) -> dict[str, Any]:
        """Every field of a run."""
        return {**self.shared, **self.runs[run]}


@dataclasses.dataclass(frozen=True, eq=False)
class Sweep:
    """One file of the gallery.

    Attributes:
      name: of the file, without its ending.
      table: its rows; see the module.
      facts: what its runs were.
    """

    name: str
    table: pa.Table
    facts: Facts

    def column(self, name: str) -> np.ndarray:
        """[rows] a column; NaN where a row has no number.

        Raises:
          InputError: there is no such column.
        """
        if name not in self.table.column_names:
            raise InputError(f"{self.name}{SUFFIX} has no column {name!r}; it has {', '.join(self.table.column_names)}")
        return self.table[name].to_numpy(zero_copy_only=False)


def read_sweep(path: str | pathlib.Path) -> Sweep:
    """Reads a file of the gallery.

    Raises:
      InputError: it is missing, or was not written by `record`.
    """
    path = pathlib.Path(path)
    try:
        table = pq.read_table(path, use_threads=False)
    except FileNotFoundError:
        known = ", ".join(sorted(other.stem for other in path.parent.glob(f"*{SUFFIX}"))) or "none"
        raise InputError(f"{path} does not exist; sweeps beside it: {known}") from None
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"{path}: not a Parquet file ({error})") from error
    found = (table.schema.metadata or {}).get(METADATA)
    if found is None:
        raise InputError(f"{path} is a table of something else: sweeps are written by `make gallery-record`")
    return Sweep(path.stem, table, Facts(**json.loads(found)))
