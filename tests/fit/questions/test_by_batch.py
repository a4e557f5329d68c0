"""Whether B_problem matters, in simulated sweeps whose truth is known."""

import numpy as np
import pytest

from isocompute_jax.fit.options import AnalysisOptions
from isocompute_jax.fit.questions import by_batch
from tests.fit.questions.sweeps import COMPUTE, grouped, made, rising


def asked(runs):
    return list(by_batch(grouped(runs), AnalysisOptions()))


def test_b_problem_that_does_nothing_does_not_matter(sentences):
    (found,) = asked(made(lambda n, b, c: rising(n, c, best=16), batches=(4, 16), seeds=4, noise=0.002))
    assert (found.question, found.part, found.verdict) == ("by_batch", "", "no matter")
    assert found.numbers["alike"] >= 0.95 and found.numbers["group_size_larger"] == 1.0
    low, high = found.numbers["sd_over_problems_per_batch_95"]
    assert low < high < 0.01
    assert sentences.said(found).startswith("B_problem does not matter here: at C = 64,000 and equal n,")


@pytest.fixture(scope="module")
def matters():
    (found,) = asked(made(lambda n, b, c: rising(n, c, best=16) + 0.02 * np.log2(b / 4), batches=(4, 16)))
    return found


def test_an_effect_is_found_with_its_size(matters, sentences):
    """Two octaves of B_problem are 0.04 of reward: a standard deviation of 0.04 / sqrt(2)."""
    assert matters.verdict == "matters" and matters.numbers["between"] == (4, 16)
    low, high = matters.numbers["difference_95"]
    assert low - 0.01 < 0.04 < high + 0.01
    assert matters.numbers["sd_over_problems_per_batch"] == pytest.approx(0.04 / 2**0.5, abs=0.006)
    at_end = [rising(n, COMPUTE[-1:], best=16)[0] for n in (4, 16, 64)]
    assert matters.numbers["sd_over_group_size"] < np.std(at_end, ddof=1) + 0.01
    said = sentences.said(matters)
    assert "B_problem = 16 gives 0.0" in said and said.endswith("over n at equal B_problem.")


def test_each_n_has_its_reward_at_each_b_problem(matters, sentences):
    assert matters.columns == ("group_size", "B=4", "B=16")
    assert [row["group_size"] for row in matters.rows] == [4, 16, 64]
    for row in matters.rows:
        truth = rising(row["group_size"], COMPUTE[-1:], best=16)[0]
        assert row["B=4"] == pytest.approx(truth, abs=0.02) and row["B=16"] == pytest.approx(truth + 0.04, abs=0.02)
        assert all(sentences.cell(row, column) for column in matters.columns)
    assert [series["name"] for series in matters.series] == ["group_size", "problems_per_batch"]
    for each in matters.series:
        assert (each["low"] <= each["value"]).all() and (each["value"] <= each["high"]).all()


def test_what_differs_in_more_is_not_compared():
    one, other = (made(lambda n, b, c: rising(n, c, best=16), batches=(b,), seeds=1, size=b) for b in (4, 16))
    assert asked([*one, *other]) == []
    assert asked(made(lambda n, b, c: rising(n, c, best=16), seeds=1)) == []
