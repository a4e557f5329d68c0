"""From groups to arrays: nothing is lost, nothing is invented, and the compiled shape covers every batch."""

import dataclasses

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isocompute_jax import learner
from tests.learner.builders import CUT, LENGTH, PROMPT, SEVERAL, WHOLE, make_group, make_groups, pack

SHAPES = {"whole": WHOLE, "several": SEVERAL, "cut": CUT}


@given(
    problems=st.integers(1, 40),
    group_size=st.integers(2, 64),
    max_tokens=st.integers(1, 50),
    microbatch_tokens=st.integers(1, 4000),
    shards=st.integers(1, 8),
)
def test_batch_shape_properties(problems, group_size, max_tokens, microbatch_tokens, shards):
    shape = learner.batch_shape(
        problems_per_batch=problems,
        group_size=group_size,
        max_prompt_tokens=9,
        max_tokens=max_tokens,
        microbatch_tokens=microbatch_tokens,
        batch_shards=shards,
    )
    rows = problems * group_size // shape.rollouts
    assert group_size % shape.rollouts == 0  # a group is cut into equal parts
    assert shape.rows % shards == 0
    assert shape.microbatches * shape.rows >= rows  # the whole batch fits
    assert (shape.microbatches - 1) * shape.rows < rows  # and no micro-batch is padding alone
    per_shard = shape.rows // shards * shape.rollouts * max_tokens
    assert per_shard <= max(microbatch_tokens / shards, max_tokens)  # within budget, or a single rollout
    assert (shape.prompt, shape.tokens) == (9, max_tokens)


@pytest.mark.parametrize("zero_variance", ["drop", "drop_regularizers", "keep"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_pack_preserves_every_kept_group_in_order(shape, zero_variance):
    """Unfolding the rows gives back each prompt, completion, mask and log-probability; the rest is padding."""
    groups = make_groups()
    batch = pack(groups, shape, zero_variance=zero_variance)
    kept = [g for i, g in enumerate(groups) if zero_variance != "drop" or i != 2]
    parts = 4 // shape.rollouts
    rows = shape.microbatches * shape.rows
    assert batch.tokens.shape == (shape.microbatches, shape.rows, shape.rollouts, LENGTH)
    assert int(batch.num_microbatches) == -(-len(kept) * parts // shape.rows)

    flat = {
        field.name: np.asarray(getattr(batch, field.name)).reshape(rows, *getattr(batch, field.name).shape[2:])
        for field in dataclasses.fields(batch)
        if field.name not in ("num_microbatches", "old_logprobs")
    }
    for place, group in enumerate(kept):
        for i, completion in enumerate(group.completions):
            row, column, length = place * parts + i // shape.rollouts, i % shape.rollouts, len(completion.tokens)
            prompt = flat["prompt_tokens"][row][flat["prompt_mask"][row]]
            np.testing.assert_array_equal(prompt, group.prompt_tokens)
            assert flat["prompt_mask"][row, -1]  # left padding: the last prompt token predicts the first of the answer
            for name, value in (("tokens", completion.tokens), ("sampler_logprobs", completion.logprobs)):
                np.testing.assert_array_equal(flat[name][row, column, :length], value)
                assert not np.any(flat[name][row, column, length:])
            np.testing.assert_array_equal(flat["mask"][row, column, :length], completion.mask)
            assert not np.any(flat["mask"][row, column, length:])
    used = len(kept) * parts
    for name in ("mask", "advantages", "policy_weights", "regularizer_weights"):
        assert not np.any(flat[name][used:]), name
    np.testing.assert_array_equal(flat["prompt_mask"][used:].sum(axis=1), 1)  # padding attends to something: no NaN
    np.testing.assert_allclose(flat["advantages"].reshape(-1, 4).sum(axis=1), 0.0, atol=1e-6)
    assert np.abs(flat["advantages"]).max() > 0.5


@pytest.mark.parametrize(
    ("zero_variance", "policy_rollouts", "regularizer_rollouts"),
    [("drop", 20, 20), ("drop_regularizers", 24, 20), ("keep", 24, 24)],
)
def test_zero_variance_groups_and_their_denominators(zero_variance, policy_rollouts, regularizer_rollouts):
    """One of six groups of four has no signal: 20 rollouts divide where it left, 24 where it stayed."""
    groups = make_groups()
    batch = pack(groups, WHOLE, zero_variance=zero_variance)
    for name, rollouts in (("policy_weights", policy_rollouts), ("regularizer_weights", regularizer_rollouts)):
        expected = []
        for i, group in enumerate(groups):
            weights = [1 / (rollouts * completion.mask.sum()) for completion in group.completions]
            if i != 2:
                expected += weights
            elif zero_variance != "drop":
                expected += weights if rollouts == 24 else [0.0] * 4
        expected += [0.0] * (24 - len(expected))
        np.testing.assert_allclose(np.asarray(getattr(batch, name)).ravel(), expected, rtol=1e-6)


def test_batch_scale_is_taken_over_kept_groups_alone():
    """Dropping the group without signal raises the deviation, so advantages shrink; keeping it lowers it."""
    groups = make_groups()
    rewards = np.stack([group.rewards for group in groups])
    centred = rewards - rewards.mean(axis=1, keepdims=True)
    signal = np.delete(np.arange(6), 2)
    dropped = np.asarray(pack(groups, WHOLE, scale="batch_std").advantages).reshape(6, 4)[:5]
    np.testing.assert_allclose(dropped, centred[signal] / centred[signal].std(), rtol=1e-5)
    kept = np.asarray(pack(groups, WHOLE, scale="batch_std", zero_variance="keep").advantages).reshape(6, 4)
    np.testing.assert_allclose(kept, centred / centred.std(), rtol=1e-5, atol=1e-7)


def test_a_batch_without_signal_holds_no_microbatch():
    groups = make_groups(rewards=((1, 1, 1, 1), (0, 0, 0, 0)))
    assert int(pack(groups).num_microbatches) == 0
    assert not np.any(pack(groups).policy_weights)


def test_the_longest_prompt_and_completion_fit_exactly():
    group = make_group(np.random.default_rng(0), (1, 0, 0, 1), lengths=[LENGTH] * 4)
    group = dataclasses.replace(group, prompt_tokens=np.arange(1, PROMPT + 1))
    batch = pack([group], WHOLE)
    np.testing.assert_array_equal(batch.prompt_tokens[0, 0], np.arange(1, PROMPT + 1))
    assert batch.prompt_mask[0, 0].all()
    assert batch.mask[0, 0].sum() == 4 * LENGTH - 1  # one token is context


def test_place_batch_shards_rows():
    from isocompute_jax import sharding

    mesh = sharding.make_mesh(data=2, fsdp=2, tensor=2)
    batch = pack(make_groups(), SEVERAL)
    placed = learner.place_batch(batch, mesh)
    jax.tree.map(np.testing.assert_array_equal, placed, batch)
    assert placed.tokens.sharding.shard_shape(placed.tokens.shape) == (2, 1, 4, LENGTH)
    assert placed.advantages.sharding.shard_shape(placed.advantages.shape) == (2, 1, 4)
    assert placed.num_microbatches.sharding.is_fully_replicated
    assert learner.place_batch(batch, None) is batch
