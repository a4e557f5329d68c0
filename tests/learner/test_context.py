"""Rows that are cut along their tokens: the numbers of one device, whatever crosses a cut."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from isocompute_jax import learner, model, sharding
from isocompute_jax.learner.routing import UNKNOWN
from tests.learner import builders
from tests.learner.builders import GROUP, LENGTH, PROMPT, REWARDS, make_groups, relative_difference
from tests.learner.test_packed_step import LOSSES
from tests.model.tiny import random_params, tiny_config

ROW = 16
"""Sequences have up to 11 tokens: two shards or more of those of 8, 4 or 2."""

DENSE = dict(attention_bias=False, qk_norm=True, num_heads=8, num_kv_heads=2)
EXPERTS = DENSE | dict(num_experts=4, experts_per_token=2, tied_embeddings=False)


def batch_of(config, groups, kept, mesh, *, sampled=False):
    """Rows for 8 devices or fewer, two a shard; `sampled` experts for most of the tokens."""
    shape = learner.pack_shape(
        problems_per_batch=len(REWARDS),
        group_size=GROUP,
        max_prompt_tokens=PROMPT,
        max_tokens=LENGTH,
        row_tokens=ROW,
        microbatch_tokens=8 * ROW,
        batch_shards=sharding.shards(mesh, "rows"),
    )
    batch = learner.pack(groups, shape, kept=kept)
    if not sampled:
        return batch
    choices = (config.num_layers, config.experts_per_token)
    experts = np.random.default_rng(0).permuted(
        np.tile(np.arange(config.num_experts), (*batch.tokens.shape, config.num_layers, 1)), axis=-1
    )[..., : choices[1]]
    experts[..., ::5, :, :] = UNKNOWN
    return dataclasses.replace(batch, experts=experts.astype(np.int16))


def one_step(config, mesh, *, loss="regularized", routing="own"):
    """Metrics of a step, and the gradient that the optimizer saw."""
    score = learner.make_score(config, temperature=0.9, chunk_tokens=5, routing=routing, mesh=mesh)
    shardings = None if mesh is None else learner.state_shardings(config, mesh, builders.optimizer())
    state = learner.init_state(random_params(config), builders.optimizer(), shardings)
    reference = random_params(config, seed=1)
    groups = make_groups()
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
    ("model", "axes"),
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
def test_every_mesh_computes_what_one_device_does(model, axes, loss):
    assert_same(tiny_config(**model), axes, loss=loss)


@pytest.mark.slow
@pytest.mark.parametrize("axes", [dict(context=4, fsdp=2), dict(context=2, expert=2, tensor=2)], ids=str)
def test_gradients_are_the_same_in_float64(axes):
    with jax.enable_x64(True):
        assert_same(tiny_config(**EXPERTS, dtype="float64"), axes, loss="gspo", tolerance=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("routing", ["compare", "replay"])
def test_sampled_experts_are_replayed_on_cut_rows(routing):
    assert_same(tiny_config(**EXPERTS), dict(context=4, expert=2), routing=routing)
