"""Gradient cosines of runs that have them: read as written, judged by hand, and a section only where there are some."""

from __future__ import annotations

import json
import types
from typing import Any

import pytest

from isocompute_jax.fit.comparisons.comparison import Value
from isocompute_jax.fit.comparisons.problems import compare_gradients, gradient_cosines, pull
from isocompute_jax.fit.read import ReadOptions, read_curves
from isocompute_jax.records.errors import InputError
from isocompute_jax.records.interference_files import Cosine, Summary, write_summary
from tests.fit.runs import write_sweep

NONE = Cosine(float("nan"), float("nan"), 0)
MEASURED = {4: Cosine(0.123, 0.012, 40), 8: Cosine(-0.2, 0.05, 30), 16: Cosine(0.1, 0.06, 20), 2: NONE}


@pytest.fixture
def sweep(tmp_path):
    """Four n with two seeds each, of which the first was measured."""
    root = write_sweep(tmp_path / "runs", seeds=2)
    for n, between in MEASURED.items():
        out = root / f"n{n}-s0" / "interference"
        out.mkdir()
        cosines = {"all": Cosine(0.2, 0.01, 90), "solved": Cosine(0.3, 0.02, 9), "unsolved": NONE, "between": between}
        write_summary(out, Summary(10 + n, cosines), {"model": "m"})
    return root


def read(root) -> Any:
    return types.SimpleNamespace(runs=tuple(read_curves([str(root)], ReadOptions())[0]))


def test_numbers_are_those_of_the_files(sweep):
    found = gradient_cosines(read(sweep).runs)
    assert [(run.run, summary.with_signal) for run, summary in found] == [(f"n{n}-s0", 10 + n) for n in (2, 4, 8, 16)]
    assert [pull(summary.cosines["between"]) for _, summary in found] == ["none", "together", "against", "open"]
    for run, summary in found[1:]:
        assert summary.cosines["between"] == MEASURED[run.facts.group_size]
    written = json.loads((sweep / "n4-s0" / "interference" / "interference.json").read_text())
    assert written["cosines"]["between"] == {"cosine": 0.123, "stderr": 0.012, "pairs": 40}
    assert written["cosines"]["unsolved"]["cosine"] is None and written["model"] == "m"


def test_the_answer(sweep):
    (found,) = compare_gradients(read(sweep))
    assert found.verdict == "mixed" and [row["pull"] for row in found.rows] == ["none", "together", "against", "open"]
    shown = [[row[key] and str(row[key]) for key in found.columns] for row in found.rows]
    assert shown[:2] == [["n2-s0", "0.300 ± 0.020", None, None], ["n4-s0", "0.300 ± 0.020", None, "0.123 ± 0.012"]]
    between = found.rows[1]["between"]
    assert isinstance(between, Value) and (between.value, between.stderr) == (0.123, 0.012)
    (sentence,) = found.findings
    assert "more than 2 standard errors above 0 in 1 of 3 runs" in sentence
    assert sentence.endswith("as far below 0 in 1.")


def test_sweeps_without_are_not_told_of_it(tmp_path):
    assert list(compare_gradients(read(write_sweep(tmp_path / "runs", seeds=1)))) == []


def test_a_damaged_file_is_named(sweep):
    path = sweep / "n4-s0" / "interference" / "interference.json"
    for text in ("{", "[]", '{"with_signal": 1, "cosines": {}}'):
        path.write_text(text)
        with pytest.raises(InputError, match=r"n4-s0/interference/interference\.json is not what"):
            gradient_cosines(read(sweep).runs)
