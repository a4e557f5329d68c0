"""Batches that older weights sampled: the step's gradient against coefficients worked out in NumPy, and old scores."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from isocompute_jax import learner, model
from tests.learner.builders import (
    CUT,
    LENGTH,
    SEVERAL,
    make_groups,
    mesh,
    optimizer,
    pack,
    relative_difference,
    score_function,
)
from tests.learner.builders import train_step as make_step
from tests.learner.test_microbatches import TEMPERATURE, plain_logprobs
from tests.model.tiny import random_params, tiny_config

CONFIG = tiny_config()
PARAMS = random_params(CONFIG)
GROUPS = make_groups()


@functools.partial(jax.jit, static_argnames="config")
def picked_logprobs(params, config=CONFIG):
    """[P, G, T] of the drawn tokens, from whole sequences; meaningless beyond a completion's end."""
    tokens = np.zeros((len(GROUPS), len(GROUPS[0].completions), LENGTH), np.int32)
    for p, group in enumerate(GROUPS):
        for g, completion in enumerate(group.completions):
            tokens[p, g, : len(completion.tokens)] = completion.tokens
    logprobs = plain_logprobs(config, params, GROUPS, TEMPERATURE)
    return jnp.take_along_axis(logprobs, jnp.asarray(tokens)[..., None], axis=-1)[..., 0]


def reported(logprobs):
    """The groups, their sampler having reported `logprobs` [P, G, T]."""
    return [
        dataclasses.replace(
            group,
            completions=tuple(
                dataclasses.replace(c, logprobs=np.asarray(logprobs[p, g, : len(c.tokens)], np.float32))
                for g, c in enumerate(group.completions)
            ),
        )
        for p, group in enumerate(GROUPS)
    ]


@pytest.fixture(scope="module")
def current():
    return np.asarray(picked_logprobs(PARAMS), np.float64)


# --- the gradient


def clipped(rho, advantage, low, high):
    """d(-min(rho A, clip(rho) A)) / d lp: rho A where the clip does not act against the advantage, else nothing."""
    acts = rho > 1 + high if advantage > 0 else rho < 1 - low
    return 0.0 if acts else -rho * advantage


CASES = {
    "old and TIS": (
        learner.LossConfig(clip_low=0.1, clip_high=0.2, correction_high=1.2),
        lambda lp, old, sampler, a: min(np.exp(old - sampler), 1.2) * clipped(np.exp(lp - old), a, 0.1, 0.2),
        lambda lp, old, sampler, a: clipped(np.exp(lp - old), a, 0.1, 0.2) == 0,
    ),
    "sampler": (
        learner.LossConfig(ratio_from="sampler", correction_mode="off", clip_low=0.1, clip_high=0.2),
        lambda lp, old, sampler, a: clipped(np.exp(lp - sampler), a, 0.1, 0.2),
        lambda lp, old, sampler, a: clipped(np.exp(lp - sampler), a, 0.1, 0.2) == 0,
    ),
    "sampler and CISPO": (
        learner.LossConfig("cispo", clip_low=1.0, clip_high=0.3, ratio_from="sampler", correction_mode="off"),
        lambda lp, old, sampler, a: -min(np.exp(lp - sampler), 1.3) * a,
        lambda lp, old, sampler, a: np.exp(lp - sampler) > 1.3,
    ),
}


@pytest.mark.parametrize(
    "name", [name if name == "old and TIS" else pytest.param(name, marks=pytest.mark.slow) for name in CASES]
)
def test_the_gradient_off_policy_is_that_of_coefficients_by_hand(current, name):
    """Sum over tokens of a NumPy coefficient times the gradient of its log-probability, whole sequences read."""
    loss, coefficient, is_cut = CASES[name]
    rng = np.random.default_rng(3)
    old = (current + rng.uniform(-0.4, 0.4, current.shape)).astype(np.float32)
    sampler = (old + rng.uniform(-0.4, 0.4, current.shape)).astype(np.float32)
    weights, cut = np.zeros_like(current), []
    signal = [p for p, group in enumerate(GROUPS) if len(set(learner.rewards_of(group).tolist())) > 1]
    for p in signal:
        rewards = learner.rewards_of(GROUPS[p]).astype(np.float64)
        advantages = (rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-6)
        for g, completion in enumerate(GROUPS[p].completions):
            for t in np.flatnonzero(completion.mask):
                token = (current[p, g, t], float(old[p, g, t]), float(sampler[p, g, t]), advantages[g])
                term = coefficient(*token)
                cut.append(is_cut(*token) and advantages[g] != 0)
                weights[p, g, t] = term / (completion.mask.sum() * len(signal) * len(advantages))
    assert np.any(weights)
    expected = jax.grad(lambda params: jnp.sum(jnp.asarray(weights, jnp.float32) * picked_logprobs(params)))(PARAMS)
    batch, credited = pack(reported(sampler), SEVERAL)
    batch = dataclasses.replace(batch, old_logprobs=pack(reported(old), SEVERAL)[0].sampler_logprobs)
    state = learner.init_state(PARAMS, optimizer())
    state, metrics = make_step(loss, temperature=TEMPERATURE)(state, batch, credited, jnp.float32(1e-3))
    assert relative_difference(state.opt_state[0], expected) < 1e-5
    assert metrics["ratio_max"] > 1.2
    assert metrics["clip_fraction"] == pytest.approx(np.mean(cut), rel=1e-6) and any(cut)


# --- scores


@pytest.mark.parametrize("shape", [SEVERAL, CUT], ids=["several", "cut"])
def test_scores_are_those_of_whole_sequences(shape):
    """In float64: what is left is the rounding of what was reported, which is float32."""
    with jax.enable_x64(True):
        config = tiny_config(dtype="float64")
        params = random_params(config)
        batch, _ = pack(reported(picked_logprobs(params, config)), shape)
        score = learner.make_scorer(learner.make_score(config, temperature=TEMPERATURE, chunk_tokens=7))
        scores = np.asarray(score(params, batch))
    assert scores.shape == batch.tokens.shape
    np.testing.assert_allclose(scores[batch.mask], batch.sampler_logprobs[batch.mask], rtol=1e-7, atol=0)
    assert not scores[int(batch.num_microbatches) :].any()  # not computed


def test_scores_are_what_the_step_starts_from(current):
    """A step on them has ratio 1, and the gradient of a step that takes its own."""
    batch, credited = pack(reported(current), SEVERAL)
    scores = learner.make_scorer(score_function(temperature=TEMPERATURE))(PARAMS, batch)
    loss, *_ = CASES["old and TIS"]
    gradients = []
    for given in (batch, dataclasses.replace(batch, old_logprobs=scores)):
        state = learner.init_state(PARAMS, optimizer())
        state, metrics = make_step(loss, temperature=TEMPERATURE)(state, given, credited, jnp.float32(1e-3))
        assert float(metrics["ratio_max"]) == pytest.approx(1, abs=2e-6)
        gradients.append(state.opt_state[0])
    assert relative_difference(*gradients) < 1e-5


def test_scores_of_a_sharded_batch(current):
    batch, _ = pack(reported(current), SEVERAL)
    params = jax.device_put(PARAMS, model.param_shardings(CONFIG, mesh()))
    score = learner.make_scorer(score_function(temperature=TEMPERATURE), mesh=mesh())
    sharded: Any = score(params, learner.place_batch(batch, mesh()))
    assert sharded.sharding.spec[1] == ("data", "fsdp")
    mask = np.asarray(batch.mask)
    np.testing.assert_allclose(np.asarray(sharded)[mask], batch.sampler_logprobs[mask], rtol=0, atol=5e-6)
