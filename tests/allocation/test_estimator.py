"""Expected gradients on a tabular softmax, by enumeration: exactly the target, or exactly what is said instead."""

import functools
import itertools
import typing

import numpy as np
import pytest
from scipy import stats

from isocompute_jax.allocation.estimator import advantages, expected_weight, group_signals, weights
from isocompute_jax.allocation.policies import Belief, Policy, deal

LOGITS = np.array([[0.3, -0.9, 1.4], [1.2, 0.4, -0.5]])  # of three answers; the first solves the problem
PI = np.exp(LOGITS) / np.exp(LOGITS).sum(axis=1, keepdims=True)
SCORES = np.eye(3)[None] - PI[:, None]  # [P, answer, logit] of log pi
RATES = PI[:, 0]
TARGET = RATES[:, None] * SCORES[:, 0] / 2  # of the mean over both problems
HOW = {"total": 10, "block": 2}
BELIEF = Belief(np.array([0.3, 5.0]), np.array([9.0, 4.0]))


@functools.cache
def leaves(policy: Policy) -> list[tuple[float, np.ndarray, np.ndarray]]:
    """(probability, rewards [P, G], rounds [P, R]) of every course that a step can take."""

    def go_on(chance, rewards, rounds):
        drawn = [len(each) for each in rewards]
        if sum(drawn) == HOW["total"]:
            padded = np.array([each + [0] * (max(drawn) - len(each)) for each in rewards], float)
            yield chance, padded, np.array(rounds).T
            return
        counts = deal(policy, BELIEF, [np.array(each) for each in rewards] if rounds else None, **HOW)
        for bits in itertools.product((0, 1), repeat=int(counts.sum())):
            parts = [list(bits[: counts[0]]), list(bits[counts[0] :])]
            factor = np.prod([p if r else 1 - p for p, part in zip(RATES, parts, strict=True) for r in part])
            yield from go_on(
                chance * factor, [a + b for a, b in zip(rewards, parts, strict=True)], [*rounds, counts.tolist()]
            )

    return list(go_on(1.0, [[], []], []))


def moments(policy: Policy, credit) -> tuple[np.ndarray, float]:
    """The expected gradient [P, logit], and the sum of its variances; `credit` gives a rollout's factor [P, G].

    Answers are independent of all else, given whether they are right: sums over them are done beforehand.
    """
    right, wrong = SCORES[:, 0], np.einsum("pa,pal->pl", PI[:, 1:], SCORES[:, 1:]) / (1 - RATES)[:, None]
    square = np.einsum("pa,pal->p", PI[:, 1:], SCORES[:, 1:] ** 2) / (1 - RATES)
    noise = square - np.sum(wrong**2, axis=1)  # of a wrong answer's score, around its mean
    mean, second = np.zeros((2, 3)), 0.0
    for chance, rewards, rounds in leaves(policy):
        factor = credit(policy, rewards, rounds)
        of_right, of_wrong = (np.sum(factor * which, axis=1)[:, None] for which in (rewards, 1 - rewards))
        given = of_right * right + of_wrong * wrong
        mean += chance * given
        second += chance * (np.sum(given**2) + np.sum(factor**2 * (1 - rewards) * noise[:, None]))
    return mean, second - float(np.sum(mean**2))


def right_credit(policy, rewards, rounds):
    return advantages(rewards, rounds) * weights(policy, rewards.shape[1], rounds)


def plain_credit(_, rewards, rounds):
    """Leave-one-out over the whole group, each problem alike: right where counts are from history."""
    sizes = rounds.sum(axis=1, keepdims=True)
    drawn = np.arange(rewards.shape[1]) < sizes
    return np.where(drawn, (rewards - rewards.sum(axis=1, keepdims=True) / sizes) / (sizes - 1), 0) / 2


@pytest.mark.parametrize("policy", typing.get_args(Policy))
def test_the_expected_gradient_is_what_is_said(policy):
    """The target; of `until_signal`, each problem's by its expected share of the rollouts."""
    assert sum(chance for chance, *_ in leaves(policy)) == pytest.approx(1.0, abs=1e-12)
    drawn = np.sum([chance * rounds.sum(axis=1) for chance, _, rounds in leaves(policy)], axis=0)
    share = drawn / 5 if policy == "until_signal" else np.ones(2)
    mean, _ = moments(policy, right_credit)
    np.testing.assert_allclose(mean, share[:, None] * TARGET, rtol=1e-10, atol=1e-15)
    if policy == "until_signal":
        assert share.max() > 1.01  # there is a tilt to speak of


def test_policies_differ():
    deals = [leaves(policy)[0][2][:, 0].tolist() for policy in ("uniform", "variance", "knapsack")]
    assert deals == [[6, 4], [4, 6], [2, 8]]


@pytest.mark.parametrize("policy", ["uniform", "variance", "knapsack"])
def test_one_round_is_leave_one_out(policy):
    for _, rewards, rounds in leaves(policy)[::37]:
        np.testing.assert_allclose(right_credit(policy, rewards, rounds), plain_credit(policy, rewards, rounds))


@pytest.mark.parametrize("policy", ["hit", "until_signal"])
def test_the_mean_of_a_group_that_looked_at_its_rewards_is_biased(policy):
    mean, _ = moments(policy, plain_credit)
    bias = np.abs(mean / TARGET - 1).max()
    assert bias > 0.01


def test_padding_weighs_nothing_and_weights_come_to_one():
    rounds = np.array([[2, 2], [2, 6]])
    rewards = np.zeros((2, 8))
    rewards[0, 3] = rewards[1, 0] = 1
    for policy in ("hit", "until_signal"):
        found = weights(policy, 8, rounds)
        assert found.sum() == pytest.approx(1) and not found[0, 4:].any()
    found = advantages(rewards, rounds)
    np.testing.assert_allclose(found[0], [0, 0, -1 / 3, 1, 0, 0, 0, 0])
    np.testing.assert_allclose(found[1], [1, -1] + [-1 / 7] * 6)
    np.testing.assert_allclose(weights("hit", 8, rounds)[:, 2], [8 / 12 / 2 / 2, 8 / 12 / 2 / 6])


@pytest.mark.parametrize("scale", ["group_std", "none"])
@pytest.mark.parametrize("baseline", ["group_mean", "leave_one_out"])
@pytest.mark.parametrize("n", [2, 5, 16])
def test_expected_weights_are_those_of_the_groups_signal(n, scale, baseline):
    for p in (0.02, 0.5, 0.9):
        signals = group_signals(n, advantage_scale=scale, baseline=baseline)
        mean = np.sum(stats.binom.pmf(range(n + 1), n, p) * signals) / (p * (1 - p))
        assert expected_weight(p, n, advantage_scale=scale, baseline=baseline) == pytest.approx(mean, rel=1e-9)
        if scale == "none":
            assert mean == pytest.approx(1.0 if baseline == "leave_one_out" else (n - 1) / n)
    near_none = expected_weight(1e-9, n, advantage_scale="group_std", baseline="group_mean")
    assert near_none == pytest.approx((n - 1) / np.sqrt(n), rel=1e-4)
