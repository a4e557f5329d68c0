"""Denominators are global: however a batch is cut, and with or without prefix sharing, the gradient is the same.

The oracle is the objective written out token by token (tests/learner/plain.py).
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from isocompute_jax import learner
from tests.learner import builders
from tests.learner.plain import GROUPS, gradient_of, plain_logprobs
from tests.model.tiny import random_params


def gradient_and_metrics(params, reference, batch, *, dtype="float32"):
    """The gradient of one step, read from the optimizer's state, and the step's metrics."""
    state = learner.init_state(params, builders.optimizer())
    state, metrics = builders.take_step(state, *batch, reference=reference, step=builders.train_step(dtype=dtype))
    return jax.tree.map(np.asarray, state.opt_state[0]), jax.tree.map(float, metrics)


def test_the_shapes_cut_the_batch_differently():
    """One micro-batch; two, the last with padding rows; and eleven or twelve with groups cut into two rows."""
    assert (builders.WHOLE.microbatches, builders.WHOLE.rows, builders.WHOLE.rollouts) == (1, 6, 4)
    assert (builders.SEVERAL.microbatches, builders.SEVERAL.rows, builders.SEVERAL.rollouts) == (2, 4, 4)
    assert (builders.CUT.microbatches, builders.CUT.rows, builders.CUT.rollouts) == (12, 1, 2)
    used = [
        int(builders.pack(builders.make_groups(), shape)[0].num_microbatches)
        for shape in (builders.WHOLE, builders.SEVERAL, builders.CUT)
    ]
    assert used == [1, 2, 10]  # the group without signal is not computed


@pytest.mark.slow
@pytest.mark.parametrize("shape", [builders.SEVERAL, builders.CUT], ids=["several", "cut"])
@pytest.mark.parametrize("aggregation", ["sequence_mean", "token_mean", "prompt_mean", "constant"])
def test_gradients_do_not_depend_on_the_cut(aggregation, shape):
    """At float64 nothing but the order of additions is left."""
    with jax.enable_x64(True):
        config = builders.one_layer(dtype="float64")
        params, reference = random_params(config), random_params(config, seed=5)
        groups = builders.make_groups()
        one, one_metrics = gradient_and_metrics(
            params, reference, builders.pack(groups, builders.WHOLE, aggregation=aggregation), dtype="float64"
        )
        many, many_metrics = gradient_and_metrics(
            params, reference, builders.pack(groups, shape, aggregation=aggregation), dtype="float64"
        )
        assert {leaf.dtype for leaf in jax.tree.leaves(many)} == {np.dtype("float64")}
        assert builders.relative_difference(many, one) < 1e-10
        assert many_metrics == pytest.approx(one_metrics, rel=1e-10, abs=1e-12)


def test_the_step_has_the_gradient_of_the_plain_objective():
    """Prefix sharing, rows, micro-batches, chunks and weights together equal the objective written out."""
    with jax.enable_x64(True):
        config = builders.one_layer(dtype="float64")
        params, reference = random_params(config), random_params(config, seed=5)
        got, metrics = gradient_and_metrics(params, reference, builders.pack(GROUPS, builders.CUT), dtype="float64")

        def truncated(p, g, t, logprob, advantage):
            weight = np.exp(logprob - GROUPS[p].completions[g].logprobs[t])
            return -min(weight, builders.REGULARIZED.correction_high) * advantage

        exact = gradient_of(builders.REGULARIZED, config, params, reference, truncated)
        # Advantages and weights are float32 in the batch: their rounding is all that differs.
        assert builders.relative_difference(got, exact) < 1e-6
        assert metrics["kl"] > 0.01 and metrics["entropy"] > 0.1


@pytest.mark.slow
def test_prefix_sharing_and_chunks_leave_values_and_gradients_as_they_are():
    """`completion_logprobs` (one prompt for all of its rollouts, a chunked head) against whole sequences."""
    groups = GROUPS
    batch = jax.tree.map(lambda x: jnp.asarray(x[0] if np.ndim(x) else x), builders.WHOLE.lay_out(groups))
    config = builders.one_layer()
    params = random_params(config)
    valid = np.array([[np.arange(builders.LENGTH) < len(c.tokens) for c in group.completions] for group in groups])
    cotangents = np.random.default_rng(1).normal(size=(2, *valid.shape)).astype(np.float32) * valid

    def shared(params):
        values = learner.completion_logprobs(
            config,
            params,
            batch.prompt_tokens,
            batch.prompt_mask,
            batch.tokens,
            temperature=builders.TEMPERATURE,
            chunk_tokens=30,  # four chunks of the twenty tokens of a row
        )
        return sum(jnp.sum(c * v) for c, v in zip(cotangents, values, strict=True)), values

    def plain(params):
        logprobs = plain_logprobs(config, params)
        picked = jnp.take_along_axis(logprobs, batch.tokens[..., None], axis=-1)[..., 0]
        values = picked, -jnp.sum(jnp.exp(logprobs) * logprobs, axis=-1)
        return sum(jnp.sum(c * v) for c, v in zip(cotangents, values, strict=True)), values

    gradient, values = jax.jit(jax.grad(shared, has_aux=True))(params)
    exact, plain_values = jax.jit(jax.grad(plain, has_aux=True))(params)
    for ours, theirs in zip(values, plain_values, strict=True):
        np.testing.assert_allclose(np.asarray(ours)[valid], np.asarray(theirs)[valid], atol=1e-5)
    assert builders.relative_difference(gradient, exact) < 1e-5


def test_completions_of_one_token():
    """T = 1: nothing is left to extend, and the prompt's last hidden state scores everything."""
    config = builders.one_layer()
    params = random_params(config)
    prompt, mask = np.array([[3, 1, 4]]), np.ones((1, 3), bool)
    tokens = np.arange(12).reshape(1, 12, 1)

    @jax.jit
    def score(prompt, mask, tokens):
        return learner.completion_logprobs(config, params, prompt, mask, tokens, temperature=1.0, chunk_tokens=100)

    logprobs, entropies = map(np.asarray, score(prompt, mask, tokens))
    np.testing.assert_allclose(np.exp(logprobs).sum(), 1.0, rtol=1e-6)
    np.testing.assert_allclose(entropies, -np.sum(np.exp(logprobs) * logprobs), rtol=1e-5)
