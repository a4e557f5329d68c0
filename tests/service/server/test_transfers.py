"""Communicators that are asked for wrongly are refused, with the reason, and touch nothing."""

from typing import Any

import grpc
import pytest

from isocompute_jax.service.proto import convert
from isocompute_jax.service.proto import sampler_pb2 as pb
from tests.service.builders import TENSORS, Probe, arrays, chunk, end, header, refused, serving
from tests.service.receiving_engine import ReceivingSimulated

Code = grpc.StatusCode
RIGHT: dict[str, Any] = dict(
    transfer=1,
    unique_id=b"/nobody".ljust(128, b"\0"),
    world=3,
    tensors=convert.tensors_to_messages(TENSORS),
    buckets=[1, 3],
)


@pytest.mark.parametrize(
    ("wrong", "code", "said"),
    [
        ({"unique_id": b"short"}, Code.INVALID_ARGUMENT, "unique_id has 5 bytes; NCCL's have 128"),
        ({"world": 2}, Code.INVALID_ARGUMENT, "world = 2 must be 3: the learner and the engine's ranks"),
        ({"tensors": RIGHT["tensors"][:3]}, Code.INVALID_ARGUMENT, "'experts' is missing"),
        ({"buckets": [1, 2]}, Code.INVALID_ARGUMENT, "together the 4 that are listed"),
        ({"buckets": [0, 4]}, Code.INVALID_ARGUMENT, "each hold a tensor"),
        ({}, Code.FAILED_PRECONDITION, "no weights come by NCCL: the learner did not come"),
    ],
)
async def test_an_opening_that_is_wrong_is_refused(tmp_path, wrong, code, said):
    engine = ReceivingSimulated(TENSORS, devices=2, join_s=0.1)
    async with serving(engine, tmp_path) as (_, client):
        await refused(client.stub.OpenTransfer(pb.OpenTransferRequest(**RIGHT | wrong)), code, said)
        assert engine.opened == 0 and await client.sample()


async def test_an_engine_that_takes_none_says_so(tmp_path):
    async with serving(Probe(), tmp_path) as (_, client):
        said = "the engine simulated takes none by NCCL: send a file, or chunks"
        await refused(client.stub.OpenTransfer(pb.OpenTransferRequest(**RIGHT)), Code.FAILED_PRECONDITION, said)
        assert (await client.status()).nccl == ""


SENT = pb.UpdateWeightsRequest(device=pb.DeviceWeights(transfer=7))


@pytest.mark.parametrize(
    ("parts", "code", "said"),
    [
        ([header(), SENT, end(0)], Code.FAILED_PRECONDITION, "is not open any more: open another"),
        ([header(senders=2), SENT, end(0)], Code.INVALID_ARGUMENT, "one sender alone"),
        ([header(), chunk(1, arrays(1)[1]), SENT, end(20)], Code.INVALID_ARGUMENT, "need no other part"),
        ([header(), SENT, SENT, end(0)], Code.INVALID_ARGUMENT, "need no other part"),
    ],
)
async def test_weights_that_no_communicator_brings_are_refused(tmp_path, parts, code, said):
    engine = ReceivingSimulated(TENSORS, devices=2)
    async with serving(engine, tmp_path) as (server, client):
        await refused(client.update(parts), code, said)
        assert server.servicer.serving and (engine.received, engine.half_taken) == (0, 0)
