"""Many problems: limits in which they are one problem, or many by themselves, and what overlap does to gains."""

import numpy as np
import pytest

from isocompute_jax.theory import Rule, even_kernel, evenness, solve_rates, suboptimality

TIMES = [1, 30, 300]
START = np.array([0.02, 0.1, 0.5, 0.9])


@pytest.mark.parametrize("rule", [Rule(), Rule("group_std", rate_rule="sqrt")], ids=str)
def test_without_overlap_each_problem_is_by_itself(rule):
    """Two answers move by twice the logit of one, and a batch of P problems gives each a P-th of the rate."""
    found = solve_rates(START, np.eye(4), TIMES, rule, group_size=4)
    for j, start in enumerate(START):
        own = Rule(rule.advantage_scale, rate_rule=rule.rate_rule, rate=rule.rate / 4 / 2)
        [alone] = suboptimality([4], TIMES, own, start=float(start))
        np.testing.assert_allclose(found[:, j], 1 - alone, rtol=1e-9)


def test_with_full_overlap_all_move_alike():
    found = solve_rates(START, even_kernel(4, 1.0), TIMES, Rule(), group_size=8)
    odds = np.log(found / (1 - found)) - np.log(START / (1 - START))
    np.testing.assert_allclose(odds, np.repeat(odds[:, :1], 4, axis=1), rtol=1e-9)


def test_one_step_by_hand():
    """n = 2, centred: the signal is 1/4 where one of two solved, which is 2 p (1 - p) of the groups."""
    start, kernel = np.array([0.5, 0.1]), np.array([[1.0, 0.3], [0.3, 1.0]])
    [found] = solve_rates(start, kernel, [1], Rule(rate=1.6, reference_group_size=2), group_size=2)
    push = 0.25 * 2 * start * (1 - start)
    odds = np.log(start / (1 - start)) + 0.8 * kernel @ push
    np.testing.assert_allclose(found, 1 / (1 + np.exp(-odds)), rtol=1e-12)


def test_competition_takes_from_what_is_rarely_solved():
    """The rest gains; with overlap the rare problem does, and gains are more even."""
    start = np.array([0.02, 0.5, 0.5, 0.5])
    gains = {
        overlap: solve_rates(start, even_kernel(4, overlap), [100], Rule(), group_size=8)[0] - start
        for overlap in (-0.3, 0.0, 0.3)
    }
    assert gains[-0.3][0] < 0 < gains[0.0][0] < gains[0.3][0]
    assert evenness(gains[-0.3]) <= evenness(gains[0.0]) < evenness(gains[0.3])


def test_evenness_by_hand():
    assert evenness(np.array([1.0, 1.0, 1.0, 1.0])) == 1.0
    assert evenness(np.array([0.5, 0.0, -0.2, 0.0])) == 0.25
    assert np.isnan(evenness(np.zeros(3)))


@pytest.mark.parametrize(
    ("start", "kernel", "said"),
    [
        ([0.0, 0.5], np.eye(2), "between 0 and 1"),
        ([0.5], np.eye(2), "with a row for each"),
        ([0.5, 0.5], np.array([[1.0, 2.0], [2.0, 1.0]]), "negative eigenvalue"),
    ],
)
def test_what_makes_no_sense_is_refused(start, kernel, said):
    with pytest.raises(ValueError, match=said):
        solve_rates(np.array(start), kernel, [1], Rule(), group_size=2)
    with pytest.raises(ValueError, match="2 problems can have -1 to 1"):
        even_kernel(2, -1.5)
    with pytest.raises(ValueError, match="must rise"):
        solve_rates(np.array([0.5]), np.eye(1), [2, 1], Rule(), group_size=2)
