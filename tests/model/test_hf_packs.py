"""Buckets hold every tensor once, whole, layer by layer; their bytes are those of the tensors, on any mesh."""

import dataclasses

import jax
import numpy as np
import pytest

from isocompute_jax import model, sharding
from isocompute_jax.model import hf_packs
from tests.model.tiny import LLAMA4, random_params, tiny_config

DENSE = tiny_config(vocab_size=32)
MODELS = {
    "dense": DENSE,
    "untied, experts": tiny_config(
        attention_bias=False, qk_norm=True, num_experts=4, experts_per_token=2, tied_embeddings=False
    ),
    "joined experts": dataclasses.replace(DENSE, **LLAMA4),
    "bfloat16": dataclasses.replace(DENSE, dtype="bfloat16"),
}


@pytest.mark.parametrize("axes", [None, {"fsdp": 4, "tensor": 2}])
@pytest.mark.parametrize("name", MODELS)
def test_packs_are_the_tensors_one_behind_the_other(monkeypatch, name, axes):
    config = MODELS[name]
    params = random_params(config)
    truth = {name: value.astype(config.dtype) for name, value in model.hf_tensors(config, params)}
    if axes is not None:
        params = jax.device_put(params, model.param_shardings(config, sharding.make_mesh(**axes)))
    monkeypatch.setattr(hf_packs, "BUCKET_BYTES", 1)  # each layer by itself
    buckets = hf_packs.buckets(config)
    leaves = hf_packs.lay_out(config, params)
    assert model.all_finite(leaves)
    names = []
    for bucket, pack in zip(buckets, hf_packs.packed(buckets, leaves), strict=True):
        assert pack.devices() == {hf_packs.first_device(leaves)}
        rest = np.asarray(pack)
        for tensor in bucket.tensors:
            numbers, rest = np.split(rest, [truth[tensor.name].size])
            np.testing.assert_array_equal(numbers.reshape(tensor.shape), truth[tensor.name])
            assert numbers.dtype == tensor.dtype
            names.append(tensor.name)
        assert not rest.size
    assert sorted(names) == sorted(truth)
    assert [bucket.first for bucket in buckets if bucket.layers] == list(range(config.num_layers))


def test_layers_go_together_as_long_as_they_are_small(monkeypatch):
    config = dataclasses.replace(DENSE, num_layers=5)
    [beside, layers] = hf_packs.buckets(config)
    assert (beside.layers, layers.first, layers.layers) == (0, 0, 5)
    layer = sum(tensor.nbytes for tensor in layers.tensors) // 5
    monkeypatch.setattr(hf_packs, "BUCKET_BYTES", 2 * layer)
    assert [(b.first, b.layers) for b in hf_packs.buckets(config) if b.layers] == [(0, 2), (2, 2), (4, 1)]


def test_one_number_that_is_not_finite_is_found():
    leaves = hf_packs.lay_out(DENSE, random_params(DENSE))
    leaves[1] = leaves[1].at[(0,) * leaves[1].ndim].set(np.nan)
    assert not model.all_finite(leaves)
