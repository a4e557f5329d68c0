"""Rows that are cut along their tokens: the numbers of one device, whatever crosses a cut."""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from isocompute_jax import learner, model, sharding
from isocompute_jax.learner.objective import Routing
from tests.learner import builders
from tests.learner.builders import GROUP, LENGTH, PROMPT, REWARDS, make_groups, relative_difference
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
    return shape.lay_out(groups, kept=kept)


def one_step(config, mesh, *, loss="regularized", routing: Routing = "own"):
    """Metrics of a step, and the gradient that the optimizer saw."""
    score = learner.make_score(config, temperature=0.9, chunk_tokens=5, routing=routing, mesh=mesh)
    shardings = None if mesh is None else learner.state_shardings(config, mesh, builders.optimizer())
    state = learner.init_state(random_params(config), builders.optimizer(), shardings)
    reference = random_params(config, seed=1)
    groups = [with_experts(config, group) for group in make_groups()] if config.num_experts else make_groups()
    credited = builders.pack(groups)[1]
    batch = batch_of(config, groups, credited.kept, mesh, sampled=routing != "own")
    step = learner.make_train_step(score, builders.LOSSES[loss], builders.optimizer(), shardings=shardings)
    state, metrics = step(state, learner.place_batch(batch, mesh), credited, 1e-3, reference)
    return jax.tree.map(np.asarray, state.opt_state[0]), jax.tree.map(float, metrics)


def assert_same(config, axes, *, tolerance=1e-5, **kwargs):
    gradient, metrics = one_step(config, None, **kwargs)
    cut_gradient, cut_metrics = one_step(config, sharding.make_mesh(**axes), **kwargs)
    assert relative_difference(cut_gradient, gradient) < tolerance
    assert cut_metrics == pytest.approx(metrics, rel=tolerance, abs=tolerance / 10)


@pytest.mark.slow
def test_gradients_on_cut_rows_are_those_of_one_device():
    """Of log-probabilities and entropies; steps, and other meshes, are among the slow tests."""
    config, mesh = tiny_config(**DENSE, num_layers=1), sharding.make_mesh(context=4, fsdp=2)
    groups = make_groups()
    batch = jax.tree.map(lambda x: x[0] if x.ndim else x, batch_of(config, groups, None, mesh))
    params = random_params(config)

    def gradient(where):
        score = learner.make_score(config, temperature=0.9, chunk_tokens=5, mesh=where)

        def loss(params):
            found = learner.Scores.of(score(params, batch))
            return jnp.sum(jnp.where(batch.mask, found.logprobs + 0.3 * found.entropies**2, 0.0))

        placed = params if where is None else jax.device_put(params, model.param_shardings(config, where))
        return jax.jit(jax.grad(loss))(placed)

    assert relative_difference(gradient(mesh), gradient(None)) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fields", "axes", "loss"),
    [
        (DENSE, dict(context=8), "sequence"),
        (DENSE, dict(context=2, data=2, tensor=2), "regularized"),
        (DENSE | dict(remat="attention_output"), dict(context=2, fsdp=4), "regularized"),
        (EXPERTS, dict(context=2, fsdp=2, expert=2), "regularized"),
        (EXPERTS | dict(remat="full"), dict(context=4, fsdp=2), "sequence"),
    ],
    ids=str,
)
def test_every_mesh_computes_what_one_device_does(fields, axes, loss):
    assert_same(tiny_config(**fields), axes, loss=loss)


@pytest.mark.slow
def test_gradients_are_the_same_in_float64():
    with jax.enable_x64(True):
        config = tiny_config(**EXPERTS, dtype="float64")
        assert_same(config, dict(context=2, expert=2, tensor=2), loss="gspo", tolerance=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("routing", ["compare", "replay"])
def test_sampled_experts_are_replayed_on_cut_rows(routing):
    assert_same(tiny_config(**EXPERTS), dict(context=4, expert=2), routing=routing)


def score_on(mesh, *, row_tokens, **fields):
    """Compiles the gradient of a score, of a micro-batch of two rows a shard."""
    config = tiny_config(**fields)
    score = learner.make_score(config, temperature=1.0, chunk_tokens=5, mesh=mesh)
    shape = (2 * sharding.shards(mesh, "rows"), row_tokens)
    numbers, floats = jnp.zeros(shape, jnp.int32), jnp.zeros(shape)
    batch = learner.PackedBatch(numbers, numbers, numbers > 0, floats, numbers, jnp.int32(1))

    def loss(params, batch):
        found = learner.Scores.of(score(params, batch))
        return jnp.sum(found.logprobs) + jnp.sum(found.entropies)

    def placed(axes, x):
        axes = (*axes, *[None] * x.ndim)[: x.ndim]
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding.named_sharding(mesh, x.shape, axes))

    params = jax.tree.map(
        lambda x, where: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where),
        model.abstract_params(config),
        model.param_shardings(config, mesh),
    )
    batch = jax.tree.map(functools.partial(placed, learner.PackedBatch.axes), batch)
    return jax.jit(jax.grad(loss)).lower(params, batch).compile()


@pytest.mark.slow
@pytest.mark.parametrize("fields", [DENSE, EXPERTS | dict(experts_per_token=3)], ids=["dense", "experts"])
def test_no_device_holds_whole_rows(fields):
    """Of 176 tokens and D = 48 each device has 44: hidden states, and those of layers, are nowhere whole."""
    program = score_on(sharding.make_mesh(context=4, fsdp=2), row_tokens=176, embed_dim=48, **fields)
    shapes = re.findall(r"f32\[([\d,]+)\]", str(program.as_text()))
    assert any(shape.endswith("44,48") for shape in shapes)
    assert not any(re.search(r"(^|,)(176|352)(,1)*,48$", shape) for shape in shapes)


def test_a_sequence_does_not_see_its_neighbours_to_the_bit():
    """Two rows on four devices: what stands before and behind a sequence that crosses two cuts is another."""
    config, mesh = tiny_config(**DENSE), sharding.make_mesh(context=4, fsdp=2)
    scorer = learner.make_scorer(learner.make_score(config, temperature=1.0, chunk_tokens=None, mesh=mesh), mesh=mesh)
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 12, (1, 2, 16)).astype(np.int32)
    tokens[:, 1, 3:10] = tokens[:, 0, 3:10]
    first = np.tile(np.repeat([0, 3, 10], [3, 7, 6]), (1, 2, 1)).astype(np.int32)
    batch = learner.PackedBatch(tokens, first, first > 0, np.zeros(first.shape, np.float32), first, np.int32(1))
    params = jax.device_put(random_params(config), model.param_shardings(config, mesh))
    found = np.asarray(scorer(params, learner.place_batch(batch, mesh)))[0]
    np.testing.assert_array_equal(found[0, 3:10], found[1, 3:10])
    assert np.any(found[0, 3:10]) and not np.array_equal(found[0, 10:], found[1, 10:])
