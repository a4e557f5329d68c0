"""The report: one file, claims that follow the data, and no estimate that the data do not identify."""

from __future__ import annotations

import html
import re
from html.parser import HTMLParser

import pytest

from isocompute_jax.fit.laws.law_options import LawOptions
from isocompute_jax.fit.laws.law_sections import law_title
from isocompute_jax.fit.report.findings import answers, headline
from isocompute_jax.fit.report.findings import curve_findings as curves
from isocompute_jax.fit.report.findings import frontier_findings as frontier
from isocompute_jax.fit.report.findings import training_findings as training
from isocompute_jax.fit.report.html_page import picture, render_report, unbroken
from isocompute_jax.fit.report.sections import Html, ReportTable, Section, analysis_sections, cell
from isocompute_jax.fit.report.sections.curve_sections import typeset
from isocompute_jax.fit.report.terminal import headline_table
from isocompute_jax.fit.report.wording import amount, figures, listed, parameter, scale, shortened, shortlist, spent
from tests.fit.summaries import alone, pictures, rich, unidentified


def plain(text: str) -> str:
    """The words of an HTML page, without its pictures."""
    text = re.sub(r"<svg.*?</svg>|<style.*?</style>", "", text, flags=re.DOTALL)
    return html.unescape(re.sub(r"<[^>]+>", "", text)).replace("\N{NO-BREAK SPACE}", " ")


def every_sentence(summary) -> str:
    parts = (
        headline, curves.learning_curves, curves.identification, curves.residuals, curves.forms, curves.holdout,
        curves.comparison,
        frontier.optimal_group_size, frontier.switches, frontier.choices, frontier.ties, frontier.batches,
        frontier.targets, training.entropy, training.solve_rates,
    )  # fmt: skip
    sentences = [sentence for part in parts for sentence in part(summary)]
    sentences += [s for kind in ("problems_per_batch", "rollouts_per_step") for s in frontier.slices(summary, kind)]
    assert all(sentence.endswith(".") for sentence in sentences)
    return " ".join(sentences)


@pytest.fixture(scope="module")
def page() -> str:
    return render_report(rich(), pictures())


class Structure(HTMLParser):
    """Tags that were opened and not closed, external addresses, and ids of sections."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.addresses: list[str | None] = []
        self.anchors: set[str] = set()

    def handle_starttag(self, tag: str, attrs) -> None:
        if tag not in ("meta", "br", "img", "link"):
            self.open.append(tag)
        found = dict(attrs)
        self.addresses += [found[name] for name in ("src", "href", "xlink:href", "action") if name in found]
        if tag == "section" and "id" in found:
            self.anchors.add(f"#{found['id']}")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs) -> None:
        self.addresses += [value for name, value in attrs if name in ("src", "href", "xlink:href")]


def test_the_report_is_one_well_formed_file(page):
    found = Structure()
    found.feed(page)
    assert found.open == []
    assert all(address and address.startswith(("#", "data:")) for address in found.addresses)
    assert "@import" not in page and "<script" not in page and not re.search(r"url\((?!#)", page)
    assert set(re.findall(r'<a href="(#[^"]+)"', page)) == found.anchors and len(found.anchors) == 16


def test_every_picture_is_inline_and_described(page):
    assert page.count("<svg role=") == 14
    assert len(set(re.findall(r'aria-label="([^"]+)"', page))) >= 14
    assert "<title>n = 8, B = 16: " in page  # tooltips


def test_recommendations_come_first(page):
    text = plain(page)
    assert text.index("To spend 300,000 rollouts") < text.index("To spend 20 million rollouts") < text.index("In short")
    for row in rich()["allocation"]["recommendations"]:
        low, high = row["interval95"]
        assert f"Expect avg@4 {row['reward']:.3f} (95% interval {low:.3f} to {high:.3f})" in text
        assert f"{row['num_steps']:,} steps" in text and f"learning rate {row['learning_rate']:.2g}" in text
        assert all(reason in text for reason in row["reasons"])
    assert "20 times as far as the data go" in text


def test_a_recommendation_says_only_what_is_known():
    summary = rich()
    row = summary["allocation"]["recommendations"][0]
    summary["curves"][0]["run"] = "gspo"
    row |= {"group_size": 0, "problems_per_batch": None, "num_steps": None, "learning_rate": None, "run": "gspo",
            "interval95": [None, None]}  # fmt: skip
    answer = answers.answers(summary)[0]
    assert answer.choice == ("the configuration gspo",)
    assert "no interval could be given" in answer.expectation and "inside the data" in answer.expectation
    row["budget"], row["beyond"] = 5e3, 0.005
    assert "before the first evaluation" in answers.answers(summary)[0].expectation


def test_an_unidentified_estimate_is_nowhere():
    summary = unidentified(rich())
    texts = {
        "html": plain(render_report(summary, pictures())),
        "terminal": headline_table(summary),
        "findings": every_sentence(summary),
    }
    for place, text in texts.items():
        assert "0.98" not in text, place
        assert "not identified" in text, place
    assert "not identified (0.5 to 1)" in texts["html"] and "not identified (0.5 .. 1)" in texts["terminal"]
    assert "is not identified for any of the 6 curves" in texts["findings"]
    assert "an assumption, since no A is identified" in texts["findings"]
    assert "saturates at" not in texts["findings"]


def test_identified_estimates_are_given_with_error_and_interval():
    curve = rich()["curves"][0]
    curve["params"]["asymptote"], curve["stderr"]["asymptote"] = 0.70714, 0.00633
    curve["interval95"]["asymptote"], curve["identified"]["asymptote"] = [0.6951, 0.7221], True
    assert parameter(curve, "asymptote") == "0.7071 ± 0.0063 (0.695 to 0.722)"
    assert parameter(curve, "asymptote", sign="+-", interval=False) == "0.7071 +- 0.0063"
    curve["params"]["midpoint"], curve["stderr"]["midpoint"] = 21735.6, 1943.2
    curve["interval95"]["midpoint"] = [17200.0, 26450.0]
    assert parameter(curve, "midpoint") == "21,700 ± 1,900 (17.2k to 26.4k)"
    curve["params"]["rate"], curve["stderr"]["rate"], curve["identified"]["rate"] = 3.456e-7, 2.1e-8, True
    assert parameter(curve, "rate") == "3.46e-07 ± 2.1e-08"
    assert parameter(curve | {"params": {"floor": None}}, "floor") == "-"


def test_identification_follows_the_data():
    summary = rich()
    for curve in summary["curves"]:
        curve["identified"]["asymptote"] = True
    assert curves.identification(summary) == [
        "The asymptote A, the reward of unlimited compute, is identified for all 6 curves."
    ]
    summary["curves"][2]["identified"]["asymptote"] = False
    summary["curves"][2]["interval95"]["asymptote"] = [0.4, 0.61]
    first, second = curves.identification(summary)
    assert "5 of 6 curves" in first and "not identified for n = 32, B = 16 (0.4 to 0.61)" in second


def test_the_grid_gives_no_estimate_at_its_edge_or_where_a_is_not_identified():
    summary = rich()
    for curve, edge, known in zip(summary["curves"], (True, False, False), (True, True, False), strict=False):
        curve["identified"]["asymptote"] = known
        curve["grid"] = {"asymptote": 0.4321, "at_edge": edge}
    table = next(s.table for s in analysis_sections(summary, pictures()) if s.title == "Is the asymptote identified?")
    assert table is not None and table.columns[2] == "A by grid"
    assert [row[2] for row in table.rows[:4]] == ["at the edge of the grid", "0.4321", "not identified", None]


def test_many_switches_are_counted():
    summary = rich()
    switch = summary["frontier"]["switches"][0]
    for rule, count in (("strict", 5), ("bucketed", 4), ("off", 5)):
        summary["record_choices"][rule]["switches"] = [switch] * count
    assert frontier.choices(summary) == [
        "The switches depend on which evaluations are fitted: there are 5 with strict, 4 with bucketed and 5 with off, "
        "as the table shows."
    ]


def test_forms_follow_the_data():
    summary = rich()
    assert "By AICc hill is clearly the lowest" in " ".join(curves.forms(summary))
    summary["forms"]["power"]["aicc"] = summary["forms"]["hill"]["aicc"] - 1.0
    text = " ".join(curves.forms(summary))
    assert "By AICc power is the lowest, but hardly so (1 below hill" in text
    assert "Hill predicts best what was held out, another one than power" in text
    assert "--form=power would fit them better" in text


def test_holdout_and_residuals_follow_the_data():
    summary = rich()
    for curve in summary["curves"]:
        curve["holdout"] |= {"num_points": 2, "mean_abs_error": 0.25, "bias": -0.2, "coverage": 0.5}
    (text,) = curves.holdout(summary)
    assert text == "Predictions miss by 0.25 in avg@4 on average, and are 0.2 too low; 6 of the 12 evaluations " \
        "held out lie in their 95% intervals."  # fmt: skip
    curve = summary["curves"][1]
    assert "standard deviations away" not in " ".join(curves.residuals(summary))
    curve["points"]["reward"][4] += 10 * curve["noise"]
    curve["points"]["used"][4] = True
    assert "1 fitted evaluation lies more than 3 standard deviations away: n = 8, B = 64 at" in " ".join(
        curves.residuals(summary)
    )


def test_a_difference_in_steepness_needs_intervals_apart():
    summary = rich()
    rows = summary["comparison"]["curves"]
    for i, row in enumerate(rows):
        row |= {"identified": True, "asymptote_within": True, "steepness": 1.0 + 0.1 * i, "interval95": [0.5, 2.0]}
    assert "no difference is established" in curves.comparison(summary)[1]
    rows[0]["interval95"], rows[-1]["interval95"] = [0.9, 1.1], [1.2, 1.8]
    assert curves.comparison(summary)[1] == (
        f"B goes from 1 ({rows[0]['run']}, 0.9 to 1.1) to 1.5 ({rows[-1]['run']}, 1.2 to 1.8): these two differ."
    )
    rows[0]["asymptote_within"] = False  # a common A that a curve's own data exclude bends its B
    held, verdict = curves.comparison(summary)
    assert f"outside the interval of A of {rows[0]['run']}" in held and "no difference is established" in verdict


def test_switches_carry_their_intervals_and_share():
    summary = rich()
    switch = summary["frontier"]["switches"][0]
    switch |= {"compute": 63200.0, "interval95": [61000.0, 65400.0], "share": 0.68}
    text = frontier.switch_sentences(summary)[0]
    assert "at 63,200 rollouts (95% interval 61,000 to 65,400); 68% of the bootstrap replicates have this" in text
    switch |= {"interval95": None, "share": None}
    assert "interval" not in frontier.switch_sentences(summary)[0]
    summary["frontier"]["switches"] = [switch | {"established": i == 0, "share": 0.5} for i in range(5)]
    (text,) = frontier.switch_sentences(summary)
    assert "changes 5 times" in text and "1 of these switches" in text and "in 50% of the bootstrap" in text


def test_batches_and_slices_follow_the_data():
    summary = rich()
    rows = summary["frontier"]["budgets"]
    for i, row in enumerate(rows):
        row |= {"problems_per_batch": 16 if i < 3 else 64, "num_steps": 10.0 * (i + 1)}
    first, second = frontier.batches(summary)
    assert first == f"The best B_problem is 16 from 10,000 and 64 from {amount(rows[3]['compute'])} rollouts."
    assert "grows 12-fold, from 10 to 120" in second
    part = next(p for p in summary["slices"] if p["kind"] == "problems_per_batch" and p["value"] == 16)
    sizes = [row["group_size"] for row in part["budgets"]]
    assert sizes == sorted(sizes) and "rises for B_problem = 16" in frontier.slices(summary, "problems_per_batch")[0]
    part["budgets"][0]["group_size"] = 512
    assert "does not rise throughout for B_problem = 16" in frontier.slices(summary, "problems_per_batch")[0]


def test_steps_grow_or_fall_throughout_or_nothing_is_said():
    summary = rich()
    rows = summary["frontier"]["budgets"]
    spread = f"{rows[-1]['compute'] / rows[0]['compute']:.3g}"
    for i, row in enumerate(rows):
        row["num_steps"] = 1200.0 - 100 * i
    assert frontier.batches(summary)[1:] == [
        f"While compute grows {spread}-fold, the best number of steps falls from 1,200 to 100."
    ]
    rows[5]["num_steps"] = 1250.0
    assert len(frontier.batches(summary)) == 1
    rows[5]["num_steps"] = None
    assert len(frontier.batches(summary)) == 1


def test_changes_of_the_leader_agree_with_their_verb():
    summary = rich()
    found = summary["frontier"]["switches"]
    ends = found[0] | {"cause": "data"}
    summary["frontier"]["switches"] = [*found, ends]
    assert "One more change of the leader only marks where" in frontier.switch_sentences(summary)[-1]
    summary["frontier"]["switches"] = [*found, ends, ends]
    assert "2 more changes of the leader only mark where" in frontier.switch_sentences(summary)[-1]


def test_a_held_parameter_is_held_and_not_identified():
    summary = rich()
    for curve in summary["curves"]:
        curve |= {"held": ["asymptote", "floor"]}
        curve["params"] |= {"asymptote": 0.61, "floor": 0.1}
        curve["stderr"] |= {"asymptote": 0.004, "floor": None}
        curve["identified"] |= {"asymptote": False, "floor": True}
    assert parameter(summary["curves"][0], "asymptote") == "0.61 (held)"
    (sentence,) = curves.identification(summary)
    assert sentence.startswith("A is held at 0.61") and "identified" not in sentence
    assert "as in every fit" in curves.comparison(summary)[0]
    table = analysis_sections(summary, pictures())[0].table
    assert table is not None and [row[table.columns.index("A")] for row in table.rows] == ["0.61 (held)"] * 6
    assert headline_table(summary).count("0.61 (held)") == headline_table(summary).count("0.1 (held)") == 6


def test_what_was_not_fitted_is_explained():
    summary = rich()
    for curve in summary["curves"]:
        curve["points"]["used"] = [False, *([True] * (len(curve["points"]["used"]) - 1))]
    assert curves.residuals(summary)[-1] == "6 evaluations were not fitted: they do not exceed the earlier ones."
    summary["flags"]["window"] = [2e4, 1e6]
    assert curves.residuals(summary)[-1].endswith("the earlier ones, or lie outside of --window.")


def test_neighbouring_budgets_with_the_same_leaders_are_one_row():
    summary = rich()
    leaders = {"strict": "aabbb", "bucketed": "aabbb", "off": "aabba"}
    summary["record_choices"] = {
        rule: {"switches": [], "budgets": [{"compute": 2048.0 + 448 * i, "run": run} for i, run in enumerate(runs)]}
        for rule, runs in leaders.items()
    }
    table = next(s.table for s in analysis_sections(summary, pictures()) if "evaluations are fitted" in s.title)
    assert table is not None
    assert table.rows == (
        ("2,048 to 2,496", "a", "a", "a"), ("2,944 to 3,392", "b", "b", "b"), ("3,840", "b", "b", "a")
    )  # fmt: skip


def test_zero_has_no_sign():
    assert [amount(-0.0), figures(-0.0), scale(-0.0), cell(-0.0)] == ["0", "0", "0", "0"]
    curve = {"params": {"floor": -0.001}, "stderr": {"floor": 0.21}, "identified": {"floor": True}, "interval95": {}}
    assert parameter(curve, "floor") == "0.00 ± 0.21"


def test_the_unit_of_compute_is_that_of_the_data():
    summary = rich() | {"compute_unit": "gpu_hours"}
    text = every_sentence(summary)
    assert " rollouts" not in text and "GPU-hours" in text


def test_one_configuration_has_no_sections_about_n():
    summary = alone(rich(), "n = 8, B = 16")
    titles = [section.title for section in analysis_sections(summary, {})]
    assert titles == ["Learning curves and the frontier"]
    assert "cannot say which n is best" in " ".join(headline(summary)) and "n*" not in " ".join(headline(summary))


def test_every_table_is_rectangular():
    for section in analysis_sections(rich(), pictures()):
        assert section.table is None or all(len(row) == len(section.table.columns) for row in section.table.rows)
        assert section.findings


def test_foreign_sections_are_escaped_and_html_is_kept():
    extra = Section(
        "A & B", ("1 < 2", Html("<em>on purpose</em>")), table=ReportTable(("a",), ((1.5,), (None,), (True,)))
    )
    text = render_report(alone(rich(), "n = 8, B = 16"), {}, before=[extra])
    assert "A &amp; B" in text and "1 &lt; 2" in text and "<em>on purpose</em>" in text
    assert "<td>1.5</td>" in text and "<td>\N{EN DASH}</td>" in text and "<td>yes</td>" in text


def test_a_png_is_put_in_as_data(tmp_path):
    (tmp_path / "dot.png").write_bytes(b"\x89PNG")
    assert picture(tmp_path / "dot.png", 'a "dot"') == (
        '<img src="data:image/png;base64,iVBORw==" alt="a &quot;dot&quot;">'
    )


def test_small_words():
    assert [amount(v) for v in (0.25, 12.54, 999.6, 44_912, 999_600, 5.6e6, 3e9)] == [
        "0.25", "12.5", "1,000", "44,900", "1 million", "5.6 million", "3 billion"
    ]  # fmt: skip
    assert spent({"compute_unit": "tokens"}, 2e6) == "2 million tokens"
    assert listed([]) == "" and listed("a") == "a" and listed("abc") == "a, b and c"
    assert listed(["n = 2, B = 4", "c", "d"]) == "n = 2, B = 4; c and d"
    assert shortlist(list("abcdef")) == "a, b, c and 3 more" and shortlist(list("abcd")) == "a, b, c and d"
    assert shortened("short") == "short" and shortened("abcdefghij", 7) == "abc…hij"
    assert shortened("abcdefghij", 7, "..") == "abc..ij"
    assert typeset("(C_mid / C)^B < R0") == "(C<sub>mid</sub> / C)<sup>B</sup> &lt; R<sub>0</sub>"
    assert unbroken("n = 8") == "n\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}8" and isinstance(unbroken(Html("x")), Html)
    assert [cell(v) for v in (None, True, 3, 1234.6, 0.00012347)] == ["\N{EN DASH}", "yes", "3", "1,235", "0.0001235"]
    assert law_title(LawOptions(title="Mine")) == "Mine"
