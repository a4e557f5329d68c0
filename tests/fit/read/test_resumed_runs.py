"""Runs that were resumed: the later branch of a file counts, and rows that are merely out of order are all kept."""

from __future__ import annotations

import json

import numpy as np
import pytest

from isocompute_jax.fit.read.run_curve import MAX_BRANCHES, abandoned
from isocompute_jax.records.errors import InputError
from isocompute_jax.records.run_files import CONFIG, EVAL
from tests.fit.read import tables
from tests.fit.read.tables import write_rows as write

FACTS = {"group_size": 8, "problems_per_batch": 4, "num_steps": 100, "problem_set_size": 50, "model_params": 10}
FIRST = [(10, 0.1), (20, 0.2), (30, 0.9), (40, 0.9)]
SECOND = [(30, 0.3), (40, 0.4), (50, 0.5)]


def rows(evaluations, run="a"):
    return [FACTS | {"run": run, "seed": 0, "compute": float(c), "avg@4": r} for c, r in evaluations]


def read(path, **options):
    runs, warnings = tables.read(path, **options)
    return {run.run: (run.compute.tolist(), run.columns["avg@4"].tolist()) for run in runs}, warnings


@pytest.mark.parametrize(("suffix", "place"), [(".csv", "{}"), (".jsonl", "{}"), (".parquet", "row {}")])
def test_the_later_branch_of_a_table_counts(tmp_path, suffix, place):
    path = write(tmp_path / f"t{suffix}", rows(FIRST + SECOND))
    found, warnings = read(path)
    assert found == {"a": ([10, 20, 30, 40, 50], [0.1, 0.2, 0.3, 0.4, 0.5])}
    first = 2 if suffix == ".csv" else 1
    here, since, until = (f"{path}:{place.format(first + i)}" for i in (4, 2, 3))
    (told,) = warnings
    assert told.startswith("2 of 7 rows were left out as replaced by a resumed run: ")
    assert f"{since} to {until} of run a, whose compute falls from 40 to 30 at {here}" in told
    with pytest.raises(InputError, match="--strict: 2 findings"):
        read(path, strict=True)


def test_the_later_branch_of_a_run_directory_counts(tmp_path):
    run = tmp_path / "a"
    run.mkdir()
    (run / CONFIG).write_text(json.dumps(FACTS | {"seed": 0, "config": {}}))
    write(run / EVAL, rows(FIRST + SECOND))
    found, warnings = read(tmp_path / "a")
    assert found["a"][1] == [0.1, 0.2, 0.3, 0.4, 0.5]
    assert any(f"falls from 40 to 30 at {run / EVAL}:5, where it was resumed" in told for told in warnings)


def test_what_the_later_branch_does_not_reach_is_abandoned_too(tmp_path):
    long = [*FIRST, (50, 0.9), (60, 0.9)]
    found, warnings = read(write(tmp_path / "t.csv", rows([*long, (20, 0.2), (30, 0.3)])))
    assert found == {"a": ([10, 20, 30], [0.1, 0.2, 0.3])} and warnings[0].startswith("5 of 8 rows")


def test_a_run_resumed_twice_and_one_begun_again(tmp_path):
    path = write(tmp_path / "t.csv", rows([*FIRST, *SECOND, (20, 0.25), (30, 0.35), (40, 0.45)]))
    found, warnings = read(path)
    assert found == {"a": ([10, 20, 30, 40], [0.1, 0.25, 0.35, 0.45])}
    assert f"at {path}:6" in warnings[0] and f"at {path}:9" in warnings[0] and len(warnings) == 1
    again, warnings = read(write(path, rows([*FIRST, (10, 0.5), (20, 0.6), (30, 0.7)])))
    assert again == {"a": ([10, 20, 30], [0.5, 0.6, 0.7])} and len(warnings) == 1


def test_each_of_several_interleaved_runs_is_judged_alone(tmp_path):
    a, b = rows(FIRST + SECOND), rows([(c, c / 100) for c in range(10, 80, 10)], "b")
    mixed = [row for pair in zip(a, b, strict=True) for row in pair]
    found, warnings = read(write(tmp_path / "t.csv", mixed))
    assert found["a"] == ([10, 20, 30, 40, 50], [0.1, 0.2, 0.3, 0.4, 0.5])
    assert found["b"][0] == [10, 20, 30, 40, 50, 60, 70]
    assert len([told for told in warnings if "resumed" in told]) == 1


@pytest.mark.parametrize(
    "order",
    [
        [50, 40, 30, 20, 10], [40, 50, 60, 10, 20, 30], [10, 30, 50, 20, 40, 60], [30, 10, 20, 40],
        np.random.default_rng(0).permutation(300).tolist(), np.random.default_rng(1).permutation(12).tolist(),
    ],
)  # fmt: skip
def test_rows_out_of_order_are_all_kept(tmp_path, order):
    found, warnings = read(write(tmp_path / "t.csv", rows([(c, c / 1000) for c in order])))
    assert found == {"a": (sorted(order), [c / 1000 for c in sorted(order)])}
    assert len(warnings) == 1 and "put in order of compute" in warnings[0]


def test_one_row_given_again_replaces_itself_alone(tmp_path):
    path = write(tmp_path / "t.csv", rows([*FIRST, (20, 0.25)]))
    found, warnings = read(path)
    assert found == {"a": ([10, 20, 30, 40], [0.1, 0.25, 0.9, 0.9])}
    assert any(f"{path}:3: compute 20 of run a is given again at {path}:6 with another" in told for told in warnings)


def test_a_repeated_row_in_a_table_out_of_order_loses_nothing_else(tmp_path):
    order = [30, 10, 60, 20, 50, 40, 30, 80]
    found, _ = read(write(tmp_path / "t.csv", rows([(c, i / 10) for i, c in enumerate(order)])))
    assert found == {"a": ([10, 20, 30, 40, 50, 60, 80], [0.1, 0.3, 0.6, 0.5, 0.4, 0.2, 0.7])}


def test_steps_tell_branches_whose_compute_differs(tmp_path):
    """Dynamic sampling: the second branch spent other rollouts on the same steps, so no compute comes twice."""
    computes, steps = (11, 22, 33, 44, 32, 45), (1, 2, 3, 4, 3, 4)
    evaluations = zip(computes, (0.1, 0.2, 0.9, 0.9, 0.3, 0.4), strict=True)
    table = [row | {"step": step} for row, step in zip(rows(evaluations), steps, strict=True)]
    found, _ = read(write(tmp_path / "t.csv", table))
    assert found == {"a": ([11, 22, 32, 45], [0.1, 0.2, 0.3, 0.4])}


def test_a_long_table_out_of_order_takes_linear_time():
    """More falls than a run is ever resumed: every row stays for the sort, whatever it repeats."""
    axis = np.tile([3.0, 1.0, 2.0], 100_000)
    assert abandoned(axis, np.full(len(axis), np.nan)) == []
    few = np.tile(np.arange(10.0), MAX_BRANCHES)
    assert len(abandoned(few, few)) == MAX_BRANCHES - 1
