"""What one update does to the state: nothing without signal, AdamW with it, in the direction each term names."""

import dataclasses
import functools
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from isocompute_jax import learner, model
from isocompute_jax.learner.credit import ZeroVariance
from isocompute_jax.records.errors import InputError
from tests.learner import builders
from tests.learner.builders import (
    CLIPPING,
    REGULARIZED,
    SEVERAL,
    TEMPERATURE,
    VOCAB,
    WHOLE,
    make_groups,
    one_layer,
    optimizer,
    pack,
    recording,
    relative_difference,
    train_step,
)
from tests.model.tiny import random_params

CONFIG = one_layer()


@functools.cache
def fresh_state(dtype="float32"):
    """Steps do not donate it."""
    return learner.init_state(random_params(one_layer(dtype=dtype)), optimizer())


def take_step(state, batch, *, lr=1e-3, reference=None, step=None):
    state, metrics = builders.take_step(state, *batch, lr=lr, reference=reference, step=step)
    return state, jax.tree.map(float, metrics)


REFERENCE_PARAMS = random_params(CONFIG, seed=5)


@jax.jit
def score(params, prompt_tokens, prompt_mask, tokens):
    return learner.completion_logprobs(
        CONFIG, params, prompt_tokens, prompt_mask, tokens, temperature=TEMPERATURE, chunk_tokens=1000
    )


def scores_of(params, batch, microbatch=0):
    """Log-probabilities and entropies [N, R, T] of one micro-batch."""
    parts = (batch.prompt_tokens, batch.prompt_mask, batch.tokens)
    return [np.asarray(x) for x in score(params, *(part[microbatch] for part in parts))]


def trained_scores(params, batch):
    """Both of the trained tokens alone."""
    return [x[batch.mask[0]] for x in scores_of(params, batch)]


def assert_same(ours, theirs):
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)


TABLE = {"logits": jnp.asarray(np.random.default_rng(7).normal(size=VOCAB), jnp.float32)}


def table_score(params, batch):
    """A model of one distribution for every place: what is true of a step with any model takes no longer to compile."""
    logprobs = jax.nn.log_softmax(params["logits"])
    entropy = -jnp.sum(jnp.exp(logprobs) * logprobs)
    return logprobs[batch.tokens], jnp.full(batch.tokens.shape, entropy)


def test_a_batch_without_signal_leaves_parameters_and_moments_untouched():
    """Bit for bit, with KL and entropy terms on and moments that are not zero; the step still counts."""
    groups = make_groups()
    state, _ = take_step(fresh_state(), pack(groups), reference=REFERENCE_PARAMS)
    assert any(np.any(leaf) for leaf in jax.tree.leaves(state.opt_state))
    flat = [dataclasses.replace(group, rewards=np.full(4, 0.5, np.float32)) for group in groups]
    after, metrics = take_step(state, pack(flat), lr=1.0, reference=REFERENCE_PARAMS)
    assert_same(after.params, state.params)
    assert_same(after.opt_state, state.opt_state)
    assert (int(state.step), int(after.step)) == (1, 2)
    assert metrics["trained_tokens"] == 0 and metrics["gradient_norm"] == 0
    assert all(np.isfinite(value) for value in metrics.values())


def test_dropping_a_group_equals_leaving_it_out():
    """`drop`: loss, regularizers and denominators are those of a batch that never had the group."""
    groups = make_groups()
    signal = [group for i, group in enumerate(groups) if i != 2]
    step = learner.make_train_step(table_score, REGULARIZED, optimizer())
    state = learner.init_state(TABLE, optimizer())
    reference = jax.tree.map(jnp.flip, TABLE)
    (dropped, with_group), (absent, without) = (
        take_step(state, pack(given), reference=reference, step=step) for given in (groups, signal)
    )
    assert with_group == without and with_group["kl"] > 0
    assert_same(dropped.opt_state, absent.opt_state)


@pytest.mark.parametrize("zero_variance", ["drop", "drop_regularizers", "regularizers_only"])
def test_laying_out_what_takes_no_part_changes_nothing(zero_variance):
    """Leaving such groups out saves time and nothing else: no gradient, no metric sees them."""
    groups = make_groups()
    left_out, credited = pack(groups, zero_variance=zero_variance)
    laid_out = SEVERAL.lay_out(groups)
    one, metrics = take_step(fresh_state(), (left_out, credited), reference=REFERENCE_PARAMS)
    other, others = take_step(fresh_state(), (laid_out, credited), reference=REFERENCE_PARAMS)
    assert others == pytest.approx(metrics, rel=1e-5, abs=1e-6)
    assert relative_difference(other.opt_state[0], one.opt_state[0]) < 1e-5
    nothing = np.zeros_like(credited.advantages)
    flat = dataclasses.replace(credited, policy_weights=nothing, regularizer_weights=nothing)
    after, _ = take_step(other, (laid_out, flat), lr=1.0, reference=REFERENCE_PARAMS)
    assert_same((after.params, after.opt_state), (other.params, other.opt_state))


def test_keeping_a_group_changes_denominators_or_regularizers():
    """Policy term: 24 rollouts divide in place of 20. KL and entropy: only `keep` hears the group without signal."""
    kinds: tuple[ZeroVariance, ...] = ("drop", "drop_regularizers", "regularizers_only", "keep")
    batches = {kind: pack(make_groups(), zero_variance=kind) for kind in kinds}
    metrics = {kind: take_step(fresh_state(), b, reference=REFERENCE_PARAMS)[1] for kind, b in batches.items()}
    for kind in ("drop_regularizers", "keep"):
        assert metrics[kind]["policy_loss"] == pytest.approx(metrics["drop"]["policy_loss"] * 20 / 24, rel=1e-5)
    assert metrics["regularizers_only"]["policy_loss"] == pytest.approx(metrics["drop"]["policy_loss"], rel=1e-5)
    assert metrics["regularizers_only"]["kl"] == pytest.approx(metrics["keep"]["kl"], rel=1e-5)
    assert metrics["drop_regularizers"]["kl"] == pytest.approx(metrics["drop"]["kl"], rel=1e-5)
    assert metrics["keep"]["kl"] != pytest.approx(metrics["drop"]["kl"], rel=1e-3)


def test_adamw_parity():
    """Clipping, moments, bias correction and decay equal optax.adamw, over steps whose clip binds."""
    rate = 3e-3
    adamw = optax.chain(
        optax.clip_by_global_norm(CLIPPING.clip_norm), optax.adamw(rate, weight_decay=CLIPPING.weight_decay)
    )
    state = fresh_state()
    params, theirs = state.params, jax.jit(adamw.init)(state.params)

    @jax.jit
    def update(gradient, theirs, params):
        updates, theirs = adamw.update(gradient, theirs, params)
        return optax.apply_updates(params, updates), theirs

    for seed in range(4):
        state, metrics = take_step(state, pack(make_groups(seed=seed)), lr=rate, reference=REFERENCE_PARAMS)
        assert metrics["gradient_norm"] > CLIPPING.clip_norm
        norm = np.sqrt(sum(np.sum(np.square(leaf)) for leaf in jax.tree.leaves(state.opt_state[0])))
        assert metrics["gradient_norm"] == pytest.approx(norm, rel=1e-5)
        params, theirs = update(state.opt_state[0], theirs, params)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7), state.params, params)
    assert int(state.step) == 4


def one_step_with(tx, **options):
    """State before, gradient, and state after a step with any optimizer of optax."""
    tx = recording(tx)
    state = learner.init_state(TABLE, tx)
    step = learner.make_train_step(table_score, learner.LossConfig(), tx)
    after, _ = step(state, *pack(make_groups()), **options)
    assert jnp.any(after.opt_state[0]["logits"])
    return state, after.opt_state[0], after


@pytest.mark.parametrize("options", [{}, {"learning_rate": 9.0}], ids=["its own rate", "the step's is ignored"])
def test_sgd_of_optax_steps_against_the_gradient(options):
    state, gradient, after = one_step_with(optax.sgd(0.1), **options)
    expected = jax.tree.map(lambda p, g: p - 0.1 * g, state.params, gradient)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-8), after.params, expected)


def test_adamw_of_optax_descends():
    state, gradient, after = one_step_with(optax.adamw(1e-3))
    step = jax.tree.map(jnp.subtract, after.params, state.params)
    assert jnp.asarray(optax.tree.vdot(gradient, step)) < 0


def test_our_optimizer_takes_the_learning_rate_of_the_step():
    with pytest.raises(ValueError, match="learning_rate"):
        one_step_with(learner.make_optimizer(CLIPPING))


def test_the_optimizer_state_is_that_of_its_parts():
    """Checkpoints hold this tree: clipping, Adam's count and moments, and decay, in this order."""
    params = {"w": jnp.zeros(3)}
    parts = optax.chain(optax.clip_by_global_norm(1.0), optax.scale_by_adam(), optax.add_decayed_weights(0.0))
    ours: Any = learner.make_optimizer(learner.OptimizerConfig()).init(params)
    theirs = parts.init(params)
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    assert [type(part) for part in ours] == [optax.EmptyState, optax.ScaleByAdamState, optax.EmptyState]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: learner.OptimizerConfig(base_lr=0.0), "OptimizerConfig.base_lr = 0.0 must be above 0"),
        (lambda: learner.OptimizerConfig(clip_norm=float("nan")), "OptimizerConfig.clip_norm = nan must be above 0"),
        (lambda: learner.OptimizerConfig(b1=1.5), "OptimizerConfig.b1 = 1.5 must be at least 0 and below 1"),
        (lambda: learner.LossConfig(clip_low=-0.1), "LossConfig.clip_low = -0.1 must be at least 0"),
        (lambda: learner.LossConfig(chunk_tokens=0), "LossConfig.chunk_tokens = 0 must be at least 1"),
    ],
)
def test_numbers_that_cannot_work_are_errors(make, message):
    with pytest.raises(InputError, match=re.escape(message)):
        make()


def test_metrics_of_an_on_policy_step():
    """The first use of a batch has ratio 1 everywhere and clips nothing; sampler statistics are those of a loop."""
    groups = make_groups()
    batch, _ = pack(groups, WHOLE)  # for the loop; the step takes the same groups in two micro-batches
    params = random_params(CONFIG)
    logprobs, entropies = scores_of(params, batch)
    mask = batch.mask[0]
    differences = np.abs(logprobs - batch.sampler_logprobs[0])[mask]
    cap = np.float32(REGULARIZED.correction_high)
    weights = np.minimum(np.exp(logprobs - batch.sampler_logprobs[0]), cap)[mask]
    _, metrics = take_step(fresh_state(), pack(groups), reference=REFERENCE_PARAMS)
    assert metrics["trained_tokens"] == mask.sum()
    assert metrics["ratio"] == metrics["ratio_max"] == 1.0
    assert metrics["clip_fraction"] == 0.0
    assert metrics["entropy"] == pytest.approx(float(np.asarray(entropies)[mask].mean()), rel=1e-5)
    assert metrics["logprob_difference"] == pytest.approx(float(differences.mean()), rel=1e-5)
    assert metrics["logprob_difference_max"] == pytest.approx(float(differences.max()), rel=1e-5)
    assert metrics["correction"] == pytest.approx(float(weights.mean()), rel=1e-5)
    assert metrics["correction_cut"] == pytest.approx(float((weights == cap).mean()), rel=1e-5)
    assert 0 < metrics["correction_cut"] < 1


def test_reusing_a_batch_moves_the_ratio_and_the_clip():
    """With old_logprobs of before the first update, the second has ratios off 1, and clips some of them."""
    batch, credited = pack(make_groups())
    state = fresh_state()
    old = [scores_of(state.params, batch, i)[0] for i in range(SEVERAL.microbatches)]
    batch = (dataclasses.replace(batch, old_logprobs=np.stack(old)), credited)
    state, first = take_step(state, batch, reference=REFERENCE_PARAMS)
    _, second = take_step(state, batch, reference=REFERENCE_PARAMS)
    assert first["ratio_max"] == pytest.approx(1.0, abs=1e-5)
    assert first["clip_fraction"] == 0.0
    assert second["ratio_max"] > 1 + REGULARIZED.clip_high
    assert 0.0 < second["clip_fraction"] < 1.0
    assert second["policy_loss"] < first["policy_loss"]  # the surrogate was improved


def without_policy_term(batch):
    tokens, credited = batch
    return tokens, dataclasses.replace(credited, advantages=np.zeros_like(credited.advantages))


def test_the_entropy_bonus_raises_entropy():
    """A policy that is its own reference feels no KL (the penalty and its gradient are exactly zero)."""
    groups = make_groups()
    state = fresh_state()
    after, metrics = take_step(state, without_policy_term(pack(groups)), lr=1e-3, reference=state.params)
    assert metrics["kl"] == 0.0 and metrics["policy_loss"] == 0.0 and metrics["gradient_norm"] > 0
    (_, before_entropy), (_, after_entropy) = (
        trained_scores(params, pack(groups, WHOLE)[0]) for params in (state.params, after.params)
    )
    assert after_entropy.mean() > before_entropy.mean() + 1e-3


def test_the_kl_penalty_pulls_towards_the_reference():
    """The distance to the reference falls step by step, and below where the entropy bonus alone leads."""
    groups = make_groups()
    batch, (whole, _) = without_policy_term(pack(groups)), pack(groups, WHOLE)
    target, _ = trained_scores(REFERENCE_PARAMS, whole)
    pulled = alone = fresh_state()
    distances, penalties = [], []
    for _ in range(3):
        distances.append(np.mean((trained_scores(pulled.params, whole)[0] - target) ** 2))
        pulled, metrics = take_step(pulled, batch, lr=1e-3, reference=REFERENCE_PARAMS)
        alone, _ = take_step(alone, batch, lr=1e-3, reference=alone.params)
        penalties.append(metrics["kl"])
    assert distances[0] > distances[1] > distances[2]
    assert penalties[0] > penalties[1] > penalties[2] > 0
    assert distances[2] < np.mean((trained_scores(alone.params, whole)[0] - target) ** 2)


def test_kl_without_a_reference_is_an_error():
    with pytest.raises(ValueError, match="reference_params"):
        take_step(fresh_state(), pack(make_groups()))


HALF = dataclasses.replace(REGULARIZED, kl_coef=0.0)
"""Without the reference's scores, which take as long to compile as the policy's."""


def test_bfloat16_keeps_float32_masters():
    """Updates far smaller than a bfloat16 weight resolves add up in the masters and reach the model."""
    config = one_layer(dtype="bfloat16")
    state = fresh_state("bfloat16")
    assert {leaf.dtype for leaf in jax.tree.leaves(random_params(config))} == {jnp.dtype("bfloat16")}
    assert {leaf.dtype for leaf in jax.tree.leaves(state.params)} == {jnp.dtype("float32")}
    start = state.params["embed"]
    batch = pack(make_groups())
    for _ in range(3):
        state, metrics = take_step(state, batch, lr=1e-5, step=train_step(HALF, dtype="bfloat16"))
    assert {leaf.dtype for leaf in jax.tree.leaves((state.params, state.opt_state[0]))} == {jnp.dtype("float32")}
    moved = np.asarray(state.params["embed"]) - np.asarray(start)
    assert 1e-6 < np.abs(moved).max() < 5e-5
    assert np.isfinite(metrics["loss"]) and metrics["gradient_norm"] > 0
    same = model.cast_params(state.params, "bfloat16")["embed"] == start.astype(jnp.bfloat16)
    assert np.mean(same) > 0.5  # most weights would have lost all three updates


def test_gradients_of_bfloat16_agree_with_float32():
    """A policy that is its own reference feels no KL."""
    batch = pack(make_groups())
    params = random_params(one_layer(dtype="bfloat16"))
    half = learner.init_state(params, optimizer())
    full = learner.init_state(model.cast_params(params, "float32"), optimizer())
    half, _ = take_step(half, batch, step=train_step(HALF, dtype="bfloat16"))
    full, _ = take_step(full, batch, reference=full.params)
    assert relative_difference(half.opt_state[0], full.opt_state[0]) < 0.05  # 8 bits of mantissa
