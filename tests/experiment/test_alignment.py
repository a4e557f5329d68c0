"""Gradients of problems: parts of the gradient in training, inner products without noise, sketches, mean cosines."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from isocompute_jax import learner
from isocompute_jax.experiment.interference import (
    _sketched,
    by_problem,
    cosines_of,
    inner_products,
    mean_cosine,
    microbatch_gradients,
)
from isocompute_jax.learner.objective import make_loss
from tests.learner.builders import CUT, GROUP, LENGTH, PROMPT, REWARDS, make_groups, pack

RNG = np.random.default_rng


def linear_score(params, batch):
    """A model of 12 x 3 numbers whose log-probabilities and entropies depend on all of them."""
    features = jnp.cos(jnp.arange(3.0) + jnp.asarray(batch.tokens)[..., None])
    logits = params["w"][jnp.asarray(batch.tokens)] * features
    return jax.nn.log_sigmoid(logits.sum(-1)), jnp.exp(-(logits[..., 0] ** 2))


@pytest.fixture(scope="module")
def params():
    return {"w": jnp.asarray(RNG(0).normal(size=(12, 3)), jnp.float32)}


@pytest.fixture(scope="module")
def laid_out():
    """Two rows of two rollouts for each of six groups, a row in each micro-batch; the third group has no signal."""
    groups = make_groups()
    shape = learner.BatchShape(2 * len(REWARDS), 1, GROUP // 2, LENGTH, PROMPT)
    _, credited = pack(groups, CUT)
    return shape.lay_out(groups), credited


CONFIG = learner.LossConfig(entropy_coef=0.02)


def test_they_add_up_to_the_gradient_of_the_batch(params, laid_out):
    batch, credited = laid_out
    found = np.asarray(microbatch_gradients(linear_score, CONFIG, features=100, seed=0)(params, batch, credited, None))
    loss = make_loss(linear_score, CONFIG, credited, None)
    parts = [jax.tree.map(lambda x, i=i: x if x.ndim == 0 else x[i], batch) for i in range(len(found))]
    whole = jax.grad(lambda p: sum(loss(p, part)[0] for part in parts))(params)
    np.testing.assert_allclose(found.sum(axis=0), np.ravel(whole["w"]), rtol=1e-4, atol=1e-7)
    for group, pair in enumerate(found.reshape(len(REWARDS), 2, -1)):
        assert np.any(pair) == (len(set(REWARDS[group])) > 1)  # without signal, without gradient


def test_sketches_have_unbiased_inner_products():
    rng = RNG(3)
    pair = [{"a": jnp.asarray(rng.normal(size=(5, 7))), "b": jnp.asarray(rng.normal(size=40))} for _ in "xy"]
    keys = jax.random.split(jax.random.key(0), 2000)
    x, y = (np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)]) for tree in pair)
    sketches = [np.asarray(jax.vmap(lambda key, t=tree: _sketched(t, 16, key))(keys)) for tree in pair]
    products = np.sum(sketches[0] * sketches[1], axis=1)
    assert products.mean() == pytest.approx(x @ y, abs=4 * products.std() / np.sqrt(2000))
    assert products.std() < 1.5 * np.linalg.norm(x) * np.linalg.norm(y) / np.sqrt(16)
    np.testing.assert_array_equal(_sketched(pair[0], 75, keys[0]), x)  # not more than are kept: as they are


def test_a_larger_model_is_sketched(params, laid_out):
    batch, credited = laid_out
    found = microbatch_gradients(linear_score, CONFIG, features=12, seed=0)(params, batch, credited, None)
    assert found.shape == (12, 12) and np.any(np.asarray(found))


def test_inner_products_by_hand():
    inner, halves = inner_products(np.array([[1.0, 0.0], [0.0, 2.0]]), np.array([[3.0, 4.0], [2.0, 2.0]]))
    # Means of the halves are (2, 2) and (1, 2).
    np.testing.assert_allclose(inner, [[3, 6], [6, 4]])
    np.testing.assert_allclose(halves, [3 / 5, 4 / np.sqrt(4 * 8)])
    np.testing.assert_allclose(cosines_of(inner), [[1, 6 / np.sqrt(12)], [6 / np.sqrt(12), 1]])


def test_a_problem_without_gradient_has_no_cosine():
    inner, halves = inner_products(np.array([[0.0, 0.0], [1.0, 0.0]]), np.array([[0.0, 0.0], [1.0, 0.0]]))
    assert np.isnan(halves[0]) and np.isnan(cosines_of(inner)[0]).all() and cosines_of(inner)[1, 1] == 1


def test_noise_does_not_bias_inner_products_or_mean_cosines():
    rng = RNG(1)
    truth = np.concatenate([np.tile([3.0, 0.0], (8, 1)), np.tile([1.0, 2.0], (8, 1))])
    truth = np.pad(truth, ((0, 0), (0, 48)))
    solved = np.arange(16) < 8
    exact = truth @ truth.T
    inner, values, errors, naive = [], [], [], []
    for _ in range(300):
        a, b = truth + 0.4 * rng.normal(size=(2, *truth.shape))
        inner.append(inner_products(a, b)[0])
        mean = mean_cosine(inner[-1], solved, ~solved)
        values.append(mean.cosine)
        errors.append(mean.stderr)
        whole = (a + b) / 2
        products = whole @ whole.T
        naive.append(products[:8, 8:].mean() / np.sqrt(np.diag(products)[:8].mean() * np.diag(products)[8:].mean()))
    error = np.std(inner, axis=0) / np.sqrt(300)
    assert np.all(np.abs(np.mean(inner, axis=0) - exact) < 5 * error)
    expected = 1 / np.sqrt(5)
    assert np.mean(values) == pytest.approx(expected, abs=0.005)
    assert np.mean(naive) < 0.75 * expected  # what the correction is for
    assert 0.5 * np.std(values) < np.mean(errors) < 2 * np.std(values)


def test_mean_cosines_by_hand():
    inner = np.array([[4.0, 2.0, -1.0], [2.0, 4.0, 1.0], [-1.0, 1.0, 1.0]])
    first, last = np.array([True, True, False]), np.array([False, False, True])
    within = mean_cosine(inner, first, first)
    assert within.cosine == pytest.approx(0.5) and within.pairs == 1 and np.isnan(within.stderr)  # one pair
    between = mean_cosine(inner, first, last)
    assert between.cosine == 0 and between.pairs == 2
    everyone = mean_cosine(inner, first | last, first | last)
    assert everyone.cosine == pytest.approx((2 - 1 + 1) / 3 / 3) and everyone.pairs == 3
    alone = mean_cosine(inner, last, last)
    assert np.isnan(alone.cosine) and alone.pairs == 0


def test_parts_of_halves_are_summed():
    first, second = by_problem(np.arange(16.0).reshape(8, 2), 2)
    np.testing.assert_array_equal(first, [[0 + 2, 1 + 3], [4 + 6, 5 + 7]])
    np.testing.assert_array_equal(second, [[8 + 10, 9 + 11], [12 + 14, 13 + 15]])
