"""Messages and records: what goes in comes out, also where protobuf's own parser is passed by."""

import itertools

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from isocompute_jax.records.requests import SampleRequest, SamplingParams
from isocompute_jax.records.rollout import Completion
from isocompute_jax.service.proto import convert
from isocompute_jax.service.proto import sampler_pb2 as pb
from isocompute_jax.service.server.engines.base import EngineFacts
from isocompute_jax.service.server.groups import checked_request

U32 = st.integers(0, 2**32 - 1)
FACTS = EngineFacts("simulated", "1", "m", 2**31, 64, 2**31, (), 1, "cpu")


@st.composite
def completions(draw) -> Completion:
    length = draw(st.integers(1, 20))
    logprobs = draw(st.lists(st.floats(-1e9, 0, width=32), min_size=length, max_size=length))
    versions = draw(st.lists(st.integers(0, 3), min_size=length, max_size=length))
    tokens = draw(st.lists(st.integers(0, 2**31 - 1), min_size=length, max_size=length))
    read, layers, active = length + draw(st.integers(0, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 3))
    experts = np.arange(-1, read * layers * active - 1, dtype=np.int16).reshape(read, layers, active)
    return Completion(
        tokens=np.array(tokens, np.int32),
        logprobs=np.array(logprobs, np.float32),
        mask=np.ones(length, bool),
        policy_versions=np.array(versions, np.int32),
        finish_reason=draw(st.sampled_from(["stop", "length"])),
        experts=experts if draw(st.booleans()) else None,
        support=np.arange(3 * length, dtype=np.int32).reshape(length, 3) - 1 if draw(st.booleans()) else None,
    )


@given(st.lists(completions(), max_size=12), st.integers(1, 2000))
def test_replies_hold_every_completion_once_and_are_no_larger_than_they_may(found, limit):
    replies = list(convert.completions_to_replies(enumerate(found), limit))
    assert [c.index for reply in replies for c in reply.completions] == list(range(len(found)))
    assert all(reply.ByteSize() <= limit or len(reply.completions) == 1 for reply in replies)
    for one, other in itertools.pairwise(replies):  # no more messages than needed, but for what framing may take
        assert one.ByteSize() + other.completions[0].ByteSize() + 16 * (len(one.completions) + 1) > limit


@given(completions(), U32)
def test_completions_round_trip(completion, index):
    data = convert.completion_to_message(index, completion).SerializeToString()
    message = pb.Completion.FromString(data)
    back = convert.message_to_completion(message)
    assert message.index == index and back.finish_reason == completion.finish_reason
    for field in ("tokens", "logprobs", "mask", "policy_versions"):
        ours, theirs = getattr(completion, field), getattr(back, field)
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)
    for ours, theirs in ((completion.experts, back.experts), (completion.support, back.support)):
        assert (ours is None) == (theirs is None)
        if ours is not None and theirs is not None:
            assert ours.dtype == theirs.dtype
            np.testing.assert_array_equal(ours, theirs)


@given(
    prompt=st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=32),
    stop=st.lists(st.integers(0, 2**31 - 1), max_size=3),
    group_size=st.integers(1, 2**31),
    seed=U32,
    step=U32,
    temperature=st.floats(1e-6, 1e6),
    top_p=st.floats(1e-6, 1),
    max_tokens=st.integers(1, 32),
    turn=U32,
    first_rollout=st.integers(0, 2**31),
    data=st.data(),
)
def test_requests_round_trip(
    prompt, stop, group_size, seed, step, temperature, top_p, max_tokens, turn, first_rollout, data
):
    params = SamplingParams(temperature, top_p, max_tokens, top_k=max_tokens - 1)
    budgets = None
    if group_size <= 8:
        budgets = tuple(data.draw(st.lists(st.integers(1, max_tokens), min_size=group_size, max_size=group_size)))
    asked = SampleRequest(
        "id",
        np.array(prompt, np.int32),
        group_size,
        seed=seed,
        step=step,
        stop_tokens=tuple(stop),
        params=params,
        budgets=budgets,
        first_rollout=first_rollout,
        turn=turn,
    )
    message = convert.request_to_message(asked, group_id="g", session="", policy_version=0)
    message = pb.SampleRequest.FromString(message.SerializeToString())
    got = checked_request(message, FACTS)
    assert message.group_id == "g" and (got.problem_id, got.seed, got.step) == ("id", seed, step)
    assert (got.group_size, got.params, got.stop_tokens) == (group_size, params, tuple(stop))
    assert (got.budgets, got.first_rollout, got.turn) == (budgets, first_rollout, turn)
    np.testing.assert_array_equal(got.prompt_tokens, prompt)
    assert message.HasField("session") and message.HasField("policy_version")


def test_what_is_absent_has_its_meaning():
    message = pb.SampleRequest(group_id="g", prompt_tokens=[1, 2, 3], group_size=1)
    first, second = (checked_request(message, FACTS) for _ in range(2))
    assert first.params == SamplingParams(1.0, 1.0, 61)  # as long as the model holds
    assert first.seed != second.seed  # fresh ones, of 2^32
    assert checked_request(pb.SampleRequest(**{**_fields(message), "seed": 0}), FACTS).seed == 0


def _fields(message):
    return {"group_id": message.group_id, "prompt_tokens": message.prompt_tokens, "group_size": message.group_size}


WHOLE = {"tokens": [1, 2], "logprobs": [0.0, 0.0], "spans": [pb.VersionSpan(length=2)]}


@pytest.mark.parametrize(
    "fields",
    [
        {"tokens": [1, 2], "logprobs": [0.0], "spans": [pb.VersionSpan(length=2)]},
        {"tokens": [1, 2], "logprobs": [0.0, 0.0], "spans": [pb.VersionSpan(length=1)]},
        {"tokens": [1, 2], "logprobs": [0.0, 0.0], "spans": [pb.VersionSpan(length=2)], "finish_reason": 0},
        {**WHOLE, "experts": b"123", "expert_layers": 1, "experts_per_token": 1},
        {**WHOLE, "experts": b"1234"},
        {**WHOLE, "support": b"1234", "support_width": 1},
        {},
    ],
)
def test_completions_that_do_not_fit_together(fields):
    with pytest.raises(ValueError, match="completion 3"):
        convert.message_to_completion(pb.Completion(index=3, **({"finish_reason": 1} | fields)))


BOXES = st.builds(
    pb.Box,
    tensor=U32,
    offset=st.lists(st.integers(-(2**63), 2**63 - 1), max_size=3),
    shape=st.lists(st.integers(0, 300), max_size=3),
)


def parsed(data: bytes):
    """(box, data, checksum) of a chunk, another message, or the kind of error: by chunks and by protobuf."""

    def ours():
        message = convert.read_request(data)
        if isinstance(message, convert.Chunk):
            return message.box, bytes(message.data), message.checksum
        return message

    def theirs():
        message = pb.UpdateWeightsRequest.FromString(data)
        if message.WhichOneof("part") == "chunk":
            return message.chunk.box, message.chunk.data, message.chunk.checksum
        return message

    results = []
    for read in (ours, theirs):
        try:
            results.append(read())
        except DecodeError:
            results.append(DecodeError)
    return results


@settings(max_examples=300)
@given(BOXES, st.binary(max_size=300), st.integers(0, 2**64 - 1))
def test_chunks_are_written_as_protobuf_reads_them(box, data, checksum):
    written = convert.write_chunk(box, memoryview(data), checksum)
    ours, theirs = parsed(written)
    assert ours == theirs == (box, data, checksum)


@settings(max_examples=500)
@given(BOXES, st.binary(max_size=40), st.integers(0, 2**64 - 1), st.data())
def test_chunks_are_read_as_protobuf_reads_them(box, data, checksum, draw):
    message = pb.UpdateWeightsRequest(chunk=pb.WeightChunk(box=box, data=data, checksum=checksum))
    whole = bytearray(message.SerializeToString())
    change = draw.draw(st.sampled_from(["none", "cut", "flip", "append", "insert", "twice"]))
    at = draw.draw(st.integers(0, max(len(whole) - 1, 0)))
    match change:
        case "cut":
            whole = whole[:at]
        case "flip" if whole:
            whole[at] ^= 1 << draw.draw(st.integers(0, 7))
        case "append":
            whole += draw.draw(st.binary(max_size=12))
        case "insert":
            whole[at:at] = draw.draw(st.binary(max_size=12))
        case "twice":
            whole += bytes(whole)
    ours, theirs = parsed(bytes(whole))
    assert ours == theirs
