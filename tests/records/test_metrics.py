"""avg@k, best@k and worst@k: goldens worked by hand, and a brute-force count over all subsets."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isocompute_jax.records import metrics


def correct_counts(*rows: str) -> np.ndarray:
    """Correct samples per problem, from rows such as "1001"."""
    return np.array([row.count("1") for row in rows])


def test_golden_with_exactly_k_samples():
    """With k samples of k nothing is estimated: 2 of 3 problems have a hit, 1 of 3 only hits, half of all hit."""
    correct = correct_counts("1001", "0000", "1111")
    assert metrics.best_at_k(correct, 4, 4) == pytest.approx(2 / 3, abs=1e-15)
    assert metrics.worst_at_k(correct, 4, 4) == pytest.approx(1 / 3, abs=1e-15)
    assert metrics.avg_at_k(correct, 4) == 0.5


def test_golden_with_more_samples_than_k():
    """8 samples, 2 correct: of the C(8, 4) = 70 ways to draw 4, C(6, 4) = 15 miss both and none takes 4 correct."""
    correct = np.array([2])
    assert metrics.best_at_k(correct, 8, 4) == pytest.approx(1 - 15 / 70, abs=1e-15)
    assert round(metrics.best_at_k(correct, 8, 4), 4) == 0.7857
    assert metrics.worst_at_k(correct, 8, 4) == 0.0
    assert metrics.avg_at_k(correct, 8) == 0.25


@st.composite
def graded(draw):
    samples = draw(st.integers(1, 7))
    outcomes = draw(st.lists(st.lists(st.booleans(), min_size=samples, max_size=samples), min_size=1, max_size=4))
    return np.array(outcomes), draw(st.integers(1, samples))


@given(graded())
def test_estimators_equal_a_count_over_all_subsets(case):
    """Drawing k of the m samples in every possible way and counting gives both estimators, problem by problem."""
    outcomes, k = case
    subsets = list(itertools.combinations(range(outcomes.shape[1]), k))
    best = np.mean([any(row[i] for i in subset) for row in outcomes for subset in subsets])
    worst = np.mean([all(row[i] for i in subset) for row in outcomes for subset in subsets])
    correct, samples = outcomes.sum(axis=1), outcomes.shape[1]
    assert metrics.best_at_k(correct, samples, k) == pytest.approx(best, abs=1e-12)
    assert metrics.worst_at_k(correct, samples, k) == pytest.approx(worst, abs=1e-12)
    assert metrics.avg_at_k(correct, samples) == pytest.approx(outcomes.mean(), abs=1e-12)


def test_many_samples_equal_exact_integer_arithmetic():
    """C(2048, 1024) has over 600 digits: the product of ratios neither overflows nor loses precision."""
    samples, k = 2048, 1024
    for correct in (1, 5, 1024, 1030, 2047):
        none = math.comb(samples - correct, k) / math.comb(samples, k)
        every = math.comb(correct, k) / math.comb(samples, k)
        assert metrics.best_at_k(np.array([correct]), samples, k) == pytest.approx(1 - none, rel=1e-12)
        assert metrics.worst_at_k(np.array([correct]), samples, k) == pytest.approx(every, rel=1e-10)


@given(st.lists(st.integers(0, 6), min_size=1, max_size=20))
def test_histogram_counts_every_problem_once(correct):
    assert metrics.solve_rate_histogram(np.array(correct), 6) == [correct.count(rate) for rate in range(7)]


@pytest.mark.parametrize(
    ("correct", "samples", "k", "complaint"),
    [([1], 4, 5, "k = 5"), ([1], 4, 0, "k = 0"), ([], 4, 2, "empty"), ([5], 4, 2, r"0\.\.4"), ([-1], 4, 2, r"0\.\.4")],
)
@pytest.mark.parametrize("estimator", [metrics.best_at_k, metrics.worst_at_k])
def test_nonsense_is_refused(estimator, correct, samples, k, complaint):
    with pytest.raises(ValueError, match=complaint):
        estimator(np.array(correct, int), samples, k)


def test_halves_are_the_even_and_the_odd_places():
    assert metrics.halves(np.array([4, 0, 2, 1, 0]), 4) == (0.5, 0.125)
    with pytest.raises(ValueError, match="one problem"):
        metrics.halves(np.array([4]), 4)
