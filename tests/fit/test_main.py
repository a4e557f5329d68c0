"""The command on an export of verl (others: test_exports.py), on laws, and on input that is no good."""

from __future__ import annotations

import csv
import json
import pathlib

import numpy as np
import pytest

from isocompute_jax.fit.curves.forms import hill
from isocompute_jax.fit.outputs import SCHEMA
from tests.fit import frameworks
from tests.fit.commands import fit, undrawn

PATTERN = r"--run_pattern=n(?P<group_size>\d+)-b(?P<problems_per_batch>\d+)-s(?P<seed>\d+)"
TOP = (
    "schema", "metric", "compute_unit", "options", "inputs", "versions", "warnings", "data", "asked", "grid", "ranges",
    "curves", "optimal", "switches", "next_runs", "targets", "paper", "questions", "scheduled",
)  # fmt: skip
CHOICE = (
    "name", "group_size", "problems_per_batch", "problem_set_size", "learning_rate", "settings", "stop", "num_steps",
    "reward", "interval95", "run95", "cost", "cost95", "best_share", "near_share", "data_end",
)  # fmt: skip
VERDICTS = ("clear", "no matter", "open")


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


def rows_of(path: pathlib.Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_verl_history(run, tmp_path):
    frameworks.write_verl(tmp_path / "history.csv")
    columns = (
        "run_name:run,val-core/math_dapo/acc/mean@4:avg@4,val-core/math_dapo/acc/best@4/mean:best@4,"
        "val-aux/math_dapo/acc/worst@4/mean:worst@4"
    )
    out = tmp_path / "out"
    code, text, _ = run(
        f"--runs={tmp_path / 'history.csv'}", f"--out={out}", f"--columns={columns}", PATTERN, "--budget=2e4,1e6",
        "--title=Two sizes",
    )  # fmt: skip
    assert code == 0 and text.splitlines()[-1] == f"Report: {out / 'report.html'}" and "n = 4" in text
    assert "<h1>Two sizes</h1>" in (out / "report.html").read_text()
    summary = summary_of(out)
    assert set(summary["targets"]) == {f"{kind}@4 (with replacement, verl)" for kind in ("best", "worst")}
    assert [(c["group_size"], c["problems_per_batch"], c["seeds"]) for c in summary["curves"]] == [
        (n, frameworks.PROBLEMS_PER_BATCH, [0, 1]) for n in frameworks.GROUP_SIZES
    ]
    for curve in summary["curves"]:
        n = curve["group_size"]
        for seed, (compute, reward) in zip(curve["seeds"], curve["points"], strict=True):
            assert compute == [step * 32 * n for step in frameworks.STEPS]
            assert reward == pytest.approx([frameworks.reward(n, seed, step) for step in frameworks.STEPS])
    assert [answer["budget"] for answer in summary["asked"]] == [2e4, 1e6]
    for answer in summary["asked"]:
        advised = answer["choices"][0]
        assert advised["num_steps"] == pytest.approx(advised["stop"] // (32 * advised["group_size"]), abs=1)
    steps = [answer["choices"][0]["num_steps"] for answer in summary["asked"]]
    asked = [row for row in rows_of(out / "answers.csv") if row["asked"] == "True"]
    assert [float(row["num_steps"]) for row in asked] == steps


def table(path: pathlib.Path, *, bad: str = "") -> pathlib.Path:
    compute = np.geomspace(1e3, 1e6, 10)
    lines = ["run,group_size,problems_per_batch,compute,avg@4"]
    for n, midpoint in ((4, 2e4), (16, 8e4)):
        lines += [f"n{n},{n},8,{c},{r}" for c, r in zip(compute, hill(compute, 0.1, 0.7, midpoint, 1.0), strict=True)]
    path.write_text("\n".join([*lines, *filter(None, [bad])]) + "\n")
    return path


def test_the_summary_is_of_schema_3(run, tmp_path):
    """The names that others read; docs/summary.md has a row for each."""
    out = tmp_path / "out"
    code, *_ = run(f"--runs={table(tmp_path / 'curves.csv')}", f"--out={out}", "--budget=5e4,5e5,4e6", "--next=1")
    summary = summary_of(out)
    assert code == 0 and summary["schema"] == SCHEMA == 3 and tuple(summary) == TOP
    for answer in [*summary["asked"], *summary["grid"]]:
        assert answer["verdict"] in VERDICTS and (answer["verdict"] == "open") == bool(answer["reason"])
        assert (answer["cheapest"] is not None) == (answer["verdict"] == "no matter")
        assert answer["choices"][0]["name"] in [each["name"] for each in answer["named"]]
        costs = [choice["cost"] for choice in answer["choices"]]
        assert costs[0] == 0 and costs == sorted(costs) and answer["expected_regret"] >= 0
        for choice in answer["choices"]:
            assert tuple(choice) == CHOICE and choice["stop"] <= answer["budget"] * 1.001
            assert choice["run95"][0] <= choice["interval95"][0] <= choice["reward"] <= choice["interval95"][1]
            assert choice["cost"] == pytest.approx(answer["choices"][0]["reward"] - choice["reward"], abs=1e-9)
    for kept in summary["inputs"]:
        assert len(kept["sha256"]) == 64 and kept["evaluations"] == 10
    (proposed,) = summary["next_runs"]
    assert proposed["regret_after"] <= proposed["regret_before"] and proposed["cost"] > 0
    assert {path.name for path in out.iterdir() if path.is_file()} == {
        "answers.csv", "choices.csv", "curves.csv", "headline.txt", "next.csv", "optimal_n.csv", "paper_fits.csv",
        "report.html", "summary.json", "switches.csv", "tables.txt",
    }  # fmt: skip


def test_the_answer_comes_in_twelve_lines_and_the_tables_where_they_are_asked_for(run, tmp_path):
    path = table(tmp_path / "curves.csv", bad="n4,4,8,2e6,1.7")
    path.write_text(path.read_text() + "n16,16,8,2e6,oops\n")
    shared = f"--runs={path}", f"--out={tmp_path / 'out'}"
    code, text, errors = run(*shared, "--budget=5e5")
    lines = text.splitlines()
    assert code == 0 and errors == "" and 4 <= len(lines) <= 13
    assert any(line.startswith("With up to 500,000 rollouts: n = ") for line in lines)
    assert lines[-1] == f"Report: {tmp_path / 'out' / 'report.html'}" and "steepness" not in text
    (note,) = notes = summary_of(tmp_path / "out")["warnings"]
    assert notes == summary_of(tmp_path / "out")["data"]["notes"]
    assert f"{path}:22: " in note and f"{path}:23: " in note
    assert summary_of(tmp_path / "out")["data"]["left_out_rows"] == 2
    assert "2 of 22 rows were left out because of avg@4" in text  # the count and the cause, on the screen
    assert (tmp_path / "out" / "headline.txt").read_text().splitlines() == lines[:-1]
    code, longer, errors = run(*shared, "--budget=5e5", "--tables")
    above = (tmp_path / "out" / "tables.txt").read_text()
    assert code == 0 and longer == f"{above}\n{text}" and errors == ""
    assert "".join(note.split()) in "".join(above.split())


def test_clean_tables_leave_nothing_to_remark(run, tmp_path):
    """Nobody asked for best@4."""
    code, _, errors = run(f"--runs={table(tmp_path / 'curves.csv')}", f"--out={tmp_path / 'out'}")
    assert (code, errors, summary_of(tmp_path / "out")["warnings"]) == (0, "", [])


@pytest.mark.slow
def test_strict_makes_a_finding_fatal_and_writes_nothing(run, tmp_path):
    path = table(tmp_path / "curves.csv", bad="n4,4,8,2e6,1.7")
    where = f"{path}:22"
    code, _, errors = run(f"--runs={path}", f"--out={tmp_path / 'strict'}", "--strict")
    assert code == 2 and where in errors and not (tmp_path / "strict").exists()
    code, text, errors = run(f"--runs={path}", f"--out={tmp_path / 'out'}", "--nostrict", "--tables")
    assert code == 0 and errors == "" and "curves.csv:22" in "".join(text.split())
    assert any(where in note for note in summary_of(tmp_path / "out")["warnings"])


def test_a_missing_flag_is_named(run):
    code, _, errors = run("--out=out")
    assert code == 2 and "--runs is missing" in errors


def test_nothing_usable_exits_with_2(run, tmp_path):
    path = tmp_path / "curves.csv"
    path.write_text("run,group_size,problems_per_batch,compute,avg@4\na,4,8,1000,much\na,4,8,oops,0.2\n")
    code, _, errors = run(f"--runs={path}", f"--out={tmp_path / 'out'}")
    assert code == 2 and "no usable run" in errors and not (tmp_path / "out").exists()


def test_scalerls_way_in_the_section_as_in_the_paper(run, tmp_path):
    path, out = table(tmp_path / "curves.csv"), tmp_path / "out"
    given = "--window=1500,5e5", "--fix=A=0.7", "--grid=0.6:0.8:0.05"
    code, text, errors = run(f"--runs={path}", f"--out={out}", *given, "--tables")
    assert code == 0, errors
    summary = summary_of(out)
    for curve, by_grid in zip(summary["paper"]["fits"], summary["paper"]["grid"], strict=True):
        assert curve["params"]["asymptote"] == 0.7 and curve["identified"]["asymptote"]
        assert curve["stderr"].get("asymptote") in (None, 0.0)
        assert 1500 <= curve["window"][0] <= curve["window"][1] <= 5e5
        assert by_grid["params"]["asymptote"] == 0.7 and by_grid["at_bound"] == []
    assert "asymptote (grid)" in text
    by_grid = [row for row in rows_of(out / "paper_fits.csv") if row["parameter"] == "asymptote (grid)"]
    assert [float(row["value"]) for row in by_grid] == [0.7, 0.7]
    assert run(f"--runs={path}", f"--out={tmp_path / 'plain'}")[0] == 0
    assert summary_of(tmp_path / "plain")["asked"] == summary["asked"]  # never the source of advice


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
    out = tmp_path / "out"
    code, text, errors = run("--analysis=model_size", f"--runs={path}", f"--out={out}", "--compute=tokens")
    assert code == 0, errors
    summary = summary_of(out)
    assert (summary["schema"], summary["analysis"]) == (SCHEMA, "model_size")
    law = summary["parameters"]
    assert law["k_max"]["value"] == pytest.approx(0.2, rel=1e-5) and law["N0"]["value"] == pytest.approx(3e9, rel=1e-4)
    assert "k_max" in text and (out / "report.html").exists()
    assert {row["parameter"] for row in rows_of(out / "parameters.csv")} == {"k_max", "N0"}


def test_the_pre_training_law(run, tmp_path):
    rows = []
    for size in (1e8, 4e8, 1e9, 4e9):
        for tokens in np.geomspace(2e9, 1e11, 5):
            rows.append(f"m{size}-{tokens:.3g},{size:.0f},{tokens},{1.7 + 400 / size**0.34 + 410 / tokens**0.28}")
    path = law_table(tmp_path / "losses.csv", "run,model_params,tokens,loss", rows)
    out = tmp_path / "out"
    code, text, errors = run("--analysis=chinchilla", f"--runs={path}", f"--out={out}", "--budget=1e21")
    assert code == 0, errors
    summary = summary_of(out)
    assert summary["analysis"] == "chinchilla" and "alpha" in text
    assert summary["parameters"]["alpha"]["value"] == pytest.approx(0.34, abs=0.01)
    assert [row["flops"] for row in summary["tables"]["budgets"]] == [1e21]
