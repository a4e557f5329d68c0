"""Malformed tables of any kind: only InputError comes out, and what is read is sound."""

from __future__ import annotations

import json
import pathlib
import string
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from isocompute_jax.fit.read import ReadOptions, read_curves
from isocompute_jax.records.errors import InputError

FUZZ = settings(deadline=None, max_examples=60, suppress_health_check=tuple(HealthCheck), derandomize=True)  # pyright: ignore[reportArgumentType]

NAMES = ["run", "group_size", "problems_per_batch", "seed", "step", "compute", "tokens", "avg@4", "eval_set"]
HEADERS = st.one_of(
    st.sampled_from([*NAMES, "a - avg@4", "a - avg@4__MIN", "Step", "", "val/acc", "avg@4"]), st.text(max_size=5)
)
NUMBERS = st.one_of(st.integers(-2, 40), st.floats(width=32), st.sampled_from([1e308, 2**64, 10**400, 0.5, 0.25]))
ODD = st.sampled_from(
    ["", "nan", "inf", "-Infinity", "1e999", "1,234", "true", " 1 ", "1_0", "0x1", '"', "\0", "\n", "\r"]
)
CELLS = st.one_of(NUMBERS.map(str), st.sampled_from(["0.5", "1", "2", "validation", "a"]), ODD, st.text(max_size=6))
OPTIONS = st.sampled_from([
    ReadOptions(),
    ReadOptions(constants={"group_size": 4, "problems_per_batch": 2}, run_pattern=r"(?P<seed>\d+)"),
    ReadOptions(columns={"val/acc": "avg@4", "*": "avg@4"}, reward_range=(-1.0, float("inf"))),
    ReadOptions(compute="tokens", columns={"compute": "tokens"}),
])  # fmt: skip
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=4)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=2)),
    max_leaves=5,
)


def check(name: str, content: bytes, options: ReadOptions) -> None:
    """Reads a file of this content; whatever is read keeps what `RunCurve` promises."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / name
        path.write_bytes(content)
        try:
            runs, notes = read_curves([str(path)], options)
        except InputError as error:
            assert "--" in str(error)
            return
    assert runs and bool(notes.texts) >= bool(notes.rows or notes.runs)
    low, high = options.reward_range
    for run in runs:
        assert len(run.compute) >= 1 and np.isfinite(run.compute).all() and run.compute[0] >= 0
        assert np.all(np.diff(run.compute) > 0)
        reward = run.columns[(notes.read or options).metric]
        assert np.all((reward >= low) & (reward <= high))
        assert all(values.shape == run.compute.shape for values in run.columns.values())
        assert all(not np.isinf(values).any() for values in run.columns.values())


@st.composite
def tables(draw, cells):
    """A header and rows of a sound table in which some headers, cells and lengths of rows were changed."""
    rows = [["ab"[i % 2], 8, 4, i % 2, i, 10 * i, 100 * i, i / 10, ""] for i in range(draw(st.integers(1, 8)))]
    header: list[str] = list(NAMES)
    for column, name in draw(st.lists(st.tuples(st.integers(0, 8), HEADERS), max_size=2)):
        header[column] = name
    for row, column, cell in draw(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 8), cells), max_size=5)):
        rows[row % len(rows)][column] = cell
    for row, count in draw(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 10)), max_size=1)):
        rows[row % len(rows)] = (rows[row % len(rows)] * 2)[:count]
    return header, rows


def csv_bytes(table, cell: Callable[[Any], str] = str) -> bytes:
    return "\n".join(",".join(map(cell, row)) for row in [table[0], *table[1]]).encode("utf-8", errors="surrogatepass")


@FUZZ
@given(tables(CELLS), st.booleans(), OPTIONS)
def test_csv_of_odd_cells(table, quoted, options):
    content = csv_bytes(table, (lambda value: '"' + str(value).replace('"', '""') + '"') if quoted else str)
    check("t.csv", content, options)


@FUZZ
@given(tables(CELLS), st.lists(st.tuples(st.floats(0, 1), st.binary(max_size=3)), max_size=4), OPTIONS)
def test_csv_of_odd_bytes(table, insertions, options):
    content = csv_bytes(table)
    for place, odd in insertions:
        at = int(place * len(content))
        content = content[:at] + odd + content[at:]
    check("t.csv", content, options)


@FUZZ
@given(st.binary(max_size=200), st.sampled_from(["t.csv", "t.jsonl", "t.csv.gz", "t.jsonl.gz", "t.parquet"]), OPTIONS)
def test_any_bytes(content, name, options):
    check(name, content, options)


MAGIC = {"t.db": b"SQLite format 3\0", "events.out.tfevents.1": b"\x18\0\0\0\0\0\0\0abcdbrain.Event:2", "t.json": b"["}
LOG_LINES = st.lists(
    st.one_of(
        st.sampled_from(
            ["step:1 - reward:0.5 - a:", "{'loss': '0.1', 'reward': ", "step 3 | reward=0.1", "\x1b[36m(T"]
        ),
        st.text(max_size=8),
    ),
    max_size=6,
)
CURVES = st.dictionaries(st.sampled_from(["series", "reward_trace", "step", "log_history", "x", "eval", "a"]), JSON)


@FUZZ
@given(st.binary(max_size=200), st.sampled_from(sorted(MAGIC)), OPTIONS)
def test_any_bytes_after_a_form_begins(content, name, options):
    check(name, MAGIC[name] + content, options)


@FUZZ
@given(LOG_LINES, st.sampled_from(["t.log", "t.txt", "t"]), OPTIONS)
def test_logs_of_odd_lines(lines, name, options):
    check(name, "\n".join(lines).encode("utf-8", errors="surrogatepass"), options)


@FUZZ
@given(st.one_of(JSON, CURVES, st.lists(CURVES, max_size=3), st.dictionaries(st.text(max_size=2), CURVES)), OPTIONS)
def test_json_of_odd_shapes(value, options):
    check("t.json", json.dumps(value).encode("utf-8", errors="surrogatepass"), options)


@FUZZ
@given(tables(st.one_of(NUMBERS, JSON, ODD)), st.one_of(st.just(""), st.text(max_size=5)), OPTIONS)
def test_jsonl_of_odd_values(table, torn, options):
    rows = [dict(zip(table[0], row, strict=False)) for row in table[1]]
    content = "\n".join([*map(json.dumps, rows), torn]).encode("utf-8", errors="surrogatepass")
    check("t.jsonl", content, options)


@pytest.fixture(scope="module")
def sound_parquet() -> bytes:
    rows = [{"run": string.ascii_letters[i % 3], "compute": i, "avg@4": i / 30, "x": [i]} for i in range(30)]
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows), sink, row_group_size=10)
    return sink.getvalue().to_pybytes()


@FUZZ
@given(flips=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)), min_size=1, max_size=6))
def test_parquet_with_flipped_bits(sound_parquet, flips):
    content = bytearray(sound_parquet)
    for place, mask in flips:
        content[int(place * len(content))] ^= mask
    check("t.parquet", bytes(content), ReadOptions())


ODD_TYPES = st.one_of(
    st.none(), st.booleans(), st.text(max_size=3), st.binary(max_size=3), st.floats(), st.dates(),
    st.decimals(-5, 5, places=2), st.lists(st.integers(0, 9), max_size=3),
    st.dictionaries(st.just("k"), st.integers(0, 9)),
)  # fmt: skip


@FUZZ
@given(st.dictionaries(st.integers(0, 8), ODD_TYPES, max_size=3))
def test_parquet_of_odd_types(odd):
    columns = [["a"] * 3, [8] * 3, [4] * 3, [0] * 3, [1, 2, 3], [10, 20, 30], [1, 2, 3], [0.1, 0.2, 0.3], [None] * 3]
    arrays = [pa.array([odd[i]] * 3 if i in odd else values) for i, values in enumerate(columns)]
    sink = pa.BufferOutputStream()
    try:
        pq.write_table(pa.table(arrays, names=NAMES), sink)
    except pa.ArrowException:  # an empty dict has no form in Parquet
        return
    check("t.parquet", sink.getvalue().to_pybytes(), ReadOptions())
