"""Semicolons and commas of spreadsheets: what is read, what is refused with its line and a remedy."""

from __future__ import annotations

import gzip

import pytest

from isocompute_jax.fit.read import tables
from isocompute_jax.records.errors import InputError
from tests.fit.read.tables import HEADER, read, write


def semicolons(*lines):
    return ["run;group_size;problems_per_batch;compute;avg@4;note", *lines]


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz", ".tsv"])
def test_decimal_commas_are_read_where_they_cannot_mark_thousands(tmp_path, suffix, monkeypatch):
    monkeypatch.setattr(tables, "CHUNK", 3)
    lines = semicolons(*(f"a;8;4;{i},5;{0.125 * i:.3f};x".replace(".", ",") for i in range(8)))
    text = "\n".join(lines).replace(";", "\t" if suffix == ".tsv" else ";").encode()
    path = tmp_path / f"t{suffix}"
    path.write_bytes(gzip.compress(text) if suffix == ".csv.gz" else text)
    (run,), warnings = read(path)
    assert run.compute.tolist() == [i + 0.5 for i in range(8)]
    assert run.columns["avg@4"].tolist() == [0.125 * i for i in range(8)]
    assert warnings == [f"2 columns were read with decimal commas (compute, avg@4): {path}:2: compute is '0,5'."]


def test_quoted_decimal_commas_between_commas(tmp_path):
    path = write(tmp_path / "t.csv", HEADER, 'a,8,4,0,10,"0,25"', 'a,8,4,0,20,"1,"', 'a,8,4,0,30,"0,5"')
    (run,), warnings = read(path)
    assert (run.compute.tolist(), run.columns["avg@4"].tolist()) == ([10, 30], [0.25, 0.5])
    assert len(warnings) == 2 and f"{path}:3: avg@4 is '1,'" in warnings[0]


def test_commas_that_may_mark_thousands_are_not_guessed(tmp_path):
    path = write(tmp_path / "t.csv", *semicolons("a;8;4;1,024;0.25;", "a;8;4;2,048;0.5;", "a;8;4;30;0.5;"))
    (run,), warnings = read(path)
    assert run.compute.tolist() == [30]
    assert warnings[0].startswith(
        f"2 of 3 rows were left out because of compute: {path}:2: compute is '1,024', not a number of at least 0; "
        "write it with a decimal point and without marks of thousands"
    )


def test_points_that_may_mark_thousands_beside_decimal_commas_are_refused(tmp_path):
    path = write(tmp_path / "t.csv", *semicolons("a;8;4;1.024;0,25;", "a;8;4;2.048;0,5;"))
    with pytest.raises(InputError, match=r"t.csv: line 2: avg@4 is '0,25'.* line 2: compute is '1.024'"):
        read(path)
    write(path, *semicolons("a;8;4;1.5;0,25;", "a;8;4;2.048;0,5;"))
    assert read(path)[0][0].compute.tolist() == [1.5, 2.048]


def test_decimal_commas_that_split_cells_get_their_hint(tmp_path):
    path = write(tmp_path / "t.csv", HEADER, "a,8,4,0,10,0,25", "a,8,4,0,20,0,5")
    with pytest.raises(InputError, match=r":2: it has 7 cells, and the header 6; a decimal comma .*by ;"):
        read(path)


def test_a_separator_is_what_the_header_has_most_of(tmp_path):
    path = write(tmp_path / "t.csv", "run;loss, mean;compute;avg@4", "a;1;10;0.25", "a;1;20;0.5")
    assert read(path)[0][0].columns["avg@4"].tolist() == [0.25, 0.5]
