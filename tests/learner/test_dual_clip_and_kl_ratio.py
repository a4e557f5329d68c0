"""The dual clip, and the KL term with an importance ratio: beside loops, torch's autograd, and sums over outcomes."""

import math
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from isocompute_jax import learner
from isocompute_jax.learner import losses
from isocompute_jax.learner.batches import microbatch_of
from isocompute_jax.learner.objective import make_loss
from isocompute_jax.records.errors import InputError
from tests.learner.test_losses import CASES, REFERENCE, THETA, looped_clip, reverse_kl

# --- dual clip


def test_dual_clip_golden():
    """A = -2: at ratio 1.5 the term is 3, at 3 it is 6 and whole, at 4 it stays 6; A = 2 at 4 is PPO's, -2.4."""
    ratio, advantages = jnp.array([1.5, 3.0, 4.0, 0.5, 4.0]), jnp.array([-2.0, -2.0, -2.0, -2.0, 2.0])
    clips: dict[str, Any] = dict(clip_low=0.2, clip_high=0.2, dual_clip=3.0)

    @jax.jit
    def found(ratio):
        terms = losses.clipped_loss(ratio, advantages, **clips)
        slope = jax.grad(lambda r: jnp.sum(losses.clipped_loss(r, advantages, **clips)))(ratio)
        return terms, slope, losses.clip_binds(ratio, advantages, **clips)

    terms, slope, binds = found(ratio)
    np.testing.assert_allclose(terms, [3.0, 6.0, 6.0, 1.6, -2.4], rtol=1e-6)
    np.testing.assert_allclose(slope, [2.0, 2.0, 0.0, 0.0, 0.0])
    np.testing.assert_array_equal(binds, [False, False, True, True, True])


@pytest.mark.parametrize("case", CASES[1:2])
def test_dual_clip_equals_a_loop(case):
    ratio = losses.masked_ratio(case.logprobs, case.old, case.mask)
    got = losses.clipped_loss(ratio, case.advantages, clip_low=0.2, clip_high=0.28, dual_clip=1.5)

    def rule(lp, old, smp, ref, a, i, t):
        plain = looped_clip(math.exp(lp - old), a, 0.2, 0.28)
        return min(plain, -1.5 * a) if a < 0 else plain

    case.check(got, rule)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_dual_clip_and_its_gradient_equal_those_of_torch(case):
    """The loss as verl writes it, in maxima and minima, differentiated by torch."""
    torch = pytest.importorskip("torch")
    lp, old, mask = (torch.tensor(np.array(x)) for x in (case.logprobs, case.old, case.mask))
    advantages = torch.tensor(np.array(case.advantages))
    lp.requires_grad_(True)
    ratio = torch.exp(lp - old)
    clipped = torch.maximum(-advantages * ratio, -advantages * torch.clamp(ratio, 0.8, 1.28))
    dual = torch.minimum(-advantages * 1.5, clipped)
    expected = torch.where(advantages < 0, dual, clipped)
    (expected * mask).sum().backward()

    def total(logprobs):
        clips: dict[str, Any] = dict(clip_low=0.2, clip_high=0.28, dual_clip=1.5)
        terms = losses.POLICY_LOSSES["clipped"](logprobs, case.old, case.mask, case.advantages, **clips)
        return jnp.sum(jnp.where(case.mask, terms.loss, 0.0)), terms.cut

    (value, cut), gradient = jax.value_and_grad(total, has_aux=True)(case.logprobs)
    assert value == pytest.approx(float((expected * mask).sum().detach()), rel=1e-5)
    np.testing.assert_allclose(gradient, lp.grad.numpy(), rtol=2e-5, atol=1e-6)
    np.testing.assert_array_equal((np.asarray(gradient) == 0)[case.mask], np.asarray(cut)[case.mask])


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in losses.POLICY_LOSSES if name != "sapo"])
def test_every_policy_loss_takes_a_dual_clip(name):
    """It changes the terms of bad tokens that became likelier, where a loss clips at all."""
    ratio, mask = jnp.full(2, 8.0), jnp.ones(2, bool)
    clips: dict[str, Any] = dict(clip_low=0.2, clip_high=9.0)
    dual: dict[str, Any] = dict(clips, dual_clip=3.0)
    plain, bounded = (
        losses.POLICY_LOSSES[name](jnp.log(ratio), jnp.zeros(2), mask, jnp.array([-1.0, 1.0]), **clips).loss
        for clips in (clips, dual)
    )
    if name in ("clipped", "gspo"):
        np.testing.assert_allclose(bounded, [3.0, -8.0], rtol=1e-6)
    else:
        np.testing.assert_array_equal(bounded, plain)


@pytest.mark.parametrize("bound", [0.5, 1.0])
def test_a_dual_clip_below_the_ratio_of_an_unchanged_policy_is_refused(bound):
    with pytest.raises(InputError, match=re.escape(f"LossConfig.dual_clip = {bound} must be above 1")):
        learner.LossConfig(dual_clip=bound)


# --- KL with the ratio

OLD = jax.nn.log_softmax(jnp.array([0.9, -0.2, -0.7, 0.5, 0.0]))
"""Who drew the tokens: neither the current policy nor the reference."""


def expected_weighted_kl(estimator, old, theta):
    """E over tokens of the old policy of rho x (estimator), by summing over all of them."""
    logp = jax.nn.log_softmax(theta)
    mask = jnp.ones(5, bool)
    terms = losses.kl_penalty(logp, REFERENCE, mask, estimator=estimator)
    return jnp.sum(jnp.exp(old) * losses.masked_ratio(logp, old, mask) * terms)


@pytest.mark.parametrize("estimator", ["k1", "k3"])
@pytest.mark.parametrize("old", [OLD, pytest.param(jax.nn.log_softmax(THETA), marks=pytest.mark.slow)])
def test_with_the_ratio_value_and_gradient_are_those_of_the_reverse_kl(estimator, old):
    value, gradient = jax.jit(jax.value_and_grad(lambda theta: expected_weighted_kl(estimator, old, theta)))(THETA)
    exact_value, exact = jax.jit(jax.value_and_grad(reverse_kl))(THETA)
    assert value == pytest.approx(float(exact_value), abs=1e-6)
    np.testing.assert_allclose(gradient, exact, atol=1e-6)
    assert np.abs(exact).max() > 0.1


@pytest.mark.slow
def test_the_weighted_term_and_its_gradient_equal_those_of_torch():
    """DeepSeek-V3.2's formula, (pi / pi_old) (pi_ref / pi - log(pi_ref / pi) - 1), through a whole loss."""
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    values = rng.normal(size=6).astype(np.float32)
    tokens = np.array([[0, 3, 5], [2, 2, 1]])
    old, reference = (rng.normal(-1.5, 0.4, tokens.shape).astype(np.float32) for _ in range(2))
    theta = torch.tensor(values, requires_grad=True)
    lp = torch.log_softmax(theta, 0)[torch.tensor(tokens)]
    x = torch.tensor(reference) - lp
    expected = (torch.exp(lp - torch.tensor(old)) * (torch.exp(x) - x - 1)).mean()
    expected.backward()

    def score(params, batch):
        given = params.ndim == 2  # the reference's
        logprobs = jnp.asarray(reference)[None] if given else jax.nn.log_softmax(params)[batch.tokens]
        return logprobs, jnp.zeros_like(logprobs)

    def loss(params):
        config = learner.LossConfig(kl_coef=1.0, kl_estimator="k3", kl_ratio=True)
        credited = learner.Credit(*(np.full((1, 2), x, np.float32) for x in (0.0, 1 / 6, 1 / 6)))
        batch = learner.single_batch(
            np.zeros((1, 1), np.int32),
            np.ones((1, 1), bool),
            tokens[None],
            np.ones((1, 2, 3), bool),
            sampler_logprobs=old[None],
            old_logprobs=old[None],
        )
        microbatch = microbatch_of(jax.tree.map(jnp.asarray, batch), jnp.int32(0), None)
        return make_loss(score, config, credited, jnp.zeros((6, 1)))(params, microbatch)[0]

    value, gradient = jax.value_and_grad(loss)(jnp.asarray(values))
    assert value == pytest.approx(float(expected.detach()), rel=1e-5)
    np.testing.assert_allclose(gradient, theta.grad.numpy(), rtol=1e-4, atol=1e-6)
