"""What terminal, page, summary.json and ranges.csv say of a budget of a recorded sweep is one answer."""

from __future__ import annotations

import csv
import html
import json
import math
import pathlib
import re

import pyarrow.parquet as pq
import pytest

from isocompute_jax.fit.analysis_options import AnalysisOptions
from isocompute_jax.fit.frontier.recommendation import LearningRate
from isocompute_jax.fit.outputs import analyse
from isocompute_jax.fit.report.answers import LABELS
from tests.fit.commands import undrawn

GALLERY = pathlib.Path(__file__).parents[2] / "gallery"
BUDGETS = {"problems_64": (2e4, 131_072.0, 4e5), "late": (), "hard_b2": (3e4,)}
QUICK = "hard_b2"
PART = r'data-part="{}"[^>]*>(.*?)</'


def said(page: str, part: str) -> str:
    """A part of the answer on the page, as a reader sees it."""
    found = re.search(PART.format(part), page)
    assert found
    return html.unescape(re.sub("<[^>]+>", "", found[1])).replace("\N{NO-BREAK SPACE}", " ")


@pytest.mark.parametrize("sweep", [pytest.param(n, marks=() if n == QUICK else pytest.mark.slow) for n in BUDGETS])
def test_one_answer_everywhere(sweep, tmp_path):
    options = AnalysisOptions(budgets=BUDGETS[sweep], replicates=20)
    with undrawn():
        written = analyse([GALLERY / f"{sweep}.parquet"], tmp_path, options)
    summary = json.loads((tmp_path / "summary.json").read_text())
    page = (tmp_path / "report.html").read_text()
    data = json.loads(re.findall(r'id="data">(.*?)</script>', page)[0])
    ranges = list(csv.DictReader((tmp_path / "ranges.csv").read_text().splitlines()))
    asked = BUDGETS[sweep] or [max(curve["window"][1] for curve in summary["curves"])]
    terminal = " ".join(written.text.split())
    interactive = data["metrics"][summary["frontier"]["metric"]]["answers"]
    for budget in asked:
        row = next(each for each in summary["answers"] if each["budget"] == budget)
        told = interactive[data["budgets"].index(budget)]
        assert f"{told['question']}: {told['pick']}." in terminal
        assert told["pick"].startswith(f"n = {row['group_size']}") and told["level"] == row["confidence"]
        assert told["label"].startswith(LABELS[row["confidence"]])
        assert told["expectation"] in terminal and f"{row['reward']:z.3f}" in told["expectation"]
        assert f"{row['num_steps']:,} step" in told["plan"] and math.isclose(row["reward"], told["reward"])
        others = {int(n) for n in re.findall(r"\d+", told["pick"].partition("(or")[2])}
        assert others <= set(row["tied_group_sizes"]) - {row["group_size"]}
        here = [each for each in ranges if float(each["start"]) <= budget <= float(each["end"])]
        alike, tied = {row["run"], *row["tied"]}, row["confidence"] == "tied"
        assert any(each["run"] in alike and (each["confidence"] == "tied") == tied for each in here)
        for each in summary["allocation"]["recommendations"]:
            assert each["budget"] != budget or each.items() <= row.items()
    first = interactive[data["budgets"].index(asked[0])]
    for part in ("question", "pick", "label", "certainty", "expectation", "plan"):
        assert said(page, part) == first[part]


@pytest.mark.slow
def test_the_readme_shows_what_the_study_prints(tmp_path):
    """Its runs are the first four seeds of the recorded sweep, which has no learning rates; its fit takes records."""
    rate = LearningRate(base_lr=2.5e-4, base_batch=64, exponent=0.0)
    options = AnalysisOptions(records="strict", learning_rate=rate)
    runs = pq.read_table(GALLERY / "problems_64.parquet", filters=[("seed", "<", 4)])
    pq.write_table(runs, tmp_path / "study.parquet")
    printed = analyse([tmp_path / "study.parquet"], tmp_path / "out", options).text
    [shown] = re.findall(r"```\n(With up to .*?)Report: ", (GALLERY.parent / "README.md").read_text(), flags=re.DOTALL)
    assert shown == f"{printed}\n"
