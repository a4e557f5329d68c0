"""Adam's moments in bfloat16 and in the host's memory, against those in float32 on the device; rules of the rate."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from isocompute_jax import learner
from isocompute_jax.learner.state import HOST, kept_in_bfloat16, randomly_rounded
from isocompute_jax.sharding import make_mesh
from tests.learner.builders import REGULARIZED, make_groups, one_layer, pack, score_function
from tests.model.tiny import random_params

rounded_at_random = jax.jit(lambda x, key: randomly_rounded(x, key).astype(jnp.float32))


def test_random_rounding_is_unbiased_and_takes_neighbours():
    x = np.full(20_000, 1.0 + 0.3 / 128, np.float32)  # between 1 and 1 + 1/128, the next bfloat16
    rounded = np.asarray(rounded_at_random(x, jax.random.key(1)))
    assert set(rounded) == {1.0, 1.0 + 1 / 128}
    share = np.mean(rounded > 1)
    assert abs(share - 0.3) < 4 * np.sqrt(0.3 * 0.7 / len(rounded))


def test_numbers_that_bfloat16_has_stay():
    x = np.array([0.0, 1.0, 2.0**-120, 3.5, 1e30]).astype(jnp.bfloat16).astype(np.float32)
    np.testing.assert_array_equal(rounded_at_random(x, jax.random.key(0)), x)


def test_the_second_moment_follows_small_changes():
    """Gradients fall to a tenth: after 2,000 steps the second moment has forgotten the old ones, as in float32."""
    exact = optax.scale_by_adam()
    states = {}
    for name, adam in {"float32": exact, "bfloat16": kept_in_bfloat16(exact)}.items():

        @jax.jit
        def last(gradients, adam=adam):
            state = adam.init({"w": jnp.zeros(64)})
            return jax.lax.scan(lambda state, g: (adam.update({"w": g}, state)[1], None), state, gradients)[0]

        states[name] = last(np.repeat(np.array([1.0, 0.1], np.float32), 2000)[:, None] * np.ones(64, np.float32))
    assert states["bfloat16"].nu["w"].dtype == jnp.bfloat16
    narrow, wide = (np.asarray(states[name].nu["w"]).astype(np.float32) for name in ("bfloat16", "float32"))
    np.testing.assert_allclose(np.mean(narrow), np.mean(wide), rtol=0.02)
    stuck = 1.0 - 0.999**2000  # where rounding to nearest would have left it, or thereabouts
    assert np.all(narrow < 0.5 * stuck)


def trained(moments, mesh, steps=3):
    """Parameters and state after a few steps."""
    config, recipe = one_layer(), learner.OptimizerConfig(base_lr=1e-2, warmup_steps=0, moments=moments)
    optimizer = learner.make_optimizer(recipe)
    shardings = learner.state_shardings(config, mesh, optimizer, moments=moments)
    step = learner.make_train_step(score_function(), REGULARIZED, optimizer, shardings=shardings)
    params = random_params(config)
    state = learner.init_state(params, optimizer, shardings)
    batch, credited = pack(make_groups())
    for _ in range(steps):
        state, _ = step(state, learner.place_batch(batch, mesh), credited, 1e-2, params)
    return state


@pytest.mark.slow
def test_moments_in_the_host_change_nothing_else():
    mesh = make_mesh(fsdp=2)
    device, host = (trained(moments, mesh) for moments in ("float32", "host"))
    kinds = {x.sharding.memory_kind for x in jax.tree.leaves(host.opt_state) if x.ndim}
    assert kinds == {HOST}
    assert {x.sharding.memory_kind for x in jax.tree.leaves(host.params)} != {HOST}
    jax.tree.map(np.testing.assert_array_equal, device.params, host.params)


@pytest.mark.slow
def test_moments_in_bfloat16_train_nearly_alike():
    mesh = make_mesh(fsdp=2)
    start = random_params(one_layer())
    exact, narrow = (trained(moments, mesh, steps=5).params for moments in ("float32", "bfloat16"))
    moved = optax.tree.norm(jax.tree.map(lambda a, b: a - b, exact, start))
    assert optax.tree.norm(jax.tree.map(lambda a, b: a - b, exact, narrow)) < 0.05 * moved


def rate(step, *, exponent, rollouts, warmup=10, base_lr=1e-6):
    config = learner.OptimizerConfig(
        base_lr=base_lr, base_batch=1024, lr_scaling_exponent=exponent, warmup_steps=warmup
    )
    return float(np.asarray(learner.make_schedule(config, rollouts_per_step=rollouts)(step)))


@pytest.mark.parametrize(
    ("exponent", "rollouts", "peak"),
    [
        (0.5, 1024, 1e-6),
        (0.5, 4096, 2e-6),  # four times the batch, twice the rate
        (0.5, 256, 0.5e-6), (0.0, 4096, 1e-6), (0.0, 16, 1e-6), (1.0, 4096, 4e-6), (1.0, 256, 0.25e-6),
    ],
)  # fmt: skip
def test_scaling_rule(exponent, rollouts, peak):
    for step in (9, 10, 1000):
        assert rate(step, exponent=exponent, rollouts=rollouts) == pytest.approx(peak, rel=1e-6)


@pytest.mark.parametrize(("step", "share"), [(0, 0.1), (1, 0.2), (4, 0.5), (8, 0.9), (9, 1.0), (10, 1.0), (500, 1.0)])
def test_warmup_is_linear_and_starts_above_zero(step, share):
    """Ten steps: the first update has a tenth of the rate, the tenth all of it."""
    assert rate(step, exponent=0.5, rollouts=1024) == pytest.approx(share * 1e-6, rel=1e-6)


@pytest.mark.parametrize("warmup", [0, 1])
def test_without_warmup_the_first_step_has_the_whole_rate(warmup):
    assert rate(0, exponent=0.0, rollouts=64, warmup=warmup) == pytest.approx(1e-6, rel=1e-6)


def test_two_warmup_steps():
    rates = [rate(step, exponent=0.0, rollouts=64, warmup=2, base_lr=3.0) for step in range(4)]
    assert rates == pytest.approx([1.5, 3.0, 3.0, 3.0])


# --- the weight of the entropy bonus


def test_the_entropy_bonus_follows_its_target_by_hand():
    """Target 1, change 0.1, at most 0.25: up to the bound; at the target down, and on; above it down, and off."""
    config = learner.LossConfig(entropy_coef=0.05, entropy_target=1.0, entropy_coef_change=0.1, entropy_coef_max=0.25)
    coef, seen = config.entropy_coef, []
    for entropy in (0.9, 0.5, 0.99, 1.0, 1.2, 3.0, 0.1):
        coef, used = learner.adapted_entropy_coef(coef, entropy, config)
        seen.append((round(coef, 12), round(used, 12)))
    assert seen == [(0.15, 0.15), (0.25, 0.25), (0.25, 0.25), (0.15, 0.15), (0.05, 0.0), (0.0, 0.0), (0.1, 0.1)]
