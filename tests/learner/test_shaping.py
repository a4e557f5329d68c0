"""Length in the reward and in the loss: DAPO's numbers by hand, and masked rollouts as if they had not been drawn."""

import dataclasses

import numpy as np
import pytest

from isocompute_jax import learner
from isocompute_jax.learner import credit
from isocompute_jax.learner.credit import DENOMINATORS
from tests.learner.builders import REWARDS, make_groups

MASKED = np.zeros((6, 4), bool)
MASKED[0, 1] = MASKED[1, :2] = MASKED[4, 0] = MASKED[5] = True
"""Some of three groups, all of another, none of the others."""


def test_overlong_penalty_is_dapos():
    """L_max = 20,480 and L_cache = 4,096 (arXiv 2503.14476, section 4.1): free up to 16,384, half-way at 18,432."""
    lengths = np.array([[1, 16384, 16385], [18432, 20480, 30000]])
    got = learner.overlong_penalty(lengths, limit=20480, buffer=4096, penalty=1.0)
    np.testing.assert_array_equal(got, [[0, 0, 1 / 4096], [0.5, 1, 1]])
    np.testing.assert_array_equal(learner.overlong_penalty(lengths, limit=20480, buffer=4096, penalty=0.5), got / 2)


def test_overlong_penalty_is_scalerls_formula():
    """-clip((L_max - |y|) / L_cache - 1, -1, 0) with 14k and 2k tokens (arXiv 2510.13786, equation 9)."""
    lengths = np.arange(0, 15001, 250).reshape(1, -1)
    expected = -np.clip((14_000 - lengths) / 2_000 - 1, -1, 0)
    got = learner.overlong_penalty(lengths, limit=14_000, buffer=2_000, penalty=1.0)
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-12)


def test_a_buffer_as_long_as_the_limit_penalises_every_token():
    got = learner.overlong_penalty(np.array([[1, 2, 4]]), limit=4, buffer=4, penalty=1.0)
    np.testing.assert_array_equal(got, [[0.25, 0.5, 1.0]])


def test_lengths_and_truncation_of_groups():
    groups = make_groups()
    lengths, cut = credit.completion_lengths(groups), credit.truncated(groups)
    assert lengths.shape == cut.shape == (6, 4)
    assert (lengths >= learner.trained_lengths(groups)).all() and (lengths > learner.trained_lengths(groups)).any()
    np.testing.assert_array_equal(cut, lengths == 5)


def test_penalties_by_hand_and_signal_is_of_rewards_alone():
    """1, 1, 0, 0 less 1/2, 0, 1, 0: values 1/2, 1, -1, 0 with mean 1/8."""
    rewards = np.array([[1, 1, 0, 0], [1, 1, 1, 1], [0, 0, 0, 1]], np.float32)
    penalties = np.array([[0.5, 0, 1, 0], [1, 0, 0, 0], [0, 0, 0, 1.0]])
    lengths = np.ones((3, 4), int)
    none = learner.CreditConfig("none")
    got = learner.credit(rewards, lengths, none, max_tokens=1, penalties=penalties)
    np.testing.assert_allclose(got.advantages[0], [0.375, 0.875, -1.125, -0.125])
    # All correct, one of them long: without a signal, and so it leaves the loss; and it has none from its lengths.
    assert got.kept.tolist() == [True, False, True]
    # Correct and too long is worth what wrong is: it counts in the loss, and nothing is learned from it.
    np.testing.assert_array_equal(got.advantages[2], 0)
    np.testing.assert_allclose(got.policy_weights, [[1 / 8] * 4, [0] * 4, [1 / 8] * 4])
    keep = learner.credit(
        rewards, lengths, dataclasses.replace(none, zero_variance_groups="keep"), max_tokens=1, penalties=penalties
    )
    np.testing.assert_allclose(keep.advantages[1], [-0.75, 0.25, 0.25, 0.25])  # kept, it learns to be short
    same = learner.credit(rewards, lengths, none, max_tokens=1, penalties=np.zeros((3, 4)))
    np.testing.assert_array_equal(same.advantages, learner.credit(rewards, lengths, none, max_tokens=1).advantages)


def test_padding_with_groups_that_take_no_part():
    credited = learner.credit(np.array(REWARDS[:2]), np.ones((2, 4), int), learner.CreditConfig(), max_tokens=1)
    padded = credited.padded(5)
    assert padded.kept.tolist() == [True, True, False, False, False]
    for name in ("advantages", "policy_weights", "regularizer_weights"):
        assert getattr(padded, name).dtype == np.float32
        np.testing.assert_array_equal(getattr(padded, name)[:2], getattr(credited, name))
        assert not getattr(padded, name)[2:].any()
    assert credited.padded(2) is credited


def looped_weights(lengths, kept, aggregation, max_tokens):
    """The weight of a token of each rollout, for lists of the kept rollouts of each group."""
    rows = [[n for n, k in zip(group, keep, strict=True) if k] for group, keep in zip(lengths, kept, strict=True)]
    rows = [row for row in rows if row]
    rollouts, tokens = sum(len(row) for row in rows), sum(sum(row) for row in rows)
    out = np.zeros(np.shape(lengths))
    for i, (group, keep) in enumerate(zip(lengths, kept, strict=True)):
        of_group = sum(n for n, k in zip(group, keep, strict=True) if k)
        for j, n in enumerate(group):
            if keep[j]:
                out[i, j] = {
                    "sequence_mean": 1 / (rollouts * n),
                    "token_mean": 1 / tokens,
                    "prompt_mean": 1 / (len(rows) * of_group),
                    "constant": 1 / (rollouts * max_tokens),
                }[aggregation]
    return out


@pytest.mark.parametrize("aggregation", list(DENOMINATORS))
def test_masked_rollouts_leave_every_denominator_and_stay_in_the_mean_of_their_group(aggregation):
    groups = make_groups()
    rewards, lengths = np.array(REWARDS, np.float32), learner.trained_lengths(groups)
    recipe = learner.CreditConfig("group_std", aggregation)
    got = learner.credit(rewards, lengths, recipe, max_tokens=5, masked=MASKED)
    kept = ~MASKED & (np.arange(6) != 2)[:, None]  # the third group has no signal
    expected = looped_weights(lengths, kept, aggregation, 5)
    np.testing.assert_allclose(got.policy_weights, expected, rtol=1e-6)
    np.testing.assert_allclose(got.regularizer_weights, expected, rtol=1e-6)
    whole = learner.credit(rewards, lengths, recipe, max_tokens=5)
    np.testing.assert_array_equal(got.advantages, whole.advantages)
    assert got.kept.tolist() == [True, True, False, True, True, False]  # a group all of whose rollouts are masked
    nothing = learner.credit(rewards, lengths, recipe, max_tokens=5, masked=np.ones((6, 4), bool))
    assert not nothing.takes_part.any() and np.isfinite(nothing.policy_weights).all()
