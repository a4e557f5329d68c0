"""Tables of every format and layout, sound and damaged, give the same curves or a finding that says where."""

from __future__ import annotations

import csv
import gzip
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from isocompute_jax.fit.read import notices, parse_columns, tables
from isocompute_jax.fit.read.cells import arrow_column, blank, column_of, distinct, numbers
from isocompute_jax.fit.read.reader import SUFFIXES
from isocompute_jax.records.errors import InputError
from tests.fit import frameworks
from tests.fit.read.tables import HEADER, read, write, write_rows


def rows_of(count=3):
    return [
        {
            "run": f"n{n}-{s}",
            "group_size": n,
            "problems_per_batch": 8,
            "seed": s,
            "compute": 1000 * 2**i,
            "avg@4": 0.1 + 2**i / 1e3,
            "entropy": 1.0 / (i + 1),
            "note": "text",
        }
        for n in (4, 8)
        for s in (0, 1)
        for i in range(count)
    ]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_every_format_in_long_form(tmp_path, suffix):
    path = tmp_path / f"curves{suffix}"
    write_rows(path, rows_of())
    runs, warnings = read(path)
    assert warnings == []
    found = [(run.run, run.facts.group_size, run.facts.problems_per_batch, run.facts.seed) for run in runs]
    assert found == [("n4-0", 4, 8, 0), ("n4-1", 4, 8, 1), ("n8-0", 8, 8, 0), ("n8-1", 8, 8, 1)]
    for run in runs:
        np.testing.assert_allclose(run.columns["avg@4"], [0.101, 0.102, 0.104], rtol=1e-15)
        np.testing.assert_array_equal(run.compute, [1000, 2000, 4000])
        np.testing.assert_array_equal(run.columns["entropy"], [1, 1 / 2, 1 / 3])
        assert set(run.columns) == {"avg@4", "compute", "entropy"} and run.source == str(path)


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_findings_name_the_line_in_every_format(tmp_path, suffix, monkeypatch):
    """The bad rows stand at known places; small blocks, so that they stand in several of them."""
    monkeypatch.setattr(tables, "CHUNK", 16)
    rows = [rows_of(1)[0] | {"compute": float(i), "avg@4": 0.5} for i in range(100)]
    bad = {17: {"avg@4": 3.0}, 55: {"avg@4": -1.0}, 99: {"compute": -5.0}, 70: {"run": ""}}
    for i, change in bad.items():
        rows[i] |= change
    path = tmp_path / f"t{suffix}"
    write_rows(path, rows)
    (run,), warnings = read(path)
    assert len(run.compute) == 96
    first = {".csv": "2", ".jsonl": "1", ".parquet": "row 1"}[suffix]
    unit, first = ("row ", int(first[4:])) if " " in first else ("", int(first))
    assert all(f": {path}:{unit}{first + i}: " in "; ".join(warnings).replace("; ", ": ") for i in bad)
    assert sum(int(text.partition(" ")[0]) for text in warnings) == 4


def test_lines_are_right_around_ragged_and_blank_ones(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "CHUNK", 16)
    rng = np.random.default_rng(0)
    lines, expected = ["", HEADER], {}
    for i in range(300):
        kind = rng.integers(5)
        number = len(lines) + 1
        if kind == 0:
            lines.append("a,8,4,0,1")
            expected[number] = "it has 5 cells, and the header 6"
        elif kind == 1:
            lines.append("")
        elif kind == 2:
            lines.append(f"a,8,4,0,{i},x")
            expected[number] = "avg@4 is 'x'"
        else:
            lines.append(f"a,8,4,0,{i},0.5")
    path = write(tmp_path / "t.csv", *lines)
    monkeypatch.setattr(notices, "MAX_PLACES", 1000)
    _, warnings = read(path)
    assert "; ".join(warnings).count(f"{path}:") == len(expected)
    assert all(any(f"{path}:{number}: {reason}" in text for text in warnings) for number, reason in expected.items())


@pytest.mark.parametrize(
    "text",
    [
        b"\xef\xbb\xbfrun,compute,avg@4\nr\xc3\xa9,1,0.25\nr\xc3\xa9,2,0.5\n",
        b"run,compute,avg@4\r\nr\xc3\xa9,1,0.25\r\nr\xc3\xa9,2,0.5\r\n",
        b"run,compute,avg@4\rr\xc3\xa9,1,0.25\rr\xc3\xa9,2,0.5",
        b"run;compute;avg@4\nr\xc3\xa9;1;0.25\nr\xc3\xa9;2;0.5\n",
        b'"run","compute","avg@4"\n"r\xc3\xa9","1","0.25"\n"r\xc3\xa9"," 2 ","5e-1"\n',
        b'run,"a\nb",compute,avg@4\nr\xc3\xa9,"x\ny",1,.25\nr\xc3\xa9,"a ""quote""",2,+0.5\n',
        b"run,compute,avg@4,\nr\xc3\xa9,1,0.25,\nr\xc3\xa9,2,0.5,\xff\n",
    ],
)
def test_csv_as_programs_write_it(tmp_path, text):
    (tmp_path / "t.csv").write_bytes(text)
    (run,), warnings = read(tmp_path / "t.csv")
    assert run.run == "r\N{LATIN SMALL LETTER E WITH ACUTE}" and warnings == []
    np.testing.assert_array_equal(run.compute, [1, 2])
    np.testing.assert_array_equal(run.columns["avg@4"], [0.25, 0.5])


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("t.csv", b"", "the file is empty"), ("t.csv", b"\n\n", "the file is empty"),
        ("t.csv", "run,compute".encode("utf-16"), "UTF-16"), ("t.csv", b"PK\x03\x04rest", "zip archive"),
        ("t.csv", gzip.compress(b"x", mtime=0), "name it .gz"), ("t.csv", b"a\0b,c\n1,2\n", "NUL"),
        ("t.csv", b"x" * (1 << 20) + b"y", "longer than a megabyte"),
        ("t.csv", HEADER.encode() + b"\n", "no row has avg@4"), ("t.csv", HEADER.encode(), "no row has avg@4"),
        ("t.csv.gz", b"run,compute\n", "Not a gzipped file"),
        ("t.csv.gz", gzip.compress(HEADER.encode() + b"\na,8,4,0,1,0.1\n" * 50, mtime=0)[:-30], ""),
        ("t.jsonl", b"", "the file is empty"), ("t.jsonl", b"[" * 100_000, "not JSON"),
        ("t.jsonl", b'{"avg@4": 0.5, "compute": 1' + b"0" * 5000 + b"}", ":1: not JSON"),
        ("t.parquet", b"", "the file is empty"), ("t.parquet", b"PAR1 and nothing of it PAR1", "as unusable"),
    ],
)  # fmt: skip
def test_damaged_files_are_reported(tmp_path, name, content, reason):
    (tmp_path / name).write_bytes(content)
    write_rows(tmp_path / "good.csv", rows_of())
    runs, warnings = read(tmp_path / name, tmp_path / "good.csv")
    assert len(runs) == 4
    assert str(tmp_path / name) in warnings[0] and any(reason in text for text in warnings)
    with pytest.raises(InputError, match="--runs: no usable run"):
        read(tmp_path / name)


def test_what_comes_before_a_damaged_place_is_read(tmp_path):
    """Beyond the first megabyte, which is looked at before anything else."""
    notes = np.random.default_rng(0).bytes(1_500_000).hex()
    lines = [HEADER + ",note", *(f"a,8,4,0,{i},0.5,{notes[1000 * i : 1000 * i + 1000]}" for i in range(3000))]
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress("\n".join(lines).encode(), 1)[:-300_000])
    (run,), warnings = read(tmp_path / "t.csv.gz")
    assert 100 < len(run.compute) < 3000
    assert sum("read up to a place where it is damaged" in text for text in warnings) == 1


def test_bytes_that_are_no_text_and_numbers_out_of_range(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes(
        b"run,group_size,problems_per_batch,step,avg@4\n\xff,8,4,1,0.1\n\xc3\n\xff,8,4,2,0.2\n\xff,8,4,1e308,0.3\n"
    )
    (run,), warnings = read(path)
    assert run.run == "\N{REPLACEMENT CHARACTER}" and run.compute.tolist() == [32, 64]
    assert warnings == [
        f"1 of 4 rows was left out for the number of cells: {path}:3: it has 1 cells, and the header 5.",
        f"1 of 4 rows was left out without compute, given or derived: {path}:5.",
    ]


def test_parquet_with_text_that_is_none(tmp_path):
    rows = [{"run": "abc"[i % 3], "compute": i, "avg@4": i / 30} for i in range(30)]
    write_rows(tmp_path / "t.parquet", rows)
    content = bytearray((tmp_path / "t.parquet").read_bytes())
    content[content.index(b"\x01\x00\x00\x00a") + 4] ^= 0x80  # in the first row group's dictionary of names
    (tmp_path / "t.parquet").write_bytes(content)
    with pytest.raises(InputError, match="read up to a place where it is damaged"):
        read(tmp_path / "t.parquet")


def test_an_open_quotation_mark_is_reported(tmp_path):
    path = write(
        tmp_path / "t.csv", HEADER + ",note", *(f"a,8,4,0,{i},0.5," for i in range(5)), 'a,8,4,0,5,0.5,"x', "a,"
    )
    _, warnings = read(path)
    assert warnings == [f"A quotation mark in {path} is not closed, so that rows may be missing; fix the file."]


def test_cells_that_are_no_numbers():
    text = ["1", " 2 ", "+.5e1", "", None, "nan", "inf", "1e999", "1,234", "1_000", "0x10", "true", "1\0", "-0", "1."]
    expected = [1, 2, 5, *[np.nan] * 10, 0, 1]
    empty = [value in ("", None) for value in text]
    bytes_of = [t and t.encode() for t in text]
    for values in (text, column_of(text), arrow_column(chunked(text, pa.large_string())), column_of(bytes_of)):
        np.testing.assert_array_equal(numbers(values), expected)
        np.testing.assert_array_equal(blank(values), empty)
    np.testing.assert_array_equal(numbers([True, 10**400, [1], 2]), [np.nan, np.nan, np.nan, 2])
    np.testing.assert_array_equal(numbers(column_of([1, None, 3])), [1, np.nan, 3])
    np.testing.assert_array_equal(numbers(column_of([1.5, np.inf, None])), [1.5, np.nan, np.nan])
    np.testing.assert_array_equal(numbers(column_of([True, False])), [np.nan, np.nan])
    np.testing.assert_array_equal(numbers(arrow_column(chunked(["1", "x", "1"]).dictionary_encode())), [1, np.nan, 1])


def test_names_are_read_from_any_type():
    for values in (["b", "", None, "a", "b"], [b"b", b"", None, b"a", b"b"]):
        for column in (column_of(values), arrow_column(chunked(values).dictionary_encode()), ["b", "", None, "a", "b"]):
            codes, names = distinct(column)
            assert [names[c] if c >= 0 else None for c in codes] == ["b", None, None, "a", "b"]
    for column in ([3, 3.0, None], column_of([3, 3, None]), column_of([3.0, 3.0, None])):
        codes, names = distinct(column)
        assert names == ["3"] and codes.tolist() == [0, 0, -1]


def chunked(values, kind=None):
    """A column in two pieces."""
    return pa.chunked_array([pa.array(values[:2], kind), pa.array(values[2:], kind)])


def test_tables_without_a_run_column(tmp_path):
    path = write(
        tmp_path / "t.csv",
        "group_size,seed,step,avg@4",
        *(f"{n},{s},{t},0.5" for t in (1, 2) for n in (4, 8) for s in (0, 1)),
    )
    runs, warnings = read(path, constants={"problems_per_batch": 2})
    assert [(run.run, run.facts.group_size, run.facts.seed) for run in runs] == [
        (f"t, group_size={n}, seed={s}", n, s) for n in (4, 8) for s in (0, 1)
    ]
    assert [run.compute.tolist() for run in runs] == [[8, 16], [8, 16], [16, 32], [16, 32]] and warnings == []


def test_evaluation_sets(tmp_path):
    path = write(
        tmp_path / "t.csv",
        HEADER + ",eval_set",
        *(f"a,8,4,0,{i},0.{i},{s}" for i, s in enumerate(["train", "validation", "", "validation", "train"])),
    )
    (run,), warnings = read(path)
    np.testing.assert_array_equal(run.compute, [1, 2, 3])
    (other,), _ = read(path, eval_set="train")
    np.testing.assert_array_equal(other.compute, [0, 2, 4])
    assert warnings == []


def test_repeated_headers_and_too_many_runs(tmp_path, monkeypatch):
    path = write(tmp_path / "t.csv", "compute,avg@4,avg@4,x,x", "1,0.1,0.7,1,1", "2,0.2,0.7,1,1")
    (run,), warnings = read(path)
    np.testing.assert_array_equal(run.columns["avg@4"], [0.1, 0.2])
    assert warnings == [
        "2 columns were given twice, and read where it comes first: "
        f"{path}: its header has avg@4 2 times; {path}: its header has x 2 times."
    ]
    monkeypatch.setattr("isocompute_jax.fit.read.rows.MAX_RUNS", 3)
    write_rows(path, rows_of())
    with pytest.raises(InputError, match="it has more than 3 runs"):
        read(path)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_table_above_the_limit_is_refused_with_its_size_and_a_remedy(tmp_path, suffix, monkeypatch):
    write_rows(tmp_path / "good.csv", rows_of(1))
    write_rows(tmp_path / f"t{suffix}", rows_of(20))
    monkeypatch.setattr("isocompute_jax.fit.read.tables.MAX_BYTES", 1000)
    runs, warnings = read(tmp_path / f"t{suffix}", tmp_path / "good.csv")
    assert len(runs) == 4
    (told,) = [text for text in warnings if f"{tmp_path}/t{suffix}: " in text]
    assert "GB unpacked" in told and "split it into files of whole runs" in told


def test_a_plain_wide_table(tmp_path):
    path = write(tmp_path / "t.csv", "step,n4,n8,n16", "1,0.1,,x", "2,0.2,0.3,0.4", "3,,0.4,0.5")
    runs, warnings = read(
        path, columns={"*": "avg@4"}, run_pattern=r"n(?P<group_size>\d+)", constants={"problems_per_batch": 1}
    )
    assert {run.run: (run.compute.tolist(), run.columns["avg@4"].tolist()) for run in runs} == {
        "n4": ([4, 8], [0.1, 0.2]),
        "n8": ([16, 24], [0.3, 0.4]),
        "n16": ([32, 48], [0.4, 0.5]),
    }
    assert warnings == [f"1 of 7 rows was left out because of avg@4: {path}:2: avg@4 is 'x', not a number in [0, 1]."]


def test_a_wide_table_of_several_types(tmp_path):
    """Runs stand in the order of the table, whatever the types of their cells."""
    columns = {
        "step": [1, 2, 3],
        "a - avg@4": [0.1, 0.2, 0.3],
        "b - avg@4": [0, None, 1],
        "c - avg@4": ["0.5", "x", None],
    }
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    with open(tmp_path / "t.jsonl", "w") as file:
        for row in zip(*columns.values(), strict=True):
            file.write(json.dumps(dict(zip(columns, row, strict=True))) + "\n")
    constants = {"group_size": 2, "problems_per_batch": 1}
    for name, place in (("t.parquet", "row 2"), ("t.jsonl", "2")):
        runs, warnings = read(tmp_path / name, constants=constants)
        assert {run.run: (run.compute.tolist(), run.columns["avg@4"].tolist()) for run in runs} == {
            "a": ([2, 4, 6], [0.1, 0.2, 0.3]),
            "b": ([2, 6], [0, 1]),
            "c": ([2], [0.5]),
        }
        left_out, seeds = warnings
        assert f"{tmp_path / name}:{place}: avg@4 is 'x', not a number in [0, 1]." in left_out
        assert seeds.startswith("3 runs were numbered as seeds")


@pytest.mark.parametrize("end", ["\n", "\r\n", "\n\n"])
def test_json_lines_as_programs_write_them(tmp_path, monkeypatch, end):
    rows = [row | {"run": "2024-05-01", "note": {"a": [i, None]}, "h": [i]} for i, row in enumerate(rows_of(9))]
    path = write(tmp_path / "t.jsonl", *map(json.dumps, rows), end=end)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    monkeypatch.setattr(tables, "CHUNK", 5)
    (run,), _ = read(path)
    assert run.run == "2024-05-01" and run.columns["avg@4"][0] == rows[0]["avg@4"] and "h" not in run.columns


def test_lines_that_are_no_json_objects_are_reported_by_line(tmp_path):
    good = json.dumps({"compute": 1, "avg@4": 0.5})
    deep = '{"compute": 7, "avg@4": 0.5, "x": ' + "[" * 20_000 + "]" * 20_000 + "}"
    lines = [
        good,
        good + good,
        good.replace("1", "2"),
        deep,
        '{"compute": 3, "avg@4": 1e999}',
        "{",
        good[:-1] + ', "compute": 4}',
    ]
    path = write(tmp_path / "t.jsonl", *lines)
    (run,), warnings = read(path)
    assert run.compute.tolist() == [1, 2, 4]
    for line in (2, 4, 5, 6):
        assert any(f"{path}:{line}: " in text for text in warnings)
    assert warnings[0].startswith("3 of 7 rows were left out that cannot be read")


def check_framework(runs, warnings, *, extra=()):
    """The curves of `frameworks`: rollouts from step x problems x group size, nothing to report."""
    assert warnings == []
    found = {(run.facts.group_size, run.facts.seed): run for run in runs}
    assert len(runs) == 4 and set(found) == set(frameworks.NAMES)
    for (n, s), run in found.items():
        assert run.run == frameworks.NAMES[n, s] and run.facts.problems_per_batch == 32
        np.testing.assert_array_equal(run.compute, np.array(frameworks.STEPS) * 32 * n)
        reward = np.array([frameworks.reward(n, s, step) for step in frameworks.STEPS])
        np.testing.assert_array_equal(run.columns["avg@4"], reward)
        np.testing.assert_array_equal(run.columns["step"], frameworks.STEPS)
        for name, expected in extra:
            np.testing.assert_allclose(run.columns[name], expected(reward), atol=1e-6)


PATTERN = r"n(?P<group_size>\d+)-b(?P<problems_per_batch>\d+)-s(?P<seed>\d+)"


def test_a_history_of_verl(tmp_path):
    frameworks.write_verl(tmp_path / "history.csv")
    columns = parse_columns([
        "run_name:run",
        "val-core/math_dapo/acc/mean@4:avg@4",
        "val-core/math_dapo/acc/best@4/mean:best@4",
        "val-aux/math_dapo/acc/worst@4/mean:worst@4",
    ])  # fmt: skip
    runs, warnings = read(tmp_path / "history.csv", columns=columns, run_pattern=PATTERN, strict=True)
    extra = {"best@4": lambda r: 1 - (1 - r) ** 2, "worst@4": lambda r: r**2}  # never as our own best@4
    check_framework(runs, [], extra=[(f"{name} (with replacement, verl)", each) for name, each in extra.items()])
    assert "best@4" not in runs[0].columns and "2 columns were drawn with replacement by verl" in warnings[0]
    runs, notes = read(tmp_path / "history.csv", run_pattern=PATTERN)  # and without a flag
    assert len(runs) == 4 and notes[0].startswith("val-core/math_dapo/acc/mean@4 is taken, the one column")


def test_a_panel_of_trl(tmp_path):
    frameworks.write_trl(tmp_path / "panel.csv")
    columns = parse_columns(["eval/rewards/accuracy_reward/mean:avg@4"])
    pattern = r"n(?P<group_size>\d+)-.*s(?P<seed>\d+)"
    options = {"columns": columns, "run_pattern": pattern, "constants": {"problems_per_batch": 32}}
    check_framework(*read(tmp_path / "panel.csv", **options, strict=True))
    runs, notes = read(tmp_path / "panel.csv", run_pattern=pattern, constants={"problems_per_batch": 32})
    assert len(runs) == 4 and notes[0].startswith("eval/rewards/accuracy_reward/mean is taken, the one column")
    with pytest.raises(
        InputError, match=r"--run_pattern='.*n\(\?P<group_size>.*b\(\?P<problems_per_batch>.*s\(\?P<seed>"
    ):
        read(tmp_path / "panel.csv")


def test_logs_of_prime_rl(tmp_path):
    frameworks.write_prime_rl(tmp_path / "logs")
    columns = parse_columns(["eval/aime2024/avg@4:avg@4"])
    runs, warnings = read(tmp_path / "logs" / "*.jsonl", columns=columns, run_pattern=PATTERN, strict=True)
    check_framework(runs, warnings)


def test_files_of_verl_wrap_what_they_log(tmp_path):
    """Also where a field changes its type."""
    frameworks.write_verl_files(tmp_path / "logs")
    columns = parse_columns(["data.val-core/math_dapo/acc/mean@4:avg@4"])
    runs, warnings = read(tmp_path / "logs", columns=columns, run_pattern=PATTERN, strict=True)
    check_framework(runs, warnings)
    for path in (tmp_path / "logs").iterdir():
        path.write_text(path.read_text().replace('"first"', "1").replace("null", '{"at": [2]}'))
    again, warnings = read(tmp_path / "logs", columns=columns, run_pattern=PATTERN, strict=True)
    check_framework(again, warnings)


def test_files_of_one_name_are_called_by_their_folders(tmp_path):
    frameworks.write_prime_rl_folders(tmp_path / "outputs")
    columns = parse_columns(["eval/aime2024/avg@4:avg@4"])
    for source in ("outputs", "outputs/*/*/metrics.jsonl"):
        runs, warnings = read(tmp_path / source, columns=columns, run_pattern=PATTERN, strict=True)
        check_framework(runs, warnings)


def test_a_reading_equals_a_plain_loop(tmp_path):
    """Parity with the csv module and float() on a table with every order of rows."""
    rng = np.random.default_rng(1)
    names = [f"r{i}" for i in range(5)]
    seen: dict[str, dict[float, float]] = {name: {} for name in names}
    with open(tmp_path / "t.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["compute", "avg@4", "run"])
        for compute, reward, name in zip(rng.permutation(2000), rng.random(2000), rng.choice(names, 2000), strict=True):
            writer.writerow([compute, reward, name])
    with open(tmp_path / "t.csv", newline="") as file:
        for row in csv.DictReader(file):
            seen[row["run"]][float(row["compute"])] = float(row["avg@4"])
    runs, _ = read(tmp_path / "t.csv")
    assert len(runs) == 5
    for run in runs:
        expected = sorted(seen[run.run].items())
        np.testing.assert_array_equal(np.stack([run.compute, run.columns["avg@4"]], axis=1), expected)
