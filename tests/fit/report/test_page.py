"""The page: one self-contained file, escaped, with its sections; and the files beside it."""

from __future__ import annotations

import csv
import dataclasses
import json
import re

import pytest

from isocompute_jax.fit import outputs
from isocompute_jax.fit.laws import LawOptions, LawResult
from isocompute_jax.fit.laws.model_size import Estimate
from isocompute_jax.fit.report.figures import draw_figures, draw_law
from isocompute_jax.fit.report.page import page_data, render_law, render_page
from isocompute_jax.fit.report.wording import TEMPLATES, Section, section_from
from isocompute_jax.records.errors import InputError
from tests.fit.report.results import KINDS, result, rich

HOSTILE = "<img src=x onerror=alert(1)></script>"


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    out = tmp_path_factory.mktemp("out")
    section = Section("How it was made", ("By <b>hand</b>.",), columns=("a",), rows=((1.25,), (None,)))
    return out, outputs.write(rich(), out, png=True, before=[section])


def test_every_file_is_there_and_nothing_unfinished(written):
    out, found = written
    tables = {"answers", "choices", "curves", "optimal_n", "switches", "paper_fits", "next"}
    files = {f"{name}.csv" for name in tables} | {
        "summary.json",
        "headline.txt",
        "tables.txt",
        "report.html",
        "figures",
    }
    assert {path.name for path in out.iterdir()} == files
    pictures = {path.name for path in (out / "figures").iterdir()}
    assert pictures == {
        f"{name}.{kind}"
        for name in ("curves", "choices", "optimal_n", "paper", "question_1")
        for kind in ("svg", "png")
    }
    assert (out / "headline.txt").read_text() == found.text + "\n"


def test_a_second_analysis_replaces_the_first(written, tmp_path):
    outputs.write(rich(), tmp_path)
    (tmp_path / "figures" / "mine.txt").write_text("kept")
    outputs.write(result("alone"), tmp_path)
    assert {path.name for path in (tmp_path / "figures").iterdir()} == {"curves.svg", "mine.txt"}
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="--out"):
        outputs.write(result("alone"), tmp_path / "file")


def test_what_fails_half_way_leaves_what_was_there(tmp_path, monkeypatch):
    outputs.write(result("alone"), tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    monkeypatch.setattr("isocompute_jax.fit.report.page.render_page", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        outputs.write(result("two"), tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before


def test_the_summary_says_what_was_found(written):
    out, found = written
    summary = json.loads((out / "summary.json").read_text())
    assert summary == found.summary and summary["schema"] == 3
    first = ["schema", "metric", "compute_unit", "options", "inputs", "versions", "warnings"]
    assert list(summary)[: len(first)] == first
    assert summary["options"]["budgets"] == [30_000.0, 131_072.0]
    assert summary["inputs"][0] == {
        "run": "n = 4-s0", "source": "a.csv", "sha256": "0" * 64, "group_size": 4, "problems_per_batch": 8, "seed": 0,
        "problem_set_size": 64, "evaluations": 24, "compute_end": pytest.approx(131_072.0),
    }  # fmt: skip
    advised, answer = rich().asked[1].advised, summary["asked"][1]
    assert answer["choices"][0]["name"] == advised.configuration.name
    assert answer["choices"][0]["reward"] == advised.reward and answer["choices"][0]["interval95"] == list(
        advised.interval95
    )
    assert len(summary["curves"]) == 6 and len(summary["curves"][0]["points"]) == 4
    assert summary["targets"]["best@4"]["metric"] == "best@4"


def test_tables_have_a_row_for_each(written):
    out, _ = written
    rows = {path.stem: list(csv.DictReader(path.read_text().splitlines())) for path in out.glob("*.csv")}
    answers = rows["answers"]
    assert sum(row["asked"] == "True" for row in answers) == 2 and len(rows["choices"]) == 6 * len(answers)
    assert float(answers[0]["interval95_low"]) < float(answers[0]["reward"]) < float(answers[0]["interval95_high"])
    assert {row["name"] for row in rows["curves"]} == {band.configuration.name for band in rich().curves}
    assert [row["name"] for row in rows["next"]] == ["n = 32", "n = 256"]
    assert rows["switches"][0]["before"] == "n = 4" and len(rows["paper_fits"]) == 24


@pytest.mark.parametrize("name", KINDS)
def test_the_page_is_one_file(name, tmp_path):
    found = result(name)
    page = render_page(found, draw_figures(found, tmp_path))
    assert not re.search(r"""(src|href)=["'](?!#|data:)""", page) and "http-equiv" not in page
    assert not re.search(r"url\((?!#)", page) and "@import" not in page
    ids = re.findall(r'\sid="(answer|controls|picture|bars|data)"', page)
    assert len(ids) == len(set(ids)) == 4 + (len(found.curves) > 1)
    assert not re.search(r"\b(nan|None|Undefined)\b", re.sub(r"<(svg|script|style).*?</\1>", "", page, flags=re.S))


def test_the_page_shows_what_there_is(written):
    page = (written[0] / "report.html").read_text()
    for heading in (
        "What each would give at this budget", "Which n at which budget", "What to run next", "By other measures",
        "Where the best configuration changes", "Runs that change n", "By problem set", "Method", "How it was made",
    ):  # fmt: skip
        assert heading in page
    assert "The envelope passes from n\u00a0=\u00a04 to n\u00a0=\u00a08" in page and "As in the paper" in page
    assert "By &lt;b&gt;hand&lt;/b&gt;." in page and "1.25" in page


def test_names_are_text_and_nothing_else(tmp_path):
    found = result("two")
    hostile = dataclasses.replace(found.curves[0].configuration, name=HOSTILE)
    band = dataclasses.replace(found.curves[0], configuration=hostile)
    choices = tuple(
        dataclasses.replace(each, configuration=hostile) if each.configuration.group_size == 8 else each
        for each in found.asked[0].choices
    )
    asked = (dataclasses.replace(found.asked[0], choices=choices),)
    note = f"{HOSTILE} was left out."
    data = dataclasses.replace(found.data, notes=(note,))
    found = dataclasses.replace(
        found, curves=(band, found.curves[1]), asked=asked, grid=asked, targets={}, data=data, ranges=(), switches=()
    )
    page = render_page(found, draw_figures(found, tmp_path))
    assert "<img" not in page and page.count("</script>") == 2
    assert "<" not in page_data(found)


def test_the_script_has_no_words_of_its_own():
    script = (TEMPLATES / "report.js").read_text()
    code = re.sub(r"^\s*//.*$", "", script, flags=re.M)
    texts = re.findall(r'"([^"]*)"', code)
    assert not [text for text in texts if re.search(r"[A-Za-z]{3,} [A-Za-z]{3,}", text)]


def test_a_section_of_another_room(tmp_path):
    template = tmp_path / "cost.j2"
    template.write_text(
        "{% block title %}What it cost{% endblock %}{% block about %}One.\n\nTwo\nlines.{% endblock %}"
        "{% block findings %}{{ runs }} runs\nwere made.\nThey ended.\n{% endblock %}"
    )
    found = section_from(template, runs=3, columns=("a",), rows=[(1,)])
    assert (found.title, found.paragraphs) == ("What it cost", ("One.", "Two lines."))
    assert found.findings == ("3 runs were made.", "They ended.") and found.rows == [(1,)]


def test_a_law_has_a_page_of_the_same_kind(tmp_path):
    estimate = Estimate(0.4, 0.3, 0.5)
    model = {"model_params": 5e8, "points": 4.0, "k": 0.1, "own_k": 0.1, "level": 1.0, "first_x": 1.0, "last_x": 9.0}
    series = [{"model_params": 5e8, "x": [1.0, 9.0], "loss": [0.9, 0.6], "line_x": [1.0, 9.0], "line_loss": [0.9, 0.6]}]
    tables = {"models": [model], "crossovers": [], "holdouts": []}
    facts = {"unit": "FLOPs", "points": 4, "r2": 0.9, "misfit": 0.5}
    parameters = {"k_max": estimate, "N0": dataclasses.replace(estimate, value=1e9)}
    found = LawResult(LawOptions(), (), parameters, tables, facts, series, ("<b> was left out",))
    page = render_law(found, draw_law(found, tmp_path)).replace("\u00a0", " ")
    assert page.count("<svg") == 1 and "k_max = 0.4" in page and "&lt;b&gt; was left out" in page
