"""Every loss against a token-by-token loop, and what their gradients are in expectation.

The loops use Python floats and `math` alone. The gradient facts are proven on a small categorical, by summing over all
of its outcomes.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isocompute_jax.learner import losses
from isocompute_jax.records.errors import InputError

ROLLOUTS, LENGTH = 5, 6
LENGTHS = (6, 1, 4, 3, 5)  # ragged


class Case:
    """Ragged completions whose old, sampler and reference log-probabilities lie around the current ones."""

    def __init__(self, seed: int, spread: float):
        rng = np.random.default_rng(seed)
        logprobs = -rng.exponential(1.0, (ROLLOUTS, LENGTH))
        self.mask = jnp.arange(LENGTH) < jnp.array(LENGTHS)[:, None]
        self.logprobs = jnp.array(logprobs, jnp.float32)
        self.old, self.sampler, self.reference = (
            jnp.array(logprobs.astype(np.float32) + spread * rng.normal(size=logprobs.shape), jnp.float32)
            for _ in range(3)
        )
        self.advantages = jnp.array(rng.normal(size=(ROLLOUTS, 1)), jnp.float32)

    def check(self, got, rule):
        """`got` [rollouts, tokens] equals rule(lp, old, smp, ref, A, rollout, token) on each trained token."""
        got = np.asarray(got)
        assert got.shape == self.mask.shape
        arrays = [np.asarray(x) for x in (self.logprobs, self.old, self.sampler, self.reference)]
        advantages = np.asarray(self.advantages)
        for i in range(ROLLOUTS):
            for t in range(LENGTHS[i]):
                expected = rule(*(float(x[i, t]) for x in arrays), float(advantages[i, 0]), i, t)
                assert got[i, t] == pytest.approx(expected, rel=2e-5, abs=1e-6), (i, t)


CASES = [Case(0, 0.05), Case(1, 0.5), Case(2, 2.0)]


@pytest.mark.parametrize("case", CASES)
def test_reinforce(case):
    case.check(losses.reinforce_loss(case.logprobs, case.advantages), lambda lp, old, smp, ref, a, i, t: -a * lp)


def looped_clip(ratio, advantage, low, high):
    clipped = 1 - low if ratio < 1 - low else 1 + high if ratio > 1 + high else ratio
    return -min(ratio * advantage, clipped * advantage)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("low", "high"), [(0.2, 0.2), (0.2, 0.28)])
def test_clipped(case, low, high):
    """PPO's clip, and DAPO's clip-higher."""
    ratio = losses.masked_ratio(case.logprobs, case.old, case.mask)
    case.check(ratio, lambda lp, old, smp, ref, a, i, t: math.exp(lp - old))
    np.testing.assert_array_equal(ratio[~case.mask], 1.0)
    got = losses.clipped_loss(ratio, case.advantages, clip_low=low, clip_high=high)
    case.check(got, lambda lp, old, smp, ref, a, i, t: looped_clip(math.exp(lp - old), a, low, high))


def test_clipped_golden():
    """Ratio 1.5, A = 2: min(3, 1.2 x 2) = 2.4. A = -2: min(-3, -2.4) = -3. Ratio 0.5: min(1, 1.6), min(-1, -1.6)."""
    ratio, advantages = jnp.array([1.5, 1.5, 0.5, 0.5]), jnp.array([2.0, -2.0, 2.0, -2.0])

    @jax.jit
    def found(ratio):
        got, pullback = jax.vjp(lambda r: losses.clipped_loss(r, advantages, clip_low=0.2, clip_high=0.2), ratio)
        binds = losses.clip_binds(ratio, advantages, clip_low=0.2, clip_high=0.2)
        return got, pullback(jnp.ones_like(got))[0], binds

    got, slope, binds = found(ratio)
    np.testing.assert_allclose(got, [-2.4, 3.0, -1.0, 1.6], rtol=1e-6)
    np.testing.assert_allclose(slope, [0.0, 2.0, -2.0, 0.0])  # no gradient once the clip binds
    np.testing.assert_array_equal(binds, [True, False, False, True])


@pytest.mark.parametrize("room", [(0.0, 0.0), (0.25, 0.5)], ids=["none", "some"])
def test_a_ratio_on_the_bound_is_not_clipped(room):
    """Without room and on-policy (ratio 1) the gradient is whole: -A; and so it is on a bound: -rho A."""
    low, high = room
    ratio, advantages = jnp.array([1 - low, 1 - low, 1 + high, 1 + high]), jnp.array([2.0, -2.0, 2.0, -2.0])
    slope = jax.grad(lambda ratio: jnp.sum(losses.clipped_loss(ratio, advantages, clip_low=low, clip_high=high)))
    np.testing.assert_array_equal(jax.jit(slope)(ratio), -advantages)
    assert not np.any(losses.clip_binds(ratio, advantages, clip_low=low, clip_high=high))
    assert not np.any(losses.cap_binds(ratio, advantages, clip_low=low, clip_high=high))


CUT_GOLDENS = {
    # ratio 1.5, 1.5, 1.5, 0.5, 0.5, 0.5, 1.1 and advantage +, -, 0, +, -, 0, +
    "reinforce": [0, 0, 0, 0, 0, 0, 0],
    "clipped": [1, 0, 0, 0, 1, 0, 0],
    # one rollout, whose ratio is (1.5^3 x 0.5^3 x 1.1)^(1/7) = 0.896
    "gspo": [0, 1, 0, 0, 1, 0, 0],
    "cispo": [1, 1, 0, 1, 1, 0, 0],
}


@functools.partial(jax.jit, static_argnames=("name", "low", "high"))
def differentiated(name, logprobs, denominator, mask, advantages, *, low, high, share=1.0):
    """Of a policy loss: `share` x its sum over the mask, the gradient of that, and what is cut."""

    def total(logprobs):
        terms = losses.POLICY_LOSSES[name](logprobs, denominator, mask, advantages, clip_low=low, clip_high=high)
        return jnp.sum(jnp.where(mask, terms.loss, 0.0) * share), terms.cut

    (value, cut), gradient = jax.value_and_grad(total, has_aux=True)(logprobs)
    return value, gradient, cut


@pytest.mark.parametrize("name", CUT_GOLDENS)
def test_cut_golden(name):
    ratio = np.array([1.5, 1.5, 1.5, 0.5, 0.5, 0.5, 1.1], np.float32)
    advantages = np.array([1.0, -1.0, 0.0, 1.0, -1.0, 0.0, 1.0], np.float32)
    room = 0.1 if name == "gspo" else 0.2
    arrays = np.log(ratio), np.zeros(7, np.float32), np.ones(7, bool), advantages
    _, _, cut = differentiated(name, *arrays, low=room, high=room)
    np.testing.assert_array_equal(cut, np.array(CUT_GOLDENS[name], bool))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", CUT_GOLDENS)
def test_what_is_cut_is_what_the_bounds_change(case, name):
    """A token counts as cut exactly where its gradient differs from that of the same loss without bounds."""
    arrays = case.logprobs, case.old, case.mask, case.advantages
    _, bounded, cut = differentiated(name, *arrays, low=0.005, high=0.008)
    _, free, nothing = differentiated(name, *arrays, low=1.0, high=np.inf)
    assert not np.any(nothing)
    np.testing.assert_array_equal((np.asarray(bounded) != np.asarray(free))[case.mask], np.asarray(cut)[case.mask])
    assert np.any(np.asarray(cut)[case.mask]) == (name != "reinforce")
    if name in ("clipped", "gspo"):
        assert not np.any(np.asarray(bounded)[cut & case.mask])


@pytest.mark.parametrize("difference", [89.0, 1e4, 1e30, np.inf])
@pytest.mark.parametrize("advantage", [-0.5, 0.0, 1.0])
@pytest.mark.parametrize("name", CUT_GOLDENS)
def test_ratios_beyond_a_float_leave_finite_gradients(name, advantage, difference):
    """One token is so much likelier than it was, one so much less likely, and one has changed little."""
    logprobs = np.full((1, 3), -1.0, np.float32)
    denominator = logprobs - np.array([[difference, 0.1, -difference]], np.float32)
    mask = np.array([[True, True, name != "gspo"]])  # the mean of infinities of both signs is no number
    advantages = np.full((1, 1), advantage, np.float32)
    value, gradient, _ = differentiated(name, logprobs, denominator, mask, advantages, low=0.2, high=0.2, share=1 / 3)
    assert np.isfinite(value) and np.all(np.isfinite(gradient))
    if advantage == 1.0 and name in ("clipped", "gspo"):
        assert gradient[0, 0] == 0  # cut
    if advantage < 0:
        assert gradient[0, 0] > 0  # a bad token is pushed down, however likely it has become


@pytest.mark.parametrize("difference", [89.0, 1e4, np.inf])
def test_k3_beyond_a_float_is_finite_and_pulls_towards_the_reference(difference):
    logprobs, reference = np.array([-1.0 - difference, -1.0], np.float32), jnp.array([-1.0, -1.0])

    def total(logprobs):
        return jnp.sum(losses.kl_penalty(logprobs, reference, jnp.ones(2, bool), estimator="k3") / 2)

    value, gradient = jax.jit(jax.value_and_grad(total))(np.maximum(logprobs, -1e30))
    assert np.isfinite(value) and value > 1e38
    assert np.all(np.isfinite(gradient)) and gradient[0] < 0


@jax.jit
def with_slope(x):
    """The bounded exp and its derivative, and exp."""
    return *jax.value_and_grad(losses.bounded_exp)(x), jnp.exp(x)


@given(x=st.floats(-200, 88.69999694824219, width=32))
def test_the_bound_changes_no_finite_ratio(x):
    """Bit for bit what exp is, value and slope, up to a ratio of 3e38."""
    value, slope, plain = with_slope(np.float32(x))
    assert value == slope == plain
    assert with_slope(np.float32(1000.0))[0] == with_slope(np.float32(88.7))[2] < np.inf


@pytest.mark.parametrize("case", CASES)
def test_gspo(case):
    ratio = losses.sequence_ratio(case.logprobs, case.old, case.mask)

    def sequence(i):
        differences = [float(case.logprobs[i, t]) - float(case.old[i, t]) for t in range(LENGTHS[i])]
        return math.exp(math.fsum(differences) / LENGTHS[i])

    case.check(ratio, lambda lp, old, smp, ref, a, i, t: sequence(i))
    got = losses.clipped_loss(ratio, case.advantages, clip_low=3e-4, clip_high=4e-4)
    case.check(got, lambda lp, old, smp, ref, a, i, t: looped_clip(sequence(i), a, 3e-4, 4e-4))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("low", "high"), [(0.2, 0.28), (1.0, 3.0)])
def test_cispo(case, low, high):
    ratio = losses.masked_ratio(case.logprobs, case.sampler, case.mask)
    got = losses.cispo_loss(case.logprobs, ratio, case.advantages, clip_low=low, clip_high=high)
    case.check(got, lambda lp, old, smp, ref, a, i, t: -min(max(math.exp(lp - smp), 1 - low), 1 + high) * a * lp)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("mode", ["truncate", "mask"])
def test_sampler_correction(case, level, mode):
    low, high = 0.7, 1.6
    got = losses.sampler_correction(case.old, case.sampler, case.mask, level=level, mode=mode, low=low, high=high)

    def weight(lp, old, smp, ref, a, i, t):
        difference = old - smp
        if level == "sequence":
            difference = math.fsum(float(case.old[i, s]) - float(case.sampler[i, s]) for s in range(LENGTHS[i]))
        ratio = math.exp(difference)
        if mode == "truncate":
            return min(ratio, high)
        return ratio if low <= ratio <= high else 0.0

    case.check(got, weight)


def test_truncation_golden():
    """TIS with cap 2: the sampler was 4, 2, 1 and 1/2 times too unsure; only the first weight is cut."""
    difference = jnp.log(jnp.array([[4.0, 2.0, 1.0, 0.5]]))
    mask = jnp.ones((1, 4), bool)
    options: dict[str, Any] = dict(mode="truncate", low=0.5, high=2.0)
    token = losses.sampler_correction(difference, jnp.zeros((1, 4)), mask, level="token", **options)
    np.testing.assert_allclose(token, [[2.0, 2.0, 1.0, 0.5]], rtol=1e-6)
    # 4 x 2 x 1 x 1/2 = 4 for the whole rollout, cut to 2; without its first token 2 x 1 x 1/2 = 1
    sequence = losses.sampler_correction(difference, jnp.zeros((1, 4)), mask, level="sequence", **options)
    np.testing.assert_allclose(sequence, [[2.0] * 4], rtol=1e-6)
    tail = losses.sampler_correction(
        difference, jnp.zeros((1, 4)), mask.at[0, 0].set(False), level="sequence", **options
    )
    np.testing.assert_allclose(tail, [[1.0] * 4], rtol=1e-6)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_kl_penalty(case, estimator):
    got = losses.kl_penalty(case.logprobs, case.reference, case.mask, estimator=estimator)

    def rule(lp, old, smp, ref, a, i, t):
        x = ref - lp
        return {"k1": -x, "k2": x * x / 2, "k3": math.exp(x) - x - 1}[estimator]

    case.check(got, rule)


@pytest.mark.parametrize(
    ("changed", "nearest"), [({"mode": "trunc"}, "truncate"), ({"mode": "mak"}, "mask"), ({"level": "tokens"}, "token")]
)
def test_unknown_corrections_are_errors(changed, nearest):
    options: dict[str, Any] = {"level": "token", "mode": "truncate", "low": 0.5, "high": 2.0, **changed}
    with pytest.raises(InputError, match=f"did you mean '{nearest}'"):
        losses.sampler_correction(jnp.zeros(1), jnp.zeros(1), jnp.ones(1, bool), **options)


def test_no_correction():
    options: dict[str, Any] = {"level": "token", "mode": "off", "low": 0.5, "high": 2.0}
    assert losses.sampler_correction(jnp.array([9.0]), jnp.zeros(1), jnp.ones(1, bool), **options) == 1.0


def test_unknown_kl_estimator():
    unknown: Any = "k4"
    with pytest.raises(InputError, match="k4"):
        losses.kl_penalty(jnp.zeros(1), jnp.zeros(1), jnp.ones(1, bool), estimator=unknown)


# What the gradients are in expectation: one token from softmax(theta), all of its outcomes enumerated.

THETA = jnp.array([0.3, -1.0, 0.8, 0.1, -0.4])
REFERENCE = jax.nn.log_softmax(jnp.array([-0.5, 0.6, 0.2, -1.0, 0.4]))


def expected_gradient(loss_of_logprob):
    """E over tokens y ~ softmax(THETA) of d/dtheta loss(log pi(y), y): what on-policy samples give on average."""

    def gradient(token):
        return jax.grad(lambda theta: loss_of_logprob(jax.nn.log_softmax(theta)[token], token))(THETA)

    def expected():
        return jnp.einsum("y,yk->k", jax.nn.softmax(THETA), jax.vmap(gradient)(jnp.arange(len(THETA))))

    return jax.jit(expected)()


def expected_kl_gradient(estimator):
    return expected_gradient(
        lambda lp, y: losses.kl_penalty(lp[None], REFERENCE[y][None], jnp.ones(1, bool), estimator=estimator)[0]
    )


def reverse_kl(theta):
    logp = jax.nn.log_softmax(theta)
    return jnp.sum(jnp.exp(logp) * (logp - REFERENCE))


def forward_kl(theta):
    return jnp.sum(jnp.exp(REFERENCE) * (REFERENCE - jax.nn.log_softmax(theta)))


def test_k1_has_no_gradient_on_average():
    np.testing.assert_allclose(expected_kl_gradient("k1"), 0.0, atol=1e-7)


def test_k2_has_the_gradient_of_the_reverse_kl():
    exact = jax.jit(jax.grad(reverse_kl))(THETA)
    assert np.abs(exact).max() > 0.1
    np.testing.assert_allclose(expected_kl_gradient("k2"), exact, atol=1e-6)


def test_k3_has_the_gradient_of_the_forward_kl():
    exact = jax.jit(jax.grad(forward_kl))(THETA)
    assert np.abs(exact - jax.jit(jax.grad(reverse_kl))(THETA)).max() > 0.05  # another direction than k2's
    np.testing.assert_allclose(expected_kl_gradient("k3"), exact, atol=1e-6)


@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_k1_and_k3_are_unbiased_in_value(estimator):
    values = losses.kl_penalty(jax.nn.log_softmax(THETA), REFERENCE, jnp.ones(5, bool), estimator=estimator)
    assert jnp.sum(jax.nn.softmax(THETA) * values) == pytest.approx(float(reverse_kl(THETA)), abs=1e-6)


def test_reinforce_and_the_ratio_have_the_gradient_of_the_reward():
    """On-policy, -A lp and -A rho both have the gradient of -E[A]."""
    rewards = jnp.array([1.0, 0.0, 0.5, 0.0, 2.0])
    exact = jax.jit(jax.grad(lambda theta: -jnp.sum(jax.nn.softmax(theta) * rewards)))(THETA)
    np.testing.assert_allclose(
        expected_gradient(lambda lp, y: losses.reinforce_loss(lp[None], rewards[y][None])[0]), exact, atol=1e-6
    )

    def surrogate(lp, y):
        ratio = losses.masked_ratio(lp[None], jax.lax.stop_gradient(lp)[None], jnp.ones(1, bool))
        return losses.clipped_loss(ratio, rewards[y][None], clip_low=0.2, clip_high=0.2)[0]

    np.testing.assert_allclose(expected_gradient(surrogate), exact, atol=1e-6)


@pytest.mark.parametrize("case", CASES)
def test_gspo_token_form_has_the_gradient_of_the_sequence_form(case):
    """Averaged over a rollout's tokens, sg(s) exp(lp - sg(lp)) differentiates like s itself, the clip included."""
    lengths = np.array(LENGTHS)
    clip = dict(clip_low=0.1, clip_high=0.1)

    def token_form(logprobs):
        terms = losses.clipped_loss(losses.sequence_ratio(logprobs, case.old, case.mask), case.advantages, **clip)
        return jnp.sum(jnp.sum(jnp.where(case.mask, terms, 0.0), axis=1) / lengths)

    def sequence_form(logprobs):
        mean = jnp.sum(jnp.where(case.mask, logprobs - case.old, 0.0), axis=1) / lengths
        return jnp.sum(losses.clipped_loss(jnp.exp(mean), case.advantages[:, 0], **clip))

    value, gradient = jax.jit(jax.value_and_grad(token_form))(case.logprobs)
    exact_value, exact = jax.jit(jax.value_and_grad(sequence_form))(case.logprobs)
    assert value == pytest.approx(float(exact_value), rel=1e-5)
    np.testing.assert_allclose(gradient, exact, rtol=1e-5, atol=1e-7)
    assert np.any(exact)


@pytest.mark.parametrize("case", CASES)
def test_cispo_gradient_passes_through_the_logprob_alone(case):
    """d/dlp is -clip(rho) A on every token, clipped or not: the ratio carries no gradient, and no token is lost."""

    def loss(logprobs):
        ratio = losses.masked_ratio(logprobs, case.old, case.mask)
        return jnp.sum(losses.cispo_loss(logprobs, ratio, case.advantages, clip_low=0.2, clip_high=0.28))

    case.check(
        jax.jit(jax.grad(loss))(case.logprobs),
        lambda lp, old, smp, ref, a, i, t: -min(max(math.exp(lp - old), 0.8), 1.28) * a,
    )


def looped_binary_kl(p, q):
    p, q = min(p, math.exp(-1e-6)), min(q, math.exp(-1e-6))
    return p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))


def test_binary_kl_golden():
    """p = 3/4, q = 1/2: 3/4 log 3/2 + 1/4 log 1/2 = 0.13081; certainty counts as exp(-1e-6), and stays finite."""
    found = losses.binary_kl(jnp.log(jnp.array([0.75, 0.5, 1.0])), jnp.log(jnp.array([0.5, 0.5, 0.5])))
    np.testing.assert_allclose(found, [0.130812, 0.0, math.log(2)], atol=2e-5)
    assert np.isfinite(losses.binary_kl(jnp.array([-80.0, 0.0]), jnp.array([0.0, -80.0]))).all()


DIVERGENCES: dict[str, Any] = {
    "dppo_tv": (lambda new, old: abs(new - old), 0.15),
    "dppo_kl": (lambda new, old: looped_binary_kl(old, new), 0.05),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", DIVERGENCES)
def test_dppo_takes_the_gradient_of_what_moves_away_too_far(name, case):
    """Token by token; the loss is -rho A everywhere."""
    divergence, bound = DIVERGENCES[name]

    def total(logprobs):
        terms = losses.POLICY_LOSSES[name](
            logprobs, case.old, case.mask, case.advantages, clip_low=bound, clip_high=2 * bound, dual_clip=math.inf
        )
        return jnp.sum(jnp.where(case.mask, terms.loss, 0.0)), terms

    (_, terms), gradient = jax.value_and_grad(total, has_aux=True)(case.logprobs)

    def is_cut(lp, old, smp, ref, a, i, t):
        far = divergence(math.exp(lp), math.exp(old)) > (2 * bound if a > 0 else bound)
        return far and (lp > old) == (a > 0)

    case.check(terms.cut, lambda *token: float(is_cut(*token)))
    case.check(terms.loss, lambda lp, old, smp, ref, a, i, t: -math.exp(lp - old) * a)
    case.check(gradient, lambda *token: 0.0 if is_cut(*token) else -math.exp(token[0] - token[1]) * token[4])
    assert not np.any(np.asarray(terms.cut)[~np.asarray(case.mask)])


def test_dppo_golden():
    """0.1 -> 0.3 is far by 0.2 in total variation and three times as likely; 0.9 -> 0.999 by 0.099, and 1.11 times.

    A ratio's clip at 1.2 cuts the first, and a rare token that becomes five times as likely, 0.001 -> 0.005.
    """
    old, new = jnp.log(jnp.array([0.1, 0.9, 0.001, 0.5])), jnp.log(jnp.array([0.3, 0.999, 0.005, 0.3]))
    advantages, mask = jnp.array([1.0, 1.0, 1.0, -1.0]), jnp.ones(4, bool)
    cut = losses.dppo_tv(new, old, mask, advantages, clip_low=0.15, clip_high=0.15).cut
    np.testing.assert_array_equal(cut, [True, False, False, True])
    cut = losses.dppo_kl(new, old, mask, advantages, clip_low=0.05, clip_high=0.05).cut
    np.testing.assert_array_equal(cut, [True, True, False, True])
    assert looped_binary_kl(0.9, 0.999) > 0.05 > looped_binary_kl(0.001, 0.005)


@pytest.mark.parametrize("case", CASES)
def test_sapo(case):
    def rule(lp, old, smp, ref, a, i, t):
        tau = 1.0 if a > 0 else 1.05
        return -4 / tau / (1 + math.exp(-tau * (math.exp(lp - old) - 1))) * a

    taus = dict(tau_positive=1.0, tau_negative=1.05)
    case.check(losses.sapo(case.logprobs, case.old, case.mask, case.advantages, **taus).loss, rule)


def test_sapo_golden():
    """At rho = 1 the gradient is -A; at rho = 1 + 1/tau log 3, where sigmoid is 3/4, it is 4 x 3/16 = 3/4 of -rho A."""

    def gradient(ratio, advantage):
        lp = jnp.log(jnp.array([ratio]))
        taus = dict(tau_positive=2.0, tau_negative=4.0)
        return jax.grad(lambda x: losses.sapo(x, jnp.zeros(1), jnp.ones(1, bool), advantage, **taus).loss[0])(lp)[0]

    up, down = jnp.array([1.0]), jnp.array([-2.0])
    assert gradient(1.0, up) == pytest.approx(-1.0) and gradient(1.0, down) == pytest.approx(2.0)
    ratio = 1 + math.log(3) / 2
    assert gradient(ratio, up) == pytest.approx(-0.75 * ratio, rel=1e-6)
    ratio = 1 + math.log(3) / 4
    assert gradient(ratio, down) == pytest.approx(1.5 * ratio, rel=1e-6)


def test_without_a_policy_gradient_nothing_is_learned_from_rewards():
    case = CASES[1]
    terms = losses.no_policy_gradient(case.logprobs, case.old, case.mask, case.advantages, clip_low=0.2, clip_high=0.2)
    assert not np.any(terms.loss) and not np.any(terms.cut)
    case.check(terms.ratio, lambda lp, old, smp, ref, a, i, t: math.exp(lp - old))


@pytest.mark.parametrize("case", CASES)
def test_kpop_drops_tokens_that_diverge_in_either_direction(case):
    """By 0.1 at most; a kept token has its importance weight."""
    options: dict[str, Any] = dict(level="token", mode="kpop", low=0.5, high=0.1)

    def rule(lp, old, smp, ref, a, i, t):
        p, q = math.exp(old), math.exp(smp)
        return math.exp(old - smp) if max(looped_binary_kl(p, q), looped_binary_kl(q, p)) <= 0.1 else 0.0

    case.check(losses.sampler_correction(case.old, case.sampler, case.mask, **options), rule)


def test_icepop_and_kpop_golden():
    """0.5 -> 0.9 is a ratio of 1.8, which IcePop's 0.5 .. 5 keeps, and KL 0.5; 0.001 -> 0.01 the reverse."""
    old, sampler, mask = jnp.log(jnp.array([0.9, 0.01])), jnp.log(jnp.array([0.5, 0.001])), jnp.ones(2, bool)
    icepop = losses.sampler_correction(old, sampler, mask, level="token", mode="mask", low=0.5, high=5.0)
    kpop = losses.sampler_correction(old, sampler, mask, level="token", mode="kpop", low=0.5, high=0.1)
    np.testing.assert_allclose(icepop, [1.8, 0.0], rtol=1e-5)
    np.testing.assert_allclose(kpop, [0.0, 10.0], rtol=1e-5)


def test_sampler_correction_carries_no_gradient():
    case = CASES[1]

    def total(old, sampler):
        options: dict[str, Any] = dict(level="token", mode="truncate", low=0.5, high=2.0)
        return jnp.sum(losses.sampler_correction(old, sampler, jnp.asarray(case.mask), **options))

    for gradient in jax.jit(jax.grad(total, (0, 1)))(case.old, case.sampler):
        assert not np.any(gradient)


MASKED_LOSSES = {
    "clipped": lambda lp, den, mask: losses.clipped_loss(
        losses.masked_ratio(lp, den, mask), jnp.ones(1), clip_low=0.2, clip_high=0.2
    ),
    "gspo": lambda lp, den, mask: losses.sequence_ratio(lp, den, mask),
    "cispo": lambda lp, den, mask: losses.cispo_loss(
        jnp.where(mask, lp, 0.0), losses.masked_ratio(lp, den, mask), jnp.ones(1), clip_low=1.0, clip_high=3.0
    ),
    "correction": lambda lp, den, mask: (
        lp * losses.sampler_correction(lp, den, mask, level="sequence", mode="truncate", low=0.5, high=2.0)
    ),
    "k1": lambda lp, den, mask: losses.kl_penalty(lp, den, mask, estimator="k1"),
    "k2": lambda lp, den, mask: losses.kl_penalty(lp, den, mask, estimator="k2"),
    "k3": lambda lp, den, mask: losses.kl_penalty(lp, den, mask, estimator="k3"),
}


@functools.partial(jax.jit, static_argnums=0)
def masked_gradient(loss, logprobs, denominator, mask):
    def total(logprobs):
        return jnp.sum(jnp.where(mask, MASKED_LOSSES[loss](logprobs, denominator, mask), 0.0))

    return jax.grad(total)(logprobs)


@pytest.mark.parametrize("garbage", [-np.inf, np.inf, -1e30, 1e30, 400.0, np.nan])
@pytest.mark.parametrize("loss", MASKED_LOSSES)
def test_padding_never_reaches_a_gradient(loss, garbage):
    """Whatever the other log-probabilities hold on padding, gradients are those without padding, and finite."""
    case = CASES[1]
    dirty, clean = (np.where(case.mask, case.old, np.float32(filling)) for filling in (garbage, 0.0))
    got = np.asarray(masked_gradient(loss, case.logprobs, dirty, case.mask))
    assert np.all(np.isfinite(got))
    assert not np.any(got[~case.mask])
    np.testing.assert_array_equal(got, masked_gradient(loss, case.logprobs, clean, case.mask))
