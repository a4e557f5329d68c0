"""Denominators are global: however a batch is cut, and with or without prefix sharing, the gradient is the same.

The oracle `plain_loss` shares nothing with the learner but the model's prefill: whole sequences, a full log-softmax,
and the objective written out rollout by rollout.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from isocompute_jax import learner, model
from tests.learner.builders import (
    CUT,
    LENGTH,
    PROMPT,
    REGULARIZED,
    SEVERAL,
    WHOLE,
    make_groups,
    optimizer,
    pack,
    relative_difference,
    train_step,
)
from tests.model.tiny import random_params, tiny_config

AGGREGATIONS = ["sequence_mean", "token_mean", "prompt_mean", "constant"]
TEMPERATURE = 0.8


def gradient_and_metrics(params, reference, batch, *, dtype="float32", loss_config=REGULARIZED):
    """The gradient of one step, read from the optimizer's state, and the step's metrics."""
    state = learner.init_state(params, optimizer())
    step = train_step(loss_config, dtype=dtype, temperature=TEMPERATURE)
    state, metrics = step(state, *batch, learning_rate=jnp.asarray(1e-3, dtype), reference_params=reference)
    return jax.tree.map(np.asarray, state.opt_state[0]), jax.tree.map(float, metrics)


def test_the_shapes_cut_the_batch_differently():
    """One micro-batch; two, the last with padding rows; and eleven or twelve with groups cut into two rows."""
    assert (WHOLE.microbatches, WHOLE.rows, WHOLE.rollouts) == (1, 6, 4)
    assert (SEVERAL.microbatches, SEVERAL.rows, SEVERAL.rollouts) == (2, 4, 4)
    assert (CUT.microbatches, CUT.rows, CUT.rollouts) == (12, 1, 2)
    used = [int(pack(make_groups(), shape)[0].num_microbatches) for shape in (WHOLE, SEVERAL, CUT)]
    assert used == [1, 2, 10]  # the group without signal is not computed


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("shape", [SEVERAL, CUT], ids=["several", "cut"])
@pytest.mark.slow
def test_gradients_do_not_depend_on_the_cut_float32(shape, aggregation):
    params, reference = random_params(tiny_config()), random_params(tiny_config(), seed=5)
    groups = make_groups()
    one, one_metrics = gradient_and_metrics(params, reference, pack(groups, WHOLE, aggregation=aggregation))
    many, many_metrics = gradient_and_metrics(params, reference, pack(groups, shape, aggregation=aggregation))
    assert relative_difference(many, one) < 1e-5
    assert many_metrics == pytest.approx(one_metrics, rel=1e-5, abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_gradients_do_not_depend_on_the_cut_float64(aggregation):
    """At float64 nothing but the order of additions is left."""
    with jax.enable_x64(True):
        config = tiny_config(dtype="float64")
        params, reference = random_params(config), random_params(config, seed=5)
        groups = make_groups()
        one, one_metrics = gradient_and_metrics(
            params, reference, pack(groups, WHOLE, aggregation=aggregation), dtype="float64"
        )
        many, many_metrics = gradient_and_metrics(
            params, reference, pack(groups, CUT, aggregation=aggregation), dtype="float64"
        )
        assert {leaf.dtype for leaf in jax.tree.leaves(many)} == {np.dtype("float64")}
        assert relative_difference(many, one) < 1e-10
        assert many_metrics == pytest.approx(one_metrics, rel=1e-10, abs=1e-12)


def plain_logprobs(config, params, groups, temperature):
    """log p [P, G, T, V] of every completion position from whole, right-padded sequences."""
    rows, places = [], []
    for group in groups:
        for completion in group.completions:
            row = np.concatenate([group.prompt_tokens, completion.tokens])
            rows.append(np.pad(row, (0, PROMPT + LENGTH - len(row))))
            # The token at place s is predicted at s - 1; places beyond the completion repeat its last one.
            places.append(len(group.prompt_tokens) - 1 + np.minimum(np.arange(LENGTH), len(completion.tokens) - 1))
    tokens = jnp.asarray(np.stack(rows))
    hidden, _ = model.prefill(config, params, tokens, jnp.ones_like(tokens, bool))  # causal: padding comes after
    hidden = jnp.take_along_axis(hidden, jnp.asarray(np.stack(places))[..., None], axis=1)
    head = params["embed"].T if config.tied_embeddings else params["head"]
    logprobs = jax.nn.log_softmax(hidden @ head / temperature, axis=-1)
    return logprobs.reshape(len(groups), -1, LENGTH, logprobs.shape[-1])


def plain_loss(config, params, reference, groups, kl_coef, entropy_coef):
    """GRPO's objective on-policy: mean over rollouts of mean over tokens, with TIS, k2 and the entropy bonus."""
    current = plain_logprobs(config, params, groups, TEMPERATURE)
    fixed = plain_logprobs(config, reference, groups, TEMPERATURE)
    total, rollouts = 0.0, 0
    for p, group in enumerate(groups):
        if len(set(group.rewards.tolist())) == 1:
            continue
        advantages = (group.rewards - group.rewards.mean()) / (group.rewards.std(ddof=1) + 1e-6)
        for g, completion in enumerate(group.completions):
            rollouts += 1
            terms = []
            for t in np.flatnonzero(completion.mask):
                token = completion.tokens[t]
                lp, entropy = current[p, g, t, token], -jnp.sum(jnp.exp(current[p, g, t]) * current[p, g, t])
                weight = jnp.minimum(jnp.exp(jax.lax.stop_gradient(lp) - completion.logprobs[t]), 2.0)
                kl = (lp - fixed[p, g, t, token]) ** 2 / 2
                terms.append(-weight * advantages[g] * lp + kl_coef * kl - entropy_coef * entropy)
            total += sum(terms) / len(terms)
    return total / rollouts


def test_the_step_has_the_gradient_of_the_plain_objective():
    """Prefix sharing, rows, micro-batches, chunks and weights together equal the objective written out."""
    with jax.enable_x64(True):
        config = tiny_config(dtype="float64")
        params, reference = random_params(config), random_params(config, seed=5)
        groups = make_groups()
        got, metrics = gradient_and_metrics(params, reference, pack(groups, CUT), dtype="float64")
        exact = jax.jit(jax.grad(lambda params: plain_loss(config, params, reference, groups, 0.05, 0.02)))(params)
        # Advantages and weights are float32 in the batch: their rounding is all that differs.
        assert relative_difference(got, exact) < 1e-6
        assert metrics["kl"] > 0.01 and metrics["entropy"] > 0.1


@pytest.mark.slow
def test_prefix_sharing_and_chunks_leave_values_and_gradients_as_they_are():
    """`completion_logprobs` (one prompt for all of its rollouts, a chunked head) against whole sequences."""
    groups = make_groups()
    batch = jax.tree.map(lambda x: jnp.asarray(x[0] if np.ndim(x) else x), learner.layout(groups, WHOLE))
    config = tiny_config()
    params = random_params(config)
    valid = np.array([[np.arange(LENGTH) < len(c.tokens) for c in group.completions] for group in groups])
    cotangents = np.random.default_rng(1).normal(size=(2, *valid.shape)).astype(np.float32) * valid

    def shared(params):
        values = learner.completion_logprobs(
            config,
            params,
            batch.prompt_tokens,
            batch.prompt_mask,
            batch.tokens,
            temperature=TEMPERATURE,
            chunk_tokens=30,  # four chunks of the twenty tokens of a row
        )
        return sum(jnp.sum(c * v) for c, v in zip(cotangents, values, strict=True)), values

    def plain(params):
        logprobs = plain_logprobs(config, params, groups, TEMPERATURE)
        picked = jnp.take_along_axis(logprobs, batch.tokens[..., None], axis=-1)[..., 0]
        values = picked, -jnp.sum(jnp.exp(logprobs) * logprobs, axis=-1)
        return sum(jnp.sum(c * v) for c, v in zip(cotangents, values, strict=True)), values

    gradient, values = jax.jit(jax.grad(shared, has_aux=True))(params)
    exact, plain_values = jax.jit(jax.grad(plain, has_aux=True))(params)
    for ours, theirs in zip(values, plain_values, strict=True):
        np.testing.assert_allclose(np.asarray(ours)[valid], np.asarray(theirs)[valid], atol=1e-5)
    assert relative_difference(gradient, exact) < 1e-5


def test_completions_of_one_token():
    """T = 1: nothing is left to extend, and the prompt's last hidden state scores everything."""
    config = tiny_config()
    params = random_params(config)
    prompt, mask = jnp.array([[3, 1, 4]]), jnp.ones((1, 3), bool)
    tokens = jnp.arange(12).reshape(1, 12, 1)
    logprobs, entropies = learner.completion_logprobs(
        config, params, prompt, mask, tokens, temperature=1.0, chunk_tokens=100
    )
    np.testing.assert_allclose(np.exp(logprobs).sum(), 1.0, rtol=1e-6)
    np.testing.assert_allclose(entropies, -np.sum(np.exp(logprobs) * logprobs), rtol=1e-5)
