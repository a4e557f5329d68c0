"""What a layout says of each rollout, beside loops over the groups, and moved from one layout to another."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from isocompute_jax import learner
from isocompute_jax.learner import batches
from isocompute_jax.learner.batches import trained_tokens
from tests.learner.builders import CUT, GROUP, LENGTH, PROMPT, SEVERAL, make_groups

GROUPS = make_groups()
SIZES: dict[str, Any] = dict(
    problems_per_batch=len(GROUPS), group_size=GROUP, max_prompt_tokens=PROMPT, max_tokens=LENGTH
)
ROWS = learner.pack_shape(**SIZES, row_tokens=32, microbatch_tokens=64)
TREES = learner.tree_shape(**SIZES, row_nodes=40, microbatch_tokens=80)

LAYOUTS = {
    "padded": lambda kept: SEVERAL.lay_out(GROUPS, kept=kept),
    "cut": lambda kept: CUT.lay_out(GROUPS, kept=kept),
    "packed": lambda kept: ROWS.lay_out(GROUPS, kept=kept),
    "trees": lambda kept: TREES.lay_out(GROUPS, kept=kept),
}
HALVES = np.array([True, False, True, True, False, False])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_trained_tokens_come_in_the_order_of_rollouts(layout):
    batch = LAYOUTS[layout](HALVES)
    places, owners = trained_tokens(batch)
    expected = [
        (p * GROUP + g, logprob)
        for p in np.flatnonzero(HALVES)
        for g, completion in enumerate(GROUPS[p].completions)
        for logprob in completion.logprobs[completion.mask]
    ]
    assert list(zip(owners.tolist(), np.ravel(batch.sampler_logprobs)[places], strict=True)) == expected


@pytest.mark.parametrize("layout", LAYOUTS)
def test_sums_of_rollouts(layout):
    batch = LAYOUTS[layout](HALVES)
    found = batches.rollout_sums(batch, batch.sampler_logprobs, len(GROUPS) * GROUP).reshape(len(GROUPS), GROUP)
    for p, group in enumerate(GROUPS):
        for g, completion in enumerate(group.completions):
            expected = float(completion.logprobs[completion.mask].astype(np.float64).sum()) if HALVES[p] else 0.0
            assert found[p, g] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("origin", LAYOUTS)
@pytest.mark.parametrize("target", LAYOUTS)
def test_values_move_from_any_layout_to_any_other(origin, target):
    """Two halves of one layout, dealt anew in another: what the sampler said of each token is with it again."""
    parts = [LAYOUTS[origin](HALVES), LAYOUTS[origin](~HALVES)]
    to = LAYOUTS[target](np.array([True, True, False, False, True, False]))
    moved = batches.moved(parts, [part.sampler_logprobs for part in parts], to)
    mask = np.asarray(to.mask)
    np.testing.assert_array_equal(moved[mask], np.asarray(to.sampler_logprobs)[mask])
    assert mask.any() and not moved[~mask].any()
    assert moved.dtype == np.float32 and moved.shape == mask.shape


def test_a_rollout_that_is_nowhere_is_an_error():
    part = LAYOUTS["padded"](HALVES)
    with pytest.raises(ValueError, match="do not hold the rollouts"):
        batches.moved([part], [part.sampler_logprobs], LAYOUTS["packed"](~HALVES))


def test_tokens_without_training_are_in_no_sum():
    batch = LAYOUTS["padded"](None)
    batch = dataclasses.replace(batch, mask=np.zeros_like(batch.mask))
    assert not batches.rollout_sums(batch, batch.sampler_logprobs, len(GROUPS) * GROUP).any()
