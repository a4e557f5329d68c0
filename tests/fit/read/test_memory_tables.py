"""Tables in memory give the curves that the same table gives as a file."""

from __future__ import annotations

import dataclasses

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pytest

from isocompute_jax.fit.read import ReadOptions, RunCurve, memory_table, read_curves
from isocompute_jax.records.errors import InputError
from tests.fit.frameworks import write_trl, write_verl

COLUMNS = {
    "run": ["a", "a", "a", "b", "b"], "group_size": [4, 4, 4, 8, 8], "problems_per_batch": [2, 2, 2, 2, 2],
    "step": [1, 2, 3, 1, 2], "avg@4": [0.1, 0.2, 0.25, 0.15, 0.3],
}  # fmt: skip


class Frame:
    """A data frame of a library that does not speak Arrow's protocol: columns by name, with NumPy inside."""

    def __init__(self, columns: dict[str, np.ndarray]) -> None:
        self._columns = columns

    def items(self):
        return self._columns.items()


class Streamed:
    """A data frame of a library that does: DuckDB's relations, polars' frames and pandas' do."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema=None):
        return self._table.__arrow_c_stream__(requested_schema)


def read(curves, options: ReadOptions | None = None) -> tuple[list[RunCurve], list[str]]:
    runs, notes = read_curves(memory_table(curves), options or ReadOptions())
    return runs, list(notes.texts)


def assert_same(found: list[RunCurve], expected: list[RunCurve]) -> None:
    assert [curve.run for curve in found] == [curve.run for curve in expected]
    for one, other in zip(found, expected, strict=True):
        assert (one.facts, one.identity) == (other.facts, other.identity)
        np.testing.assert_array_equal(one.compute, other.compute)
        assert one.columns.keys() == other.columns.keys()
        for name, values in one.columns.items():
            np.testing.assert_array_equal(values, other.columns[name])


def kinds_of_table() -> dict[str, object]:
    table = pa.table(COLUMNS)
    frame = {name: np.array(values, dtype=object if name == "run" else None) for name, values in COLUMNS.items()}
    return {
        "mapping": COLUMNS,
        "NumPy": frame,
        "Arrow": table,
        "chunks": pa.concat_tables([table.slice(0, 2), table.slice(2)]),
        "batch": table.to_batches()[0],
        "protocol": Streamed(table),
        "frame": Frame(frame),
        "categories": table.set_column(0, "run", table["run"].dictionary_encode()),
    }


@pytest.mark.parametrize("kind", kinds_of_table())
def test_every_kind_of_table_reads_as_its_file_does(tmp_path, kind):
    pa_csv.write_csv(pa.table(COLUMNS), tmp_path / "curves.csv")
    found, warnings = read(kinds_of_table()[kind])
    expected, _ = read_curves([str(tmp_path / "curves.csv")], ReadOptions())
    assert_same(found, expected)
    assert warnings == read(COLUMNS)[1]
    assert {curve.source for curve in found} == {"curves"}


@pytest.mark.parametrize(
    ("write", "options"),
    [
        (write_verl, {"columns": {"run_name": "run", "val-core/math_dapo/acc/mean@4": "avg@4"}}),
        (write_trl, {"columns": {"eval/rewards/accuracy_reward/mean": "avg@4"}}),
    ],
)
def test_names_of_columns_mean_what_they_mean_in_a_file(tmp_path, write, options):
    """The long form of verl and the wide form of a W&B panel; a blank cell is a null."""
    write(tmp_path / "curves.csv")
    read_options = ReadOptions(
        run_pattern=r"n(?P<group_size>\d+)-b(?P<problems_per_batch>\d+)-s(?P<seed>\d+)", **options
    )
    expected, _ = read_curves([str(tmp_path / "curves.csv")], read_options)
    found, _ = read(pa_csv.read_csv(tmp_path / "curves.csv"), read_options)
    assert len(found) == 4
    assert_same(found, expected)


def test_missing_numbers_are_blank():
    columns = COLUMNS | {"avg@4": [0.1, float("nan"), 0.7, None, 0.3]}
    for given in (columns, {name: np.array(values, object) for name, values in columns.items()}):
        found, _ = read(given)
        assert [curve.columns["avg@4"].tolist() for curve in found] == [[0.1, 0.7], [0.3]]


def test_rewards_of_another_range_are_refused():
    with pytest.raises(InputError, match="--reward_range=0,1: curves: 1 of 3 values of avg@4 lie outside"):
        read(COLUMNS | {"avg@4": [0.1, None, 7.0, None, 0.3]})


def test_a_bad_row_is_told_by_its_number():
    found, warnings = read(COLUMNS | {"compute": [8, 16, -1, 16, 32]})
    assert [curve.compute.tolist() for curve in found] == [[8, 16], [16, 32]]
    assert any("curves:row 3: compute is -1" in text for text in warnings)


def test_truth_values_among_numbers_are_no_numbers():
    found, warnings = read(COLUMNS | {"avg@4": [0.1, True, 0.25, 0.15, 0.3]})
    assert [curve.columns["avg@4"].tolist() for curve in found] == [[0.1, 0.25], [0.15, 0.3]]
    assert warnings[0].endswith("curves:row 2: avg@4 is True, not a number in [0, 1].")


def test_a_column_of_several_types_is_read_cell_by_cell():
    found, warnings = read(COLUMNS | {"avg@4": np.array([0.1, "0.2", "broken", np.float64(0.15), None], object)})
    assert [curve.columns["avg@4"].tolist() for curve in found] == [[0.1, 0.2], [0.15]]
    assert any("curves:row 3: avg@4 is 'broken'" in text for text in warnings)


def test_the_hash_follows_the_content():
    one, other = (read(COLUMNS | {"step": steps})[0][0].sha256 for steps in ([1, 2, 3, 1, 2], [1, 2, 4, 1, 2]))
    assert one == read(pa.table(COLUMNS).select(list(COLUMNS)))[0][0].sha256 != other


@pytest.mark.parametrize(
    ("curves", "message"),
    [
        (3, "curves is of type int"), ([1, 2], "curves is of type list"),
        (COLUMNS | {"step": [1, 2]}, "differ in length"), (COLUMNS | {"step": 5}, "column step is 5"),
        (COLUMNS | {"run": "a"}, "column run is 'a'"),
        (COLUMNS | {"step": np.ones((5, 2))}, r"column step has the shape \(5, 2\)"),
        ({"reward": [0.1]}, "no column compute nor step"), ({"x": [0.1]}, "no column avg@4"), ({}, "no usable run"),
    ],
)  # fmt: skip
def test_what_is_no_table_of_curves_is_refused(curves, message):
    with pytest.raises(InputError, match=message):
        read(curves)


def test_a_data_frame_of_pandas():
    """Of real pandas, with a named index, an unnamed one, and its own kinds of missing values."""
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(COLUMNS)
    expected, _ = read(COLUMNS)
    for given in (
        frame,
        frame.set_index("step"),
        frame.sort_index(ascending=False).sort_index(),
        frame.convert_dtypes(),
    ):
        assert_same(read(given)[0], expected)
    shuffled = frame.loc[[0, 1, 2, 4, 3]]  # an index that Arrow keeps as a column without a name
    assert_same(read(shuffled)[0], expected)
    assert not any(name.startswith("__") for curve in read(shuffled)[0] for name in curve.columns)
    frame["avg@4"] = frame["avg@4"].astype(object)
    frame.loc[1, "avg@4"] = "broken"
    assert [dataclasses.astuple(c.facts) for c in read(frame)[0]] == [dataclasses.astuple(c.facts) for c in expected]
