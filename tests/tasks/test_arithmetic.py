"""Chains against an evaluator of their own, and the teacher against its exact pass probabilities."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from isocompute_jax.records.errors import InputError
from isocompute_jax.records.rollout import Problem
from isocompute_jax.tasks import Teacher, make_problems, make_teacher
from isocompute_jax.tasks.embedded import Arithmetic, answer_to, parse_chains


def problem(prompt: str, answer: str | None = None) -> Problem:
    return Problem(prompt, prompt, answer_to(prompt) if answer is None else answer, "arithmetic")


def slow_totals(prompt: str) -> list[int]:
    """Works a chain out character by character, sharing nothing with the package."""
    numbers = [int(number) for number in re.split("[-+]", prompt.rstrip("="))]
    signs = [1 if character == "+" else -1 for character in prompt if character in "+-"]
    totals, total = [], numbers[0]
    for sign, number in zip(signs, numbers[1:], strict=True):
        total += sign * number
        totals.append(total)
    return totals


@pytest.mark.parametrize(
    ("prompt", "answer"), [("47+3-2=", "50,48"), ("0+1=", "1"), ("4-4=", "0"), ("95+4-1+1=", "99,98,99")]
)
def test_answers_by_hand(prompt, answer):
    assert answer_to(prompt) == answer


@settings(max_examples=30)
@given(st.integers(0, 2**32 - 1), st.integers(1, 400))
def test_problems_agree_with_an_independent_evaluator(seed, count):
    problems = make_problems(count, seed=seed)
    assert len({p.prompt for p in problems}) == len({p.id for p in problems}) == count
    for p in problems:
        totals = slow_totals(p.text)
        assert p.answer == ",".join(map(str, totals))
        assert all(0 <= total <= 99 for total in totals) and 1 <= len(totals) <= 3
        assert Arithmetic().fault(p) is None


def test_a_smaller_count_gives_the_first_problems():
    assert make_problems(50, seed=3) == make_problems(500, seed=3)[:50]
    assert make_problems(50, seed=3) != make_problems(50, seed=4)


def brute_force_count(total: int, operations: int) -> int:
    if not 0 <= total <= 99:
        return 0
    if operations == 0:
        return 1
    return sum(brute_force_count(total + delta, operations - 1) for delta in range(-4, 5) if delta)


def test_number_of_problems():
    counted = sum(brute_force_count(start, operations) for start in range(100) for operations in (1, 2, 3))
    every = make_problems(counted, seed=0)
    assert len({p.prompt for p in every}) == counted
    with pytest.raises(InputError, match=f"there are {counted} distinct"):
        make_problems(counted + 1, seed=0)


def test_lengths_are_balanced_while_they_last():
    lengths = np.bincount([p.answer.count(",") for p in make_problems(300, seed=0)])
    assert lengths.tolist() == [100, 100, 100]


@pytest.mark.parametrize("count", [0, -1, 10**6])
def test_impossible_counts(count):
    with pytest.raises(InputError, match=f"count = {count}"):
        make_problems(count, seed=0)


@pytest.mark.parametrize(
    ("text", "reward"),
    [("50,48", 1.0), ("50,48,", 0.0), ("50, 48", 0.0), ("48", 0.0), ("050,48", 0.0), ("50,48\n", 0.0), ("", 0.0)],
)
def test_only_the_whole_answer_is_rewarded(text, reward):
    assert Arithmetic().grade(problem("47+3-2="), text).reward == reward


@pytest.mark.parametrize(
    ("prompt", "answer", "message"),
    [
        ("47+5=", "52", "prompt: '47[+]5=' is not a chain"),
        ("47+3", "50", "is not a chain"),
        ("1-2=", "-1", "leave 0..99"),
        ("98+2=", "100", "leave 0..99"),
        ("47+3-2=", "48", "answer: '48' is not the running totals of '47[+]3-2='; write '50,48'"),
    ],
)
def test_faults(prompt, answer, message):
    fault = Arithmetic().fault(problem(prompt, answer))
    assert fault is not None and re.search(message, fault)


def constant_teacher(error_rate: float, offset: int) -> Teacher:
    return Teacher(np.full((2, 10, 4), error_rate), np.full((2, 10, 4), offset))


def test_a_teacher_without_errors_is_right():
    problems = make_problems(1000, seed=1)
    answers = constant_teacher(0.0, 10).answers(problems, np.random.default_rng(0))
    assert answers == [p.answer for p in problems]


def test_errors_propagate_and_wrap_around():
    problems = [problem("47+3-2="), problem("95+1="), problem("3-1-1=")]
    always_wrong = constant_teacher(1.0, 10).answers(problems, np.random.default_rng(0))
    assert always_wrong == ["60,68", "6", "12,21"]
    assert constant_teacher(1.0, -10).answers(problems, np.random.default_rng(0))[2] == "92,81"


def test_a_step_after_an_error_uses_the_fact_of_the_wrong_total():
    # Only "+3 on a total ending in 7" is wrong, by 1; then -2 on 51 is wrong by -10, while -2 on 50 would be right.
    error_rates, offsets = np.zeros((2, 10, 4)), np.ones((2, 10, 4), dtype=np.int64)
    error_rates[0, 7, 2] = error_rates[1, 1, 1] = 1.0
    offsets[1, 1, 1] = -10
    teacher = Teacher(error_rates, offsets)
    assert teacher.answers([problem("47+3-2="), problem("49+1-2=")], np.random.default_rng(0)) == ["51,39", "50,48"]
    assert teacher.pass_probabilities([problem("47+3-2="), problem("49+1-2=")]).tolist() == [0.0, 1.0]


def test_pass_probability_is_the_product_of_facts():
    teacher = make_teacher(5)
    right = 1 - teacher.error_rates
    expected = right[0, 7, 2] * right[1, 0, 1] * right[1, 8, 3]
    assert teacher.pass_probabilities([problem("47+3-2-4=")])[0] == pytest.approx(expected, rel=1e-12)


def test_empirical_pass_rates_match_the_exact_ones():
    teacher, problems, samples = make_teacher(0), make_problems(60, seed=2), 2000
    answers = teacher.answers([p for p in problems for _ in range(samples)], np.random.default_rng(7))
    right = np.array(answers).reshape(60, samples) == np.array([p.answer for p in problems])[:, None]
    exact = teacher.pass_probabilities(problems)
    p_values = [
        stats.binomtest(int(row.sum()), samples, float(rate)).pvalue for row, rate in zip(right, exact, strict=True)
    ]
    assert min(p_values) > 0.001 / 60  # Bonferroni: 60 looks at a true hypothesis
    # Together: under the hypothesis the squared standard scores add up to a chi-square of 60 degrees of freedom.
    scores = (right.sum(axis=1) - samples * exact) ** 2 / (samples * exact * (1 - exact))
    assert 0.001 < stats.chi2.sf(scores.sum(), df=60) < 0.999


def test_the_teacher_is_fixed_by_its_seed():
    one, same, other = make_teacher(1), make_teacher(1), make_teacher(2)
    np.testing.assert_array_equal(one.error_rates, same.error_rates)
    np.testing.assert_array_equal(one.offsets, same.offsets)
    assert not np.array_equal(one.error_rates, other.error_rates)
    problems = make_problems(100, seed=0)
    draws = [one.answers(problems, np.random.default_rng(seed)) for seed in (0, 0, 1)]
    assert draws[0] == draws[1] != draws[2]


def test_error_rates_and_offsets_have_their_distribution():
    teachers = [make_teacher(seed) for seed in range(50)]
    rates = np.array([teacher.error_rates for teacher in teachers]).ravel()
    offsets = np.array([teacher.offsets for teacher in teachers]).ravel()
    assert rates.max() <= 0.97
    below, cdf = rates[rates < 0.97], stats.beta(0.8, 0.8).cdf
    assert stats.binomtest(len(below), len(rates), cdf(0.97)).pvalue > 0.001
    assert stats.kstest(below, lambda x: cdf(x) / cdf(0.97)).pvalue > 0.001
    assert stats.chisquare([np.sum(offsets == offset) for offset in (-10, -1, 1, 10)]).pvalue > 0.001


@pytest.mark.parametrize("seed", range(5))
def test_pass_rates_are_broad(seed):
    rates = make_teacher(seed).pass_probabilities(make_problems(5120, seed=seed))
    assert np.mean((rates >= 0.3) & (rates <= 0.6)) > 0.08  # Easy
    assert np.mean(rates <= 0.0625) > 0.2  # Hard
    assert np.mean(rates > 0.6) > 0.02


def test_no_problems():
    assert make_teacher(0).answers([], np.random.default_rng(0)) == []
    assert parse_chains([])[1].shape == (0, 3)
