"""The terminal's answer: aligned, at most 100 columns, and complete."""

from __future__ import annotations

import dataclasses
import itertools
import re

import numpy as np
import pytest

from isocompute_jax.fit.advice import Objection
from isocompute_jax.fit.curves.falls import Fall
from isocompute_jax.fit.report.answers import answer_text
from isocompute_jax.fit.report.terminal import FEW_LINES, MOST_LINES, headline, headline_tables, table
from isocompute_jax.fit.report.wording import TERMINAL_WIDTH, wrapped
from tests.fit.sweeps import alone, put, put_all, rich, unidentified


@pytest.mark.parametrize("change", [lambda s: s, unidentified, lambda s: alone(s, "n = 8, B = 16")])
def test_no_line_is_too_long(change):
    assert max(map(len, str(change(rich())).splitlines())) <= TERMINAL_WIDTH


def test_long_names_are_cut():
    result = rich()
    names = [f"{i} " + "a very long name of a configuration" * 3 for i in range(len(result.curves))]
    for i, name in enumerate(names):
        result = put(result, f"curves.{i}.configuration", name=name)
    result = put_all(result, "recommendations", run=names[0])
    result = put_all(result, "frontier.switches", "before", name=names[0])
    result = put_all(result, "frontier.switches", "after", name=names[1])
    text = str(result)
    assert max(map(len, text.splitlines())) <= TERMINAL_WIDTH
    assert all(f"{i} a very" in text for i in range(6))


def test_where_nothing_was_ever_solved_the_answer_says_so_and_where_partial_rewards_are():
    result = rich()
    assert "nothing was solved" not in headline(result)
    for i, curve in enumerate(result.curves):
        result = put(result, f"curves.{i}.points", reward=np.zeros_like(curve.points.reward))
    text = " ".join(headline(result).split())
    assert "avg@4 never rises above 0: nothing was solved" in text and "--metric=mean_reward" in text
    single = put(result, "", recommendations=result.recommendations[:1])
    assert len(headline(single).splitlines()) <= MOST_LINES


@pytest.mark.parametrize("length", [0, 40, 400])
def test_the_answer_takes_ten_lines_whatever_the_names(length):
    """The report's place is the tenth."""
    result = rich()
    for i in range(len(result.curves)):
        result = put(result, f"curves.{i}.configuration", name=f"{i} " + "name " * (length // 5))
    for recommended in (rich().recommendations[:1], ()):
        lines = headline(put(result, "", recommendations=recommended)).splitlines()
        assert 3 <= len(lines) <= MOST_LINES and max(map(len, lines)) <= TERMINAL_WIDTH
        assert lines[0].startswith("With up to ") and all(line.startswith("  ") for line in lines[1:])
    both = headline(result).splitlines()
    assert len(both) <= 2 * FEW_LINES + 2 and sum(line.startswith("With up to ") for line in both) == 2


def test_the_answer_says_all_that_counts_and_nothing_of_it_twice():
    result = rich()
    first = dataclasses.replace(result.asked[0], objections=(Objection("seeds_differ"), Objection("one_seed")))
    answers = tuple(first if each.budget == first.budget else each for each in result.answers)
    result = dataclasses.replace(result, answers=answers)
    row = first.recommendation
    assert headline(put(result, "", recommendations=(row,))).splitlines() == [
        "With up to 300,000 rollouts: n = 128, B = 16.",
        "  Sure. n = 128, B = 16 is the best of those tried in 100% of the curves that the data allow.",
        f"  Expect avg@4 of {row.reward:.3f} (95% interval {row.interval95[0]:.3f} to {row.interval95[1]:.3f}), where "
        "data were measured.",
        f"  {row.num_steps} steps of 16 problems \N{MULTIPLICATION SIGN} 128 rollouts.",
        "  Against it, first of 2: Every configuration has one seed, so leads cannot be told from noise.",
        "  Not tried: a second seed.",
    ]


def test_without_a_budget_the_answer_says_how_n_goes_with_it():
    result = rich()
    verdicts = [(f"n = {n}, B = 16", sure) for n, sure in ((8, "sure"), (32, "tied"), (32, "tied"), (128, "sure"))]
    ends = (1e4, 5e4, 9e4, 2e5, 1e6)
    ranges = tuple(
        dataclasses.replace(result.ranges[0], run=run, confidence=sure, start=start, end=end)
        for (run, sure), (start, end) in zip(verdicts, itertools.pairwise(ends), strict=True)
    )
    result = put(dataclasses.replace(result, ranges=ranges), "", recommendations=())
    text = " ".join(headline(result).split())
    assert "By budget: n = 8, B = 16 up to 50,000; n = 32, B = 16 (a tie) up to 200,000" in text
    assert "and then n = 128, B = 16." in text


def test_what_names_another_leader_is_the_strongest_objection():
    found = put(rich().asked[1], "recommendation", by_records="")
    beyond = found.recommendation.doubts[0]
    kinds = (Objection("seeds_differ"), Objection("one_seed"), Objection("evaluations", "n = 8, B = 16", size=0.1))
    against = answer_text(rich(), dataclasses.replace(found, objections=kinds)).against
    assert "n = 8, B = 16 is ahead" in against[0] and against[1] == beyond and "one seed" in against[-2]
    assert against[-1].startswith("Seeds differ")
    fall = Fall(3e4, 0.4, 1e6, 0.2)
    falls = f"{rich().curves[0].run} {fall.text()}: do not train it past its peak"
    for sentence, place in ((f"{falls}.", -1), (f"{falls}, where it is higher than what is expected here.", 0)):
        told = put(found, "recommendation", doubts=(sentence, beyond), others_fallen=(sentence,) if place == -1 else ())
        assert answer_text(rich(), dataclasses.replace(told, objections=kinds[:2])).against[place] == sentence


def test_columns_stand_under_their_heads():
    lines = headline_tables(rich()).splitlines()
    head = next(i for i, line in enumerate(lines) if line.startswith("configuration") and " C_mid " in line)
    for row, curve in enumerate(rich().curves):
        line, fit = lines[head + 2 + row], curve.fit
        assert line.startswith(curve.run)
        for name, text in (("AICc", f"{fit.aicc:.1f}"), ("r2", f"{fit.r2:.4f}"), ("status", fit.status)):
            at = lines[head].index(name)
            assert line[at : at + len(text)] == text


def test_parameters_switches_law_and_budgets_are_there():
    result = put(rich(), "curves.0.fit.params", asymptote=0.4005)
    result = put(result, "curves.0.fit.stderr", asymptote=0.0028)
    result = put(result, "curves.0.fit.interval95", asymptote=(0.389, 0.408))
    result = put(result, "frontier.switches.0", interval95=(61000.0, 65400.0), share=1.0)
    result = put(result, "frontier.switches.0", compute=63200.0, epochs=3.95)
    ends = {**result.allocation.interval95, "saturation": (140.0, 211.0)}
    result = put(result, "allocation", status="ok", saturation=145.0, interval95=ends)
    text = str(result)
    assert "hill: R = R0 + (A - R0) / (1 + (C_mid / C)^B)" in text
    assert "0.4005 +- 0.0028 (0.389 .. 0.408)" in text
    assert re.search("n = 8, B = 16 +n = 32, B = 16", text) and "61,000 .. 65,400" in text and "3.95" in text
    assert "2^(L + b)  145" in text and "140 .. 211" in text
    assert "With up to 300,000 rollouts: n = " in text
    text = headline_tables(put(result, "allocation", status="warning", message="n* takes two levels only"))
    assert "2^(L + b)" not in text and "n* takes two levels only" in text


def test_wrapping_keeps_an_equation_on_one_line():
    text = "word " * 19 + "and n = 8 and more"
    assert wrapped(text, indent="  ") == ["word " * 19 + "and", "  n = 8 and more"]


def test_names_are_cut_as_far_as_the_other_columns_require():
    assert table(("a", "b"), [("long", "x"), ("y", "")])[2:] == ["long  x", "y"]
    head, rule, row = table(("a", "b"), [("name" * 30, "x" * 60)], names=1)
    assert len(row) == TERMINAL_WIDTH == len(rule) and row.startswith("namename") and row.endswith("x" * 60)
    assert head.index("b") == row.index("x")
