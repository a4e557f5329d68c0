"""A thousand messages that are wrong, on every method: each gets a status with a message, and the server serves on."""

import random

import grpc
import numpy as np
import pytest

from isocompute_jax.service.proto import sampler_pb2 as pb
from isocompute_jax.service.server.refusals import SERVICE
from tests.service import builders
from tests.service.builders import Probe, arrays, chunk, end, header, request, serving, update

EACH = 250
STATUSES = {
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.DATA_LOSS,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
}
UNKNOWN_FIELD = b"\xfa\x7f\x03abc"  # number 2047, length-delimited


async def call(client, method: str, messages: list[bytes], *, token: str = "secret") -> grpc.StatusCode | None:
    """Calls a method with raw bytes; the status when it is an error, which must have a message."""
    path = f"/{SERVICE}/{method}"
    try:
        if method == "Sample":
            [data] = messages
            async for _ in client.channel.unary_stream(path)(data, timeout=10):
                pass
        elif method == "UpdateWeights":
            await client.stream(method, messages, token=token)
        else:
            [data] = messages
            await client.channel.unary_unary(path)(data, timeout=10)
    except grpc.RpcError as error:
        assert error.details(), error
        assert error.code() in STATUSES, error
        return error.code()
    return None


def mutated(source: random.Random, data: bytes) -> bytes:
    """Bytes with a few changed, cut off, repeated or put in."""
    changed = bytearray(data)
    for _ in range(source.randint(1, 4)):
        at = source.randrange(len(changed) + 1)
        match source.randrange(4):
            case 0 if at < len(changed):
                changed[at] = source.randrange(256)
            case 1:
                del changed[at:]
            case 2:
                changed[at:at] = source.randbytes(source.randint(1, 9))
            case _:
                changed += changed[at:]
    return bytes(changed)


def bad_fields(source: random.Random) -> pb.SampleRequest:
    """A request that has at least one field wrong."""
    wrong = [
        {"group_id": ""},
        {"group_size": source.choice([0, 1025, 2**32 - 1])},
        {"prompt_tokens": []},
        {"prompt_tokens": [source.randint(32, 2**32 - 1)]},
        {"prompt_tokens": [1] * source.randint(4096, 9000)},
        {"temperature": source.choice([0.0, -1.0, float("nan"), -float("inf")])},
        {"top_p": source.choice([0.0, -0.1, 1.0000001, float("nan"), float("inf")])},
        {"max_tokens": source.choice([0, 4095, 2**32 - 1])},
        {"stop_token_ids": [0, source.randint(32, 2**32 - 1)]},
        {"session": "another"},
        {"policy_version": source.choice([-1, 7, 2**63 - 1, -(2**63)])},
    ]
    fields = {}
    for choice in source.sample(wrong, source.randint(1, 3)):
        fields |= choice
    return request(**fields)


@pytest.fixture
def settings(tmp_path):
    return builders.secured(tmp_path, "secret")


async def serves_on(engine, client):
    """Old weights are there, and groups are sampled."""
    assert engine.version == 0 and not engine.files
    assert len(await client.sample(group_id="after")) == 2
    assert not list((await client.status()).tensors)


async def test_wrong_fields(settings):
    source = random.Random(0)
    engine = Probe()
    async with serving(engine, **settings) as (_, client):
        for _ in range(EACH):
            data = bad_fields(source).SerializeToString()
            if source.random() < 0.5:
                data += UNKNOWN_FIELD
            status = await call(client, "Sample", [data])
            assert status in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION)
        await serves_on(engine, client)


@pytest.mark.parametrize("method", ["Sample", "UpdateWeights", "Status", "Cancel"])
async def test_bytes_that_are_no_message_or_another(settings, method):
    source = random.Random(1)
    good = {
        "Sample": request(group_size=2, max_tokens=3, seed=1).SerializeToString(),
        "Status": pb.StatusRequest(tensors=True).SerializeToString(),
        "Cancel": pb.CancelRequest(group_ids=["a", "b"]).SerializeToString(),
    }
    engine = Probe(slots=4096)
    async with serving(engine, **settings) as (_, client):
        statuses = set()
        for _ in range(EACH):
            if method == "UpdateWeights":  # a header and chunks, of which one is damaged or missing
                messages = [message.SerializeToString() for message in update(arrays(2), version=2)]
                at = source.randrange(len(messages))
                changed = mutated(source, messages[at]) if source.random() < 0.7 else b""
                messages[at : at + 1] = [changed] if changed else []
                statuses.add(await call(client, method, messages))
            elif source.random() < 0.3:
                statuses.add(await call(client, method, [source.randbytes(source.randint(1, 200))]))
            else:
                statuses.add(await call(client, method, [mutated(source, good[method])]))
        assert grpc.StatusCode.INVALID_ARGUMENT in statuses
        assert (await client.status()).serving
        assert len(await client.sample(group_id="after")) == 2


async def test_oversized_messages(settings):
    engine = Probe()
    async with serving(engine, **settings) as (_, client):
        large = b"\0" * (2 << 20)
        for method in ("Sample", "UpdateWeights", "Status", "Cancel"):
            assert await call(client, method, [large]) == grpc.StatusCode.RESOURCE_EXHAUSTED
        big = chunk(0, np.zeros((2 << 19,), np.uint32)).SerializeToString()
        first = header().SerializeToString()
        assert await call(client, "UpdateWeights", [first, big]) == grpc.StatusCode.RESOURCE_EXHAUSTED
        await serves_on(engine, client)


async def test_wrong_parts_of_weights(settings):
    source = random.Random(3)

    def number():
        return source.choice([-1, 0, 1, 3, 7, 2**31, 2**63 - 1, -(2**63)])

    engine = Probe()
    async with serving(engine, **settings) as (_, client):
        for _ in range(EACH):
            size = source.randint(0, 3)
            box = pb.Box(
                tensor=source.choice([0, 1, 2, 3, 4, 2**32 - 1]),
                offset=[number() for _ in range(size)],
                shape=[number() for _ in range(size)],
            )
            data = source.randbytes(source.choice([0, 2, 4, 48]))
            part = source.choice(
                [
                    pb.UpdateWeightsRequest(chunk=pb.WeightChunk(box=box, data=data)),
                    pb.UpdateWeightsRequest(
                        manifest=pb.Manifest(path="/etc/passwd", size=number(), boxes=[box], starts=[number()])
                    ),
                    end(number()),
                    header(),
                    pb.UpdateWeightsRequest(),
                ]
            )
            messages = [header(), part, end(len(data))]
            status = await call(client, "UpdateWeights", [message.SerializeToString() for message in messages])
            assert status in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.DATA_LOSS)
        await serves_on(engine, client)
