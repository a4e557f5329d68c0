"""The JAX engine as servers use it: an event loop outside, one thread with the device inside."""

import asyncio
import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from isocompute_jax import model
from isocompute_jax.records.errors import InputError
from isocompute_jax.records.requests import SampleRequest, SamplingParams
from isocompute_jax.records.tensors import TensorSpec
from isocompute_jax.sampling.slot_sampler import SlotSampler
from isocompute_jax.service.server.engines.base import EngineError, JaxSettings, NotTakenError
from isocompute_jax.service.server.engines.jax_engine import CHUNK_STEPS, JaxEngine
from isocompute_jax.service.weights.files import WeightFile, file_layout
from tests.model.tiny import random_params, tiny_config

CONFIG = tiny_config()
LONG = SamplingParams(0.8, 1.0, 60)


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    path = tmp_path_factory.mktemp("engine") / "model"
    model.save_checkpoint(path, CONFIG, random_params(CONFIG), tokenizer_from=None)
    return str(path)


def make_engine(directory, **changes):
    settings: dict[str, Any] = dict(max_slots=8) | changes
    return JaxEngine(JaxSettings(directory, **settings))


def make_group(name, *, group_size=3, params=LONG, stop=()):
    prompt = np.array([1 + len(name) % 11, 3, 2], np.int32)
    return SampleRequest(name, prompt, group_size, seed=1, step=2, stop_tokens=tuple(stop), params=params)


def serve(engine, use):
    """Runs `use(engine)` between start and stop."""

    async def session():
        await engine.start()
        try:
            return await use(engine)
        finally:
            await engine.stop()

    return asyncio.run(session())


async def collect(engine, request):
    done = {}
    async for finished in engine.generate(request):
        for index, completion in finished:
            assert index not in done
            done[index] = completion
    assert sorted(done) == list(range(request.group_size))
    return done


def write_weights(path, params, config=CONFIG):
    """A file of all tensors, as staging leaves it for engines."""
    tensors = list(model.hf_tensors(config, params))
    specs = tuple(TensorSpec(name, str(tensor.dtype), tensor.shape) for name, tensor in tensors)
    starts, size = file_layout(specs)
    data = bytearray(size)
    for (_, tensor), start in zip(tensors, starts, strict=True):
        data[start : start + tensor.nbytes] = tensor.tobytes()
    path.write_bytes(data)
    return WeightFile(str(path), specs, starts)


@functools.partial(jax.jit, static_argnums=0)
def every_score(config, params, tokens, temperature):
    hidden, _ = model.prefill(config, params, tokens[None], jnp.ones((1, len(tokens)), bool))
    return jax.nn.log_softmax(model.logits(config, params, hidden[0]) / temperature)


def scores(params, request, completion, config=CONFIG):
    """The model's log-probabilities of a completion, in one pass over prompt and completion."""
    prompt, length = len(request.prompt_tokens), len(completion.tokens)
    tokens = np.zeros(64, np.int32)
    tokens[: prompt + length] = [*request.prompt_tokens, *completion.tokens]
    every = np.asarray(every_score(config, params, tokens, request.params.temperature))
    return np.take_along_axis(every[prompt - 1 : prompt - 1 + length], completion.tokens[:, None], axis=1)[:, 0]


def assert_bit_equal(ours, theirs):
    for index, completion in theirs.items():
        np.testing.assert_array_equal(ours[index].tokens, completion.tokens)
        np.testing.assert_array_equal(ours[index].logprobs, completion.logprobs)


@pytest.mark.slow
def test_groups_in_any_company(directory):
    """Cut groups, short and long ones at once: whole, scored as the model scores them, and the same when redrawn."""
    short = SamplingParams(1.0, 1.0, 1)
    requests = [make_group("a" * n, group_size=3 * n, params=short if n % 2 else LONG, stop=(5,)) for n in range(1, 6)]

    async def use(engine):
        together = await asyncio.gather(*(collect(engine, request) for request in requests))
        count = engine.tokens_generated
        alone = [await collect(engine, request) for request in requests[3:]]
        await engine.check_health()
        return engine.facts, together, alone, count

    facts, together, alone, count = serve(make_engine(directory), use)
    assert count == sum(len(c.tokens) for done in together for c in done.values())
    for request, done in zip(requests, together, strict=True):
        for completion in done.values():
            expected = scores(random_params(CONFIG), request, completion)
            np.testing.assert_allclose(completion.logprobs, expected, rtol=0, atol=1e-5)
            assert completion.finish_reason == ("stop" if completion.tokens[-1] == 5 else "length")
    for done, again in zip(together[3:], alone, strict=True):
        assert_bit_equal(again, done)
    assert (facts.engine, facts.model, facts.vocab_size, facts.max_model_len) == ("jax", directory, 12, 64)
    shapes = [(tensor.name, tensor.shape) for tensor in facts.tensors]
    assert shapes == model.hf_tensor_shapes(CONFIG)
    assert {tensor.dtype for tensor in facts.tensors} == {"float32"}
    assert "lm_head.weight" not in dict(shapes)


def test_a_closed_group_gives_its_slots_back(directory):
    """Eight rollouts of 60 tokens hold every slot; closed, they leave them to the next group."""

    async def use(engine):
        first = engine.generate(make_group("long", group_size=40))
        waiting = asyncio.ensure_future(anext(first))
        while not engine.tokens_generated:
            await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await first.aclose()
        await collect(engine, make_group("next", group_size=2, params=SamplingParams(1.0, 1.0, 2)))
        return engine.tokens_generated

    assert serve(make_engine(directory), use) < 40 * 60


@pytest.mark.parametrize("recompute", [False, True])
def test_weights_in_flight(directory, tmp_path, recompute):
    """Versions say exactly which weights drew a token; the file may vanish; later groups know the new weights alone."""
    new = random_params(CONFIG, 1)
    request = make_group("running", group_size=12)

    async def use(engine):
        running = asyncio.ensure_future(collect(engine, request))
        while not engine.tokens_generated:
            await asyncio.sleep(0)
        weights = write_weights(tmp_path / "weights", new)
        paused_s = await engine.update_weights(weights, version=5, recompute=recompute)
        (tmp_path / "weights").write_bytes(b"\xff" * 10_000)
        assert paused_s >= 0
        later = make_group("later")
        return await running, later, await collect(engine, later)

    done, later, after = serve(make_engine(directory), use)
    for completion in after.values():
        assert completion.policy_versions.tolist() == [5] * 60
        np.testing.assert_allclose(completion.logprobs, scores(new, later, completion), rtol=0, atol=1e-5)
    for completion in done.values():
        cut = int(np.sum(completion.policy_versions == 0))
        assert completion.policy_versions.tolist() == [0] * cut + [5] * (60 - cut)
        old = scores(random_params(CONFIG), request, completion)
        np.testing.assert_allclose(completion.logprobs[:cut], old[:cut], rtol=0, atol=1e-5)
        if recompute:
            expected = scores(new, request, completion)
            np.testing.assert_allclose(completion.logprobs[cut:], expected[cut:], rtol=0, atol=1e-5)
    assert CHUNK_STEPS < 60


@pytest.mark.parametrize(
    ("dtype", "tied"), [("float32", False), pytest.param("bfloat16", True, marks=pytest.mark.slow)]
)
def test_sharded_and_without_weights(tmp_path, dtype, tied):
    """config.json is enough until the first update, which goes straight onto the mesh."""
    config = tiny_config(num_kv_heads=2, tied_embeddings=tied)
    model.save_checkpoint(tmp_path / "model", config, random_params(config), tokenizer_from=None)
    (tmp_path / "model" / "model.safetensors").unlink()
    served = dataclasses.replace(config, dtype=dtype)
    new = model.cast_params(random_params(config, 1), dtype)
    request = make_group("a", params=SamplingParams(1.0, 1.0, 8))

    async def use(engine):
        zero = await collect(engine, request)
        await engine.update_weights(write_weights(tmp_path / "weights", new, served), version=1, recompute=False)
        return engine.facts, zero, await collect(engine, request)

    engine = make_engine(str(tmp_path / "model"), load=False, dtype=dtype, mesh_fsdp=2, mesh_tensor=2, max_slots=20)
    facts, zero, done = serve(engine, use)
    assert {tensor.dtype for tensor in facts.tensors} == {dtype}
    for completion in zero.values():
        np.testing.assert_allclose(completion.logprobs, -np.log(12), rtol=1e-6)
    for completion in done.values():
        expected = scores(new, request, completion, served)
        np.testing.assert_allclose(completion.logprobs, expected, rtol=0, atol=1e-5 if dtype == "float32" else 0.1)


def test_a_failed_device_call_ends_everything(directory, monkeypatch):
    async def use(engine):
        running = [asyncio.ensure_future(collect(engine, make_group(name, group_size=30))) for name in ("a", "b")]
        while not engine.tokens_generated:
            await asyncio.sleep(0)

        def fail(_):
            raise RuntimeError("out of memory")

        monkeypatch.setattr(SlotSampler, "step", fail)
        for result in await asyncio.gather(*running, return_exceptions=True):
            assert isinstance(result, EngineError) and "out of memory" in str(result)
        for call in (engine.check_health(), collect(engine, make_group("c"))):
            with pytest.raises(EngineError, match="out of memory"):
                await call

    serve(make_engine(directory), use)


def test_weights_that_cannot_be_loaded_leave_the_old_ones(directory, tmp_path):
    async def use(engine):
        before = await collect(engine, make_group("a"))
        weights = write_weights(tmp_path / "weights", random_params(CONFIG))
        with pytest.raises(NotTakenError, match="the weights of version 1 cannot be loaded"):
            await engine.update_weights(dataclasses.replace(weights, path="nowhere"), version=1, recompute=False)
        await engine.check_health()
        after = await collect(engine, make_group("a"))
        for index, completion in after.items():
            np.testing.assert_array_equal(completion.tokens, before[index].tokens)
            assert set(completion.policy_versions.tolist()) == {0}

    serve(make_engine(directory), use)


def test_stop_ends_what_runs(directory):
    async def use(engine):
        running = asyncio.ensure_future(collect(engine, make_group("a", group_size=64)))
        while not engine.tokens_generated:
            await asyncio.sleep(0)
        await engine.stop()
        with pytest.raises(EngineError, match="stopped"):
            await running

    serve(make_engine(directory), use)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        (dict(max_model_len=65), "max_model_len = 65 must lie in 2 .. 64"),
        (dict(kv_cache_bytes=1000), "kv_cache_bytes = 1000 is less than 8 sequences of 64 tokens need"),
        (dict(max_slots=7), "max_slots = 7 must be at least 8"),
        (dict(max_slots=None), "give max_slots or kv_cache_bytes"),
        (dict(dtype="float64"), "float64"),
        (dict(mesh_tensor=64), "--mesh_tensor"),
        ({"routing": True}, "--routing, --mesh_expert: .* has no experts"),
        ({"mesh_expert": 2}, "--routing, --mesh_expert: .* has no experts"),
    ],
)
def test_what_cannot_be_served_is_named(directory, changes, complaint):
    with pytest.raises(InputError, match=complaint):
        asyncio.run(make_engine(directory, **changes).start())


@pytest.mark.slow
def test_a_mixture_says_where_tokens_went_where_it_is_told_to(tmp_path):
    """Over devices that divide its experts, too; the experts are those of one device, and the tokens as well."""
    config = tiny_config(attention_bias=False, qk_norm=True, num_experts=4, experts_per_token=2)
    model.save_checkpoint(tmp_path / "model", config, random_params(config), tokenizer_from=None)
    group = make_group("a", params=SamplingParams(0.8, 1.0, 12))

    async def use(engine):
        return await collect(engine, group)

    with pytest.raises(InputError, match="--mesh_expert=3 does not divide 4 experts"):
        asyncio.run(make_engine(str(tmp_path / "model"), mesh_expert=3).start())
    found = [
        serve(make_engine(str(tmp_path / "model"), routing=True, max_slots=32, **mesh), use)
        for mesh in ({}, {"mesh_fsdp": 2, "mesh_expert": 2})
    ]
    for index, ours in found[0].items():
        theirs = found[1][index]
        np.testing.assert_array_equal(ours.tokens, theirs.tokens)
        assert ours.experts.shape == (3 + len(ours.tokens) - 1, 2, 2)
        np.testing.assert_array_equal(ours.experts, theirs.experts)


def test_a_top_k_is_refused(directory):
    async def use(engine):
        with pytest.raises(InputError, match="top_k = 3: the engine jax draws from all tokens"):
            await collect(engine, make_group("p", params=SamplingParams(1.0, 0.9, 4, top_k=3)))

    serve(make_engine(directory), use)


@pytest.mark.parametrize(
    ("temperature", "top_p"), [(5e-324, 1.0), (1e308, 1.0), (float("inf"), 1.0), (1.0, 1e-300), (1.0, 1e-40)]
)
def test_what_float32_does_not_hold_is_refused(directory, temperature, top_p):
    """Before, a top_p of 1e-300 gave log-probabilities of +inf."""

    async def use(engine):
        group = make_group("p", params=SamplingParams(temperature, top_p, 4))
        with pytest.raises(InputError, match="float32"):
            await collect(engine, group)
        for fine in (SamplingParams(1e30, 1.0, 4), SamplingParams(1.0, 1e-30, 4)):
            done = await collect(engine, make_group("p", params=fine))
            assert all(np.isfinite(each.logprobs).all() and (each.logprobs <= 0).all() for each in done.values())

    serve(make_engine(directory), use)
