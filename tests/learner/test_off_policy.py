"""Batches that older weights sampled: the step's gradient against coefficients worked out in NumPy, and old scores."""

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest

from isocompute_jax import learner, model
from tests.learner import builders
from tests.learner.plain import GROUPS, gradient_of, logprobs_of, picked
from tests.model.tiny import random_params

CONFIG = builders.one_layer()
PARAMS, REFERENCE = random_params(CONFIG), random_params(CONFIG, seed=5)


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
    return picked(logprobs_of(CONFIG, PARAMS))


# --- the gradient


def clipped(rho, advantage, low, high):
    """d(-min(rho A, clip(rho) A)) / d lp: rho A where the clip does not act against the advantage, else nothing."""
    acts = rho > 1 + high if advantage > 0 else rho < 1 - low
    return 0.0 if acts else -rho * advantage


CASES = {
    "old and TIS": (
        builders.REGULARIZED,
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
    cut = []

    def by_hand(p, g, t, logprob, advantage):
        token = (logprob, float(old[p, g, t]), float(sampler[p, g, t]), advantage)
        cut.append(is_cut(*token) and advantage != 0)
        return coefficient(*token)

    expected = gradient_of(loss, CONFIG, PARAMS, REFERENCE, by_hand)
    batch, credited = builders.pack(reported(sampler), builders.SEVERAL)
    batch = dataclasses.replace(batch, old_logprobs=builders.pack(reported(old), builders.SEVERAL)[0].sampler_logprobs)
    state = learner.init_state(PARAMS, builders.optimizer())
    state, metrics = builders.take_step(state, batch, credited, reference=REFERENCE, step=builders.train_step(loss))
    assert builders.relative_difference(state.opt_state[0], expected) < 1e-5
    assert metrics["ratio_max"] > 1.2
    assert metrics["clip_fraction"] == pytest.approx(np.mean(cut), rel=1e-6) and any(cut)


# --- scores


@pytest.mark.parametrize("shape", [builders.SEVERAL, builders.CUT], ids=["several", "cut"])
def test_scores_are_those_of_whole_sequences(shape):
    """In float64: what is left is the rounding of what was reported, which is float32."""
    with jax.enable_x64(True):
        config = builders.one_layer(dtype="float64")
        params = random_params(config)
        batch, _ = builders.pack(reported(picked(logprobs_of(config, params))), shape)
        score = learner.make_scorer(builders.score_function(dtype="float64"))
        scores = np.asarray(score(params, batch))
    assert scores.shape == batch.tokens.shape
    np.testing.assert_allclose(scores[batch.mask], batch.sampler_logprobs[batch.mask], rtol=1e-7, atol=0)
    assert not scores[int(batch.num_microbatches) :].any()  # not computed


def test_scores_are_what_the_step_starts_from(current):
    """A step on them has ratio 1, and the gradient of a step that takes its own."""
    batch, credited = builders.pack(reported(current), builders.SEVERAL)
    scores = np.asarray(builders.scorer()(PARAMS, batch))
    gradients = []
    for given in (batch, dataclasses.replace(batch, old_logprobs=scores)):
        state = learner.init_state(PARAMS, builders.optimizer())
        state, metrics = builders.take_step(state, given, credited, reference=REFERENCE)
        assert float(metrics["ratio_max"]) == pytest.approx(1, abs=2e-6)
        gradients.append(state.opt_state[0])
    assert builders.relative_difference(*gradients) < 1e-5


def test_scores_of_a_sharded_batch(current):
    batch, _ = builders.pack(reported(current), builders.SEVERAL)
    params = jax.device_put(PARAMS, model.param_shardings(CONFIG, builders.mesh()))
    score = learner.make_scorer(builders.score_function(), mesh=builders.mesh())
    sharded: Any = score(params, learner.place_batch(batch, builders.mesh()))
    assert sharded.sharding.spec[1] == ("data", "fsdp")
    mask = np.asarray(batch.mask)
    np.testing.assert_allclose(np.asarray(sharded)[mask], batch.sampler_logprobs[mask], rtol=0, atol=5e-6)
