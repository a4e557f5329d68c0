"""The report: one file, claims that follow the data, and no estimate that the data do not identify."""

from __future__ import annotations

import dataclasses
import html
import math
import re
from html.parser import HTMLParser
from types import SimpleNamespace

import numpy as np
import pytest

from isocompute_jax.fit.curves.diagnostics import GridFit
from isocompute_jax.fit.report import facts
from isocompute_jax.fit.report.answers import answer_text
from isocompute_jax.fit.report.page import render_report, section_names
from isocompute_jax.fit.report.templating import Html, Section, picture, sentences, told, typeset, unbroken
from isocompute_jax.fit.report.terminal import headline_tables
from isocompute_jax.fit.report.wording import (
    amount,
    cell,
    figures,
    listed,
    parameter,
    scale,
    shortened,
    shortlist,
    spent,
)
from isocompute_jax.fit.results import Configuration, Frontier, FrontierPoint
from tests.fit.sweeps import alone, pictures, put, put_all, rich, unidentified


def plain(text: str) -> str:
    """The words of an HTML page, without its pictures and scripts."""
    text = re.sub(r"<svg.*?</svg>|<style.*?</style>|<script.*?</script>", "", text, flags=re.DOTALL)
    return html.unescape(re.sub(r"<[^>]+>", "", text)).replace("\N{NO-BREAK SPACE}", " ")


def tables(page: str) -> dict[str, list[list[str]]]:
    """Title -> the rows of the section's table, its head first."""
    found = {}
    for part in re.split(r'<details class="check"', page)[1:]:
        rows = re.findall(r"<tr>(.*?)</tr>", part, flags=re.DOTALL)
        title = plain(re.findall(r"<summary><span>(.*?)</span>", part)[0])
        if rows:
            found[title] = [[plain(text) for text in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row)] for row in rows]
    return found


def every_sentence(result) -> str:
    names = ["headline", *(f"sections/{name}" for name in section_names(result, pictures()))]
    sentences = [sentence for name in names for sentence in told(name, result)]
    assert all(sentence.endswith(".") for sentence in sentences)
    return " ".join(sentences)


@pytest.fixture(scope="module")
def page() -> str:
    return render_report(rich(), pictures())


class Structure(HTMLParser):
    """Tags that were opened and not closed, and external addresses."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.addresses: list[str | None] = []

    def handle_starttag(self, tag: str, attrs) -> None:
        if tag not in ("meta", "br", "img", "link"):
            self.open.append(tag)
        found = dict(attrs)
        self.addresses += [found[name] for name in ("src", "href", "xlink:href", "action") if name in found]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs) -> None:
        self.addresses += [value for name, value in attrs if name in ("src", "href", "xlink:href")]


def test_the_report_is_one_well_formed_file(page):
    found = Structure()
    found.feed(page)
    assert found.open == []
    assert all(address and address.startswith(("#", "data:")) for address in found.addresses)
    assert "@import" not in page and not re.search(r"url\((?!#)", page)
    scripts = re.findall(r"<script>(.*?)</script>", page, flags=re.DOTALL)
    assert sum(map(len, scripts)) < 60_000


def test_every_picture_is_inline_and_described(page):
    assert page.count("<svg role=") == len(pictures())
    assert len(set(re.findall(r'aria-label="([^"]+)"', page))) >= len(pictures())
    assert "<title>n = 8, B = 16: " in page  # tooltips


def test_the_answer_comes_first_and_what_was_not_varied_is_no_advice(page):
    text = plain(page)
    first, second = rich().asked
    assert text.index("With up to 300,000 rollouts") < text.index("Which n at which budget") < text.index("Checks")
    for found in (first, second):
        row = found.recommendation
        low, high = row.interval95
        assert f"Expect avg@4 of {row.reward:.3f} (95% interval {low:.3f} to {high:.3f})" in text
        assert f"{row.num_steps:,} steps" in text
    assert all(reason in text for reason in first.recommendation.reasons)
    assert "20 times as far as the data go" in text
    assert answer_text(rich(), first).fixed == "Not tried: n above 128."
    result = rich()
    for i in range(len(result.curves)):
        result = put(result, f"curves.{i}.configuration", problems_per_batch=16)
    fixed = answer_text(result, result.asked[0]).fixed
    assert "other numbers of problems per batch than 16" in fixed


def test_a_recommendation_says_only_what_is_known():
    unknown = {"group_size": 0, "problems_per_batch": None, "num_steps": None, "learning_rate": None, "run": "gspo"}
    found = dataclasses.replace(rich().asked[0], tied_group_sizes=())
    found = put(found, "recommendation", **unknown, tied=(), interval95=(math.nan, math.nan), place="inside")
    text = answer_text(rich(), found)
    assert (text.pick, text.plan) == ("gspo", "")
    assert "no interval could be given" in text.expectation and "where data were measured" in text.expectation
    unsure = dataclasses.replace(found, confidence="open")
    far = answer_text(rich(), put(unsure, "recommendation", expected_regret=0.0123))
    assert "may still lie below the best, by 0.01 of avg@4 on average" in far.certainty
    poor = answer_text(rich(), put(found, "recommendation", run="none", reward=math.nan, reasons=("Too little.",)))
    assert (poor.pick, poor.expectation, poor.label) == ("no configuration fits", "Too little.", "")
    assert (
        "before the first evaluation" in answer_text(rich(), put(found, "recommendation", place="before")).expectation
    )


def test_an_unidentified_estimate_is_nowhere():
    result = unidentified(rich())
    texts = {
        "html": plain(render_report(result, pictures())),
        "terminal": str(result),
        "findings": every_sentence(result),
    }
    for place, text in texts.items():
        assert "0.98" not in text, place
        assert "not identified" in text, place
    assert "not identified (0.5 to 1)" in texts["html"] and "not identified (0.5 .. 1)" in texts["terminal"]
    assert "saturates at" not in texts["findings"]


def estimated(name: str, value: float, error: float, ends: tuple[float, float], *, known: bool = True):
    """The first curve with another estimate of one parameter."""
    fit = rich().curves[0].fit
    return put(
        rich().curves[0],
        "fit",
        params={**fit.params, name: value},
        stderr={**fit.stderr, name: error},
        interval95={**fit.interval95, name: ends},
        identified={**fit.identified, name: known},
    )


def test_identified_estimates_are_given_with_error_and_interval():
    curve = estimated("asymptote", 0.70714, 0.00633, (0.6951, 0.7221))
    assert parameter(curve, "asymptote") == "0.7071 ± 0.0063 (0.695 to 0.722)"
    assert parameter(curve, "asymptote", sign="+-", interval=False) == "0.7071 +- 0.0063"
    curve = estimated("midpoint", 21735.6, 1943.2, (17200.0, 26450.0))
    assert parameter(curve, "midpoint") == "21,700 ± 1,900 (17.2k to 26.4k)"
    assert parameter(estimated("rate", 3.456e-7, 2.1e-8, (math.nan, math.nan)), "rate") == "3.46e-07 ± 2.1e-08"
    assert parameter(estimated("floor", math.nan, math.nan, (math.nan, math.nan)), "floor") == "-"
    assert parameter(curve, "absent") == "-"


def with_identified(*known: bool):
    result = rich()
    for i, value in enumerate(known):
        result = put(result, f"curves.{i}.fit.identified", asymptote=value)
    return result


def test_identification_follows_the_data():
    (sentence,) = told("sections/profiles", with_identified(*[True] * 6))
    assert "is identified for all 6 curves" in sentence
    result = put(with_identified(True, True, False, *[True] * 3), "curves.2.fit.interval95", asymptote=(0.4, 0.61))
    first, second = told("sections/profiles", result)
    assert "5 of 6 curves" in first and second == "It is not identified for n = 32, B = 16."


def test_the_grid_gives_no_estimate_at_its_edge_or_where_a_is_not_identified():
    result = with_identified(True, True, False)
    for i, edge in enumerate((True, False, False)):
        result = put(result, f"curves.{i}", grid=GridFit(0.4321, 1e4, 1.0, 0.1, 0.0, edge))
    head, *rows = tables(render_report(result, pictures()))["Is the asymptote identified?"]
    assert head[1] == "A by grid"
    assert [row[1] for row in rows[:4]] == ["at the edge of the grid", "0.4321", "not identified", "\N{EN DASH}"]


def test_many_switches_are_counted():
    result, row = rich(), rich().frontier.switches[0]
    for rule, count in (("strict", 5), ("bucketed", 4), ("off", 5)):
        result = put(result, f"record_choices.{rule}.frontier", switches=(row,) * count)
    assert not facts.choices_compared(result)["alike"]
    (sentence,) = told("sections/choices", result)
    assert "5 with strict, 4 with bucketed and 5 with off" in sentence


def test_choices_that_agree_say_how_far_apart_their_switches_are():
    row = dataclasses.replace(rich().frontier.switches[0], cause="crossing", compute=1000.0)
    result = rich()
    for rule, compute in (("strict", 1000.0), ("bucketed", 1100.0), ("off", 1050.0)):
        result = put(result, f"record_choices.{rule}.frontier", switches=(dataclasses.replace(row, compute=compute),))
    found = facts.choices_compared(result)
    assert found["alike"] and found["widest"] == pytest.approx(0.1)
    assert "differ by up to 10.0%" in told("sections/choices", result)[0]


def test_forms_follow_the_data():
    choice = rich().form_choice
    assert choice is not None and (choice.best, choice.strength) == ("hill", "clear")
    errors = {n: e for n, row in rich().forms.items() if (e := row.holdout_mean_abs_error) is not None}
    assert choice.predicts_best is not None
    assert choice.prediction_error == errors[choice.predicts_best] == min(errors.values())
    result = put(rich(), "forms.power", aicc=rich().forms["hill"].aicc - 1.0)
    choice = result.form_choice
    assert choice is not None and (choice.best, choice.second, choice.strength) == ("power", "hill", "hardly")
    assert choice.ahead == pytest.approx(1.0)
    text = " ".join(told("sections/forms", result))
    assert "hardly" in text and "another one than power" in text and "--form=power" in text


def test_holdout_and_residuals_follow_the_data():
    result = put_all(rich(), "curves", "holdouts.hill", num_points=2, mean_abs_error=0.25, bias=-0.2, coverage=0.5)
    totals = facts.holdout_totals(result)
    assert totals == pytest.approx({"num_points": 12, "inside": 6.0, "mean_abs_error": 0.25, "bias": -0.2})
    (text,) = told("sections/holdout", result)
    assert "0.25" in text and "too low" in text and "6 of the 12" in text
    assert facts.large_residuals(rich()) == []
    points = rich().curves[1].points
    reward, used = points.reward.copy(), points.used.copy()
    reward[4] += 10 * rich().curves[1].fit.noise
    used[4] = True
    result = put(rich(), "curves.1.points", reward=reward, used=used)
    ((curve, compute, t),) = facts.large_residuals(result)
    assert curve.run == "n = 8, B = 64" and compute == points.compute[4] and t > 6
    assert "n = 8, B = 64 at" in " ".join(told("sections/residuals", result))


def steepness_of(*intervals: tuple[float, float]):
    result = put_all(rich(), "comparison.curves", identified=True, asymptote_within=True)
    for i, ends in enumerate(intervals):
        result = put(result, f"comparison.curves.{i}", steepness=1.0 + 0.1 * i, interval95=ends)
    return result


def test_a_difference_in_steepness_needs_intervals_apart():
    assert "no difference is established" in told("sections/comparison", steepness_of(*[(0.5, 2.0)] * 6))[1]
    result = steepness_of((0.9, 1.1), *[(0.5, 2.0)] * 4, (1.2, 1.8))
    first, *_, last = result.comparison.curves
    assert told("sections/comparison", result)[1] == (
        f"B goes from 1 ({first.run}, 0.9 to 1.1) to 1.5 ({last.run}, 1.2 to 1.8): these two differ."
    )
    # A common A that a curve's own data exclude bends its B.
    result = put(result, "comparison.curves.0", asymptote_within=False)
    held, verdict = told("sections/comparison", result)
    assert f"outside the interval of A of {first.run}" in held and "no difference is established" in verdict


def test_switches_carry_their_intervals_and_share():
    result = put(rich(), "frontier.switches.0", interval95=(61000.0, 65400.0), share=0.68)
    result = put(result, "frontier.switches.0", compute=63200.0)
    text = told("headline", result)[1]
    assert "at 63,200 rollouts (95% interval 61,000 to 65,400); 68% of the bootstrap replicates have this" in text
    result = put(result, "frontier.switches.0", interval95=None, share=None)
    assert "interval" not in told("sections/switches", result)[0]
    switch = dataclasses.replace(result.frontier.switches[0], share=0.5)
    five = tuple(dataclasses.replace(switch, established=i == 0) for i in range(5))
    result = put(result, "frontier", switches=five)
    assert result.frontier.num_established == 1 and result.frontier.shares == (0.5, 0.5)
    text = told("sections/switches", result)[0]
    assert "changes 5 times" in text and "1 of these switches" in text and "in 50% of the bootstrap" in text


def with_budgets(batches: list[int], steps: list[float | None]):
    result = rich()
    for i, (batch, count) in enumerate(zip(batches, steps, strict=True)):
        result = put(result, f"frontier.budgets.{i}", num_steps=count)
        result = put(result, f"frontier.budgets.{i}.configuration", problems_per_batch=batch)
    return result


def test_batches_and_slices_follow_the_data():
    rows = rich().frontier.budgets
    result = with_budgets([16] * 3 + [64] * 9, [10.0 * (i + 1) for i in range(12)])
    first, second = told("sections/batches", result)
    assert first == f"The best B_problem is 16 from 10,000 and 64 from {amount(rows[3].compute)} rollouts."
    assert "grows 12-fold, from 10 to 120" in second
    i, part = next((i, p) for i, p in enumerate(rich().slices) if p.kind == "problems_per_batch" and p.value == 16)
    sizes = [row.group_size for row in part.budgets]
    assert sizes == sorted(sizes) and part.course == "rises"
    result = put(rich(), f"slices.{i}.budgets.0.configuration", group_size=512)
    assert result.slices[i].course == "mixed"
    assert "does not rise throughout for B_problem = 16" in told("sections/slices_by_problems", result)[0]


def test_steps_grow_or_fall_throughout_or_nothing_is_said():
    steps: list[float | None] = [1200.0 - 100 * i for i in range(12)]
    found = facts.steps(with_budgets([16] * 12, steps).frontier)
    assert found is not None and (found["first"], found["last"]) == (1200.0, 100.0) and found["growth"] < 1
    for odd in (1250.0, None):
        steps[5] = odd
        assert facts.steps(with_budgets([16] * 12, steps).frontier) is None


def test_changes_of_the_leader_agree_with_their_verb():
    ends = put(rich().frontier.switches[0], "", cause="range")
    for more, words in (((ends,), "One more change of the leader only marks"), ((ends, ends), "2 more changes")):
        result = put(rich(), "frontier", switches=(*rich().frontier.switches, *more))
        assert words in told("sections/switches", result)[-2]


def test_a_held_parameter_is_held_and_not_identified():
    result = put_all(rich(), "curves", held=("asymptote", "floor"))
    result = put_all(result, "curves", "fit.params", asymptote=0.61, floor=0.1)
    result = put_all(result, "curves", "fit.identified", asymptote=False, floor=True)
    assert parameter(result.curves[0], "asymptote") == "0.61 (held)"
    (sentence,) = told("sections/profiles", result)
    assert sentence.startswith("A is held at 0.61") and "identified" not in sentence
    assert "as in every fit" in told("sections/comparison", result)[0]
    head, *rows = tables(render_report(result, pictures()))["Learning curves and the frontier"]
    assert [row[head.index("A")] for row in rows] == ["0.61 (held)"] * 6
    assert headline_tables(result).count("0.61 (held)") == headline_tables(result).count("0.1 (held)") == 6


def test_what_was_not_fitted_is_explained():
    result = rich()
    for i, curve in enumerate(result.curves):
        used = np.ones(len(curve.points.used), bool)
        used[0] = False
        result = put(result, f"curves.{i}.points", used=used)
    assert facts.num_not_fitted(result) == 6
    assert "--window" not in told("sections/residuals", result)[-1]
    result = put(result, "options.fit", window=(2e4, 1e6))
    assert "--window" in told("sections/residuals", result)[-1]


def test_neighbouring_budgets_with_the_same_leaders_are_one_row():
    def point(compute: float, run: str) -> FrontierPoint:
        return FrontierPoint(compute, Configuration(run, 8, 16, 0), None, 0.5)

    leaders = {"strict": "aabbb", "bucketed": "aabbb", "off": "aabba"}
    choices = {
        rule: SimpleNamespace(
            leading=[point(2048.0 + 448 * i, run) for i, run in enumerate(runs)], frontier=Frontier((), ())
        )
        for rule, runs in leaders.items()
    }
    result = put(rich(), "", record_choices=choices)
    assert tables(render_report(result, pictures()))["Does it depend on which evaluations are fitted?"][1:] == [
        ["2,048 to 2,496", "a", "a", "a"], ["2,944 to 3,392", "b", "b", "b"], ["3,840", "b", "b", "a"]
    ]  # fmt: skip


def test_zero_has_no_sign():
    assert [amount(-0.0), figures(-0.0), scale(-0.0), cell(-0.0)] == ["0", "0", "0", "0"]
    assert parameter(estimated("floor", -0.001, 0.21, (math.nan, math.nan)), "floor") == "0.00 ± 0.21"


def test_the_unit_of_compute_is_that_of_the_data():
    text = every_sentence(put(rich(), "options.read", compute="gpu_hours"))
    assert " rollouts" not in text and "GPU-hours" in text


def test_one_configuration_has_no_sections_about_n():
    result = alone(rich(), "n = 8, B = 16")
    assert section_names(result, {}) == ["learning_curves"]
    text = " ".join(told("headline", result))
    assert "cannot say which n is best" in text and "n*" not in text


def test_every_table_is_rectangular():
    found = tables(render_report(rich(), pictures()))
    assert len(found) == 10
    for title, rows in found.items():
        assert len(rows) > 1 and {len(row) for row in rows} == {len(rows[0])}, title
    assert all(told(f"sections/{name}", rich()) for name in section_names(rich(), pictures()))


def test_foreign_sections_are_escaped_and_html_is_kept():
    extra = Section("A & B", ("1 < 2", Html("<em>on purpose</em>")), columns=("a",), rows=((1.5,), (None,), (True,)))
    text = render_report(alone(rich(), "n = 8, B = 16"), {}, before=[extra])
    assert "A &amp; B" in text and "1 &lt; 2" in text and "<em>on purpose</em>" in text
    assert all(f'<td class="brief">{value}</td>' in text for value in ("1.5", "\N{EN DASH}", "yes"))


def test_a_png_is_put_in_as_data(tmp_path):
    (tmp_path / "dot.png").write_bytes(b"\x89PNG")
    assert picture(tmp_path / "dot.png", 'a "dot"') == (
        '<img src="data:image/png;base64,iVBORw==" alt="a &quot;dot&quot;">'
    )


def test_small_words():
    assert [amount(v) for v in (0.25, 12.54, 999.6, 44_912, 999_600, 5.6e6, 3e9)] == [
        "0.25", "12.5", "1,000", "44,900", "1 million", "5.6 million", "3 billion"
    ]  # fmt: skip
    assert spent(put(rich(), "options.read", compute="tokens"), 2e6) == "2 million tokens"
    assert listed([]) == "" and listed("a") == "a" and listed("abc") == "a, b and c"
    assert listed(["n = 2, B = 4", "c", "d"]) == "n = 2, B = 4; c and d"
    assert shortlist(list("abcdef")) == "a, b, c and 3 more" and shortlist(list("abcd")) == "a, b, c and d"
    assert shortened("short") == "short" and shortened("abcdefghij", 7) == "abc…hij"
    assert shortened("abcdefghij", 7, "..") == "abc..ij"
    assert typeset("(C_mid / C)^B < R0") == "(C<sub>mid</sub> / C)<sup>B</sup> &lt; R<sub>0</sub>"
    assert unbroken("n = 8") == "n\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}8"
    assert unbroken(Html("<b>--x=1</b>")) == '<b><span class="flag">--x=1</span></b>'
    assert [cell(v) for v in (None, True, 3, 1234.6, 0.00012347)] == ["\N{EN DASH}", "yes", "3", "1,235", "0.0001235"]
    assert sentences("One\nof 1.5.\n\n Two.  And so.\n") == ["One of 1.5.", "Two. And so."]
