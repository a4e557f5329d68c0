"""The experts that samplers say they chose are the model's own, for every token that was read."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from isocompute_jax import model
from isocompute_jax.sampling import InProcessSampler, SamplingParams, TurnSampler
from isocompute_jax.sampling.slot_sampler import SlotSampler
from tests.model.tiny import random_params, tiny_config
from tests.sampling.builders import make_request
from tests.sampling.slot_builders import run
from tests.sampling.turn_builders import interruption

CONFIG = tiny_config(attention_bias=False, qk_norm=True, num_experts=6, experts_per_token=2)
LENGTH = 30
PARAMS = SamplingParams(temperature=0.9, top_p=1.0, max_tokens=7)


def requests():
    """Prompts of 1 to 21 tokens, longer than what is read at once; one group is larger than the slots."""
    rng = np.random.default_rng(0)
    return [
        make_request(f"p{i}", group_size=size, params=PARAMS, prompt=rng.integers(0, 12, length))
        for i, (length, size) in enumerate([(1, 2), (21, 3), (17, 10), (2, 1)])
    ]


def in_units():
    sampler = InProcessSampler(
        CONFIG, random_params(CONFIG), pad_token=0, max_prompt_tokens=22, max_rollouts_per_dispatch=8, routing=True
    )
    sampler.submit(requests())
    return {group.problem_id: group.completions for group in sampler.completed()}


def in_turns():
    """Up to four tokens, three that are put in, up to three more."""
    policy = interruption(2, 4, answer_tokens=3)
    sampler = InProcessSampler(
        CONFIG,
        random_params(CONFIG),
        pad_token=0,
        max_prompt_tokens=22,
        max_continued_tokens=22 + policy.continued_tokens,
        max_rollouts_per_dispatch=8,
        routing=True,
    )
    turns = TurnSampler(sampler, policy)
    turns.submit(requests())
    groups = {group.problem_id: group.completions for group in turns.completed()}
    assert not all(completion.mask.all() for completions in groups.values() for completion in completions)
    return groups


def in_slots():
    sampler = SlotSampler(CONFIG, random_params(CONFIG), slots=8, length=LENGTH, chunk_steps=3, routing=True)
    done = run(sampler, requests())
    return {request.problem_id: tuple(done[i].values()) for i, request in enumerate(requests())}


@pytest.mark.slow
@pytest.mark.parametrize("sampled", [in_units, in_slots, in_turns])
def test_every_token_that_was_read_says_where_it_went(sampled):
    prefill = jax.jit(model.prefill, static_argnums=0)
    groups = sampled()
    for request in requests():
        for completion in groups[request.problem_id]:
            read = np.concatenate([request.prompt_tokens, completion.tokens[:-1]])
            assert completion.experts.shape == (len(read), CONFIG.num_layers, 2)
            padded = jnp.asarray(np.pad(read, (0, LENGTH - len(read)))[None])
            _, prefix = prefill(CONFIG, random_params(CONFIG), padded, jnp.ones(padded.shape, bool))
            expected = np.moveaxis(np.asarray(prefix.routed.experts)[:, 0, : len(read)], 0, 1)
            np.testing.assert_array_equal(completion.experts, expected)


def test_nothing_is_said_unasked():
    config = dataclasses.replace(CONFIG, num_layers=1)
    sampler = SlotSampler(config, random_params(config), slots=8, length=LENGTH, chunk_steps=3)
    done = run(sampler, requests()[:1])
    assert all(completion.experts is None for completion in done[0].values())
