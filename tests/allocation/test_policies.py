"""Who gets how many: against all deals by brute force, by hand, and what holds for every policy."""

import itertools
import typing
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isocompute_jax.allocation.policies import LOOKS, Belief, Policy, believe, check_deal, deal, prior
from isocompute_jax.records.errors import InputError

POLICIES: tuple[Policy, ...] = typing.get_args(Policy)


def expected(function, solved: float, failed: float) -> float:
    """The mean of a function of p over a Beta distribution, by quadrature."""
    p = (np.arange(200_000) + 0.5) / 200_000
    density = p ** (solved - 1) * (1 - p) ** (failed - 1)
    return float(np.sum(function(p) * density) / np.sum(density))


VALUES = {
    "uniform": lambda p, n: 0 * p - (n - 4) ** 2,  # even
    "variance": lambda p, n: -p * (1 - p) / (n - 1),
    "knapsack": lambda p, n: (1 - p**n - (1 - p) ** n) * p * (1 - p) ** 2,
    "hit": lambda p, n: 1 - (1 - p) ** n,
}


@pytest.mark.parametrize("policy", VALUES)
def test_no_other_deal_is_worth_more(policy):
    """Whatever the rates are believed to be, by trying all deals: the values are concave, so greedy is exact."""
    beliefs = np.array([[1.5, 6.0], [5.0, 3.0], [9.0, 1.2], [2.0, 2.0]])
    block, total, most = 2, 16 if policy != "hit" else 24, 10
    belief = Belief(*beliefs.T)
    rewards = None
    if policy == "hit":
        rewards = [np.array(r) for r in ([0, 0], [0, 1], [1, 1], [1, 0])]
        beliefs = beliefs + np.array([[0, 2], [1, 1], [2, 0], [1, 1]])
    found = deal(policy, belief, rewards, total=total, block=block, most=most)
    left = total - (8 if policy == "hit" else 0)
    sizes = range(block, most - (2 if policy == "hit" else 0) + 1, block)
    values = [{n: expected(lambda p, n=n: VALUES[policy](p, n), *b) for n in sizes} for b in beliefs]
    worth = {
        counts: sum(value[n] for value, n in zip(values, counts, strict=True))
        for counts in itertools.product(sizes, repeat=4)
        if sum(counts) == left
    }
    assert worth[tuple(found)] == pytest.approx(max(worth.values()), abs=1e-9)


def test_until_signal_by_hand():
    belief = Belief(np.array([1.0, 1.0, 1.0, 0.2]), np.array([1.0, 9.0, 1.0, 9.0]))
    total: dict[str, Any] = {"total": 24, "block": 2}
    assert deal("until_signal", belief, **total).tolist() == [2, 2, 2, 2]
    rounds = [np.array(r) for r in ([0, 1], [0, 0], [1, 1], [0, 0])]
    assert deal("until_signal", belief, rounds, **total).tolist() == [0, 2, 2, 2]  # as much again
    rounds = [np.array(r) for r in ([0, 1], [0, 0, 0, 0], [1, 1, 1, 0], [0, 0, 0, 0])]
    assert deal("until_signal", belief, rounds, **total).tolist() == [0, 4, 0, 4]
    assert deal("until_signal", belief, rounds, **total, most=6).tolist() == [0, 2, 0, 2]
    short: dict[str, Any] = {"total": 16, "block": 2}  # one block for two: the one that it gives a signal more likely
    assert deal("until_signal", belief, rounds, **short).tolist() == [0, 2, 0, 0]
    rounds[1] = rounds[3] = np.array([0, 0, 1, 0])  # all have a signal: what is left goes to those with fewest
    assert deal("until_signal", belief, rounds, **total).tolist() == [4, 2, 2, 2]
    assert deal("until_signal", belief, rounds, **total, most=6).tolist() == [4, 2, 2, 2]


@settings(max_examples=60, deadline=None)
@given(st.data())
@pytest.mark.parametrize("policy", POLICIES)
def test_every_deal_is_whole_and_does_not_depend_on_the_order(policy, data):
    problems, block = data.draw(st.integers(1, 6)), data.draw(st.integers(2, 4))
    group_size = block * data.draw(st.integers(1, 5))
    most = data.draw(st.sampled_from([0, group_size, group_size + block + 1]))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    rates = rng.beta(0.3, 0.3, problems)
    belief = Belief(rng.uniform(0.1, 9, problems), rng.uniform(0.1, 9, problems))  # no two alike
    order = rng.permutation(problems)
    check_deal(policy, group_size=group_size, block=block, most=most)
    how = {"total": group_size * problems, "block": block, "most": most}
    drawn, rewards = np.zeros(problems, int), None
    for _ in range(8):
        if drawn.sum() == how["total"]:
            break
        counts = deal(policy, belief, rewards, **how)
        turned = [rewards[i] for i in order] if rewards else None
        again = deal(policy, Belief(belief.solved[order], belief.failed[order]), turned, **how)
        if policy not in ("uniform", "until_signal"):  # where what is worth the same goes by place
            assert again.tolist() == counts[order].tolist()
        drawn += counts
        new = [(rng.random(n) < p).astype(float) for n, p in zip(counts, rates, strict=True)]
        rewards = [np.concatenate(each) for each in zip(rewards, new, strict=True)] if rewards else new
        assert np.all(drawn % block == 0) and np.all(drawn >= block) and counts.sum() > 0
        if most:
            assert drawn.max() <= most
    assert drawn.sum() == how["total"]
    if policy == "uniform":
        assert set(drawn.tolist()) == {group_size}
    if policy not in LOOKS:
        assert deal(policy, belief, rewards, **how).sum() == 0


def test_equals_go_by_place():
    belief = Belief(np.ones(4), np.ones(4))
    for policy in ("uniform", "variance", "knapsack"):
        assert deal(policy, belief, total=20, block=2).tolist() == [6, 6, 4, 4]


def test_the_prior_is_uniform_at_first_and_finds_the_distribution_of_rates():
    assert prior(np.zeros(3), np.zeros(3)) == (1.0, 1.0)
    rng = np.random.default_rng(1)
    attempts = rng.integers(0, 16, 20_000)
    solves = rng.binomial(attempts, rng.beta(0.4, 2.6, 20_000))
    found = prior(attempts, solves)
    assert found == pytest.approx((0.4, 2.6), rel=0.05)
    order = rng.permutation(20_000)
    assert prior(attempts[order], solves[order]) == found  # to the bit
    alike = prior(np.full(50, 8), np.full(50, 4))
    assert sum(alike) > 20  # problems of one rate: one of them says much of the next


def test_belief_by_hand():
    belief = believe(np.array([0.0, 3.0]), np.array([0.0, 1.0]), np.array([1]))
    first, second = prior(np.array([0.0, 3.0]), np.array([0.0, 1.0]))
    assert (belief.solved[0], belief.failed[0]) == (first + 1, second + 2)
    two = Belief(np.array([2.0]), np.array([3.0]))
    assert (two.rate[0], two.spread[0]) == (2 / 5, pytest.approx(expected(lambda p: p * (1 - p), 2, 3)))
    np.testing.assert_allclose(two.missed(3)[0], [expected(lambda p, n=n: (1 - p) ** n, 2, 3) for n in range(4)])
    mixed = [expected(lambda p, n=n: 1 - p**n - (1 - p) ** n, 2, 3) if n else 0 for n in range(4)]
    np.testing.assert_allclose(two.mixed(3)[0], mixed, atol=1e-12)
    after = two.having_seen([np.array([1.0, 0.5, 2.0])])
    assert (after.solved[0], after.failed[0]) == (4.0, 4.0)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"block": 1}, "block = 1: a group needs 2 rollouts"),
        ({"block": 3}, "block = 3 does not divide the group size 8.*choose one of 2, 4, 8"),
        ({"most": 7}, "most = 7 in blocks of 4 lets a problem have 4 rollouts, below the mean of 8.*raise it to 8"),
    ],
)
def test_what_no_deal_can_have_is_refused(fields, message):
    with pytest.raises(InputError, match=message):
        check_deal("variance", **{"group_size": 8, "block": 4, "most": 0} | fields)
    check_deal("uniform", **{"group_size": 8, "block": 4, "most": 0} | fields)  # it has nothing to deal


@pytest.mark.parametrize("total", [4, 9, 26])
def test_totals_that_cannot_be_dealt(total):
    with pytest.raises(ValueError, match=f"{total} rollouts"):
        deal("variance", Belief(np.ones(3), np.ones(3)), total=total, block=2, most=8)
