"""The terminal's answer: aligned, at most 100 columns, and complete."""

from __future__ import annotations

import pytest

from isocompute_jax.fit.report.terminal import headline_table
from isocompute_jax.fit.report.wording import TERMINAL_WIDTH, aligned, wrapped
from tests.fit.summaries import alone, rich, unidentified


@pytest.mark.parametrize("change", [lambda s: s, unidentified, lambda s: alone(s, "n = 8, B = 16")])
def test_no_line_is_too_long(change):
    assert max(map(len, headline_table(change(rich())).splitlines())) <= TERMINAL_WIDTH


def test_long_names_are_cut():
    summary = rich()
    for i, curve in enumerate(summary["curves"]):
        curve["run"] = f"{i} " + "a very long name of a configuration" * 3
    for row in summary["allocation"]["recommendations"]:
        row["run"] = summary["curves"][0]["run"]
    for switch in summary["frontier"]["switches"]:
        switch |= {"from_run": summary["curves"][0]["run"], "to_run": summary["curves"][1]["run"]}
    table = headline_table(summary)
    assert max(map(len, table.splitlines())) <= TERMINAL_WIDTH
    assert all(f"{i} a very" in table for i in range(6))


def test_columns_stand_under_their_heads():
    lines = headline_table(rich()).splitlines()
    head = next(i for i, line in enumerate(lines) if line.startswith("configuration") and " C_mid " in line)
    summary = rich()
    for row, curve in enumerate(summary["curves"]):
        line = lines[head + 2 + row]
        assert line.startswith(curve["run"])
        for name, text in (("AICc", f"{curve['aicc']:.1f}"), ("r2", f"{curve['r2']:.4f}"), ("status", curve["status"])):
            at = lines[head].index(name)
            assert line[at : at + len(text)] == text


def test_parameters_switches_law_and_budgets_are_there():
    summary = rich()
    curve, switch = summary["curves"][0], summary["frontier"]["switches"][0]
    curve["params"]["asymptote"], curve["stderr"]["asymptote"] = 0.4005, 0.0028
    curve["interval95"]["asymptote"] = [0.389, 0.408]
    switch |= {"compute": 63200.0, "interval95": [61000.0, 65400.0], "share": 1.0, "epochs": 3.95}
    summary["allocation"] |= {"status": "ok", "saturation": 145.0}
    summary["allocation"]["interval95"]["saturation"] = [140.0, 211.0]
    table = headline_table(summary)
    assert "hill: R = R0 + (A - R0) / (1 + (C_mid / C)^B)" in table
    assert "0.4005 +- 0.0028 (0.389 .. 0.408)" in table
    assert "n = 8, B = 16 -> n = 32, B = 16" in table and "61,000 .. 65,400" in table and "3.95" in table
    assert "2^(L + b)  145" in table and "140 .. 211" in table
    assert "To spend 300,000 rollouts: n = " in table and "learning rate" in table
    summary["allocation"] |= {"status": "warning", "message": "n* takes two levels only"}
    assert "2^(L + b)" not in headline_table(summary) and "n* takes two levels only" in headline_table(summary)


def test_wrapping_keeps_an_equation_on_one_line():
    text = "word " * 19 + "and n = 8 and more"
    assert wrapped(text, indent="  ") == ["word " * 19 + "and", "  n = 8 and more"]


def test_aligned_columns():
    assert aligned([("a", "b"), ("long", "x"), ("y", "")]) == ["a     b", "-------", "long  x", "y"]
