"""A mixture of experts in the learner: what it reports of itself, and the sampler's experts in place of its own."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from isocompute_jax import learner, model
from isocompute_jax.learner.routing import finish_routing, routing_sums
from isocompute_jax.records.errors import InputError
from tests.learner.builders import LENGTH, PROMPT, make_groups, optimizer, shape_for
from tests.model.test_parity import make_config, transformers_model
from tests.model.tiny import random_params, tiny_config

CONFIG = tiny_config(attention_bias=False, qk_norm=True, num_experts=6, experts_per_token=2, tied_embeddings=False)
LAYERS, ACTIVE = 2, 2


def routed_shape(microbatch_tokens=80):
    return dataclasses.replace(shape_for(microbatch_tokens), routing=(LAYERS, ACTIVE))


def with_experts(groups, experts_of):
    """The groups, with `experts_of(prompt and completion but its last)` [tokens, L, A] in each completion."""

    def filled(group):
        completions = [
            dataclasses.replace(c, experts=experts_of(np.concatenate([group.prompt_tokens, c.tokens[:-1]])))
            for c in group.completions
        ]
        return dataclasses.replace(group, completions=tuple(completions))

    return [filled(group) for group in groups]


@functools.cache
def scores_of(routing):
    return jax.jit(learner.make_score(CONFIG, temperature=0.7, chunk_tokens=4096, routing=routing))


def score(batch, routing):
    return scores_of(routing)(random_params(CONFIG), jax.tree.map(lambda x: x[0] if x.ndim else x, batch))


def own_experts(tokens):
    """Where our model sends the tokens of one text, padded to one compiled length."""
    padded = np.zeros((1, PROMPT + LENGTH), np.int32)
    padded[0, : len(tokens)] = tokens
    _, prefix = jax.jit(model.prefill, static_argnums=0)(
        CONFIG, random_params(CONFIG), jnp.asarray(padded), jnp.ones(padded.shape, bool)
    )
    assert prefix.routed is not None
    return np.moveaxis(np.asarray(prefix.routed.experts)[:, 0, : len(tokens)], 0, 1)


def random_experts(tokens):
    """Any, the same for the same beginnings: the prompt of a group has one routing."""
    rngs = [np.random.default_rng(tokens[: i + 1].tolist()) for i in range(len(tokens))]
    return np.stack([[rng.choice(6, ACTIVE, replace=False) for _ in range(LAYERS)] for rng in rngs]).astype(np.int16)


@pytest.mark.slow
def test_statistics_equal_counts_of_transformers_routers(tmp_path):
    """Of each position that a trained token is predicted from, in every layer, by another implementation's routers."""
    torch = pytest.importorskip("torch")
    config = make_config("qwen3_moe")
    params, groups = random_params(config), make_groups()
    reference = transformers_model(tmp_path / "checkpoint", config, params)
    counts, entropies = np.zeros((2, 6)), []
    for group in groups:
        for completion in group.completions:
            text = np.concatenate([group.prompt_tokens, completion.tokens])
            with torch.no_grad():
                given = reference(torch.tensor(text[None]), output_router_logits=True).router_logits
            before = len(group.prompt_tokens) - 1 + np.flatnonzero(completion.mask)
            for layer, logits in enumerate(given):
                logits = logits.double().numpy().reshape(len(text), 6)[before]
                np.add.at(counts[layer], np.argsort(-logits, axis=1)[:, :2], 1)
                p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
                entropies += list(-(p * np.log(p)).sum(axis=1))
    batch = shape_for(80).lay_out(groups)
    credited = learner.credit(
        learner.group_rewards(groups), learner.trained_lengths(groups), learner.CreditConfig(), max_tokens=LENGTH
    )
    step = learner.make_train_step(
        learner.make_score(config, temperature=1.0, chunk_tokens=4096), learner.LossConfig(), optimizer()
    )
    _, metrics = step(learner.init_state(params, optimizer()), batch, credited, jnp.float32(0.0))
    assert batch.num_microbatches > 1  # the sums are over several
    assert metrics["expert_load_max"] == pytest.approx((counts / counts.mean(1, keepdims=True)).max(), rel=1e-5)
    assert metrics["expert_load_cv"] == pytest.approx(np.mean(counts.std(1) / counts.mean(1)), rel=1e-5)
    assert metrics["experts_unused"] == pytest.approx(np.mean(counts == 0), abs=1e-6)
    assert metrics["router_entropy"] == pytest.approx(np.mean(entropies), rel=1e-4)
    assert "routing_agreement" not in metrics


def test_scalars_of_hand_worked_counts():
    """Two layers of four experts: 4, 2, 2, 0 tokens and 2, 2, 2, 2."""
    sums = {
        "expert_tokens": np.array([[4.0, 2, 2, 0], [2, 2, 2, 2]], np.float32),
        "routed_tokens": np.float32(8),
        "router_entropy": np.float32(4),
        "routing_agreed": np.float32(3),
        "routing_compared": np.float32(4),
    }
    finish = jax.jit(finish_routing)
    found = {name: float(value) for name, value in finish(sums).items()}
    assert found == pytest.approx(
        {
            "expert_load_max": 2.0,
            "expert_load_cv": np.sqrt(2) / 2 / 2,
            "experts_unused": 1 / 8,
            "router_entropy": 0.5,
            "routing_agreement": 0.75,
        }
    )
    nothing = finish(jax.tree.map(np.zeros_like, sums))
    assert all(np.isfinite(value) for value in nothing.values())


@pytest.mark.slow
def test_own_choices_replayed_change_nothing():
    """To the bit, with full agreement; without replay the same is found by comparing."""
    groups = with_experts(make_groups(), own_experts)
    batch = routed_shape(1000).lay_out(groups)
    own, replayed, compared = (score(batch, routing) for routing in ("own", "replay", "compare"))
    assert own.metrics.keys() < replayed.metrics.keys()
    for name in ("logprobs", "entropies"):
        np.testing.assert_array_equal(getattr(replayed, name)[batch.mask[0]], getattr(own, name)[batch.mask[0]])
        np.testing.assert_array_equal(getattr(compared, name), getattr(own, name))
    for found in (replayed, compared):
        assert found.metrics["routing_compared"] == batch.mask.sum() * LAYERS * ACTIVE
        assert found.metrics["routing_agreed"] == found.metrics["routing_compared"]
        np.testing.assert_array_equal(found.metrics["expert_tokens"], own.metrics["expert_tokens"])


@pytest.mark.slow
def test_other_choices_are_those_of_their_own_tokens():
    """Log-probabilities of laid-out rows equal those of each text alone under the same experts, and no others."""
    groups = with_experts(make_groups(), random_experts)
    batch = routed_shape(1000).lay_out(groups)
    found, own = score(batch, "replay"), score(batch, "own")
    params = random_params(CONFIG)

    @jax.jit
    def alone(tokens, experts):
        hidden, _ = model.prefill(CONFIG, params, tokens[None], jnp.ones((1, len(tokens)), bool), replay=experts[None])
        return jax.nn.log_softmax(model.logits(CONFIG, params, hidden)[0] / 0.7)

    agreed = known = 0
    for number, (group, completion) in enumerate((g, c) for g in groups for c in g.completions):
        row, column = np.argwhere(batch.rollout[0] == number)[0]
        read = np.concatenate([group.prompt_tokens, completion.tokens[:-1]])
        tokens, experts = np.zeros(PROMPT + LENGTH, np.int32), np.full((PROMPT + LENGTH, LAYERS, ACTIVE), -1)
        tokens[: len(read)], experts[: len(read)] = read, completion.experts
        scores = np.asarray(alone(jnp.asarray(tokens), jnp.asarray(experts)))
        expected = scores[len(group.prompt_tokens) - 1 + np.arange(len(completion.tokens)), completion.tokens]
        trained = slice(len(completion.tokens))
        np.testing.assert_allclose(found.logprobs[row, column][trained], expected, rtol=0, atol=2e-5)
        known += completion.mask.sum() * LAYERS * ACTIVE
    assert np.abs(found.logprobs - own.logprobs)[batch.mask[0]].max() > 0.01
    agreed = float(found.metrics["routing_agreed"])
    assert float(found.metrics["routing_compared"]) == known and 0.1 * known < agreed < 0.9 * known


def test_agreement_counts_experts_that_both_chose():
    """Three positions, one not trained, one of unknown experts: 1 of 2 agrees, whatever the order."""
    config = tiny_config(attention_bias=False, qk_norm=True, num_experts=4, experts_per_token=2, num_layers=1)
    own = jnp.array([[[0, 1], [2, 3], [1, 3]]])
    routed = model.Routed(own, own, jnp.ones((1, 3)))
    sampled = np.array([[[1, 2]], [[2, 3]], [[-1, -1]]], np.int16)
    sums = jax.jit(routing_sums, static_argnums=0)(config, routed, np.array([True, False, True]), sampled)
    assert (sums["routing_agreed"], sums["routing_compared"]) == (1, 2)
    assert sums["expert_tokens"].tolist() == [[1, 2, 0, 1]]


def test_samplers_that_do_not_say_their_experts_are_refused():
    groups = make_groups()
    with pytest.raises(InputError, match=r"LossConfig\.routing: the sampler does not say which experts it chose"):
        routed_shape().lay_out(groups)
    with pytest.raises(InputError, match=r"experts of shape \(1, 2, 2\), and the model needs \(\d+, 2, 2\)"):
        routed_shape().lay_out(with_experts(groups, lambda tokens: np.zeros((1, 2, 2), np.int16)))
