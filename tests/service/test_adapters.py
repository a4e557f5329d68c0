"""Servers that take adapters alone: what travels, what is refused, and a whole run with the JAX engine."""

import asyncio
import dataclasses
import types

import jax
import numpy as np
import pytest

from isocompute_jax import model
from isocompute_jax.experiment import loop
from isocompute_jax.model import LoraConfig, hf_tensor_shapes
from isocompute_jax.model.params import spec_leaves
from isocompute_jax.records import run_files
from isocompute_jax.records.errors import InputError
from isocompute_jax.records.tensors import TensorSpec
from isocompute_jax.service.client.service_config import ServiceConfig
from isocompute_jax.service.client.weight_sender import Sender
from isocompute_jax.service.server.engines.adapters import adapter_tensors
from isocompute_jax.service.server.engines.base import JaxSettings, NotTakenError, VllmSettings
from isocompute_jax.service.server.engines.jax_engine import JaxEngine
from isocompute_jax.service.server.engines.vllm.engine import VllmEngine
from isocompute_jax.service.weights.files import Parcel, WeightFile
from tests.experiment import builders
from tests.model.tiny import random_params, tiny_config
from tests.service.fleet_builders import live

MOE = dict(num_experts=4, experts_per_token=2, attention_bias=False, qk_norm=True)
LORA = LoraConfig(rank=3, alpha=6.0, served=True)


def served(config, **settings):
    """What a server of a model takes."""
    whole = [TensorSpec(name, config.dtype, shape) for name, shape in hf_tensor_shapes(config)]
    return adapter_tensors(whole, JaxSettings("model", **settings))


@pytest.mark.parametrize("family", [{}, MOE], ids=["dense", "moe"])
@pytest.mark.parametrize("targets", ["all", "q_proj,down_proj"])
def test_servers_and_learners_mean_the_same_tensors(family, targets):
    config = tiny_config(dtype="bfloat16", **family)
    specs = spec_leaves(model.adapter_specs(config, dataclasses.replace(LORA, targets=targets)))
    ours = {(name, "float32", spec.hf_shape) for spec in specs for name in spec.hf_names}
    theirs = served(config, lora_rank=3, lora_targets=targets)
    assert {(each.name, each.dtype, each.shape) for each in theirs} == ours and len(theirs) == len(ours)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"lora_targets": "qkv"}, "--lora_targets: model has no 'qkv'; it has down_proj, "),
        ({"lora_rank": 99}, r"--lora_rank=99 is above that of model.layers.0.\w+.\w+.weight, "),
        ({"load": False}, "--lora_rank: adapters need the model's own weights: leave out --wait_for_weights"),
    ],
)
def test_a_server_of_adapters_that_cannot_be_is_refused(settings, said):
    with pytest.raises(InputError, match=said):
        served(tiny_config(), **{"lora_rank": 3, **settings})


def test_an_adapter_that_cannot_be_laid_down_is_not_taken(tmp_path):
    """By vLLM's engine, which has not been told of it: the file that they came in is gone."""
    engine = VllmEngine(VllmSettings("model", lora_rank=3))
    engine._llm = types.SimpleNamespace(errored=False)
    weights = WeightFile(str(tmp_path / "gone"), (TensorSpec("a", "float32", (1,)),), (0,))
    with pytest.raises(NotTakenError, match="the adapter of version 1 cannot be laid down"):
        asyncio.run(engine.update_weights(weights, version=1, recompute=False))
    engine._check()
    engine._adapters.cleanup()


def test_what_travels_is_a_and_b_with_the_scale_in_it(tmp_path):
    config = tiny_config()
    base, table = random_params(config), model.adapter_specs(config, LORA)
    adapters = model.init_adapters(config, LORA, jax.random.key(0))
    adapters["layers"]["wq"] = adapters["layers"]["wq"].replace(b=adapters["layers"]["wq"].b + 1.0)
    service = ServiceConfig(endpoints="nowhere:1", shared_dir=str(tmp_path))
    sender = Sender(service, config, session="run", in_flight="abort", lora=LORA)
    parcel = sender.take(model.with_adapters(base, adapters), version=1)
    assert isinstance(parcel, Parcel)
    sent = {
        tensor.name: np.frombuffer(parcel.data[start : start + tensor.nbytes], np.float32).reshape(tensor.shape)
        for tensor, start in zip(parcel.tensors, parcel.starts, strict=True)
    }
    sender.close()
    expected = dict(model.hf_tensors(config, adapters, table=table))
    assert sent.keys() == expected.keys()
    for name, tensor in expected.items():
        np.testing.assert_array_equal(sent[name], tensor * (2.0 if "lora_B" in name else 1.0))
    whole = sum(np.prod(shape) for _, shape in hf_tensor_shapes(config)) * 4
    assert sum(tensor.nbytes for tensor in parcel.tensors) < 0.6 * whole


@pytest.fixture
def run(tmp_path):
    base = builders.make_inputs(tmp_path)
    return dataclasses.replace(base, max_compute=4 * base.rollouts_per_step, checkpoint_every_s=1e9)


def over(run, server, tmp_path, lora, **service):
    settings = {"endpoints": server.address, "shared_dir": str(tmp_path), "push": "stream"} | service
    return dataclasses.replace(run, lora=lora, service=ServiceConfig(**settings))


@pytest.mark.parametrize("push", ["stream", pytest.param("auto", marks=pytest.mark.slow)])
def test_a_run_trains_adapters_that_a_server_applies(run, tmp_path, push):
    lora = LoraConfig(rank=4, alpha=8.0, served=True)
    engine = JaxEngine(JaxSettings(run.model, max_slots=16, lora_rank=4))
    with live(engine=engine, weights_dir=str(tmp_path)) as [server]:
        loop.train(over(run, server, tmp_path, lora, push=push), tmp_path / "run")
    lines = run_files.read_lines(tmp_path / "run" / run_files.METRICS)
    assert len(lines) == 4 and any(line["gradient_norm"] for line in lines)
    assert max(line["logprob_difference_max"] or 0 for line in lines) < 1e-5


def test_a_server_of_another_base_is_refused_by_name(run, tmp_path):
    other = tmp_path / "other"
    model.save_checkpoint(other, builders.MODEL, random_params(builders.MODEL, seed=9), tokenizer_from=run.model)
    engine = JaxEngine(JaxSettings(str(other), max_slots=16, lora_rank=4))
    with live(engine=engine, weights_dir=str(tmp_path)) as [server]:
        config = over(run, server, tmp_path, LoraConfig(rank=4, alpha=8.0, served=True))
        with pytest.raises(InputError, match=f"{server.address} has other weights in --model={other} than"):
            loop.train(config, tmp_path / "run")


@pytest.mark.slow
def test_a_server_of_all_weights_takes_merged_ones(run, tmp_path):
    engine = JaxEngine(JaxSettings(run.model, max_slots=16))
    with live(engine=engine, weights_dir=str(tmp_path)) as [server]:
        loop.train(over(run, server, tmp_path, LoraConfig(rank=4, alpha=8.0)), tmp_path / "run")
    lines = run_files.read_lines(tmp_path / "run" / run_files.METRICS)
    assert max(line["logprob_difference_max"] or 0 for line in lines) < 1e-5


def test_adapters_are_refused_by_a_server_of_all_weights(run, tmp_path):
    engine = JaxEngine(JaxSettings(run.model, max_slots=16))
    with live(engine=engine, weights_dir=str(tmp_path)) as [server]:
        config = over(run, server, tmp_path, LoraConfig(rank=4, alpha=8.0, served=True))
        with pytest.raises(InputError, match=r"lora_A.weight' is not one of the model's"):
            loop.train(config, tmp_path / "run")
