"""The page in a real browser: the first screen, the slider that moves the answer, the same page without scripts."""

from __future__ import annotations

import json
import pathlib

import pytest

from isocompute_jax.fit import outputs
from isocompute_jax.fit.report.facts import budgets_of
from isocompute_jax.fit.report.page import answer_parts
from tests.fit.report.browser import Browser, browser
from tests.fit.report.results import result, rich

pytestmark = pytest.mark.slow

KINDS = ("rich", "two", "thirty", "one_seed", "falls", "flat", "end_points")


@pytest.fixture(scope="module")
def page():
    with browser() as found:
        yield found


@pytest.fixture(scope="module")
def paths(tmp_path_factory) -> dict[str, pathlib.Path]:
    root = tmp_path_factory.mktemp("reports")
    for name in KINDS:
        outputs.write(rich() if name == "rich" else result(name), root / name)
    return {name: root / name / "report.html" for name in KINDS}


def part(page: Browser, name: str) -> str:
    """A part of the answer as a reader sees it."""
    return page.evaluate(f"document.querySelector('#answer [data-part={name}]').innerText").replace("\u00a0", " ")


def move_to(page: Browser, index: int) -> None:
    page.evaluate(
        f"(() => {{ const s = document.getElementById('budget'); s.value = {index};"
        " s.dispatchEvent(new Event('input', {bubbles: true})); })()"
    )


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("width", [1600, 1000, 400])
def test_nothing_is_wider_than_the_screen_and_nothing_is_asked_of_the_network(page, paths, name, width):
    page.open(paths[name], width=width)
    assert page.errors == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("document.querySelector('#answer').getBoundingClientRect().top") < 250
    outside = (
        "(() => { const box = document.querySelector('.chart').getBoundingClientRect();"
        " return [...document.querySelectorAll('.chart text')].filter(t => { const b = t.getBoundingClientRect();"
        " return b.left < box.left - 1 || b.right > box.right + 1; }).length; })()"
    )
    assert page.evaluate(outside) == 0


@pytest.mark.parametrize("scripts", [True, False])
def test_the_page_reads_the_same_without_scripts(page, paths, scripts):
    page.open(paths["rich"], width=1000, scripts=scripts)
    expected = answer_parts(rich(), rich().asked[0])
    assert {name: part(page, name) for name in ("question", "pick", "certainty", "expectation")} == {
        name: expected[name] for name in ("question", "pick", "certainty", "expectation")
    }
    assert page.evaluate("document.querySelectorAll('#picture svg').length") >= 1
    assert page.evaluate("document.getElementById('controls').checkVisibility()") is scripts


def test_the_slider_moves_the_answer_and_the_bars(page, paths):
    page.open(paths["rich"], width=1000)
    answers, seen = budgets_of(rich()), set()
    for index in (0, len(answers) // 2, len(answers) - 1):
        move_to(page, index)
        expected = answer_parts(rich(), answers[index])
        assert (part(page, "pick"), part(page, "expectation")) == (expected["pick"], expected["expectation"])
        assert (
            page.evaluate("document.querySelector('#bars text.strong').textContent").replace("\u00a0", " ")
            == expected["pick"]
        )
        assert expected["question"] in page.evaluate("document.getElementById('bars-caption').textContent").replace(
            "\u00a0", " "
        )
        seen.add(expected["pick"])
    assert len(seen) > 1 and page.errors == []


def test_the_keyboard_is_enough(page, paths):
    page.open(paths["rich"], width=1000)
    start = budgets_of(rich()).index(rich().asked[0])
    page.evaluate("document.querySelector('.chart').focus()")
    page.press("ArrowRight")
    page.press("ArrowRight")
    assert part(page, "question") == answer_parts(rich(), budgets_of(rich())[start + 2])["question"]
    assert page.evaluate("document.activeElement.classList.contains('chart')")


def test_the_pointer_says_what_lies_under_it(page, paths):
    page.open(paths["two"], width=1000)
    box = page.evaluate(
        "(() => { const b = document.querySelector('.expected').getBoundingClientRect();"
        " return [b.x + b.width / 2, b.y + b.height / 2]; })()"
    )
    page.move(box[0] - 3, box[1])
    tip = page.evaluate("document.getElementById('tip').innerText").replace("\u00a0", " ")
    assert "rollouts" in tip and "n = 8: 0.36" in tip and "n = 64: 0.3" in tip and "evaluation: n = 8, seed" in tip
    page.move(5, 5)
    assert not page.evaluate("document.getElementById('tip').checkVisibility()")


def test_every_evaluation_is_a_filled_dot(page, paths):
    page.open(paths["rich"], width=1000)
    dots = page.evaluate("[...document.querySelectorAll('.dots')].map(e => e.getAttribute('d').split('M').length - 1)")
    assert dots == [4 * 24] * 6
    marks = "[...document.querySelectorAll('.chart circle, .dots')]"
    hollow = f"{marks}.filter(e => ['none', '#fff'].includes(e.getAttribute('fill')))"
    assert page.evaluate(f"{hollow}.length") == 0


def test_measure_and_axis_can_be_chosen(page, paths):
    page.open(paths["rich"], width=1000)
    drawn = "document.querySelector('.dots').getAttribute('d')"
    before = page.evaluate(drawn)
    for name, value in (("scale", "linear"), ("metric", "best@4")):
        page.evaluate(
            f"(() => {{ const s = document.getElementById('{name}'); s.value = {json.dumps(value)};"
            " s.dispatchEvent(new Event('change', {bubbles: true})); })()"
        )
    assert page.evaluate(drawn) != before
    assert "best@4" in part(page, "expectation") and page.errors == []


@pytest.mark.parametrize(("ci", "outcome"), [("true", pytest.fail.Exception), ("", pytest.skip.Exception)])
def test_without_a_browser_ci_fails(monkeypatch, ci, outcome):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("CI", ci)
    with pytest.raises(outcome, match="no Chromium"), browser():
        pass
