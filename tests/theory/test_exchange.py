"""One problem by itself: late errors as derived for each rule, and the exchange of n and M."""

import dataclasses

import numpy as np
import pytest

from isocompute_jax.theory import Rule, late_constant, suboptimality
from isocompute_jax.theory.exchange import POWERS

SIZES = (2, 4, 16)
TIMES = (50_000, 100_000, 200_000)
RULES = [
    dataclasses.replace(rule, rate_rule=rate_rule)
    for rule in (Rule(rate=0.5), Rule(baseline="leave_one_out", rate=0.5), Rule("group_std", rate=0.5))
    for rate_rule in POWERS
]


def derived(rule: Rule) -> np.ndarray:
    """e t of two answers, by hand (the table of `exchange`)."""
    n = np.array(SIZES, float)
    signal = {"none": (n - 1) / n, "group_std": (n - 1) / np.sqrt(n)}[rule.advantage_scale]
    if rule.baseline == "leave_one_out":
        signal = np.ones_like(n)
    eta = 0.5 * (n / 8) ** {"constant": 0, "sqrt": 0.5, "linear": 1}[rule.rate_rule]
    return 0.5 / (eta * signal)


@pytest.mark.parametrize(
    "rule", [pytest.param(rule, marks=pytest.mark.slow if i % 4 else ()) for i, rule in enumerate(RULES)], ids=str
)
def test_late_errors_fall_as_derived(rule):
    errors = suboptimality(SIZES, TIMES, rule)
    np.testing.assert_allclose(errors * np.array(TIMES), derived(rule)[:, None] * np.ones(3), rtol=0.05)
    np.testing.assert_allclose(late_constant(SIZES, rule), derived(rule), rtol=1e-5)
    slopes = np.polyfit(np.log(TIMES), np.log(errors).T, 1)[0]
    np.testing.assert_allclose(slopes, -1.0, rtol=0.05)


def test_more_answers_are_worth_less_than_two_where_one_solves():
    rule = Rule()
    errors = suboptimality([4], [100_000], rule, answers=10, start=0.1)
    [constant] = late_constant([4], rule, answers=10)
    assert errors[0, 0] * 100_000 == pytest.approx(constant, rel=0.05)
    assert constant / late_constant([4], rule)[0] == pytest.approx(1.8)


def test_n_and_m_exchange_only_where_the_rate_makes_up_for_n():
    compute = 800_000
    for rule, exchanges in [
        (Rule(rate_rule="linear"), True),
        (Rule("group_std", rate_rule="sqrt"), True),
        (Rule(), False),
        (Rule("group_std"), False),
    ]:
        small, large = (suboptimality([n], [compute // n], rule)[0, 0] for n in (16, 64))
        assert (large / small < 1.1) == exchanges


def test_the_first_step_is_one_by_hand():
    """n = 2, p = 1/2: the signal is 1/4 in half of the groups; two logits move by eta / 8 each."""
    [[error]] = suboptimality([2], [1], Rule(rate=0.8, reference_group_size=2))
    assert error == pytest.approx(1 / (1 + np.exp(0.8 * 2 / 8)), rel=1e-9)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (dict(answers=1), "2 answers or more"),
        (dict(start=1.0), "0 < start < 1"),
        (dict(times=[5, 3]), "must rise"),
        (dict(group_sizes=[1, 4]), "a group of 1"),
    ],
)
def test_what_makes_no_sense_is_refused(changes, said):
    with pytest.raises(ValueError, match=said):
        suboptimality(**{"group_sizes": [4], "times": [1, 2], "rule": Rule(), **changes})
