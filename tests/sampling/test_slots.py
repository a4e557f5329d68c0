"""Slots draw what the in-process sampler draws, and nothing around a rollout can be seen in it."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from isocompute_jax import learner, model, sharding
from isocompute_jax.sampling import SamplingParams
from isocompute_jax.sampling.slots import admit, advance, init_slots, prefill, slot_multiple, slots_that_fit
from tests.model.tiny import LLAMA4, random_params, tiny_config
from tests.sampling.builders import CONFIG, make_request, sample, weights
from tests.sampling.slot_builders import assert_equal, make_requests, make_slots, run


def programs() -> list[int]:
    """How often each function of slots has been compiled."""
    functions: Any = (prefill, admit, advance)
    return [function._cache_size() for function in functions]


def memory_of(lowered) -> Any:
    """What the compiled program of a call allocates."""
    return lowered.compile().memory_analysis()


LARGER = model.ModelConfig(
    vocab_size=1000,
    embed_dim=192,
    num_layers=9,  # more than are unrolled
    num_heads=6,
    num_kv_heads=2,
    head_dim=32,
    mlp_dim=520,
    tied_embeddings=False,
    rope_theta=1e4,
    norm_eps=1e-6,
    max_positions=64,
)


@pytest.mark.parametrize(
    ("config", "scale", "slots", "key_block"),
    [
        pytest.param(model.EMBEDDED, 0.1, 48, 8, marks=pytest.mark.slow),
        (dataclasses.replace(model.EMBEDDED, dtype="bfloat16"), 0.1, 64, 256),
        pytest.param(LARGER, 0.06, 8, 256, marks=pytest.mark.slow),
    ],
)
def test_company_cannot_be_seen(config, scale, slots, key_block):
    """Orders, neighbours, slots, restarts, steps per call: tokens and log-probabilities bit for bit."""
    make = functools.partial(
        make_slots, config=config, params=random_params(config, scale=scale), slots=slots, key_block=key_block
    )
    requests = make_requests(20, config=config)
    reference = run(make(), requests)
    assert sum(map(len, reference.values())) > 40
    sampler = make()  # used again and again: what stays in slots must not matter either
    for trial in range(3):
        order = np.random.default_rng(trial).permutation(len(requests))
        drawn = run(sampler, [requests[i] for i in order], at_once=trial != 1)
        for place, number in enumerate(order):
            assert_equal(drawn[place], reference[number], atol=0)
    for number in (3, 11):
        [alone] = run(make(chunk_steps=2), [requests[number]]).values()
        assert_equal(alone, reference[number], atol=0)


@pytest.mark.parametrize("key_block", [256, 8])
@pytest.mark.parametrize("top_p", [1.0, 0.8])
def test_slots_draw_what_the_in_process_sampler_draws(key_block, top_p):
    params = SamplingParams(temperature=0.7, top_p=top_p, max_tokens=9)
    requests = [make_request(name, params=params) for name in ("ant", "bee", "cat", "dog", "elk", "fox", "gnu", "hen")]
    groups = sample(requests)
    expected = {name: dict(enumerate(group.completions)) for name, group in groups.items()}
    drawn = run(make_slots(key_block=key_block), requests)
    assert {c.finish_reason for group in drawn.values() for c in group.values()} == {"stop", "length"}
    for number, request in enumerate(requests):
        assert_equal(drawn[number], expected[request.problem_id], atol=1e-5)


def test_a_long_prompt_is_read_in_chunks():
    """A prompt of several chunks and blocks, beside one pass of the model over prompt and completion."""
    prompt = np.random.default_rng(0).integers(0, CONFIG.vocab_size, 19)
    request = make_request("long", prompt=prompt, group_size=2, params=SamplingParams(0.8, 1.0, 5), stop=())
    sampler = make_slots(key_block=8)
    [drawn] = run(sampler, [request]).values()
    tokens = np.array([[*prompt, *completion.tokens] for completion in drawn.values()])
    assert tokens.shape == (2, 24) and sampler._prefill_tokens < 19

    @jax.jit
    def scores(params, tokens):
        hidden, _ = model.prefill(CONFIG, params, tokens, jnp.ones_like(tokens, bool))
        return jax.nn.log_softmax(model.logits(CONFIG, params, hidden) / 0.8)

    picked = np.take_along_axis(np.asarray(scores(weights(), tokens))[:, 18:-1], tokens[:, 19:, None], axis=2)[..., 0]
    np.testing.assert_allclose([c.logprobs for c in drawn.values()], picked, rtol=0, atol=1e-5)


LLAMA = dict(attention_bias=False, rope_scaling=model.RopeScaling(8.0, 1.0, 4.0, 16))
MOE = dict(attention_bias=False, qk_norm=True, num_experts=4, experts_per_token=2)


@pytest.mark.slow
@pytest.mark.parametrize("family", [LLAMA, MOE, LLAMA4], ids=["llama", "qwen3_moe", "llama4_text"])
def test_slots_of_every_family_agree_with_the_learner(family):
    """Qwen3's norms of queries and keys are in the mixture too."""
    config = tiny_config(**family)
    params = random_params(config)
    sampling = SamplingParams(temperature=0.8, top_p=1.0, max_tokens=12)
    requests = [make_request(name, params=sampling, prompt=np.arange(5)) for name in ("ant", "bee", "cat")]
    drawn = run(make_slots(config=config, params=params, key_block=8), requests)
    score = learner.make_scorer(learner.make_score(config, temperature=0.8, chunk_tokens=4096))
    for request, completions in zip(requests, drawn.values(), strict=True):
        for completion in completions.values():
            length = len(completion.tokens)
            tokens = np.pad(completion.tokens, (0, 12 - length))[None, None]
            batch = learner.single_batch(
                request.prompt_tokens[None], np.ones((1, len(request.prompt_tokens)), bool), tokens,
                np.arange(12)[None, None] < length, sampler_logprobs=np.zeros((1, 1, 12), np.float32),
            )  # fmt: skip
            np.testing.assert_allclose(completion.logprobs, score(params, batch)[0, 0, 0, :length], rtol=0, atol=1e-5)


@pytest.mark.parametrize("layers", [2, 6])  # unrolled, and a loop
def test_the_cache_is_updated_in_place(layers):
    """Donated, and no second copy of it, whole or of a layer, among the temporary buffers."""
    config = tiny_config(num_layers=layers)
    slots = jax.eval_shape(lambda: init_slots(config, slots=64, length=4096, key_block=64))
    size = sum(x.size * x.dtype.itemsize for x in slots.cache)
    params = model.abstract_params(config)
    at_least = jax.ShapeDtypeStruct((), jnp.int32)
    memory = memory_of(advance.lower(params, slots, at_least, config=config, steps=4))
    assert memory.alias_size_in_bytes >= size
    assert memory.temp_size_in_bytes < size / layers / 2


def test_nothing_compiles_as_load_changes():
    sampler = make_slots()
    sampler.compile()
    compiled = programs()
    for count, seed in ((1, 1), (9, 2), (30, 3)):
        run(sampler, make_requests(count, seed=seed, max_group=20))
    assert programs() == compiled


@pytest.mark.slow
def test_sharded_slots_draw_the_same():
    """Weights over fsdp and tensor, slots over data and fsdp, kv heads over tensor; nothing compiles twice."""
    config = tiny_config(num_kv_heads=2, tied_embeddings=False)
    params = random_params(config)
    requests = make_requests(12)
    expected = run(make_slots(config=config, params=params, slots=32, key_block=8), requests)
    mesh = sharding.make_mesh(data=2, fsdp=2, tensor=2)
    placed = jax.device_put(params, model.param_shardings(config, mesh))
    sampler = make_slots(config=config, params=placed, slots=slot_multiple(mesh), key_block=8, mesh=mesh)
    keys = sampler._slots.cache.k
    assert keys.sharding.shard_shape(keys.shape) == (2, 3, 8, 1, 8, 8)
    sampler.compile()
    compiled = programs()
    drawn = run(sampler, requests)
    assert programs() == compiled
    for number in expected:
        assert_equal(drawn[number], expected[number], atol=1e-5)
    order = np.random.default_rng(0).permutation(len(requests))
    again = run(sampler, [requests[i] for i in order])
    for place, number in enumerate(order):
        assert_equal(again[place], drawn[number], atol=0)


def test_no_shard_gathers_the_cache():
    """Reading and writing rows of a sharded cache moves rows, never the cache."""
    config = tiny_config(num_kv_heads=2)
    mesh = sharding.make_mesh(data=2, fsdp=2, tensor=2)
    slots = init_slots(config, slots=32, length=1024, key_block=64, mesh=mesh)
    params = jax.device_put(random_params(config), model.param_shardings(config, mesh))
    size = sum(x.size * x.dtype.itemsize for x in slots.cache) / 8
    tokens = np.zeros((4, 16), np.int32)
    calls = (
        advance.lower(params, slots, np.int32(1), config=config, steps=4, mesh=mesh),
        prefill.lower(params, slots, tokens, tokens, tokens[:, 0], config=config, mesh=mesh),
    )
    for call in calls:
        assert memory_of(call).temp_size_in_bytes < size / 2


def test_slots_that_fit():
    """Two layers x (k, v) x 24 positions x 1 head x 8 numbers of 4 bytes: 3,072 bytes a slot."""
    assert slots_that_fit(CONFIG, length=24, cache_bytes=8 * 3072) == 8
    assert slots_that_fit(CONFIG, length=24, cache_bytes=8 * 3072 - 1) == 0
    assert slots_that_fit(CONFIG, length=24, cache_bytes=100 * 3072) == 96
    # 300 positions are two blocks of 256.
    assert slots_that_fit(CONFIG, length=300, cache_bytes=8 * 2 * 2 * 512 * 8 * 4) == 8
    mesh = sharding.make_mesh(data=2, fsdp=2, tensor=2)
    assert slots_that_fit(CONFIG, length=24, cache_bytes=8 * 3072, mesh=mesh) == 32  # one kv head is not cut
    two = tiny_config(num_kv_heads=2)
    assert slots_that_fit(two, length=24, cache_bytes=8 * 3072, mesh=mesh) == 32  # two are
