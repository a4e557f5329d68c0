"""From run directories to the report: every file, findings that are computed, and honesty in degenerate cases."""

from __future__ import annotations

import csv
import json
import re
import shutil

import numpy as np
import pytest

from isocompute_jax.fit.analysis import analyse_runs
from isocompute_jax.fit.analysis_options import AnalysisOptions
from isocompute_jax.fit.comparisons.comparison import Value
from isocompute_jax.fit.outputs import analyse
from isocompute_jax.fit.read import ReadOptions
from isocompute_jax.fit.report.figures import DRAWINGS, draw_figures
from isocompute_jax.fit.report.page import render_report
from isocompute_jax.fit.report.tables import summary_of
from isocompute_jax.fit.report.templating import Section, told
from isocompute_jax.fit.report.wording import amount
from isocompute_jax.fit.sweep_results import SweepResult
from isocompute_jax.records.errors import InputError
from tests import mains
from tests.fit.commands import undrawn
from tests.fit.runs import BUDGETS, CROSSING, PROBLEMS, write_run, write_sweep

COMPARISONS = ("comparison_held_out",)
FIGURES = (
    "learning_curves", "optimal_group_size", "targets", "epochs", "entropy", "solve_rates", "profiles", "residuals",
    "forms", "holdout", "comparison",
)  # fmt: skip


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A noise-free sweep, analysed and written, its runs gone: (output directory, summary, report's HTML, results)."""
    root = tmp_path_factory.mktemp("sweep")
    out, results = root / "out", []
    write_sweep(root / "runs", noise=0.0)
    extra = Section("How the runs were made", ("By hand & on purpose.",), columns=("a",), rows=((1.5,), (None,)))
    options = AnalysisOptions(replicates=20)
    found = analyse([root / "runs"], out, options, before=[extra], after=lambda result: results.append(result) or ())
    shutil.rmtree(root / "runs")
    summary = json.loads((out / "summary.json").read_text())
    assert summary == json.loads(json.dumps(found.summary))
    return out, summary, (out / "report.html").read_text().replace("\N{NO-BREAK SPACE}", " "), *results


def crossing(one: int, other: int) -> float:
    """Where two curves of `CROSSING` meet, by bisection on their definition."""

    def gap(compute: float) -> float:
        values = [f + (a - f) / (1 + (mid / compute) ** b) for f, a, mid, b in (CROSSING[one], CROSSING[other])]
        return values[0] - values[1]

    low, high = 2e3, 3e5
    assert gap(low) > 0 > gap(high)
    for _ in range(200):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if gap(middle) > 0 else (low, middle)
    return low


def test_every_file_exists(written):
    out, *_ = written
    names = ("ranges", "fits", "frontier", "switches", "allocation", "next", "ties", "comparisons")
    tables = {f"{name}.csv" for name in names}
    texts = {"headline.txt", "tables.txt", "summary.json", "report.html"}
    assert {path.name for path in out.iterdir()} == tables | texts | {"figures"}
    expected = {f"{name}.svg" for name in (*FIGURES, *COMPARISONS)}
    assert {path.name for path in (out / "figures").iterdir()} == expected


def test_summary_schema_and_numbers(written):
    _, summary, *_ = written
    assert list(summary) == [
        "schema_version", "analysis", "compute_unit", "inputs", "flags", "versions", "seed", "warnings", "base_model",
        "curves", "forms", "comparison", "frontier", "bootstrap", "allocation", "slices", "per_seed",
        "record_choices", "targets", "training", "answers", "next_runs", "ranges", "comparisons", "ties",
    ]  # fmt: skip
    assert [curve["run"] for curve in summary["curves"]] == ["n = 2", "n = 4", "n = 8", "n = 16"]
    for curve in summary["curves"]:
        assert curve["form"] == "hill" and curve["seeds"] == [0, 1, 2] and curve["window"] == [2048, 2**18]
        names = ("floor", "asymptote", "midpoint", "steepness")
        np.testing.assert_allclose([curve["params"][k] for k in names], CROSSING[curve["group_size"]], rtol=1e-5)
    switches = summary["frontier"]["switches"]
    assert [(s["from_group_size"], s["to_group_size"], s["cause"]) for s in switches] == [
        (2, 4, "crossing"),
        (4, 8, "crossing"),
    ]
    for switch in switches:
        n = switch["from_group_size"]
        assert switch["compute"] == pytest.approx(crossing(n, switch["to_group_size"]), rel=1e-5)
        assert switch["epochs"] == pytest.approx(switch["compute"] / (n * PROBLEMS))
        assert switch["from_problems_per_batch"] == 8
        assert [switch["by_seed"][s] for s in "012"] == pytest.approx([switch["compute"]] * 3, rel=1e-6)
    assert [row["group_size"] for row in summary["frontier"]["budgets"]] == [2, 2, 2, 2, 2, 4, 4, 8]
    assert set(summary["record_choices"]) == {"strict", "bucketed", "off"}
    assert set(summary["targets"]) == {"avg@4", "best@4", "worst@4"}
    assert summary["base_model"]["avg@4"] == pytest.approx(0.07)
    assert all(row["unanimous"] for row in summary["per_seed"]["budgets"])
    assert summary["allocation"]["status"] == "extrapolated"  # levels at 8 of 16: the data end during the rise


def test_tables_match_the_summary(written):
    out, summary, *_ = written
    for name, count in {"fits": 16, "frontier": 8, "switches": 2, "allocation": 0}.items():
        with open(out / f"{name}.csv", newline="") as file:
            assert len(list(csv.DictReader(file))) == count
    with open(out / "switches.csv", newline="") as file:
        computes = [float(row["compute"]) for row in csv.DictReader(file)]
    assert computes == [switch["compute"] for switch in summary["frontier"]["switches"]]


def test_the_report_is_one_file_with_computed_findings(written):
    _, summary, html, _ = written
    assert not re.search(r"(?:src|href)=\"(?!data:|#)", html)
    assert html.count("<svg role=") == len(FIGURES) + len(COMPARISONS)
    plain = html.replace("\N{NO-BREAK SPACE}", " ")
    for switch in summary["frontier"]["switches"]:
        assert f"at {amount(switch['compute'])} from {switch['from_run']} to {switch['to_run']}" in plain
        assert switch["beyond_noise"] and switch["established"]
    assert "3 of 3" in html and "beyond noise" in html
    assert "How the runs were made" in html and "By hand &amp; on purpose." in html
    for term in ("rollout", "B<sub>problem</sub>", "epoch", "not pinned down"):
        assert term in html


def test_comparisons_are_values_which_the_page_needs_no_file_for(written, tmp_path):
    """Questions are answered in the analysis: summary, tables and page are made when what was read is gone."""
    *_, found = written
    (held_out,) = found.comparisons
    assert (held_out.question, held_out.part) == ("held_out", "") and held_out.verdict in ("inside", "partly inside")
    (dumped,) = summary_of(found)["comparisons"]
    assert list(dumped) == ["question", "part", "verdict", "findings", "numbers", "columns", "rows", "series"]
    assert dumped["numbers"]["of"] == sum(len(line["x"]) for line in dumped["series"] if line["name"] == "predicted")
    assert all(set(row["predicted"]) == {"value", "low", "high"} for row in dumped["rows"])
    table = found.to_table("comparisons").to_pylist()
    (row,) = (row for row in table if (row["row"], row["column"]) == (1, "predicted"))
    first = held_out.rows[0]["predicted"]
    assert isinstance(first, Value) and row["text"] == str(first)
    assert (row["value"], row["interval95_low"], row["interval95_high"]) == (first.value, first.low, first.high)
    (tmp_path / "figures").mkdir()
    with undrawn():
        page = render_report(found, draw_figures(found, tmp_path / "figures", png=True))
    assert all(sentence in page.replace("\N{NO-BREAK SPACE}", " ") for sentence in held_out.findings)
    assert {"comparison_held_out.svg", "comparison_held_out.png"} <= {p.name for p in (tmp_path / "figures").iterdir()}


QUICK = {"replicates": 20, "holdout": 0.0, "form": "hill", "forecast": "form"}


def result_of(root, **options) -> SweepResult:
    return analyse_runs([str(root)], AnalysisOptions(**(QUICK | options)))


def text_of(result: SweepResult) -> str:
    names = ("headline", *(f"sections/{name}" for name in ("learning_curves", "ties", "optimal_group_size", "targets")))
    return " ".join(sentence for name in names for sentence in told(name, result))


def test_one_group_size_cannot_answer_the_question(tmp_path):
    write_sweep(tmp_path / "runs", curves={8: CROSSING[8]}, seeds=2)
    result = result_of(tmp_path / "runs")
    assert not result.several and result.frontier.switches == ()
    assert "cannot say which n is best" in text_of(result) and "passes from" not in text_of(result)
    assert DRAWINGS["epochs"](result) is None


def test_one_seed_has_no_noise_estimate(tmp_path):
    text = text_of(result_of(write_sweep(tmp_path / "runs", seeds=1), bootstrap="none"))
    assert "no noise estimate" in text and "seed noise" not in text and "all 1 seeds" not in text


def test_pure_noise_is_reported_as_ties_and_no_switch_stands_out_of_it(tmp_path):
    same = {n: CROSSING[4] for n in (4, 8, 16)}
    result = result_of(write_sweep(tmp_path / "runs", curves=same, noise=0.02), bootstrap="none")
    assert len([row for row in result.main.budgets if row.rivals]) >= 4
    switches = result.frontier.switches
    assert switches and not any(switch.established for switch in switches)
    assert "not established" in text_of(result) and "tie" in text_of(result)
    assert not any(answer.confidence == "sure" for answer in result.answers)


def test_no_switch_is_said_so(tmp_path):
    better = {4: (0.07, 0.9, 2e4, 1.2), 8: (0.07, 0.6, 5e4, 1.2)}
    result = result_of(write_sweep(tmp_path / "runs", curves=better, noise=0.001), bootstrap="none")
    assert result.frontier.switches == ()
    assert "there is no switch" in text_of(result)
    assert "n* is 4 at every budget" in result.allocation.message


def test_runs_that_never_learn_or_only_have_the_base_model(tmp_path):
    write_run(tmp_path / "flat", group_size=4, seed=0, params=(0.3, 0.3, 1e4, 1.0))
    write_run(tmp_path / "start", group_size=8, seed=0, params=CROSSING[8], budgets=np.array([], dtype=int), done=False)
    result = result_of(tmp_path, bootstrap="none")
    assert [curve.fit.status for curve in result.curves] == ["warning", "failed"]
    assert text_of(result)
    with pytest.raises(InputError, match="no curve of"):
        analyse_runs([str(tmp_path / "start")], AnalysisOptions())


@pytest.mark.slow
def test_missing_targets_and_histograms_are_left_out(tmp_path):
    rows = ["run,group_size,problems_per_batch,compute,reward"]
    rows += [f"{n},{n},8,{c},{0.1 + c / (1e6 * n)}" for n in (4, 8) for c in BUDGETS]
    (tmp_path / "curves.csv").write_text("\n".join(rows))
    result = result_of(tmp_path / "curves.csv", read=ReadOptions(metric="reward"), bootstrap="none", holdout=0.5)
    assert {name for name, draw in DRAWINGS.items() if draw(result) is not None} == {
        "learning_curves", "optimal_group_size", "profiles", "residuals", "forms", "holdout", "comparison"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--runs=nowhere", "--out=out"], "nowhere does not exist"),
        (["--runs=.", "--out=out", "--recrods=off"], "recrods"),
        (["somewhere"], "unexpected argument 'somewhere'"),
    ],
)
def test_bad_input_exits_with_2_and_one_message(flags, message):
    done = mains.run("isocompute_jax.fit", flags)
    assert done.returncode == 2
    assert message in done.stderr and "Traceback" not in done.stderr and done.stderr.count("error:") == 1


def test_the_tables_list_every_configuration(written):
    out, summary, *_ = written
    table = (out / "tables.txt").read_text()
    assert all(curve["run"] in table for curve in summary["curves"])
