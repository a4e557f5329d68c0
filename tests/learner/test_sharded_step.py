"""One device and eight: the same numbers, and no device holds what it could share."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from isocompute_jax import learner, model, sharding
from tests.learner.builders import (
    make_groups,
    mesh,
    one_layer,
    optimizer,
    pack,
    relative_difference,
    shape_for,
    take_step,
    train_step,
)
from tests.learner.test_layout_steps import packed_batch
from tests.model.tiny import LLAMA4, random_params, tiny_config

CONFIG = one_layer()
STEPS = 3


def train(*, sharded):
    """Three steps on three batches; gradients and metrics of each, and the state after them."""
    params, reference = random_params(CONFIG), random_params(CONFIG, seed=5)
    if sharded:
        reference = jax.device_put(reference, model.param_shardings(CONFIG, mesh()))
    shardings = learner.state_shardings(CONFIG, mesh(), optimizer()) if sharded else None
    state = learner.init_state(params, optimizer(), shardings)
    history = []
    for seed in range(STEPS):
        tokens, credited = pack(make_groups(seed=seed))
        tokens = learner.place_batch(tokens, mesh() if sharded else None)
        state, metrics = take_step(state, tokens, credited, reference=reference, step=train_step(sharded=sharded))
        history.append((jax.tree.map(np.asarray, state.opt_state[0]), jax.tree.map(float, metrics)))
    # Whoever handed the first parameters over still owns them, although the step reuses the state's memory.
    np.testing.assert_array_equal(params["final_norm"], random_params(CONFIG)["final_norm"])
    return state, history


@pytest.fixture(scope="module")
def runs():
    return train(sharded=False), train(sharded=True)


def test_eight_devices_train_as_one_does(runs):
    """Loss, metrics and gradients of every step, and the parameters at the end; the sharded step donates its state."""
    (state, history), (sharded_state, sharded_history) = runs
    assert len(jax.devices()) == 8
    for (gradient, metrics), (sharded_gradient, sharded_metrics) in zip(history, sharded_history, strict=True):
        assert relative_difference(sharded_gradient, gradient) < 1e-5
        assert sharded_metrics == pytest.approx(metrics, rel=1e-5, abs=1e-6)
    assert relative_difference(sharded_state.params, state.params) < 1e-5
    assert int(sharded_state.step) == STEPS


FAMILIES = {
    "llama": dict(rope_scaling=model.RopeScaling(8.0, 1.0, 4.0, 16)),
    "qwen3": dict(qk_norm=True, num_kv_heads=2),
    "qwen3_moe": dict(qk_norm=True, num_experts=4, experts_per_token=2, tied_embeddings=False),
    "llama4_text": LLAMA4 | dict(tied_embeddings=False),
}


def one_step(config, layout, mesh):
    """Metrics of a step, and the gradient that the optimizer saw."""
    score = learner.make_score(config, temperature=1.0, chunk_tokens=4096, mesh=mesh)
    shardings = None if mesh is None else learner.state_shardings(config, mesh, optimizer())
    state = learner.init_state(random_params(config), optimizer(), shardings)
    groups = make_groups()
    tokens, credited = pack(groups, shape_for(80, batch_shards=8))
    if layout == "packed":
        tokens = packed_batch(groups, credited.kept, shards=8)
    step = learner.make_train_step(score, learner.LossConfig(entropy_coef=0.02), optimizer(), shardings=shardings)
    state, metrics = step(state, learner.place_batch(tokens, mesh), credited, jnp.float32(1e-3))
    return jax.tree.map(np.asarray, state.opt_state[0]), jax.tree.map(float, metrics)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "axes", "layout"),
    [
        ("llama", (2, 2, 1, 1, 2), "padded"), ("qwen3", (1, 4, 1, 1, 2), "packed"),
        ("qwen3", (8, 1, 1, 1, 1), "padded"), ("qwen3_moe", (1, 2, 2, 1, 2), "packed"),
        ("llama4_text", (1, 2, 2, 1, 2), "padded"), ("llama4_text", (1, 2, 2, 2, 1), "packed"),
        ("qwen3_moe", (1, 1, 2, 4, 1), "padded"),
    ],
    ids=str,
)  # fmt: skip
def test_every_family_trains_on_many_devices_as_on_one(family, axes, layout):
    """Meshes of (data, fsdp, expert, context, tensor); those of experts report the same use of them, too."""
    config = tiny_config(**dict(attention_bias=False) | FAMILIES[family])
    mesh = sharding.make_mesh(**dict(zip(sharding.MESH_AXES, axes, strict=True)))
    gradient, metrics = one_step(config, layout, None)
    sharded_gradient, sharded_metrics = one_step(config, layout, mesh)
    assert ("expert_load_max" in metrics) == (config.num_experts > 0)
    assert relative_difference(sharded_gradient, gradient) < 1e-5
    assert sharded_metrics == pytest.approx(metrics, rel=1e-5, abs=1e-6)


def test_state_is_sharded_and_moments_like_their_parameters(runs):
    _, (state, _) = runs
    wanted = model.param_shardings(CONFIG, mesh())
    adam = state.opt_state[1][1]
    for tree in (state.params, state.opt_state[0], adam.mu, adam.nu):
        jax.tree.map(lambda x, sharding: _same_sharding(x, sharding), tree, wanted)
    embed = adam.mu["embed"]
    assert embed.sharding.shard_shape(embed.shape) == (6, 8)  # [12 / tensor, 16 / fsdp]
    wq = adam.nu["layers"]["wq"]
    assert wq.sharding.shard_shape(wq.shape) == (1, 8, 1, 8)  # [L, 16 / fsdp, 2 heads / tensor, H]
    assert adam.count.sharding.is_fully_replicated and state.step.sharding.is_fully_replicated


def _same_sharding(array, sharding):
    assert array.sharding.is_equivalent_to(sharding, array.ndim), (array.shape, array.sharding, sharding)


def test_the_first_state_is_sharded_from_the_start():
    shardings = learner.state_shardings(CONFIG, mesh(), optimizer())
    state = learner.init_state(random_params(CONFIG), optimizer(), shardings)
    jax.tree.map(_same_sharding, state, shardings)
