"""vLLM's own LoRA: new adapters draw what the learner scores, and rollouts keep the one that they began with."""

import jax
import numpy as np
import pytest

from isocompute_jax import model
from isocompute_jax.model import LoraConfig
from isocompute_jax.service.proto import sampler_pb2 as pb
from tests.model.test_lora import random_adapters
from tests.vllm.builders import LONG, SHORT, TIED, collect, learner_logprobs, make_params, stacked

pytestmark = pytest.mark.vllm

LORA = LoraConfig(rank=4, alpha=8.0)
LENGTH = 400


@pytest.fixture(scope="module")
def client(start, checkpoints):
    return start(checkpoints["tied", 0], "--lora_rank=4").client()


def adapters(seed):
    """Of the size that moves log-probabilities by tenths; larger ones magnify rounding."""
    return jax.tree.map(lambda x: x / 3, random_adapters(TIED, LORA, seed))


def weights(seed):
    return model.merged(model.with_adapters(make_params(TIED, 0), adapters(seed)))


def tensors(seed):
    scaled = model.scaled_adapters(model.with_adapters(make_params(TIED, 0), adapters(seed)))
    return dict(model.hf_tensors(TIED, scaled, table=model.adapter_specs(TIED, LORA)))


@pytest.mark.parametrize("prompt", [SHORT, LONG], ids=["short", "long"])
def test_what_is_drawn_follows_each_new_adapter(client, prompt):
    first = client.status().version + 1
    for version in range(first, first + 12):  # more than vLLM keeps
        assert client.update(tensors(version), version, pb.IN_FLIGHT_WAIT).version == version
        tokens, logprobs, versions = stacked(client.sample(prompt, 4, 20))
        np.testing.assert_allclose(logprobs, learner_logprobs(TIED, weights(version), prompt, tokens, 1.0), atol=1e-4)
        assert (versions == version).all()
    without = learner_logprobs(TIED, make_params(TIED, 0), prompt, tokens, 1.0)
    assert np.abs(logprobs - without).max() > 0.1


def test_a_rollout_keeps_the_adapter_that_it_began_with(client):
    old = client.status().version + 1
    client.update(tensors(1), old, pb.IN_FLIGHT_WAIT)
    before = client.status().tokens_generated
    call = client.stub.Sample(client.request(SHORT, 8, LENGTH), timeout=120)
    while client.status().tokens_generated - before < 8 * 20:
        assert call.is_active()
    client.update(tensors(2), old + 1, pb.IN_FLIGHT_CONTINUE)
    tokens, logprobs, versions = stacked(client.sample(SHORT, 4, 20))
    np.testing.assert_allclose(logprobs, learner_logprobs(TIED, weights(2), SHORT, tokens, 1.0), atol=1e-4)
    assert (versions == old + 1).all()
    tokens, logprobs, versions = stacked(collect(call))
    assert (versions == old).all()
    np.testing.assert_allclose(logprobs, learner_logprobs(TIED, weights(1), SHORT, tokens, 1.0), atol=1e-4)
