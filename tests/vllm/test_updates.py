"""New weights: what is drawn after them follows them, with no trace of the old ones unless that was asked for."""

import re

import grpc
import numpy as np
import pytest

from isocompute_jax.service.proto import sampler_pb2 as pb
from tests.vllm import builders
from tests.vllm.builders import LONG, SHORT, collect, learner_logprobs, stacked, tensors_of

pytestmark = pytest.mark.vllm
LENGTH = 400


@pytest.mark.parametrize("in_flight", [pb.IN_FLIGHT_WAIT, pb.IN_FLIGHT_CONTINUE, pb.IN_FLIGHT_RECOMPUTE])
@pytest.mark.parametrize("kind", ["tied", "untied"])
def test_what_is_drawn_after_an_update_follows_the_new_weights(served, kind, in_flight):
    client, config, first, second = served(kind)
    for prompt in (SHORT, LONG):  # the long one fills the prefix cache
        client.sample(prompt, 4, 20)
    version = client.status().version + 1
    assert client.update(tensors_of(config, second), version, in_flight).version == version
    for prompt in (LONG, SHORT):
        tokens, logprobs, versions = stacked(client.sample(prompt, 8, 30))
        np.testing.assert_allclose(logprobs, learner_logprobs(config, second, prompt, tokens, 1.0), atol=1e-4)
        assert np.abs(logprobs - learner_logprobs(config, first, prompt, tokens, 1.0)).max() > 0.5
        assert (versions == version).all()


def switched(client, config, second, in_flight, prompt=SHORT, length=LENGTH):
    """Completions that an update caught half-way, which is known from the number of tokens drawn."""
    before = client.status().tokens_generated
    call = client.stub.Sample(client.request(prompt, 8, length), timeout=120)
    while client.status().tokens_generated - before < 8 * 20:
        assert call.is_active()
    client.update(tensors_of(config, second), client.status().version + 1, in_flight)
    return call


@pytest.mark.parametrize("kind", ["tied", "untied"])
@pytest.mark.parametrize("in_flight", [pb.IN_FLIGHT_CONTINUE, pb.IN_FLIGHT_RECOMPUTE])
def test_versions_of_tokens_are_exact_in_flight(served, kind, in_flight):
    client, config, first, second = served(kind)
    old_version = client.status().version
    call = switched(client, config, second, in_flight)
    tokens, logprobs, versions = stacked(collect(call))
    old = versions == old_version
    assert set(np.unique(versions)) == {old_version, old_version + 1} and (np.diff(old.astype(int), axis=1) <= 0).all()
    by_first, by_second = (learner_logprobs(config, params, SHORT, tokens, 1.0) for params in (first, second))
    # Exact to the token: each side of the switch has the log-probabilities of its own weights and not of the other's.
    np.testing.assert_allclose(logprobs[old], by_first[old], atol=1e-4)
    edge = old.sum(axis=1)
    rows = np.arange(len(tokens))
    assert (np.abs(logprobs - by_second)[rows, edge - 1] > 1e-3).all()
    assert (np.abs(logprobs - by_first)[rows, edge] > 1e-3).all()
    if in_flight == pb.IN_FLIGHT_RECOMPUTE:
        np.testing.assert_allclose(logprobs[~old], by_second[~old], atol=1e-4)
    else:  # keys and values of the old weights stay: a mixture, as was asked
        assert np.abs(logprobs - by_second)[~old].max() > 1e-2


def test_a_new_group_finds_no_old_prefix_while_an_old_one_still_holds_it(served):
    client, config, _, second = served("tied")
    call = switched(client, config, second, pb.IN_FLIGHT_CONTINUE, prompt=LONG, length=150)
    tokens, logprobs, _ = stacked(client.sample(LONG, 4, 10))
    assert call.is_active()  # its blocks are in memory, under the same tokens
    np.testing.assert_allclose(logprobs, learner_logprobs(config, second, LONG, tokens, 1.0), atol=1e-4)
    collect(call)


def test_an_update_that_waits_mixes_nothing(served):
    client, config, first, second = served("tied")
    old_version = client.status().version
    call = switched(client, config, second, pb.IN_FLIGHT_WAIT)
    tokens, logprobs, versions = stacked(collect(call))
    assert (versions == old_version).all()
    np.testing.assert_allclose(logprobs, learner_logprobs(config, first, SHORT, tokens, 1.0), atol=1e-4)


def test_an_update_that_aborts_frees_the_engine(served):
    client, config, _, second = served("tied")
    call = switched(client, config, second, pb.IN_FLIGHT_ABORT)
    with pytest.raises(grpc.RpcError) as caught:
        collect(call)
    assert caught.value.code() == grpc.StatusCode.ABORTED
    tokens, logprobs, _ = stacked(client.sample(LONG, 4, 10))
    np.testing.assert_allclose(logprobs, learner_logprobs(config, second, LONG, tokens, 1.0), atol=1e-4)


NAME = "model.layers.1.mlp.up_proj.weight"


def renamed(tensors):
    return {"lm_head.no_such_weight" if name == NAME else name: value for name, value in tensors.items()}


def altered(alter):
    """An update whose messages are altered on their way."""

    def change(parts):
        for number, part in enumerate(parts):
            yield from alter(number, part)

    return change


def damaged(number, part):
    if number == 3:
        part.chunk.data = bytes([part.chunk.data[0] ^ 1]) + part.chunk.data[1:]
    yield part


def halved(number, part):
    if number < 5:
        yield part


WRONG = {
    "shape": (lambda tensors: tensors | {NAME: tensors[NAME].T}, None, grpc.StatusCode.INVALID_ARGUMENT, NAME),
    "dtype": (
        lambda tensors: tensors | {NAME: tensors[NAME].astype(np.float16)},
        None,
        grpc.StatusCode.INVALID_ARGUMENT,
        NAME,
    ),
    "name": (renamed, None, grpc.StatusCode.INVALID_ARGUMENT, "lm_head.no_such_weight|" + NAME),
    "checksum": (None, altered(damaged), grpc.StatusCode.DATA_LOSS, "checksum"),
    "half a stream": (None, altered(halved), grpc.StatusCode.DATA_LOSS, ""),
    "no token": (None, None, grpc.StatusCode.UNAUTHENTICATED, "token"),
}


@pytest.mark.parametrize("what", WRONG)
def test_an_update_that_is_wrong_leaves_the_old_weights(served, what):
    client, config, _, second = served("tied")
    change, alter, code, said = WRONG[what]
    before = stacked(client.sample(LONG, 4, 20))
    tensors = tensors_of(config, second)
    parts = builders.messages(change(tensors) if change else tensors, client.status().version + 1, pb.IN_FLIGHT_WAIT)
    metadata = [] if what == "no token" else [("authorization", f"Bearer {builders.TOKEN}")]
    with pytest.raises(grpc.RpcError) as caught:
        client.stub.UpdateWeights(alter(parts) if alter else parts, metadata=metadata, timeout=120)
    assert caught.value.code() == code
    assert re.search(said, caught.value.details() or "")
    after = stacked(client.sample(LONG, 4, 20))
    np.testing.assert_array_equal(after[0], before[0])
    np.testing.assert_array_equal(after[2], before[2])
