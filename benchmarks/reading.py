"""`python -m benchmarks.reading`: rows per second and peak memory of the fitter's inputs, by format.

    python -m benchmarks.reading --rows=10000000

Writes tables of so many rows (run, group_size, problems_per_batch, seed, step, tokens, avg@4) and reads each in a
process of its own: 40 runs below each other as CSV, as JSONL and as Parquet, and one run in random order as CSV. Beside
them a loop of Python's csv module over a million rows, which converts the same columns and checks nothing.
"""

from __future__ import annotations

import csv
import multiprocessing
import pathlib
import tempfile

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
from absl import flags

from benchmarks.shared import peak_mib, print_head, print_row, seconds_of
from isocompute_jax import app
from isocompute_jax.fit.read import ReadOptions, read_curves

ROWS = flags.DEFINE_integer("rows", 10_000_000, "Rows of each table.", lower_bound=1000)

RUNS = 40
CHUNK = 100_000
LOOP_ROWS = 1_000_000


def main() -> None:
    """Flags -> table."""
    with tempfile.TemporaryDirectory() as directory:
        root = pathlib.Path(directory)
        print_head(("table", "MB", "rows/s", "seconds", "peak MiB"))
        for name in ("runs.csv", "runs.jsonl", "runs.parquet", "shuffled.csv"):
            write(root / name, rows=ROWS.value)
            _print(name, root / name, ROWS.value, *_in_a_process(read, root / name))
        _print("csv module", root / "runs.csv", min(ROWS.value, LOOP_ROWS), *_in_a_process(loop, root / "runs.csv"))


def write(path: pathlib.Path, *, rows: int) -> None:
    """A table of synthetic curves in chunks of rows."""
    shuffled = path.name.startswith("shuffled")
    order = np.random.default_rng(0).permutation(rows) if shuffled else np.arange(rows)
    runs = 1 if shuffled else RUNS
    with open(path, "wb") as file:
        writer = None
        for start in range(0, rows, CHUNK):
            chunk = _chunk(order[start : start + CHUNK], -(-rows // runs))
            if path.suffix == ".jsonl":
                names = chunk.column_names
                for row in zip(*(chunk[name].to_pylist() for name in names), strict=True):
                    cells = (f'"{name}": {value!r}' for name, value in zip(names, row, strict=True))
                    file.write(("{" + ", ".join(cells).replace("'", '"') + "}\n").encode())
                continue
            if writer is None:
                make = pq.ParquetWriter if path.suffix == ".parquet" else pa_csv.CSVWriter
                writer = make(file, chunk.schema)
            writer.write_table(chunk)
        if writer is not None:
            writer.close()


def _chunk(index: np.ndarray, length: int) -> pa.Table:
    run, step = index // length, index % length
    return pa.table({
        "run": [f"n{2 << (r % 8)}-s{r // 8}" for r in run.tolist()],
        "group_size": 2 << (run % 8),
        "problems_per_batch": np.full(len(run), 32),
        "seed": run // 8,
        "step": step,
        "tokens": step * 1000,
        "avg@4": np.round(0.1 + 0.8 * step / length, 6),
    })  # fmt: skip


def read(path: pathlib.Path) -> None:
    """The library's way."""
    read_curves([str(path)], ReadOptions())


def loop(path: pathlib.Path) -> None:
    """The csv module's way, over the first rows."""
    curves: dict[str, list[tuple[float, ...]]] = {}
    with open(path, newline="") as file:
        for _, row in zip(range(LOOP_ROWS), csv.DictReader(file), strict=False):
            compute = float(row["step"]) * float(row["problems_per_batch"]) * float(row["group_size"])
            values = (compute, float(row["step"]), float(row["tokens"]), float(row["avg@4"]))
            curves.setdefault(row["run"], []).append(values)
    for points in curves.values():
        points.sort()


def _in_a_process(function, path: pathlib.Path) -> tuple[float, float]:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_timed, (function, path))


def _timed(function, path: pathlib.Path) -> tuple[float, float]:
    """(seconds, peak resident MiB, the libraries' own share included) of one call."""
    return seconds_of(lambda: function(path)), peak_mib()


def _print(name: str, path: pathlib.Path, rows: int, seconds: float, peak: float) -> None:
    size = path.stat().st_size / 1e6
    print_row(name, f"{size:.0f}", f"{rows / seconds:,.0f}", f"{seconds:.1f}", f"{peak:.0f}")


if __name__ == "__main__":
    app.run(main)
