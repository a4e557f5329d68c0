"""From groups to arrays: nothing is lost, nothing is invented, and the compiled shape covers every batch."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
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
def test_layout_preserves_every_kept_group_in_order(shape, zero_variance):
    """Unfolding the rows gives back each prompt, completion, mask, log-probability and number; the rest is padding."""
    groups = make_groups()
    batch, credited = pack(groups, shape, zero_variance=zero_variance)
    kept = [i for i in range(6) if zero_variance != "drop" or i != 2]
    np.testing.assert_array_equal(np.flatnonzero(credited.kept), kept)
    parts = 4 // shape.rollouts
    rows = shape.microbatches * shape.rows
    assert batch.tokens.shape == (shape.microbatches, shape.rows, shape.rollouts, LENGTH)
    assert int(batch.num_microbatches) == -(-len(kept) * parts // shape.rows)

    flat = {
        field.name: np.asarray(getattr(batch, field.name)).reshape(rows, *getattr(batch, field.name).shape[2:])
        for field in dataclasses.fields(batch)
        if field.name not in ("num_microbatches", "old_logprobs") and getattr(batch, field.name) is not None
    }
    for place, p in enumerate(kept):
        group = groups[p]
        for i, completion in enumerate(group.completions):
            row, column, length = place * parts + i // shape.rollouts, i % shape.rollouts, len(completion.tokens)
            prompt = flat["prompt_tokens"][row][flat["prompt_mask"][row]]
            np.testing.assert_array_equal(prompt, group.prompt_tokens)
            assert flat["prompt_mask"][row, -1]  # left padding: the last prompt token predicts the first of the answer
            for name, value in (("tokens", completion.tokens), ("sampler_logprobs", completion.logprobs)):
                np.testing.assert_array_equal(flat[name][row, column, :length], value)
                assert not np.any(flat[name][row, column, length:])
            assert flat["rollout"][row, column] == 4 * p + i
            np.testing.assert_array_equal(flat["mask"][row, column, :length], completion.mask)
            assert not np.any(flat["mask"][row, column, length:])
    used = len(kept) * parts
    assert not np.any(flat["mask"][used:])
    np.testing.assert_array_equal(flat["prompt_mask"][used:].sum(axis=1), 1)  # padding attends to something: no NaN
    rows = credited.of(jnp.asarray(batch.rollout))
    advantages = np.asarray(rows.advantages).reshape(-1, 4)[: len(kept)]
    np.testing.assert_array_equal(advantages, credited.advantages[kept])


def test_layout_needs_no_rewards():
    """Agreement checks lay out groups that nobody grades."""
    groups = make_groups()
    ungraded = [dataclasses.replace(group, rewards=None) for group in groups]
    jax.tree.map(np.testing.assert_array_equal, SEVERAL.lay_out(ungraded), SEVERAL.lay_out(groups))


def test_too_many_groups_are_an_error():
    with pytest.raises(ValueError, match="7 groups of 4 take 7 rows"):
        WHOLE.lay_out([*make_groups(), make_groups()[0]])


def test_a_batch_without_signal_holds_no_microbatch():
    groups = make_groups(rewards=((1, 1, 1, 1), (0, 0, 0, 0)))
    tokens, credited = pack(groups)
    assert int(tokens.num_microbatches) == 0
    assert not np.any(credited.takes_part)
    jax.tree.map(np.testing.assert_array_equal, SEVERAL.lay_out([]), tokens)


def test_the_longest_prompt_and_completion_fit_exactly():
    group = make_group(np.random.default_rng(0), (1, 0, 0, 1), lengths=[LENGTH] * 4)
    group = dataclasses.replace(group, prompt_tokens=np.arange(1, PROMPT + 1))
    batch, _ = pack([group], WHOLE)
    np.testing.assert_array_equal(batch.prompt_tokens[0, 0], np.arange(1, PROMPT + 1))
    assert batch.prompt_mask[0, 0].all()
    assert batch.mask[0, 0].sum() == 4 * LENGTH - 1  # one token is context


def test_place_batch_shards_rows():
    from isocompute_jax import sharding

    mesh = sharding.make_mesh(data=2, fsdp=2, tensor=2)
    batch, _ = pack(make_groups(), SEVERAL)
    placed: Any = learner.place_batch(batch, mesh)
    jax.tree.map(np.testing.assert_array_equal, placed, batch)
    assert placed.tokens.sharding.shard_shape(placed.tokens.shape) == (2, 1, 4, LENGTH)
    assert placed.rollout.sharding.shard_shape(placed.rollout.shape) == (2, 1, 4)
    assert placed.num_microbatches.sharding.is_fully_replicated
    assert learner.place_batch(batch, None) is batch


def test_a_process_writes_its_rows_alone_and_knows_what_is_trained_in_the_others():
    groups = make_groups()
    whole = SEVERAL.lay_out(groups)
    own = np.arange(SEVERAL.rows) % 2 == 1
    half = SEVERAL.lay_out(groups, own=own)
    for name in ("mask", "rollout", "num_microbatches"):
        np.testing.assert_array_equal(getattr(half, name), getattr(whole, name))
    for name in ("tokens", "sampler_logprobs", "prompt_tokens", "prompt_mask"):
        np.testing.assert_array_equal(getattr(half, name)[:, own], getattr(whole, name)[:, own])
    assert np.any(whole.tokens[:, ~own]) and not np.any(half.tokens[:, ~own])
