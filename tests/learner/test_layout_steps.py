"""Packed rows and trees are other layouts of the padded step: the same gradients, metrics and log-probabilities."""

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest

from isocompute_jax import learner
from tests.learner import builders
from tests.learner.builders import GROUP, LENGTH, PROMPT, REWARDS, make_groups, one_layer, relative_difference
from tests.learner.test_trees import alike_groups
from tests.model.tiny import random_params

SIZES: dict[str, Any] = {
    "problems_per_batch": len(REWARDS),
    "group_size": GROUP,
    "max_prompt_tokens": PROMPT,
    "max_tokens": LENGTH,
}


def packed_batch(groups, kept, *, shards=1):
    shape = learner.pack_shape(**SIZES, row_tokens=32, microbatch_tokens=64, batch_shards=shards)
    return shape.lay_out(groups, kept=kept)


def tree_batch(groups, kept, *, shards=1):
    shape = learner.tree_shape(**SIZES, row_nodes=16, microbatch_tokens=1000, batch_shards=shards)
    return shape.lay_out(groups, kept=kept)


LAYOUTS = {"packed": (make_groups, packed_batch), "trees": (alike_groups, tree_batch)}
layouts = pytest.mark.parametrize("layout", LAYOUTS)


def both(layout, loss, **kwargs):
    """(gradient, metrics) of a layout, and of the padded one."""
    make, lay_out = LAYOUTS[layout]
    groups = make()
    padded, credited = builders.pack(groups, builders.SEVERAL)
    batch = lay_out(groups, credited.kept)
    assert int(batch.num_microbatches) > 1
    if layout == "trees":
        assert batch.metrics()["tree_nodes"] < padded.mask.size / 2  # they have much in common
    return [builders.gradient_and_metrics(loss, each, credited, **kwargs) for each in (batch, padded)]


@pytest.mark.parametrize(
    ("layout", "loss"),
    [
        ("trees", "regularized"),
        *(pytest.param("packed", loss, marks=pytest.mark.slow) for loss in ("regularized", "gspo", "sequence")),
        pytest.param("trees", "gspo", marks=pytest.mark.slow),
    ],
)
def test_gradients_and_metrics_are_those_of_the_padded_layout(layout, loss):
    (ours, metrics), (theirs, expected) = both(layout, loss)
    assert relative_difference(ours, theirs) < 1e-5
    for name in expected:
        np.testing.assert_allclose(metrics[name], expected[name], rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.slow
@layouts
def test_gradients_are_the_same_in_float64(layout):
    with jax.enable_x64(True):
        (ours, _), (theirs, _) = both(layout, "regularized", dtype="float64")
    assert jax.tree.leaves(ours)[0].dtype == np.float64
    assert relative_difference(ours, theirs) < 1e-10


@pytest.mark.slow
@layouts
def test_rows_are_sharded(layout):
    make, lay_out = LAYOUTS[layout]
    groups, mesh = make(), builders.mesh()
    credited = builders.pack(groups)[1]
    whole, _ = builders.gradient_and_metrics("gspo", lay_out(groups, credited.kept), credited)
    batch = lay_out(groups, credited.kept, shards=4)
    assert layout == "packed" or batch.tokens.shape[1] == 8  # two rows a shard
    sharded, _ = builders.gradient_and_metrics("gspo", batch, credited, mesh=mesh)
    assert relative_difference(sharded, whole) < 1e-5


def test_log_probabilities_of_packed_rows_are_those_of_the_padded_layout():
    groups = make_groups()
    packed, shared = packed_batch(groups, None), builders.WHOLE.lay_out(groups)
    params, score = random_params(one_layer()), builders.scorer()
    rows = learner.unpack(packed, score(params, packed), groups)
    expected = np.asarray(score(params, shared)).reshape(len(rows), LENGTH)
    for ours, theirs in zip(rows, expected, strict=True):
        assert ours is not None
        np.testing.assert_allclose(ours, theirs[: len(ours)], atol=1e-5)


def test_log_probabilities_of_trees_are_those_of_the_padded_layout():
    groups = alike_groups()
    trees, shared = tree_batch(groups, None), builders.WHOLE.lay_out(groups)
    params, score = random_params(one_layer()), builders.scorer()
    scored = np.asarray(score(params, trees))
    expected = np.asarray(score(params, shared)).reshape(-1, LENGTH)
    assert trees.mask.sum() == shared.mask.sum()
    mask = np.asarray(trees.mask)
    np.testing.assert_allclose(scored[mask], expected[np.asarray(trees.rollout)][mask], atol=1e-5)


def test_a_rollout_is_not_moved_by_its_neighbours_by_a_bit():
    batch = packed_batch(make_groups(), None)
    # Another token in the middle of one sequence: it alone may change.
    numbers = np.asarray(batch.rollout)
    place = tuple(np.argwhere(np.asarray(batch.mask))[5])
    tokens = np.array(batch.tokens)
    tokens[place] = (tokens[place] + 1) % 12
    changed = dataclasses.replace(batch, tokens=tokens)
    params = random_params(one_layer())
    index = int(place[0])
    before, after = (np.asarray(builders.scorer()(params, x))[index] for x in (batch, changed))
    others = numbers[index] != numbers[place]
    np.testing.assert_array_equal(before[others], after[others])
    assert np.any(before[~others] != after[~others])


def test_another_tree_of_the_row_is_not_seen_by_a_bit():
    batch = tree_batch(alike_groups(), None)
    params = random_params(one_layer())
    # Another prompt token: of all rollouts in the row, only those of its group may change.
    row = next(n for n in np.ndindex(batch.nodes.shape[:2]) if len(set((batch.rollout[n] // GROUP).tolist())) > 1)
    nodes = np.array(batch.nodes)
    nodes[row][0] = (nodes[row][0] + 1) % 12
    changed = dataclasses.replace(batch, nodes=nodes)
    before, after = (np.asarray(builders.scorer()(params, x))[row] for x in (batch, changed))
    mask = np.asarray(batch.mask)[row]
    own = (np.asarray(batch.rollout)[row] // GROUP == batch.rollout[row][0] // GROUP)[:, None] & mask
    np.testing.assert_array_equal(before[mask & ~own], after[mask & ~own])
    assert np.any(before[own] != after[own]) and np.any(mask & ~own)


@layouts
def test_a_step_without_signal_holds_no_microbatch(layout):
    batch = LAYOUTS[layout][1](make_groups(), np.zeros(len(REWARDS), bool))
    assert batch.num_microbatches == 0 and not batch.mask.any()
    nothing = LAYOUTS[layout][1]([], None)
    jax.tree.map(np.testing.assert_array_equal, nothing, batch)


@pytest.mark.slow
def test_a_step_without_a_sequence_changes_nothing():
    groups = make_groups()
    credited = builders.pack(groups)[1]
    nothing = dataclasses.replace(
        credited, policy_weights=0 * credited.policy_weights, regularizer_weights=0 * credited.regularizer_weights
    )
    batch = packed_batch(groups, np.zeros(len(groups), bool))
    gradient, _ = builders.gradient_and_metrics("gspo", batch, nothing)
    assert all(np.all(np.asarray(x) == 0) for x in jax.tree.leaves(gradient))
