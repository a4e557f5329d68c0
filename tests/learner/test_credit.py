"""Credit: advantages and aggregation weights against plain loops and numbers worked by hand."""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from isocompute_jax import learner
from isocompute_jax.experiment.loop_state import Ledger
from isocompute_jax.learner import zero_variance
from isocompute_jax.learner.credit import DENOMINATORS, aggregation_weights, completion_lengths, truncated
from isocompute_jax.records.errors import InputError
from isocompute_jax.records.rollout import Completion, RolloutGroup
from tests.learner.builders import REWARDS, make_groups

SCALES = ["group_std", "batch_std", "group_mean", "none"]

group_advantages = functools.partial(learner.group_advantages, baseline="group_mean")


def looped_advantages(rewards, keep, scale):
    """The definition, one rollout at a time, in Python floats."""
    groups = [[float(reward) for reward in group] for group in rewards]
    means = [math.fsum(group) / len(group) for group in groups]
    kept = [(r - mean) ** 2 for group, mean, k in zip(groups, means, keep, strict=True) if k for r in group]
    batch_std = math.sqrt(math.fsum(kept) / len(kept)) if kept else 0.0
    out = []
    for group, mean in zip(groups, means, strict=True):
        if len(set(group)) == 1:
            out.append([0.0] * len(group))
            continue
        group_std = math.sqrt(math.fsum((r - mean) ** 2 for r in group) / (len(group) - 1))
        divisors = {"group_std": group_std + 1e-6, "batch_std": batch_std + 1e-6, "none": 1.0, "group_mean": mean}
        divisor = divisors[scale] if scale != "group_mean" or mean > 0 else 1.0
        out.append([(r - mean) / divisor for r in group])
    return np.array(out)


def test_grpo_golden():
    """Rewards 1, 0, 0, 0: mean 1/4; ddof 1: variance (9 + 1 + 1 + 1) / 16 / 3 = 1/4, deviation 1/2; A = 3/2, -1/2."""
    got = group_advantages(np.array([[1, 0, 0, 0]], np.float32), np.ones(1, bool), scale="group_std")
    np.testing.assert_allclose(got, [[1.5, -0.5, -0.5, -0.5]], rtol=4e-6)  # the 1e-6 that is added to 1/2
    assert np.all(np.abs(got) < np.abs([[1.5, -0.5, -0.5, -0.5]]))


def test_maxrl_golden():
    """Rewards 1, 0, 0, 0: mean 1/4; A = (3/4) / (1/4) = 3, and -1. Where nothing was solved, nothing is divided."""
    rewards = np.array([[1, 0, 0, 0], [0, 0, 0, 0], [1, 1, 1, 1], [1, 1, 0, 0]], np.float32)
    got = group_advantages(rewards, np.ones(4, bool), scale="group_mean")
    np.testing.assert_array_equal(got, [[3, -1, -1, -1], [0, 0, 0, 0], [0, 0, 0, 0], [1, 1, -1, -1]])


@pytest.mark.parametrize("size", [2, 3, 8])
@pytest.mark.parametrize("rate", [0.05, 0.5, 0.9])
def test_maxrl_climbs_the_log_of_the_rate(size, rate):
    """Summed over all outcomes of a group: (1 - (1 - p)^(n-1)) / p = sum of (1 - p)^k for k < n - 1, times p's."""
    expected = 0.0
    for solved in range(size + 1):
        rewards = np.array([[1.0] * solved + [0.0] * (size - solved)])
        [advantages] = group_advantages(rewards, np.ones(1, bool), scale="group_mean").astype(float)
        scores = np.where(rewards[0] == 1, 1 / rate, -1 / (1 - rate))  # d log probability / dp
        chance = math.comb(size, solved) * rate**solved * (1 - rate) ** (size - solved)
        expected += chance * float(np.mean(advantages * scores))
    assert expected == pytest.approx(sum((1 - rate) ** k for k in range(size - 1)), rel=1e-5)


def test_without_a_baseline_rewards_are_the_advantages():
    """Those of groups of one as well; they take part where groups without a signal are kept."""
    for rewards in (np.array([[1.0], [0.5]]), np.array([[1.0, 1.0], [0.0, 2.0]])):
        recipe = learner.CreditConfig("none", "token_mean", "keep", baseline="none")
        credited = learner.credit(rewards, np.full(rewards.shape, 2), recipe, max_tokens=4)
        np.testing.assert_array_equal(credited.advantages, rewards)
        np.testing.assert_allclose(credited.policy_weights, 1 / (2 * rewards.size))


def test_no_baseline_goes_with_no_scale():
    with pytest.raises(InputError, match=r"baseline = 'none' goes with advantage_scale='none' alone"):
        learner.CreditConfig("group_std", baseline="none")


def test_other_scales_golden():
    """Centred rewards +-1/2, +-1/2 and 0, 0: kept without the flat group their deviation is 1/2; with it sqrt(1/6)."""
    rewards = np.array([[1, 0], [0, 1], [1, 1]], np.float32)
    centred = np.array([[0.5, -0.5], [-0.5, 0.5], [0, 0]])
    every, signal = np.ones(3, bool), np.array([True, True, False])
    np.testing.assert_array_equal(group_advantages(rewards, every, scale="none"), centred)
    np.testing.assert_allclose(group_advantages(rewards, signal, scale="batch_std"), 2 * centred, rtol=3e-6)
    with_flat = group_advantages(rewards, every, scale="batch_std")
    np.testing.assert_allclose(with_flat, centred / math.sqrt(1 / 6), rtol=3e-6)


@pytest.mark.parametrize("scale", SCALES)
@settings(max_examples=40)
@given(rewards=hnp.arrays(np.float32, (3, 4), elements=st.integers(-8, 8).map(lambda x: x / 4)), flat=st.integers(0, 2))
def test_advantages_equal_a_plain_loop(scale, rewards, flat):
    rewards[flat] = rewards[flat, 0]
    keep = ~zero_variance(rewards)
    assert keep.tolist() == [len(set(group.tolist())) > 1 for group in rewards]
    got = group_advantages(rewards, keep, scale=scale)
    np.testing.assert_allclose(got, looped_advantages(rewards, keep, scale), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(got.sum(axis=1), 0.0, atol=1e-5)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("group_size", [2, 3, 7, 16])
def test_equal_rewards_have_no_advantage(scale, group_size):
    """Exactly zero for any reward: the rounding error of 1000.1's mean must not be divided by itself."""
    rewards = np.repeat(np.array([[0.1], [1000.1], [-1 / 3], [0.7]], np.float32), group_size, axis=1)
    assert np.all(np.asarray(zero_variance(rewards)))
    assert not np.any(np.asarray(group_advantages(rewards, np.ones(4, bool), scale=scale)))


REAL = st.floats(-1e3, 1e3, width=32) | st.sampled_from([0.0, 0.1, 1.0, 1000.1])


@pytest.mark.parametrize("scale", SCALES)
@settings(max_examples=40)
@given(rewards=hnp.arrays(np.float32, (4, 7), elements=REAL), seed=st.integers(0, 99))
def test_advantages_do_not_depend_on_the_order(scale, rewards, seed):
    """Bit for bit: a rollout's advantage is the same wherever it stands in its group, and its group in the batch."""
    rng = np.random.default_rng(seed)
    order, groups = rng.permuted(np.tile(np.arange(7), (4, 1)), axis=1), rng.permutation(4)
    plain = group_advantages(rewards, ~zero_variance(rewards), scale=scale)
    shuffled = np.take_along_axis(rewards, order, axis=1)[groups]
    moved = group_advantages(shuffled, ~zero_variance(shuffled), scale=scale)
    np.testing.assert_array_equal(moved, np.take_along_axis(plain, order, axis=1)[groups])


@pytest.mark.parametrize("scale", SCALES)
@settings(max_examples=40)
@given(rewards=hnp.arrays(np.float32, (3, 5), elements=REAL))
def test_real_valued_rewards_are_centred_and_scaled_in_float64(scale, rewards):
    """Within rounding of the float32 result, where deviations are far above the 1e-6 that is added to them."""
    keep = ~zero_variance(rewards)
    expected = looped_advantages(rewards, keep, scale)
    np.testing.assert_allclose(group_advantages(rewards, keep, scale=scale), expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("scale", SCALES)
@settings(max_examples=40)
@given(rewards=hnp.arrays(np.float32, (3, 5), elements=REAL))
def test_leave_one_out_subtracts_the_mean_of_the_others(scale, rewards):
    """A loop over the others; and n / (n - 1) = 5/4 of what the group's mean leaves."""
    keep = ~zero_variance(rewards)
    got = learner.group_advantages(rewards, keep, scale=scale, baseline="leave_one_out")
    np.testing.assert_allclose(got, 1.25 * looped_advantages(rewards, keep, scale), rtol=1e-6, atol=1e-9)
    if scale == "none":
        for group, advantages in zip(rewards.tolist(), got.tolist(), strict=True):
            others = [math.fsum(group[:i] + group[i + 1 :]) / 4 for i in range(5)]
            expected = [r - mean for r, mean in zip(group, others, strict=True)]
            np.testing.assert_allclose(advantages, expected, rtol=1e-5, atol=1e-6 * max(1.0, np.abs(rewards).max()))


def test_leave_one_out_golden():
    """Rewards 1, 0, 0, 0: 1 - 0, and 0 - 1/3 three times. The first does not depend on its own reward's weight."""
    got = learner.group_advantages(
        np.array([[1, 0, 0, 0]], np.float32), np.ones(1, bool), scale="none", baseline="leave_one_out"
    )
    np.testing.assert_allclose(got, [[1, -1 / 3, -1 / 3, -1 / 3]], rtol=1e-6)


LENGTHS = np.arange(1, 25).reshape(6, 4) % 5 + 1


@pytest.mark.parametrize("scale", [scale for scale in SCALES if scale != "group_mean"])
def test_rewards_of_minus_one_and_one(scale):
    """Any scale by a deviation is blind to it, up to the 1e-6 beside the deviation; without a scale all is doubled."""
    rewards = np.array(REWARDS, np.float32)
    zero_one, plus_minus = (
        learner.credit(rewards, LENGTHS, learner.CreditConfig(scale, reward_values=values), max_tokens=5)
        for values in ("as_graded", "plus_minus_one")
    )
    factor = 2 if scale == "none" else 1
    np.testing.assert_allclose(plus_minus.advantages, factor * zero_one.advantages, rtol=4e-6)
    np.testing.assert_array_equal(plus_minus.policy_weights, zero_one.policy_weights)


def test_penalties_are_subtracted_after_rewards_are_mapped():
    """Rewards 1, 0 are 1, -1; less 1/2 and 0 they are 1/2 and -1: about their mean -1/4, +-3/4."""
    rewards, penalties = np.array([[1, 0], [1, 1]], np.float32), np.array([[0.5, 0.0], [0.0, 0.4]])
    recipe = learner.CreditConfig("none", reward_values="plus_minus_one")
    credited = learner.credit(rewards, np.ones((2, 2), int), recipe, max_tokens=1, penalties=penalties)
    np.testing.assert_allclose(credited.advantages[0], [0.75, -0.75])
    assert credited.kept.tolist() == [True, False]  # a penalty is no signal
    kept = dataclasses.replace(recipe, zero_variance_groups="keep")
    credited = learner.credit(rewards, np.ones((2, 2), int), kept, max_tokens=1, penalties=penalties)
    np.testing.assert_allclose(credited.advantages[1], [0.2, -0.2], rtol=1e-6)


@pytest.mark.parametrize("aggregation", ["sequence_mean", "token_mean", "prompt_mean", "constant"])
@pytest.mark.parametrize("scale", SCALES)
def test_a_part_has_the_batches_advantages_and_denominators_of_its_own(scale, aggregation):
    recipe = learner.CreditConfig(scale, aggregation)
    part = np.array([True, False, True, False, False, True])
    whole = learner.credit(np.array(REWARDS, np.float32), LENGTHS, recipe, max_tokens=5)
    of_part = learner.credit(np.array(REWARDS, np.float32), LENGTHS, recipe, max_tokens=5, part=part)
    np.testing.assert_array_equal(of_part.advantages, whole.advantages)
    signal = part & ~zero_variance(np.array(REWARDS, np.float32))
    assert of_part.kept.tolist() == signal.tolist() and signal.sum() == 2
    alone = aggregation_weights(LENGTHS[part], signal[part], aggregation=aggregation, max_tokens=5)
    np.testing.assert_array_equal(of_part.policy_weights[part], alone)
    np.testing.assert_array_equal(of_part.regularizer_weights, of_part.policy_weights)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_refused_by_its_place(value):
    rewards = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, value]])
    lengths, every, recipe = np.full((2, 3), 2), np.ones(2, bool), learner.CreditConfig()
    for call in (
        lambda: learner.credit(rewards, lengths, recipe, max_tokens=5),
        lambda: group_advantages(rewards, every, scale="none"),
    ):
        with pytest.raises(ValueError, match=rf"the reward of rollout 2 of group 1 is {value}, and must be finite"):
            call()
    with pytest.raises(ValueError, match="the penalty of rollout 2 of group 1 is"):
        learner.credit(np.eye(2, 3), lengths, recipe, max_tokens=5, penalties=rewards)


@pytest.mark.parametrize("where", ["group_advantages", "credit"])
def test_under_jit_it_says_that_it_is_numpy(where):
    calls = {
        "group_advantages": lambda rewards: group_advantages(rewards, np.ones(6, bool), scale="none"),
        "credit": lambda rewards: learner.credit(rewards, np.ones((6, 4), int), learner.CreditConfig(), max_tokens=5),
    }
    with pytest.raises(TypeError, match=rf"learner\.{where} is NumPy, .* does not work under jax\.jit"):
        jax.jit(calls[where])(np.array(REWARDS, np.float32))


def test_losses_are_part_of_the_learner():
    logprobs, advantages = jnp.log(jnp.array([[0.5, 0.25]])), jnp.array([[2.0]])
    np.testing.assert_allclose(learner.losses.reinforce_loss(logprobs, advantages), -2 * logprobs, rtol=1e-6)
    assert "losses" in learner.__all__


def unknown(word: str) -> Any:
    return word


@pytest.mark.parametrize(
    "call",
    [
        lambda: group_advantages(np.array([[1, 0]], np.float32), np.ones(1, bool), scale=unknown("batch_sdt")),
        lambda: aggregation_weights(
            np.ones((1, 2), int), np.ones(1, bool), aggregation=unknown("token_maen"), max_tokens=4
        ),
    ],
)
def test_unknown_words_are_errors(call):
    with pytest.raises(InputError, match=r"did you mean '(batch_std|token_mean)'"):
        call()


@pytest.mark.parametrize(
    ("zero_variance_groups", "policy_rollouts", "regularizer_rollouts"),
    [("drop", 20, 20), ("drop_regularizers", 24, 20), ("regularizers_only", 20, 24), ("keep", 24, 24)],
)
def test_zero_variance_groups_and_their_denominators(zero_variance_groups, policy_rollouts, regularizer_rollouts):
    """One of six groups of four has no signal: 20 rollouts divide where it left, 24 where it stayed."""
    lengths = learner.trained_lengths(make_groups())
    recipe = learner.CreditConfig("group_std", "sequence_mean", zero_variance_groups)
    credited = learner.credit(np.array(REWARDS, np.float32), lengths, recipe, max_tokens=5)
    for name, rollouts in (("policy_weights", policy_rollouts), ("regularizer_weights", regularizer_rollouts)):
        expected = 1 / (rollouts * lengths)
        if rollouts == 20:
            expected[2] = 0
        np.testing.assert_allclose(getattr(credited, name), expected, rtol=1e-6)
    assert credited.kept.tolist() == [i != 2 or zero_variance_groups != "drop" for i in range(6)]
    np.testing.assert_allclose(credited.advantages.sum(axis=1), 0.0, atol=1e-6)
    assert np.abs(credited.advantages).max() > 0.5


def test_batch_scale_is_taken_over_kept_groups_alone():
    """Dropping the group without signal raises the deviation, so advantages shrink; keeping it lowers it."""
    rewards, lengths = np.array(REWARDS, np.float32), np.ones((6, 4), int)
    centred = rewards - rewards.mean(axis=1, keepdims=True)
    dropped = learner.CreditConfig("batch_std")
    everything = learner.CreditConfig("batch_std", zero_variance_groups="keep")
    for recipe, kept in ((dropped, np.delete(np.arange(6), 2)), (everything, np.arange(6))):
        got = learner.credit(rewards, lengths, recipe, max_tokens=5).advantages
        np.testing.assert_allclose(got[kept], centred[kept] / centred[kept].std(), rtol=1e-5, atol=1e-7)


def test_ungraded_groups_have_no_rewards():
    with pytest.raises(ValueError, match="'p0': its group has not been graded"):
        learner.rewards_of(dataclasses.replace(make_groups()[0], rewards=None))


AGGREGATION_GOLDENS = {
    # Two problems with two rollouts each, of 1 and 3, and of 2 and 2 tokens; max_tokens = 4. Weight of each token:
    # a token mean in each of 4 rollouts: 1 / (4 x tokens of the rollout)
    "sequence_mean": [[1 / 4, 1 / 12], [1 / 8, 1 / 8]],
    # 8 tokens in all
    "token_mean": [[1 / 8, 1 / 8], [1 / 8, 1 / 8]],
    # both groups have 4 tokens, and there are 2 of them: 1 / (2 x 4)
    "prompt_mean": [[1 / 8, 1 / 8], [1 / 8, 1 / 8]],
    # 4 rollouts x 4 tokens
    "constant": [[1 / 16, 1 / 16], [1 / 16, 1 / 16]],
}


@pytest.mark.parametrize("aggregation", AGGREGATION_GOLDENS)
def test_aggregation_goldens(aggregation):
    lengths = np.array([[1, 3], [2, 2]])
    got = aggregation_weights(lengths, np.ones(2, bool), aggregation=aggregation, max_tokens=4)
    np.testing.assert_allclose(got, AGGREGATION_GOLDENS[aggregation], rtol=1e-6)


def test_token_mean_and_prompt_mean_differ_on_uneven_groups():
    """1 + 1 tokens against 3 + 3: token_mean is 1/8 everywhere; prompt_mean 1/(2 x 2) and 1/(2 x 6)."""
    lengths, keep = np.array([[1, 1], [3, 3]]), np.ones(2, bool)
    token = aggregation_weights(lengths, keep, aggregation="token_mean", max_tokens=4)
    prompt = aggregation_weights(lengths, keep, aggregation="prompt_mean", max_tokens=4)
    np.testing.assert_allclose(token, [[1 / 8] * 2] * 2, rtol=1e-6)
    np.testing.assert_allclose(prompt, [[1 / 4] * 2, [1 / 12] * 2], rtol=1e-6)


def looped_objective(terms, lengths, keep, aggregation, max_tokens):
    """Each aggregation as the sentence of its definition, rollout by rollout."""
    kept = [(group, sizes) for group, sizes, k in zip(terms, lengths, keep, strict=True) if k]
    if not kept:
        return 0.0
    sums = [[math.fsum(row[:size]) for row, size in zip(*group, strict=True)] for group in kept]
    sizes = [list(sizes) for _, sizes in kept]
    rollouts = sum(len(group) for group in sizes)
    if aggregation == "sequence_mean":
        means = [s / n if n else 0.0 for gs, gn in zip(sums, sizes, strict=True) for s, n in zip(gs, gn, strict=True)]
        return math.fsum(means) / rollouts
    if aggregation == "token_mean":
        return math.fsum(map(math.fsum, sums)) / max(1, sum(map(sum, sizes)))
    if aggregation == "prompt_mean":
        return math.fsum(math.fsum(gs) / max(1, sum(gn)) for gs, gn in zip(sums, sizes, strict=True)) / len(kept)
    return math.fsum(map(math.fsum, sums)) / (rollouts * max_tokens)


@pytest.mark.parametrize("aggregation", AGGREGATION_GOLDENS)
@settings(max_examples=40)
@given(
    lengths=hnp.arrays(np.int64, (3, 2), elements=st.integers(0, 5)),
    keep=hnp.arrays(bool, 3),
    terms=hnp.arrays(np.float32, (3, 2, 5), elements=st.integers(-9, 9)),
)
def test_weighted_sums_equal_the_plain_definitions(aggregation, lengths, keep, terms):
    """Dropped groups leave numerators and denominators; empty completions and an empty batch divide by no zero."""
    weights = np.asarray(aggregation_weights(lengths, keep, aggregation=aggregation, max_tokens=5))
    mask = np.arange(5) < lengths[..., None]
    got = np.sum(np.where(mask, terms, 0) * weights[..., None].astype(np.float64))
    expected = looped_objective(terms.tolist(), lengths.tolist(), keep, aggregation, 5)
    assert got == pytest.approx(expected, rel=1e-5, abs=1e-6)


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
    lengths, cut = completion_lengths(groups), truncated(groups)
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


def test_completions_with_little_or_nothing_in_them_are_what_docs_method_says():
    """An empty one (its end alone), one without a trained token, a masked one, and two of three tokens."""

    def completion(drawn, context=0, cut=False):
        mask = np.arange(context + drawn) >= context
        zeros = np.zeros(len(mask), np.int32)
        return Completion(zeros, zeros.astype(np.float32), mask, zeros, "length" if cut else "stop")

    completions = completion(1), completion(0, context=2), completion(4, cut=True), completion(3), completion(3)
    group = RolloutGroup("p", 0, np.zeros(1, np.int32), completions, np.array([0, 1, 4, 0, 0], np.float32))
    rewards, lengths = learner.group_rewards([group]), learner.trained_lengths([group])
    masked = truncated([group])
    assert masked.tolist() == [[False, False, True, False, False]]
    weights: dict[Any, list[float]] = {
        "token_mean": [1 / 7, 1 / 7, 0, 1 / 7, 1 / 7],  # of 1 + 0 + 3 + 3 tokens
        "prompt_mean": [1 / 7, 1 / 7, 0, 1 / 7, 1 / 7],
        "sequence_mean": [1 / 4, 1 / 4, 0, 1 / 12, 1 / 12],  # of four rollouts; the second has no token to weigh
        "constant": [1 / 20, 1 / 20, 0, 1 / 20, 1 / 20],
    }
    scales: dict[Any, float] = {"none": 1.0, "group_std": math.sqrt(3) + 1e-6}  # mean 1: (1 + 0 + 9 + 1 + 1) / 4
    for scale, deviation in scales.items():
        for aggregation, expected in weights.items():
            recipe = learner.CreditConfig(scale, aggregation)
            got = learner.credit(rewards, lengths, recipe, max_tokens=5, masked=masked)
            np.testing.assert_allclose(got.advantages, np.array([[-1, 0, 3, -1, -1]]) / deviation, rtol=1e-6)
            np.testing.assert_allclose(got.policy_weights, [expected], rtol=1e-6)
    assert Ledger().charge_training([group]).compute == 5


@pytest.mark.parametrize("shape", [(2,), (2, 5), (3, 4), (4, 2, 4)])
def test_advantages_of_other_rollouts_are_refused(shape):
    """One for each rollout; with turns, one for each turn of each."""
    ones = np.ones((2, 4), np.float32)
    found = learner.Credit(advantages=ones, policy_weights=ones, regularizer_weights=ones)
    with pytest.raises(ValueError, match="are not of the same rollouts"):
        dataclasses.replace(found, advantages=np.zeros(shape, np.float32))
    turns = dataclasses.replace(
        found, advantages=np.zeros((2, 4, 3), np.float32), turn_ends=np.ones((2, 4, 3), np.int32)
    )
    with pytest.raises(ValueError, match="are not of the same rollouts"):
        dataclasses.replace(turns, advantages=np.zeros((2, 4), np.float32))
