"""Packed rows and shared prompts are two layouts of one step: the same gradients, metrics and log-probabilities."""

import dataclasses

import jax
import numpy as np
import pytest

from isocompute_jax import learner
from tests.learner import builders
from tests.learner.builders import GROUP, LENGTH, PROMPT, REWARDS, make_groups, relative_difference
from tests.model.tiny import random_params, tiny_config

ROW = 32


def packed_batch(groups, kept, *, shards=1, microbatch_tokens=2 * ROW):
    shape = learner.pack_shape(
        problems_per_batch=len(REWARDS),
        group_size=GROUP,
        max_prompt_tokens=PROMPT,
        max_tokens=LENGTH,
        row_tokens=ROW,
        microbatch_tokens=microbatch_tokens,
        batch_shards=shards,
    )
    return shape.lay_out(groups, kept=kept)


def both(loss, **kwargs):
    groups = make_groups()
    padded, credited = builders.pack(groups, builders.SEVERAL)
    packed = packed_batch(groups, credited.kept)
    assert int(packed.num_microbatches) > 1
    return [builders.gradient_and_metrics(loss, batch, credited, **kwargs) for batch in (packed, padded)]


@pytest.mark.parametrize(
    "loss", ["regularized", *(pytest.param(name, marks=pytest.mark.slow) for name in ("gspo", "sequence"))]
)
def test_gradients_and_metrics_are_those_of_the_padded_layout(loss):
    (packed, ours), (padded, theirs) = both(loss)
    assert relative_difference(packed, padded) < 1e-5
    for name in theirs:
        np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.slow
def test_gradients_are_the_same_in_float64():
    with jax.enable_x64(True):
        (packed, _), (padded, _) = both("regularized", dtype="float64")
    assert jax.tree.leaves(packed)[0].dtype == np.float64
    assert relative_difference(packed, padded) < 1e-10


@pytest.mark.slow
def test_packed_rows_are_sharded():
    groups, mesh = make_groups(), builders.mesh()
    credited = builders.pack(groups)[1]
    whole, _ = builders.gradient_and_metrics("gspo", packed_batch(groups, credited.kept), credited)
    batch = packed_batch(groups, credited.kept, shards=4)
    sharded, _ = builders.gradient_and_metrics("gspo", batch, credited, mesh=mesh)
    assert relative_difference(sharded, whole) < 1e-5


def test_log_probabilities_are_those_of_the_padded_layout():
    groups = make_groups()
    packed = packed_batch(groups, None)
    shared = builders.WHOLE.lay_out(groups)
    params, score = random_params(tiny_config()), builders.scorer()
    rows = learner.unpack(packed, score(params, packed), groups)
    expected = np.asarray(score(params, shared)).reshape(len(rows), LENGTH)
    for ours, theirs in zip(rows, expected, strict=True):
        assert ours is not None
        np.testing.assert_allclose(ours, theirs[: len(ours)], atol=1e-5)


def test_a_rollout_is_not_moved_by_its_neighbours_by_a_bit():
    groups = make_groups()
    batch = packed_batch(groups, None)
    # Another token in the middle of one sequence: it alone may change.
    numbers = np.asarray(batch.rollout)
    place = tuple(np.argwhere(np.asarray(batch.mask))[5])
    tokens = np.array(batch.tokens)
    tokens[place] = (tokens[place] + 1) % 12
    changed = dataclasses.replace(batch, tokens=tokens)
    params = random_params(tiny_config())
    index = int(place[0])
    before, after = (np.asarray(builders.scorer()(params, x))[index] for x in (batch, changed))
    others = numbers[index] != numbers[place]
    np.testing.assert_array_equal(before[others], after[others])
    assert np.any(before[~others] != after[~others])


@pytest.mark.slow
def test_a_step_without_a_sequence_changes_nothing():
    groups = make_groups()
    credited = builders.pack(groups)[1]
    nothing = dataclasses.replace(
        credited, policy_weights=0 * credited.policy_weights, regularizer_weights=0 * credited.regularizer_weights
    )
    batch = packed_batch(groups, np.zeros(len(groups), bool))
    assert batch.num_microbatches == 0
    gradient, _ = builders.gradient_and_metrics("gspo", batch, nothing)
    assert all(np.all(np.asarray(x) == 0) for x in jax.tree.leaves(gradient))
