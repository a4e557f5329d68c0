"""The terminal's answer: aligned, at most 100 columns, and complete."""

from __future__ import annotations

import re

import pytest

from isocompute_jax.fit.report.terminal import headline_table, table
from isocompute_jax.fit.report.wording import TERMINAL_WIDTH, wrapped
from tests.fit.sweeps import alone, put, put_all, rich, unidentified


@pytest.mark.parametrize("change", [lambda s: s, unidentified, lambda s: alone(s, "n = 8, B = 16")])
def test_no_line_is_too_long(change):
    assert max(map(len, headline_table(change(rich())).splitlines())) <= TERMINAL_WIDTH


def test_long_names_are_cut():
    result = rich()
    names = [f"{i} " + "a very long name of a configuration" * 3 for i in range(len(result.curves))]
    for i, name in enumerate(names):
        result = put(result, f"curves.{i}.configuration", name=name)
    result = put_all(result, "allocation.recommendations", run=names[0])
    result = put_all(result, "frontier.switches", "row", from_run=names[0], to_run=names[1])
    text = headline_table(result)
    assert max(map(len, text.splitlines())) <= TERMINAL_WIDTH
    assert all(f"{i} a very" in text for i in range(6))


def test_columns_stand_under_their_heads():
    lines = headline_table(rich()).splitlines()
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
    result = put(result, "frontier.switches.0.row", compute=63200.0, epochs=3.95)
    ends = {**result.allocation.law.interval95, "saturation": (140.0, 211.0)}
    result = put(result, "allocation.law", status="ok", saturation=145.0, interval95=ends)
    text = headline_table(result)
    assert "hill: R = R0 + (A - R0) / (1 + (C_mid / C)^B)" in text
    assert "0.4005 +- 0.0028 (0.389 .. 0.408)" in text
    assert re.search("n = 8, B = 16 +n = 32, B = 16", text) and "61,000 .. 65,400" in text and "3.95" in text
    assert "2^(L + b)  145" in text and "140 .. 211" in text
    assert "With up to 300,000 rollouts: n = " in text and "learning rate" in text
    text = headline_table(put(result, "allocation.law", status="warning", message="n* takes two levels only"))
    assert "2^(L + b)" not in text and "n* takes two levels only" in text


def test_wrapping_keeps_an_equation_on_one_line():
    text = "word " * 19 + "and n = 8 and more"
    assert wrapped(text, indent="  ") == ["word " * 19 + "and", "  n = 8 and more"]


def test_names_are_cut_as_far_as_the_other_columns_require():
    assert table(("a", "b"), [("long", "x"), ("y", "")])[2:] == ["long  x", "y"]
    head, rule, row = table(("a", "b"), [("name" * 30, "x" * 60)], names=1)
    assert len(row) == TERMINAL_WIDTH == len(rule) and row.startswith("namename") and row.endswith("x" * 60)
    assert head.index("b") == row.index("x")
