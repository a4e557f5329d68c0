"""Context tokens in completions: read, and not trained on; gradients by hand and in every layout."""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from isocompute_jax import learner
from isocompute_jax.records.rollout import Completion, RolloutGroup
from tests.learner import builders
from tests.learner.builders import GROUP, LENGTH, PROMPT, REWARDS, make_groups, relative_difference

VOCAB = 4


def completion(tokens, context) -> Completion:
    """Tokens of which those at the places of `context` were put in."""
    mask = ~np.isin(np.arange(len(tokens)), context)
    logprobs = np.where(mask, -1.0, 0.0).astype(np.float32)
    return Completion(np.array(tokens, np.int32), logprobs, mask, np.zeros(len(tokens), np.int32), "length")


def bigram_score(params, batch):
    """A model whose logits are those of the token before: a table, whose gradient can be written down."""
    before = jnp.concatenate(
        [jnp.broadcast_to(batch.prompt_tokens[..., None, -1:], (*batch.tokens.shape[:2], 1)), batch.tokens[..., :-1]],
        axis=-1,
    )
    logits = params[before]
    logprobs = logits - jnp.log(jnp.sum(jnp.exp(logits), axis=-1, keepdims=True))
    picked = jnp.take_along_axis(logprobs, batch.tokens[..., None], axis=-1)[..., 0]
    return picked, -jnp.sum(jnp.exp(logprobs) * logprobs, axis=-1)


def test_a_gradient_by_hand():
    """Two rollouts of a bigram model; on-policy, d loss / d logits[a] = -sum of A w (onehot(b) - p[a]) over drawn b."""
    table = np.array([[0.1, -0.3, 0.2, 0.5], [0.0, 0.4, -0.2, 0.1], [0.3, 0.3, -0.6, 0.2], [-0.1, 0.2, 0.6, 0.0]])
    first, second = completion([2, 3, 1, 0, 3], [1, 2]), completion([1, 2], [])
    group = RolloutGroup("p", 0, np.array([0], np.int32), (first, second), np.array([1, 0], np.float32))
    lengths = learner.trained_lengths([group])
    assert lengths.tolist() == [[3, 2]]
    recipe = learner.CreditConfig(advantage_scale="none", aggregation="token_mean")
    credited = learner.credit(learner.group_rewards([group]), lengths, recipe, max_tokens=5)
    shape = learner.batch_shape(
        problems_per_batch=1, group_size=2, max_prompt_tokens=1, max_tokens=5, microbatch_tokens=10
    )
    config = learner.LossConfig(correction_mode="off")
    step = learner.make_train_step(bigram_score, config, optax.sgd(1.0))
    state = learner.init_state(jnp.array(table, jnp.float32), optax.sgd(1.0))
    updated, metrics = step(state, shape.lay_out([group]), credited)

    probabilities = np.exp(table) / np.exp(table).sum(axis=1, keepdims=True)
    gradient = np.zeros_like(table)
    # Drawn tokens with the token that stands before each, context included, and the advantage over five drawn tokens.
    for before, token, advantage in ((0, 2, 0.5), (1, 0, 0.5), (0, 3, 0.5), (0, 1, -0.5), (1, 2, -0.5)):
        gradient[before] -= advantage / 5 * (np.eye(VOCAB)[token] - probabilities[before])
    np.testing.assert_allclose(table - np.asarray(updated.params), gradient, atol=1e-6)
    assert np.abs(gradient[[2, 3]]).max() == 0  # 3 was put in after 2, and 1 after 3: nobody chose them
    assert metrics["trained_tokens"] == 5


def with_context(groups, seed=0):
    """Groups with context in the middle of many completions; equal tokens, and beginnings, under different masks."""
    random = np.random.default_rng(seed)

    def changed(c: Completion) -> Completion:
        mask = random.random(len(c.tokens)) < 0.6
        mask[[0, -1]] = True
        logprobs = np.where(mask, c.logprobs, 0).astype(np.float32)
        return dataclasses.replace(c, tokens=c.tokens % 2, mask=mask, logprobs=logprobs)

    return [dataclasses.replace(g, completions=tuple(changed(c) for c in g.completions)) for g in groups]


@pytest.mark.slow
def test_every_layout_leaves_context_out():
    groups = with_context(make_groups())
    beginnings = [(g.problem_id, c.tokens[:2].tobytes()) for g in groups for c in g.completions]
    assert len(set(beginnings)) < len(beginnings)
    padded, credited = builders.pack(groups, builders.SEVERAL)
    sizes: dict[str, Any] = {
        "problems_per_batch": len(REWARDS),
        "group_size": GROUP,
        "max_prompt_tokens": PROMPT,
        "max_tokens": LENGTH,
        "microbatch_tokens": 1000,
    }
    batches = {
        "padded": padded,
        "trees": learner.tree_shape(**sizes, row_nodes=16).lay_out(groups, kept=credited.kept),
        "packed": learner.pack_shape(**sizes, row_tokens=24).lay_out(groups, kept=credited.kept),
    }
    found = {name: builders.gradient_and_metrics("regularized", batch, credited) for name, batch in batches.items()}
    kept = [group for group, keep in zip(groups, credited.kept, strict=True) if keep]
    for gradient, metrics in found.values():
        assert relative_difference(gradient, found["padded"][0]) < 1e-5
        assert metrics["trained_tokens"] == sum(group.num_tokens for group in kept)
    # What the sampler said of context is of no consequence.
    noisy = [
        dataclasses.replace(
            g,
            completions=tuple(
                dataclasses.replace(c, logprobs=np.where(c.mask, c.logprobs, -9).astype(np.float32))
                for c in g.completions
            ),
        )
        for g in groups
    ]
    again, _ = builders.gradient_and_metrics("regularized", builders.pack(noisy, builders.SEVERAL)[0], credited)
    assert relative_difference(again, found["padded"][0]) == 0
