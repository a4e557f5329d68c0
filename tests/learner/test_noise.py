"""Two-level gradient noise: what is estimated is unbiased, and is what a loop over problems finds."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from isocompute_jax import learner
from isocompute_jax.learner import noise
from tests.learner import builders
from tests.model.tiny import random_params

GROUPS = builders.make_groups([(1, 0, 0, 1), (0, 1, 1, 1), (1, 1, 1, 1), (0, 1, 1, 0), (1, 0, 1, 0)])
OPTIMIZER = learner.OptimizerConfig(b2=0.9, eps=1e-3)


def found_in(first, second, cells, half, weights: float | np.ndarray = 1.0):
    """The estimates, from gradients [P, D] of halves in the units of one problem."""
    problems = len(first)
    a, b = (np.stack([x[cell].sum(axis=0) for cell in cells]) / (2 * problems) for x in (first, second))
    x = (a + b) / 2
    products = np.stack([(weights * y).sum(axis=1) for y in (a * b, (a - b) ** 2, x**2)], axis=1)
    total2 = float((weights * x.sum(axis=0) ** 2).sum())
    return np.array(list(noise.estimates(products, total2, np.array([len(cell) for cell in cells]), half).values()))


def test_singleton_cells_by_hand():
    """Two problems in one dimension: a = (1, 4), b = (3, 2), so that their means are 2 and 3."""
    a, b = np.array([[1.0], [4.0]]), np.array([[3.0], [2.0]])
    cells = [np.array([0]), np.array([1])]
    # |G|^2 = 2 x 3; mean of a x b = (3 + 8) / 2; h x mean of (a - b)^2 / 2 = 2 x 2.
    np.testing.assert_allclose(found_in(a, b, cells, 2), [6.0, 5.5 - 6.0, 4.0])


@pytest.mark.parametrize("cells", [[[0], [1], [2]], [[0, 2], [1]]])
def test_unbiased_by_enumeration(cells):
    """Every draw of three problems out of three kinds, and of a sign of noise for each half, weighed alike."""
    means = np.array([[1.0, 0.0], [0.0, 2.0], [-1.0, 0.5]])
    spread = np.array([[0.5, 0.0], [0.0, 1.5], [1.0, 1.0]])  # of a half of 4 rollouts, of each kind
    cells = [np.array(cell) for cell in cells]
    signs = np.array(list(itertools.product((-1.0, 1.0), repeat=6))).reshape(-1, 2, 3, 1)
    draws = [
        found_in(means[kinds] + s[0] * spread[kinds], means[kinds] + s[1] * spread[kinds], cells, 4)
        for kinds in map(list, itertools.product(range(3), repeat=3))
        for s in signs
    ]
    gradient = means.mean(axis=0)
    expected = [gradient @ gradient, np.mean((means - gradient) ** 2) * 2, 4 * np.mean(spread**2) * 2]
    np.testing.assert_allclose(np.mean(draws, axis=0), expected, rtol=1e-12)


def test_variances_are_those_of_the_docstring():
    rng, dimensions, cells, half = np.random.default_rng(0), 30, 8, 4
    within, between = np.linspace(1, 3, dimensions), np.linspace(0.5, 0.1, dimensions)
    gradient = np.full(dimensions, 0.2)
    dealt = [np.arange(3 * k, 3 * k + 3) for k in range(cells)]

    def draw():
        own = gradient + np.sqrt(between) * rng.normal(size=(24, dimensions))
        a, b = (own + np.sqrt(within / half) * rng.normal(size=own.shape) for _ in range(2))
        return found_in(a, b, dealt, half)

    draws = np.array([draw() for _ in range(3000)])
    np.testing.assert_allclose(draws.mean(axis=0), [gradient @ gradient, between.sum(), within.sum()], rtol=0.05)
    of_half, of_step = between + within / half, between + within / (2 * half)
    expected = [
        2 * (of_step**2).sum() / 24**2 * 8 / 7 + 4 * (gradient**2 * of_step).sum() / 24,
        ((of_half**2).sum() + (between**2).sum()) / 8,
        2 * (within**2).sum() / 8,
    ]
    np.testing.assert_allclose(draws.var(axis=0), expected, rtol=0.2)


def test_halves_and_cells():
    first, second = noise.halves_of(GROUPS)
    assert [len(group.completions) for group in first + second] == [2] * 10
    np.testing.assert_array_equal(second[0].rewards, [0, 1])
    assert noise.half_of([8, 8]) == 4 and noise.half_of([7, 7]) == 3 and noise.half_of([6, 8]) == 2
    uneven = [noise.part_of(GROUPS[0], slice(0, 3)), GROUPS[1]]
    assert [group.problem_id for group in noise.halves_of(uneven)[0]] == ["p1"]
    dealt = noise.cells_of(11, 4, (0, 7))
    assert sorted(map(len, dealt)) == [2, 3, 3, 3] and sorted(np.concatenate(dealt)) == list(range(11))
    assert len(noise.cells_of(3, 16, (0, 0))) == 3


@pytest.fixture(scope="module")
def alone():
    """Parameters, moments of the optimizer, and what one device measures there."""
    params = random_params(builders.one_layer())
    state = adam_after(params, 3)
    return params, state, *measured(builders.score_function(), params, state)


def measured(score, params, opt_state, shardings=None):
    """(products of cells of two, two and one problems in every metric, their total) through the compiled programs."""
    first, second = noise.halves_of(GROUPS)
    rewards, lengths = learner.group_rewards(first + second), learner.trained_lengths(first + second)
    recipe = noise.credit_of_halves(learner.CreditConfig("none", "sequence_mean", "drop"))
    credited = learner.credit(rewards, lengths, recipe, max_tokens=builders.LENGTH)
    shape = learner.batch_shape(
        problems_per_batch=2, group_size=2, max_prompt_tokens=builders.PROMPT, max_tokens=builders.LENGTH,
        microbatch_tokens=1000, batch_shards=1 if shardings is None else 4,
    )  # fmt: skip
    mesh = None if shardings is None else shardings.step.mesh
    gradient = noise.make_gradient(score, learner.LossConfig(entropy_coef=0.1), shardings=shardings)
    add_cell, total = noise.make_add_cell(OPTIMIZER, shardings=shardings), noise.make_zeros(shardings)(params)
    found, cells = [], [np.array([0, 3]), np.array([1, 2]), np.array([4])]
    for cell in cells:
        sides = []
        for side, groups in enumerate((first, second)):
            credit = jax.tree.map(lambda x, at=cell + 5 * side: x[at], credited)
            kept = (credit.advantages != 0).any(axis=1)
            tokens = learner.place_batch(shape.lay_out([groups[i] for i in cell], kept=kept), mesh)
            sides.append(gradient(params, tokens, credit.padded(2)))
        total, products = add_cell(total, opt_state, *sides)
        found.append(np.asarray(products, np.float64))
    return np.array(found), cells


def adam_after(params, updates):
    """The state of the optimizer after updates with gradients of one's own."""
    optimizer = learner.make_optimizer(OPTIMIZER)
    state, update = optimizer.init(params), jax.jit(optimizer.update)
    for seed in range(updates):
        _, state = update(random_params(builders.one_layer(), seed=seed), state, params, learning_rate=1.0)
    return state


def per_problem(params):
    """Gradients [2, P, D] of each half alone: -mean over its rollouts of A_i x mean over tokens of their terms."""
    score, rows = builders.score_function(), []
    shape = learner.BatchShape(1, 1, 2, builders.LENGTH, builders.PROMPT)

    @jax.jit
    @jax.grad
    def gradient(params, batch, advantages):
        logprobs = learner.Scores.of(score(params, batch)).logprobs
        now = jax.lax.stop_gradient(logprobs)
        correction = jnp.minimum(jnp.exp(now - batch.sampler_logprobs), 2.0)  # truncated, as by default
        terms = jnp.where(batch.mask, jnp.exp(logprobs - now) * correction * advantages[:, None], 0.0)
        return -jnp.mean(terms.sum(axis=-1) / batch.mask.sum(axis=-1))

    for group in itertools.chain(*noise.halves_of(GROUPS)):
        batch = jax.tree.map(lambda x: x[0] if np.ndim(x) else x, shape.lay_out([group]))
        rewards = learner.rewards_of(group)
        leaves = jax.tree.leaves(gradient(params, batch, rewards - rewards[::-1]))
        rows.append(np.concatenate([np.ravel(x) for x in leaves]))
    return np.array(rows, np.float64).reshape(2, len(GROUPS), -1)


def test_parity_with_a_loop_over_problems(alone):
    """The loss of the step, cell by cell, gives what explicit gradients of each half of each problem do."""
    params, state, products, cells = alone
    first, second = per_problem(params)
    nu = np.concatenate([np.ravel(x) for x in jax.tree.leaves(noise.adam_state(state).nu)]) / (1 - 0.9**3)
    weights = np.where(nu > 0, 1 / (np.sqrt(nu) + 1e-3) ** 2, 0.0)
    sizes = np.array([2, 2, 1])
    for metric, scale in enumerate((1.0, weights)):
        ours = noise.estimates(products[:, metric, :3], products[-1, metric, 3], sizes, 2)
        expected = found_in(first, second, cells, 2, scale)
        np.testing.assert_allclose(list(ours.values()), expected, rtol=2e-4)
        assert ours["within"] > 0


def test_adam_weights_by_hand():
    state = optax.ScaleByAdamState(jnp.int32(2), {"w": jnp.zeros(3)}, {"w": jnp.array([0.19, 0.0, 0.76])})
    weights = noise.adam_weights((optax.EmptyState(), state), OPTIMIZER, None)
    # 1 - 0.9^2 = 0.19: second moments of 1, none, and 4
    assert weights is not None
    np.testing.assert_allclose(weights["w"], [1 / 1.001**2, 0.0, 1 / 2.001**2], rtol=1e-6)
    fresh = state._replace(count=jnp.int32(0))
    assert np.isnan(jax.tree.leaves(noise.adam_weights(fresh, OPTIMIZER, None))[0]).all()
    assert noise.adam_weights(optax.sgd(1.0).init({"w": jnp.zeros(3)}), OPTIMIZER, None) is None


@pytest.mark.slow
def test_eight_devices_measure_as_one_does(alone):
    params, state, products, _ = alone
    shardings = learner.state_shardings(builders.one_layer(), builders.mesh(), learner.make_optimizer(OPTIMIZER))
    placed, moments = jax.device_put(params, shardings.params), jax.device_put(state, shardings.opt_state)
    ours, _ = measured(builders.score_function(sharded=True), placed, moments, shardings)
    np.testing.assert_allclose(ours, products, rtol=1e-4, atol=1e-9)
