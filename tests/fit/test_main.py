"""The command on an export of verl (others: test_exports.py), on laws, and on input that is no good."""

from __future__ import annotations

import csv
import json
import pathlib

import numpy as np
import pytest

from isocompute_jax.fit.curves.forms import hill
from tests.fit import frameworks
from tests.fit.commands import fit, undrawn

PATTERN = r"--run_pattern=n(?P<group_size>\d+)-b(?P<problems_per_batch>\d+)-s(?P<seed>\d+)"


@pytest.fixture
def run(capsys):
    """Runs the main with these flags in this process: (exit code, stdout, stderr)."""

    def call(*arguments: str) -> tuple[int, str, str]:
        with undrawn():
            code = fit(*arguments)
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return call


def summary_of(out: pathlib.Path) -> dict:
    return json.loads((out / "summary.json").read_text())


def test_a_verl_history(run, tmp_path):
    frameworks.write_verl(tmp_path / "history.csv")
    columns = (
        "run_name:run,val-core/math_dapo/acc/mean@4:avg@4,val-core/math_dapo/acc/best@4/mean:best@4,"
        "val-aux/math_dapo/acc/worst@4/mean:worst@4"
    )
    code, text, _ = run(
        f"--runs={tmp_path / 'history.csv'}", f"--out={tmp_path / 'out'}", f"--columns={columns}", PATTERN,
        "--budget=2e4,1e6", "--title=Two sizes", "--replicates=20",
    )  # fmt: skip
    assert code == 0 and "report.html" in text and "n = 16" in text
    assert "<h1>Two sizes</h1>" in (tmp_path / "out" / "report.html").read_text()
    summary = summary_of(tmp_path / "out")
    assert set(summary["targets"]) == {"avg@4", "best@4", "worst@4"}
    assert [(c["group_size"], c["problems_per_batch"], c["seeds"]) for c in summary["curves"]] == [
        (n, frameworks.PROBLEMS_PER_BATCH, [0, 1]) for n in frameworks.GROUP_SIZES
    ]
    for curve in summary["curves"]:
        n = curve["group_size"]
        assert curve["points"]["compute"] == pytest.approx([step * 32 * n for step in frameworks.STEPS])
        reward = [np.mean([frameworks.reward(n, s, step) for s in frameworks.SEEDS]) for step in frameworks.STEPS]
        assert curve["points"]["reward"] == pytest.approx(reward)
    advice = summary["allocation"]["recommendations"]
    assert [a["budget"] for a in advice] == [2e4, 1e6]
    for row in advice:
        assert row["num_steps"] == row["budget"] // (32 * row["group_size"]) and row["reasons"]
    with open(tmp_path / "out" / "allocation.csv", newline="") as file:
        assert [float(row["num_steps"]) for row in csv.DictReader(file)] == [a["num_steps"] for a in advice]


def table(path: pathlib.Path, *, bad: str = "") -> pathlib.Path:
    compute = np.geomspace(1e3, 1e6, 10)
    lines = ["run,group_size,problems_per_batch,compute,avg@4"]
    for n, midpoint in ((4, 2e4), (16, 8e4)):
        lines += [f"n{n},{n},8,{c},{r}" for c, r in zip(compute, hill(compute, 0.1, 0.7, midpoint, 1.0), strict=True)]
    path.write_text("\n".join([*lines, *filter(None, [bad])]) + "\n")
    return path


def test_the_answer_comes_last_in_ten_lines_and_the_tables_where_they_are_asked_for(run, tmp_path):
    path = table(tmp_path / "curves.csv", bad="n4,4,8,2e6,1.7")
    path.write_text(path.read_text() + "n16,16,8,2e6,oops\n")
    shared = f"--runs={path}", f"--out={tmp_path / 'out'}", "--replicates=20", "--forecast=form"
    code, text, errors = run(*shared, "--budget=5e5")
    lines = text.splitlines()
    assert code == 0 and 4 <= len(lines) <= 10 and max(map(len, lines[:-1])) <= 100
    assert lines[0].startswith("With up to 500,000 rollouts: n = ")
    assert lines[-1] == f"Report: {tmp_path / 'out' / 'report.html'}" and "AICc" not in text
    assert errors.count("warning: ") == 1 and "summary.json" in errors
    warnings = summary_of(tmp_path / "out")["warnings"]
    assert len(warnings) > 1 and f"{len(warnings)} remarks on the data" in errors
    assert (tmp_path / "out" / "headline.txt").read_text().splitlines() == lines[:-1]
    code, longer, errors = run(*shared, "--budget=5e5", "--tables")
    above = (tmp_path / "out" / "tables.txt").read_text()
    assert code == 0 and longer == f"{above}\n{text}" and "AICc" in above
    assert errors.splitlines() == [f"warning: {warning}" for warning in warnings]


@pytest.mark.slow
def test_strict_makes_a_finding_fatal_and_writes_nothing(run, tmp_path):
    path = table(tmp_path / "curves.csv", bad="n4,4,8,2e6,1.7")
    where = f"{path}:22: "
    code, _, errors = run(f"--runs={path}", f"--out={tmp_path / 'strict'}", "--strict")
    assert code == 2 and where in errors and not (tmp_path / "strict").exists()
    code, _, errors = run(f"--runs={path}", f"--out={tmp_path / 'out'}", "--nostrict", "--tables")
    assert code == 0 and where in errors
    assert any(where in warning for warning in summary_of(tmp_path / "out")["warnings"])


def test_a_missing_flag_is_named(run):
    code, _, errors = run("--out=out")
    assert code == 2 and "--runs is missing" in errors


def test_nothing_usable_exits_with_2(run, tmp_path):
    path = tmp_path / "curves.csv"
    path.write_text("run,group_size,problems_per_batch,compute,avg@4\na,4,8,1000,much\na,4,8,oops,0.2\n")
    code, _, errors = run(f"--runs={path}", f"--out={tmp_path / 'out'}")
    assert code == 2 and "no usable run" in errors and not (tmp_path / "out").exists()


@pytest.mark.slow
def test_scalerls_way(run, tmp_path):
    path = table(tmp_path / "curves.csv")
    code, text, errors = run(
        f"--runs={path}", f"--out={tmp_path / 'out'}", "--records=off", "--window=1500,5e5", "--fix=A=0.7",
        "--grid=0.6:0.8:0.05", "--bootstrap=none", "--tables",
    )  # fmt: skip
    assert code == 0, errors
    summary = summary_of(tmp_path / "out")
    for curve in summary["curves"]:
        assert curve["params"]["asymptote"] == curve["grid"]["asymptote"] == 0.7 and curve["identified"]["asymptote"]
        assert 1500 <= curve["window"][0] <= curve["window"][1] <= 5e5
        assert curve["held"] == ["asymptote"]
    assert summary["comparison"] is None and summary["bootstrap"] is None
    assert summary["frontier"]["switches"] == []  # equal up to the midpoint: the curves meet nowhere
    assert "0.7" in text


def law_table(path: pathlib.Path, columns: str, rows: list[str]) -> pathlib.Path:
    path.write_text("\n".join([columns, *rows]) + "\n")
    return path


def test_the_model_size_law(run, tmp_path):
    rows = []
    for size in (0.5e9, 1.5e9, 7e9, 14e9):
        slope = 0.2 / (1 + 3e9 / size)
        for tokens in np.geomspace(1e8, 1e10, 8):
            rows.append(f"m{size},{size:.0f},{tokens},{1 - np.exp(-slope * np.log(6 * size * tokens) + 6 * slope)}")
    path = law_table(tmp_path / "sizes.csv", "run,model_params,tokens,avg@4", rows)
    code, text, errors = run("--analysis=model_size", f"--runs={path}", f"--out={tmp_path / 'out'}", "--compute=tokens")
    assert code == 0, errors
    law = summary_of(tmp_path / "out")["law"]
    assert law["k_max"]["value"] == pytest.approx(0.2, rel=1e-5) and law["n0"]["value"] == pytest.approx(3e9, rel=1e-4)
    assert "k_max" in text and (tmp_path / "out" / "report.html").exists()


def test_the_pre_training_law(run, tmp_path):
    rows = []
    for size in (1e8, 4e8, 1e9, 4e9):
        for tokens in np.geomspace(2e9, 1e11, 5):
            rows.append(f"m{size}-{tokens:.3g},{size:.0f},{tokens},{1.7 + 400 / size**0.34 + 410 / tokens**0.28}")
    path = law_table(tmp_path / "losses.csv", "run,model_params,tokens,loss", rows)
    code, text, errors = run(
        "--analysis=chinchilla", "--metric=loss", f"--runs={path}", f"--out={tmp_path / 'out'}", "--replicates=2"
    )
    assert code == 0, errors
    assert summary_of(tmp_path / "out")["analysis"] == "chinchilla" and "alpha" in text
