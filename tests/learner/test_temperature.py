"""Sampled at one temperature, trained at another: the corrected gradient is the exact one, all sequences enumerated."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from isocompute_jax import learner
from isocompute_jax.learner.batches import microbatch_of
from isocompute_jax.learner.objective import make_loss

VOCAB, SAMPLED_AT, TRAINED_AT = 3, 1.7, 0.8
LOGITS = jnp.array(np.random.default_rng(0).normal(size=(1 + VOCAB, VOCAB)), jnp.float32)
"""Row 0 of the first token; row 1 + a of the second one, after a first token a."""


def logprobs_of(logits, sequences, temperature):
    """[R, T] of each sequence's tokens."""
    contexts = jnp.concatenate([jnp.zeros_like(sequences[:, :1]), 1 + sequences[:, :-1]], axis=1)
    return jnp.take_along_axis(jax.nn.log_softmax(logits / temperature)[contexts], sequences[..., None], axis=-1)[
        ..., 0
    ]


def score(params, batch):
    logprobs = logprobs_of(params, batch.tokens[0], TRAINED_AT)[None]
    return logprobs, jnp.zeros_like(logprobs)


def gradients(length, config):
    """(of the loss, expected over the sampler's distribution; of -E[reward] at the learner's temperature)."""
    sequences = np.array(list(itertools.product(range(VOCAB), repeat=length)))
    rewards = np.random.default_rng(length).normal(size=len(sequences)).astype(np.float32)
    sampled = np.asarray(jax.jit(logprobs_of)(LOGITS, sequences, SAMPLED_AT))
    chances = np.exp(np.sum(np.asarray(sampled, np.float64), axis=1))
    assert chances.sum() == pytest.approx(1)
    weights = np.asarray(chances, np.float32)[None]
    credited = learner.Credit(rewards[None], weights, np.zeros_like(weights))
    batch = learner.single_batch(
        np.zeros((1, 1), np.int32),
        np.ones((1, 1), bool),
        sequences[None],
        np.ones((1, *sequences.shape), bool),
        sampler_logprobs=sampled[None],
    )
    loss = make_loss(score, config, credited, None)

    def loss_of(params, batch):
        return loss(params, microbatch_of(batch, jnp.int32(0), None))[0]

    found = jax.jit(jax.grad(loss_of))(LOGITS, batch)

    def expected_reward(logits):
        return jnp.sum(jnp.exp(jnp.sum(logprobs_of(logits, sequences, TRAINED_AT), axis=1)) * rewards)

    return found, -jax.jit(jax.grad(expected_reward))(LOGITS)


@pytest.mark.parametrize(
    ("length", "config"),
    [
        (2, learner.LossConfig("clipped", correction_level="sequence", correction_high=np.inf)),
        *(
            pytest.param(length, config, marks=pytest.mark.slow)
            for length, config in (
                (2, learner.LossConfig("reinforce", correction_level="sequence", correction_high=np.inf)),
                (1, learner.LossConfig("clipped", correction_level="token", correction_high=np.inf)),
                (1, learner.LossConfig("cispo", 1.0, np.inf, ratio_from="sampler", correction_mode="off")),
                (1, learner.LossConfig("clipped", 1.0, np.inf, ratio_from="sampler", correction_mode="off")),
            )
        ),
    ],
    ids=["clipped", "reinforce", "one token", "CISPO from the sampler", "PPO from the sampler"],
)
def test_without_a_cap_the_expected_gradient_is_exact(length, config):
    found, exact = gradients(length, config)
    np.testing.assert_allclose(found, exact, atol=2e-6)
    assert np.abs(exact).max() > 0.05


@pytest.mark.slow
@pytest.mark.parametrize(
    "config",
    [
        learner.LossConfig("reinforce", correction_mode="off"),
        learner.LossConfig("reinforce", correction_level="token", correction_high=np.inf),
        learner.LossConfig("reinforce", correction_level="sequence", correction_high=1.0),
    ],
    ids=["not corrected", "each token by itself", "capped"],
)
def test_what_is_biased(config):
    """Tokens by themselves leave out how likely their beginnings were; a cap trades bias for variance."""
    found, exact = gradients(2, config)
    assert np.abs(found - exact).max() > 0.02
