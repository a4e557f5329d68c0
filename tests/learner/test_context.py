"""Rows that are cut along their tokens: the numbers of one device, whatever crosses a cut."""

import dataclasses

import jax
import numpy as np
import pytest

from isocompute_jax import learner, model, sharding
from tests.learner import builders
from tests.learner.builders import GROUP, LENGTH, PROMPT, REWARDS, make_groups, relative_difference
from tests.learner.test_packed_step import LOSSES
from tests.model.tiny import random_params, tiny_config

ROW = 16
"""Sequences have up to 11 tokens: two shards or more of those of 8, 4 or 2."""

DENSE = dict(attention_bias=False, qk_norm=True, num_heads=8, num_kv_heads=2)
EXPERTS = DENSE | dict(num_experts=4, experts_per_token=2, tied_embeddings=False)


def with_experts(config, group):
    """The group, with experts that were sampled for most of its tokens."""
    rng = np.random.default_rng(len(group.prompt_tokens))

    def sampled(completion):
        tokens = len(group.prompt_tokens) + len(completion.tokens) - 1
        choices = rng.random((tokens, config.num_layers, config.num_experts)).argsort()[..., : config.experts_per_token]
        choices[::5] = model.UNKNOWN
        return dataclasses.replace(completion, experts=choices.astype(np.int16))

    return dataclasses.replace(group, completions=tuple(map(sampled, group.completions)))


def batch_of(config, groups, kept, mesh, *, sampled=False):
    """Rows for 8 devices or fewer, two a shard."""
    shape = learner.pack_shape(
        problems_per_batch=len(REWARDS),
        group_size=GROUP,
        max_prompt_tokens=PROMPT,
        max_tokens=LENGTH,
        row_tokens=ROW,
        microbatch_tokens=8 * ROW,
        batch_shards=sharding.shards(mesh, "rows"),
        routing=(config.num_layers, config.experts_per_token) if sampled else None,
    )
    return learner.pack(groups, shape, kept=kept)


def one_step(config, mesh, *, loss="regularized", routing="own"):
    """Metrics of a step, and the gradient that the optimizer saw."""
    score = learner.make_score(config, temperature=0.9, chunk_tokens=5, routing=routing, mesh=mesh)
    shardings = None if mesh is None else learner.state_shardings(config, mesh, builders.optimizer())
    state = learner.init_state(random_params(config), builders.optimizer(), shardings)
    reference = random_params(config, seed=1)
    groups = [with_experts(config, group) for group in make_groups()] if config.num_experts else make_groups()
    credited = builders.pack(groups)[1]
    batch = batch_of(config, groups, credited.kept, mesh, sampled=routing != "own")
    step = learner.make_train_step(score, LOSSES[loss], builders.optimizer(), shardings=shardings)
    state, metrics = step(state, learner.place_batch(batch, mesh), credited, 1e-3, reference)
    return jax.tree.map(np.asarray, state.opt_state[0]), jax.tree.map(float, metrics)


def assert_same(config, axes, *, tolerance=1e-5, **kwargs):
    gradient, metrics = one_step(config, None, **kwargs)
    cut_gradient, cut_metrics = one_step(config, sharding.make_mesh(**axes), **kwargs)
    assert relative_difference(cut_gradient, gradient) < tolerance
    assert cut_metrics == pytest.approx(metrics, rel=tolerance, abs=tolerance / 10)


def test_rows_of_experts_are_cut_over_eight_devices():
    assert_same(tiny_config(**EXPERTS), dict(context=2, expert=2, tensor=2), loss="gspo")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fields", "axes"),
    [
        (DENSE, dict(context=8)),
        (DENSE, dict(context=4, fsdp=2)),
        (DENSE, dict(context=2, data=2, tensor=2)),
        (DENSE, dict(context=4, tensor=2)),
        (DENSE | dict(remat="attention_output"), dict(context=2, fsdp=4)),
        (EXPERTS, dict(context=4, expert=2)),
        (EXPERTS, dict(context=2, fsdp=2, expert=2)),
        (EXPERTS | dict(remat="full"), dict(context=4, fsdp=2)),
    ],
    ids=str,
)
@pytest.mark.parametrize("loss", ["regularized", "sequence"])
def test_every_mesh_computes_what_one_device_does(fields, axes, loss):
    assert_same(tiny_config(**fields), axes, loss=loss)


@pytest.mark.slow
@pytest.mark.parametrize("axes", [dict(context=4, fsdp=2), dict(context=2, expert=2, tensor=2)], ids=str)
def test_gradients_are_the_same_in_float64(axes):
    with jax.enable_x64(True):
        assert_same(tiny_config(**EXPERTS, dtype="float64"), axes, loss="gspo", tolerance=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("routing", ["compare", "replay"])
def test_sampled_experts_are_replayed_on_cut_rows(routing):
    assert_same(tiny_config(**EXPERTS), dict(context=4, expert=2), routing=routing)
