"""From recommendations to answers: confidence, ties, objections, and the ranges over which an answer holds."""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import pytest

from isocompute_jax.fit.advice import BEYOND_DATA, BudgetAnswer, Objection, _confidence, budget_grid, ranges
from isocompute_jax.fit.analysis import analyse_runs
from isocompute_jax.fit.analysis_options import AnalysisOptions
from isocompute_jax.fit.frontier.switches import _established
from isocompute_jax.fit.report.answers import MOST_NAMED, answer_text, pick
from isocompute_jax.fit.report.facts import tie_ranges
from isocompute_jax.fit.report.templating import said
from isocompute_jax.fit.results import Configuration, CurveFit, Switch, choose_form
from isocompute_jax.fit.sweep_results import SweepResult
from tests.fit.runs import CROSSING, write_sweep
from tests.fit.sweeps import put, rich


def kinds(found: BudgetAnswer) -> dict[str, Objection]:
    return {objection.kind: objection for objection in found.objections}


def objection_text(objection: Objection) -> str:
    (text,) = said("objection", rich(), rich().answers[0].recommendation, objection)
    return text


@pytest.fixture(scope="module")
def clear(tmp_path_factory) -> SweepResult:
    """2 -> 4 -> 8 beyond any doubt; n = 16 is never on the frontier."""
    root = write_sweep(tmp_path_factory.mktemp("clear") / "runs", noise=0.001)
    return analyse_runs([str(root)], AnalysisOptions(form="hill", replicates=20, holdout=0.0))


def test_a_clear_answer_is_sure_and_holds_over_ranges_that_meet_at_the_switches(clear):
    found = clear.asked
    assert [answer.budget for answer in found] == [2**18]
    assert found[0].recommendation.run == "n = 8" and found[0].confidence == "sure" and found[0].share == 1.0
    assert found[0].objections == ()
    rows = clear.ranges
    assert [row.run for row in rows if not row.beyond] == ["n = 2", "n = 4", "n = 8"]
    assert rows[0].start == 2048 and rows[-1].beyond and rows[-1].end > 0.9 * BEYOND_DATA * 2**18
    assert all(one.end == other.start for one, other in itertools.pairwise(rows))
    assert [rows[0].end, rows[1].end] == [switch.compute for switch in clear.frontier.crossings]
    assert [row.confidence for row in rows] == ["sure", "sure", "sure", "likely"]  # nothing is sure beyond the data


def test_one_seed_and_the_largest_n_are_objections(tmp_path):
    root = write_sweep(tmp_path / "runs", curves={n: CROSSING[n] for n in (2, 4, 8)}, seeds=1, noise=0.0)
    quiet = {"form": "hill", "bootstrap": "none", "holdout": 0.0}
    untold = analyse_runs([str(root)], AnalysisOptions(forecast="form", **quiet)).asked[0]
    assert untold.confidence == "unknown" and untold.share is None
    result = analyse_runs([str(root)], AnalysisOptions(**quiet))
    (found,) = result.asked
    assert found.confidence == "sure" and found.share == found.recommendation.best_share == 1.0
    assert set(kinds(found)) == {"one_seed", "largest"}
    assert set(kinds(result.answers[0])) == {"one_seed", "smallest"}


def test_the_picture_s_thick_line_is_the_answer_where_one_alone_is_the_best(clear):
    """A tie has none, a stopped configuration none past its peak, and nobody one beyond the data."""
    assert [lead[0] for lead in clear.leads] == ["n = 2", "n = 4", "n = 8"]
    assert clear.leads[-1][2] == 2**18
    rows = [dataclasses.replace(row, confidence="tied") if row.run == "n = 4" else row for row in clear.ranges]
    assert [lead[0] for lead in put(clear, "", ranges=tuple(rows)).leads] == ["n = 2", "n = 8"]
    late = dataclasses.replace(clear.ranges[0], start=1e5, end=2e5, stop=1e5)
    fallen = put(put(clear, "curves.0.fit", window=(2048.0, 1e5)), "", ranges=(late,))
    assert fallen.curves[0].run == late.run and fallen.leads == []


def test_ranges_part_where_the_verdict_changes_and_rewards_meet():
    first = rich().answers[0]
    rows = zip((1e3, 2e3, 4e3, 8e3), ("sure", "sure", "tied", "tied"), (0.1, 0.2, 0.3, 0.4), strict=True)
    answers = [
        put(dataclasses.replace(first, confidence=level), "recommendation", budget=c, run="a", reward=r, place="inside")
        for c, level, r in rows
    ]
    one, two = ranges(answers, [])
    assert (one.end, one.confidence, two.confidence) == (pytest.approx(math.sqrt(8e6)), "sure", "tied")
    assert one.rewards == pytest.approx((0.1, 0.25)) and two.rewards == pytest.approx((0.25, 0.4))
    stopped = [*answers[:2], *(put(a, "recommendation", stop=2.5e3) for a in answers[2:])]
    assert ranges(stopped, [])[0].end == 2.5e3


@pytest.mark.parametrize(
    ("share", "by_seed", "verdict"),
    [
        (1.0, {"0": 1e4, "1": 1e4, "2": 1e4}, True), (0.95, {"0": 1e4, "1": 1e4}, True),
        (0.94, {"0": 1e4, "1": 1e4}, False), (1.0, {"0": 1e4, "1": None}, False), (1.0, {}, None),
        (None, {"0": 1e4, "1": 1e4}, None), (None, {"0": 1e4, "1": None}, False),
    ],
)  # fmt: skip
def test_established_has_one_rule(share, by_seed, verdict):
    assert _established(share, by_seed) is verdict


def test_ranges_join_equal_answers_and_part_at_switches():
    first = rich().answers[0]
    rows = zip((1e3, 2e3, 4e3, 8e3, 16e3), "aabbb", (0.99, 0.97, 0.6, 0.9, 0.9), strict=True)
    answers = [
        put(
            dataclasses.replace(first, share=share),
            "recommendation",
            budget=c,
            run=run,
            place="inside" if c < 1e4 else "beyond",
        )
        for c, run, share in rows
    ]
    switch = Switch(
        3e3, Configuration("a", 8, 16, 0), Configuration("b", 8, 16, 0), 0.5, math.nan, (1e3, 8e3), "crossing"
    )
    rows = ranges(answers, [switch])
    assert [(row.run, row.start, row.end, row.beyond) for row in rows] == [
        ("a", 1e3, 3e3, False), ("b", 3e3, 8e3, False), ("b", 8e3, 16e3, True)
    ]  # fmt: skip
    assert [row.share for row in rows] == pytest.approx([0.98, 0.75, 0.9])
    assert [row.confidence for row in rows] == ["sure", "open", "likely"]
    assert ranges(answers, [])[0].end == pytest.approx(math.sqrt(8e6))
    tied = [put(dataclasses.replace(a, confidence="tied"), "recommendation", tied=("a", "b")) for a in answers]
    (inside, beyond) = ranges(tied, [])
    assert (inside.run, inside.end, inside.confidence) == ("a", 8e3, "tied") and beyond.beyond
    assert ranges([], []) == []


def test_what_names_another_leader_contradicts():
    found = dataclasses.replace(put(rich().asked[0], "recommendation", by_records=""), confidence="contradicted")
    rows = {
        (Objection("evaluations", "a", size=0.1),): True,
        (Objection("seeds", "a", size=1, of=3), Objection("largest")): False,
        (Objection("seeds", "a", size=2, of=3),): True,
        (Objection("form", "", "power", 20.0),): False,
        (Objection("form", "a", "power", 20.0),): True,
    }
    for objections, verdict in rows.items():
        assert dataclasses.replace(found, objections=objections).contradicted_by == (["a"] if verdict else [])
    found = put(dataclasses.replace(found, objections=()), "recommendation", by_records="a")
    assert found.contradicted_by == ["a"]
    known = {"contradicted": True, "seen": True}
    assert _confidence(1.0, tied=False, **known) == _confidence(1.0, tied=True, **known) == "contradicted"
    text = answer_text(rich(), found)
    assert text.label == "Contradicted" and text.certainty.startswith("The data also speak for a: see below.")


def test_beyond_the_data_the_forecast_says_how_sure():
    far = rich().asked[1]
    row = far.recommendation
    assert row.place == "beyond" and far.share == row.best_share and far.rival == row.rival
    lone = dataclasses.replace(put(far, "recommendation", tied=(), best_share=0.84), confidence="likely", share=0.84)
    text = answer_text(rich(), lone)
    assert text.label == "Likely, extrapolated"
    assert "the best of those tried in 84% of the curves that the data allow" in text.certainty
    assert "bootstrap" not in text.certainty
    shares = {share: _confidence(share, tied=False, contradicted=False, seen=False) for share in (1.0, 0.84, 0.7)}
    assert shares == {1.0: "likely", 0.84: "likely", 0.7: "open"}


def test_the_grid_has_the_ends_of_the_data_and_what_was_asked_for():
    fits = [CurveFit("hill", {}, window) for window in ((2048.0, 1e5), (1e3, 262_144.0))]
    grid = budget_grid(fits, [12_345.0])
    assert grid == sorted(set(grid)) and {1e3, 262_144.0, 12_345.0} <= set(grid)
    assert grid[0] == 1e3 and BEYOND_DATA * 262_144 * 0.8 < grid[-1] <= BEYOND_DATA * 262_144
    assert budget_grid(fits, [1e7])[-1] == 1e7 and budget_grid(fits, [10.0])[0] == 10.0
    steps = np.diff(np.log(grid))
    assert steps.max() < 0.25


def test_ties_become_ranges():
    rows = rich().main.budgets
    found = tie_ranges(rows)
    assert [row for group in found for row in group] == list(rows)
    assert all(len({(row.best_run, row.tied) for row in group}) == 1 for group in found)
    assert all((a[0].best_run, a[0].rivals) != (b[0].best_run, b[0].rivals) for a, b in itertools.pairwise(found))


def test_a_better_form_is_named_on_the_first_screen():
    result = put(rich(), "forms.expsat", aicc=rich().forms["hill"].aicc - 50.0)
    choice = choose_form(result.forms)
    assert choice is not None and choice.best == "expsat" and choice.strength == "clear"
    text = objection_text(Objection("form", "n = 8, B = 16", "expsat", 50.0))
    assert "expsat" in text and "n = 8, B = 16 leads instead" in text
    assert "stays the same" in objection_text(Objection("form", "", "expsat", 50.0))


def test_evaluations_that_were_left_out_are_named_on_the_first_screen():
    run = rich().answers[0].recommendation.run
    left_out = objection_text(Objection("outliers", size=2))
    assert left_out == f"2 evaluations of {run} were left out, far from the curve through all others."
    assert f"1 evaluation of {run} was" in objection_text(Objection("outliers", size=1))


def test_what_is_picked():
    result = rich()
    for i, curve in enumerate(result.curves):
        result = put(result, f"curves.{i}.configuration", problems_per_batch=16, name=f"n = {curve.group_size}")
    assert pick(result, 8, "n = 8") == "n = 8"
    assert pick(result, 8, "n = 8", (8, 32, 128)) == "n = 8 (or 32 or 128)"
    many = result
    for i in range(len(result.curves)):
        many = put(many, f"curves.{i}.configuration", group_size=4 * 2**i)
    sizes = tuple(many.group_sizes)
    assert len(sizes) > MOST_NAMED and pick(many, 8, "n = 8", sizes) == f"n = 8 (or any from {sizes[0]} to {sizes[-1]})"
    assert pick(result, 8, "n = 8", (8, 32)) == "n = 8 (or 32)"
    assert pick(result, 8, "n = 8", (4, 8, 32, 128), 1e5) == "n = 8, stopped at 100,000 rollouts (or 4, 32 or 128)"
    assert pick(result, 0, "gspo") == "gspo"
    assert pick(rich(), 8, "n = 8, B = 16") == "n = 8, B = 16"
