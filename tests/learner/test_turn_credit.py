"""Credit of turns: by hand, in any order, and as an expected gradient that is enumerated."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from isocompute_jax import learner
from isocompute_jax.learner import CreditConfig
from isocompute_jax.learner.turn_credit import Turns, turn_advantages, turns_of
from isocompute_jax.records.rollout import Completion, Episode, RolloutGroup


def turns(rewards) -> Turns:
    """Of one group: a list of rewards for each rollout; all turns have one trained token."""
    most = max(map(len, rewards))
    reached = np.array([[k < len(row) for k in range(most)] for row in rewards])[None]
    padded = np.array([[*row, *[0.0] * (most - len(row))] for row in rewards])[None]
    ends = np.array([[min(k + 1, len(row)) for k in range(most)] for row in rewards], np.int32)[None]
    return Turns(padded, ends, reached)


def test_by_hand():
    """Two rollouts of two turns and one of one: the returns of turn 1 are 3, 1, 2; of turn 2 they are 2 and 0."""
    found = turns([[1, 2], [1, 0], [2]])
    np.testing.assert_array_equal(found.returns[0], [[3, 2], [1, 0], [2, 0]])
    plain = turn_advantages(found.returns, found.reached, by_deviation=False, leave_one_out=False)
    np.testing.assert_array_equal(plain[0], [[1, 1], [-1, -1], [0, 0]])
    others = turn_advantages(found.returns, found.reached, by_deviation=False, leave_one_out=True)
    np.testing.assert_allclose(others[0], [[1.5, 2], [-1.5, -2], [0, 0]])
    scaled = turn_advantages(found.returns, found.reached, by_deviation=True, leave_one_out=False)
    np.testing.assert_allclose(scaled[0], [[1, 2**-0.5], [-1, -(2**-0.5)], [0, 0]], rtol=2e-6)


def test_equal_returns_and_lonely_turns_are_no_signal():
    found = turns([[0.1, 0.7, 5.0], [0.1, 0.7], [0.8]])
    advantages = turn_advantages(found.returns, found.reached, by_deviation=True, leave_one_out=True)
    assert advantages[0, :, 2].tolist() == [0, 0, 0]
    same = turns([[0.1, 0.2]] * 3)
    assert not turn_advantages(same.returns, same.reached, by_deviation=True, leave_one_out=False).any()


@given(st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=3), min_size=2, max_size=3))
def test_a_group_has_a_signal_where_a_turn_has_an_advantage(rewards):
    """Whatever rewards are in sum, and whatever is subtracted for length."""
    completions = []
    for row in rewards:
        arrays = np.zeros(3, np.int32), np.zeros(3, np.float32), np.zeros(3, np.int32)
        ends = tuple(range(1, len(row) + 1))
        episode = Episode(tuple(end - 1 for end in ends), ends, tuple(map(float, row)))
        completions.append(dataclasses.replace(Completion.drawn(*arrays, "stop"), episode=episode))
    sums = np.array([sum(row) for row in rewards], np.float32)
    groups = [RolloutGroup("p", 0, np.zeros(1, np.int32), tuple(completions), sums)]
    lengths, found = learner.trained_lengths(groups), turns_of(groups, 3)
    plain = learner.credit(sums[None], lengths, CreditConfig(), max_tokens=3, turns=found)
    signal = plain.advantages.any(axis=(1, 2)).tolist()
    assert learner.signal_of(groups, 3).tolist() == plain.kept.tolist() == signal
    penalties = np.arange(len(rewards))[None] / 2
    penalised = learner.credit(sums[None], lengths, CreditConfig(), max_tokens=3, turns=found, penalties=penalties)
    assert penalised.kept.tolist() == signal


def test_one_turn_each_is_what_rollouts_get():
    rewards = np.random.default_rng(0).normal(size=(5, 8))
    found = Turns(rewards[..., None], np.ones((5, 8, 1), np.int32), np.ones((5, 8, 1), bool))
    lengths = np.ones((5, 8), int)
    for recipe in (CreditConfig(), CreditConfig(advantage_scale="none", baseline="leave_one_out")):
        whole = learner.credit(rewards, lengths, recipe, max_tokens=4)
        by_turn = learner.credit(rewards, lengths, recipe, max_tokens=4, turns=found)
        np.testing.assert_allclose(by_turn.advantages[..., 0], whole.advantages, rtol=1e-6)
        np.testing.assert_array_equal(by_turn.policy_weights, whole.policy_weights)


def test_order_changes_no_bit():
    rng = np.random.default_rng(1)
    rewards = rng.normal(size=(1, 6, 3))
    order = rng.permutation(6)
    reached = np.ones_like(rewards, bool)
    one, two = (
        turn_advantages(values, reached, by_deviation=True, leave_one_out=True)
        for values in (rewards, rewards[:, order])
    )
    np.testing.assert_array_equal(one[:, order], two)


def test_tokens_of_a_rollout_have_the_credit_of_their_turn():
    """Turns of 2 and 1 tokens with context between: ordinals count what is trained."""
    credit = learner.Credit(
        np.array([[[5.0, 7.0]]], np.float32),
        np.ones((1, 1), np.float32),
        np.ones((1, 1), np.float32),
        np.array([[[2, 3]]], np.int32),
    )
    before = jnp.array([[[0, 1, 2, 2, 2]]])  # two drawn, two of context, one drawn
    found = credit.of_tokens(jnp.array([[0]]), before)
    assert found.advantages[0, 0].tolist() == [5, 5, 7, 7, 7]


def test_turns_of_groups():
    def completion(mask, **episode):
        count = len(mask)
        arrays = np.zeros(count, np.int32), np.zeros(count, np.float32), np.array(mask, bool), np.zeros(count, np.int32)
        return Completion(*arrays, "stop", None, Episode(**episode))

    one = completion([1, 1, 0, 1], begins=(0, 3), ends=(2, 4), rewards=(1.0, 2.0))
    two = completion([1], begins=(0,), ends=(1,), rewards=(4.0,), failure="it raised")
    found = turns_of([RolloutGroup("p", 0, np.zeros(1, np.int32), (one, two))], 3)
    assert found.ends[0].tolist() == [[2, 3, 3], [1, 1, 1]]
    assert found.rewards[0].tolist() == [[1, 2, 0], [0, 0, 0]]
    assert found.reached[0].tolist() == [[True, True, False], [True, False, False]]


def test_the_expected_gradient_is_that_of_the_expected_return():
    """Enumerated: a tabular policy of two turns with two moves each; a first move of 1 ends the rollout.

    Rewards depend on both moves. Of two rollouts, all pairs are weighed by their probability.
    """
    logits = jnp.array([0.3, -0.2, 0.5, 0.1])  # of the first turn's two moves, then of the second's

    def log_probability(logits, path):
        first, *second = path
        found = jax.nn.log_softmax(logits[:2])[first]
        return found + (jax.nn.log_softmax(logits[2:])[second[0]] if second else 0.0)

    paths = [(0, 0), (0, 1), (1,)]
    rewards = {(0, 0): [0.5, 2.0], (0, 1): [0.5, -1.0], (1,): [1.0]}

    def expected(logits):
        return sum(jnp.exp(log_probability(logits, path)) * sum(rewards[path]) for path in paths)

    total = np.zeros(4)
    recipe = CreditConfig(
        advantage_scale="none", baseline="leave_one_out", aggregation="constant", zero_variance_groups="keep"
    )
    for pair in itertools.product(paths, repeat=2):
        weight = float(np.prod([np.exp(float(log_probability(logits, path))) for path in pair]))
        found = turns([rewards[path] for path in pair])
        sums = np.array([[sum(rewards[path]) for path in pair]])
        lengths = np.array([[len(path) for path in pair]])
        credit = learner.credit(sums, lengths, recipe, max_tokens=1, turns=found)

        def objective(logits, pair=pair, credit=credit):
            value = 0.0
            for g, path in enumerate(pair):
                terms = [jax.nn.log_softmax(logits[:2])[path[0]]]
                terms += [jax.nn.log_softmax(logits[2:])[path[1]]] if len(path) > 1 else []
                for k, term in enumerate(terms):
                    value += float(credit.policy_weights[0, g]) * float(credit.advantages[0, g, k]) * term
            return value

        total += weight * np.asarray(jax.grad(objective)(logits))
    exact = np.asarray(jax.grad(expected)(logits))
    # In its first turn every rollout is compared. In its second one that the other did not reach is not: what is left
    # is the gradient of that turn, times the chance that there are two.
    both = float(jax.nn.softmax(logits[:2])[0])
    np.testing.assert_allclose(total[:2], exact[:2], rtol=1e-5)
    np.testing.assert_allclose(total[2:], exact[2:] * both, rtol=1e-5)
