"""The report in a real browser: the first screen, the slider that moves the answer, the same page without scripts."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest

from isocompute_jax.fit.analysis_options import AnalysisOptions
from isocompute_jax.fit.frontier.envelope import carried
from isocompute_jax.fit.outputs import analyse
from isocompute_jax.fit.report.answers import answer_text
from isocompute_jax.fit.report.page import render_report
from isocompute_jax.fit.report.wording import spent
from tests.fit.report.browser import Browser, browser
from tests.fit.runs import BUDGETS, write_sweep
from tests.fit.sweeps import pictures, rich

pytestmark = pytest.mark.slow

WIDTHS = (1280, 390)
MOST_WORDS = 1500
CUT = "[...document.querySelectorAll('.scroll')].filter(part => part.scrollWidth > part.clientWidth + 1).length"
WORDS = r"document.body.innerText.split(/\s+/).filter(word => /[\p{L}\p{N}]/u.test(word)).length"


@pytest.fixture(scope="module")
def page():
    with browser() as found:
        yield found


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> pathlib.Path:
    file = tmp_path_factory.mktemp("report") / "report.html"
    file.write_text(render_report(rich(), pictures()), encoding="utf-8")
    return file


def test_an_ordinary_study_is_read_in_a_few_minutes(page, tmp_path):
    """Five n with three seeds each, everything folded included."""
    middles = {4: 1e4, 8: 2e4, 16: 4e4, 32: 9e4, 64: 2e5}
    curves = {n: (0.07, 0.3 + 0.1 * np.log2(n), middle, 1.2) for n, middle in middles.items()}
    root = write_sweep(tmp_path / "runs", curves=curves, noise=0.005)
    analyse([str(root)], tmp_path / "out", AnalysisOptions(replicates=20, budgets=(float(BUDGETS[-2]),)))
    page.open(tmp_path / "out" / "report.html", width=1280)
    page.evaluate("document.querySelectorAll('details').forEach(part => { part.open = true; })")
    assert page.evaluate(CUT) == 0 and page.errors == []
    page.evaluate("document.querySelectorAll('table, svg, .controls, .legend').forEach(part => part.remove())")
    assert 500 < page.evaluate(WORDS) < MOST_WORDS


def part(page: Browser, name: str) -> str:
    """A part of the answer as a reader sees it."""
    return page.evaluate(f"document.querySelector('#answer [data-part={name}]').innerText").replace("\u00a0", " ")


def expected(index: int):
    return answer_text(rich(), rich().answers[index])


def shown(page: Browser) -> tuple[str, str, str]:
    return part(page, "question"), part(page, "pick"), part(page, "expectation")


def index_of_asked() -> int:
    return rich().answers.index(rich().asked[0])


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("scripts", [True, False])
def test_the_answer_and_the_picture_are_on_the_first_screen(page, path, width, scripts):
    height = 844 if width == 390 else 800
    page.open(path, width=width, height=height, scripts=scripts)
    text = expected(index_of_asked())
    assert shown(page) == (text.question, text.pick, text.expectation)
    assert page.evaluate("document.querySelector('#answer .against').getBoundingClientRect().bottom") < height
    assert page.evaluate("document.querySelector('#picture svg').getBoundingClientRect().top") < 0.85 * height
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(WORDS) < MOST_WORDS
    assert width < 1280 or page.evaluate(CUT) == 0
    assert page.evaluate("document.getElementById('controls').checkVisibility()") is scripts
    assert page.errors == []


def move_to(page: Browser, index: int) -> None:
    page.evaluate(
        f"(() => {{ const s = document.getElementById('budget'); s.value = {index};"
        " s.dispatchEvent(new Event('input', {bubbles: true})); })()"
    )


def test_the_slider_moves_the_answer(page, path):
    page.open(path, width=1280)
    seen = set()
    for index in (0, len(rich().answers) // 2, len(rich().answers) - 1):
        move_to(page, index)
        text, found = expected(index), rich().answers[index]
        assert shown(page) == (text.question, text.pick, text.expectation)
        assert page.evaluate("document.querySelector('#controls output').value") == spent(rich(), found.budget)
        listed = "[...document.querySelectorAll('#answer [data-list=against] li')].map(e => e.textContent)"
        assert [line.replace("\u00a0", " ") for line in page.evaluate(listed)] == list(text.against)
        seen.add(text.pick)
    assert len(seen) > 1 and page.errors == []


def test_the_keyboard_is_enough(page, path):
    page.open(path, width=1280)
    start = index_of_asked()
    page.evaluate("document.getElementById('budget').focus()")
    page.press("ArrowRight")
    assert part(page, "question") == expected(start + 1).question
    page.evaluate("document.querySelector('.chart').focus()")
    page.press("ArrowLeft")
    page.press("ArrowLeft")
    assert part(page, "question") == expected(start - 1).question
    assert page.evaluate("document.activeElement.classList.contains('chart')")
    focusable = "[...document.querySelectorAll('#controls input, #controls select, #controls button')]"
    assert page.evaluate(f"{focusable}.every(e => e.tabIndex === 0)")
    assert expected(start - 1).pick in page.evaluate("document.querySelector('[role=status]').textContent")


def choose(page: Browser, name: str, value: str) -> None:
    page.evaluate(
        f"(() => {{ const s = document.getElementById('{name}'); s.value = '{value}';"
        " s.dispatchEvent(new Event('change', {bubbles: true})); })()"
    )


def test_metric_and_axis_can_be_chosen(page, path):
    page.open(path, width=1280)
    drawn = "document.querySelector('.chart path').getAttribute('d')"
    before = page.evaluate(drawn)
    choose(page, "scale", "linear")
    linear = page.evaluate(drawn)
    choose(page, "metric", "best@4")
    assert len({before, linear, page.evaluate(drawn)}) == 3
    budget = rich().asked[0].budget
    other = rich().metrics["best@4"]
    index = other.leader(budget)
    assert index is not None
    reward = float(other.fits[index].reward(carried(other.fits, budget)[index]))
    assert part(page, "pick") == other.configurations[index].name and f"best@4 {reward:.3f}" in part(
        page, "expectation"
    )
    assert not page.evaluate("document.querySelector('#answer [data-part=plan]').checkVisibility()")
    choose(page, "metric", "avg@4")
    assert part(page, "pick") == expected(index_of_asked()).pick and page.errors == []


def test_the_pointer_says_what_lies_under_it(page, path):
    page.open(path, width=1280)
    box = page.evaluate(
        "(() => { const b = document.querySelector('.chart circle').getBoundingClientRect();"
        " return [b.x + b.width / 2, b.y + b.height / 2]; })()"
    )
    page.move(*box)
    tip = page.evaluate("document.getElementById('tip').innerText").replace("\u00a0", " ")
    points = rich().curves[0].points
    first = points.compute > 0
    assert f"Evaluation: n = 8, B = 16: {points.reward[first][0]:.3f}" in tip and "rollouts" in tip
    page.move(5, 5)
    assert not page.evaluate("document.getElementById('tip').checkVisibility()")


def test_everything_is_open_when_printed(page, path):
    page.open(path, width=800, media="print")
    hidden = (
        "[...document.querySelectorAll('details p, details li, details td')].filter("
        "e => !e.checkVisibility({contentVisibilityAuto: true}) || !e.getBoundingClientRect().height)"
        ".filter(e => !e.closest('[hidden]')).length"
    )
    assert page.evaluate(hidden) == 0
    assert page.evaluate(WORDS) > MOST_WORDS
    page.open(path, width=800)
    assert page.evaluate(hidden) > 0


@pytest.mark.parametrize(("ci", "outcome"), [("true", pytest.fail.Exception), ("", pytest.skip.Exception)])
def test_without_a_browser_ci_fails(monkeypatch, ci, outcome):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("CI", ci)
    with pytest.raises(outcome, match="no Chromium"), browser():
        pass
