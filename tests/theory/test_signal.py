"""A group's signal: against the learner's advantages, every sequence of answers, and SciPy's binomial."""

import itertools

import jax
import numpy as np
import pytest
from scipy import stats

from isocompute_jax.learner.credit import group_advantages
from isocompute_jax.theory import group_signals, log_share_of_groups, signal_moments

CHOICES = [("group_std", "group_mean"), ("none", "group_mean"), ("none", "leave_one_out")]


@pytest.mark.parametrize(("scale", "baseline"), CHOICES)
@pytest.mark.parametrize("n", [2, 3, 8, 64])
def test_signals_are_what_the_learners_advantages_push(n, scale, baseline):
    rewards = np.tril(np.ones((n + 1, n)), -1)  # row k has k rollouts that were solved
    advantages = group_advantages(rewards, np.ones(n + 1, bool), scale=scale, baseline=baseline)
    expected = np.sum(advantages * rewards, axis=1) / n
    found = group_signals(n, advantage_scale=scale, baseline=baseline)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-9)
    assert found[0] == found[-1] == 0.0


@pytest.mark.parametrize(("scale", "baseline"), CHOICES)
def test_the_expected_policy_gradient_is_that_of_all_sequences_of_answers(scale, baseline):
    n, solves = 3, np.array([True, True, False, False, False])
    logits = np.array([0.3, -0.7, 0.5, 1.1, -0.2])
    policy = np.exp(logits) / np.exp(logits).sum()
    gradient = np.zeros(5)
    for drawn in itertools.product(range(5), repeat=n):
        rewards = solves[list(drawn)].astype(float)[None]
        [advantages] = group_advantages(rewards, np.ones(1, bool), scale=scale, baseline=baseline)
        pushes = sum(a * (np.eye(5)[answer] - policy) for a, answer in zip(advantages, drawn, strict=True)) / n
        gradient += np.prod(policy[list(drawn)]) * pushes
    p = policy[solves].sum()
    signals = group_signals(n, advantage_scale=scale, baseline=baseline)
    mean = np.sum(stats.binom.pmf(range(n + 1), n, p) * signals)
    np.testing.assert_allclose(gradient, np.where(solves, policy * mean / p, -policy * mean / (1 - p)), rtol=1e-6)


@pytest.mark.parametrize("odds", [-9.0, -1.0, 0.0, 2.5, 20.0])
def test_groups_are_binomial_and_padding_holds_none(odds):
    sizes = np.array([2.0, 5.0, 16.0])
    with jax.enable_x64(True):
        share = np.exp(np.asarray(log_share_of_groups(np.full(3, odds), sizes, most=16)))
    failed = 1 / (1 + np.exp(odds))  # 1 - p, of which p near 1 keeps nothing
    for row, n in zip(share, sizes, strict=True):
        np.testing.assert_allclose(row, stats.binom.pmf(n - np.arange(17), n, failed), rtol=1e-9, atol=1e-300)


def test_moments_are_those_of_the_distribution():
    signals = np.stack([group_signals(n, advantage_scale="group_std", baseline="group_mean", most=8) for n in (4, 8)])
    with jax.enable_x64(True):
        means, variances = map(np.asarray, signal_moments(np.array([0.4, -1.0]), np.array([4.0, 8.0]), signals))
    for n, odds, row, mean, variance in zip((4, 8), (0.4, -1.0), signals, means, variances, strict=True):
        group = stats.rv_discrete(values=(np.arange(n + 1), stats.binom.pmf(range(n + 1), n, 1 / (1 + np.exp(-odds)))))
        assert mean == pytest.approx(group.expect(lambda k, row=row: row[k.astype(int)]), rel=1e-9)
        second = group.expect(lambda k, row=row: row[k.astype(int)] ** 2)
        assert variance == pytest.approx(second - mean**2, rel=1e-9)


def test_a_group_of_one_is_refused():
    with pytest.raises(ValueError, match="a group of 1 has no advantages"):
        group_signals(1, advantage_scale="none", baseline="group_mean")
