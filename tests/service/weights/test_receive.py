"""Weights over a real channel: they arrive whole, or the old ones serve on, bit for bit."""

import asyncio
import os
import stat

import grpc
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isocompute_jax.records.errors import InputError
from isocompute_jax.records.tensors import TensorSpec
from isocompute_jax.service.proto import sampler_pb2 as pb
from isocompute_jax.service.weights.files import StagingArea
from tests import mains
from tests.service.builders import (
    TENSORS,
    Probe,
    arrays,
    chunk,
    end,
    header,
    manifest_bytes,
    refused,
    run,
    serves,
    serving,
    staged,
    token_file,
    update,
)

Code = grpc.StatusCode
FIRST = arrays(1)


def damaged(message):
    copy = pb.UpdateWeightsRequest.FromString(message.SerializeToString())
    copy.chunk.data = copy.chunk.data[:-1] + bytes([copy.chunk.data[-1] ^ 1])
    return copy


def boxed(tensor, offset, shape):
    return chunk(tensor, np.zeros(shape, np.uint16 if tensor in (0, 3) else np.uint32), offset)


SECOND = update(arrays(2), version=2)


LISTED = [pb.Tensor(name=t.name, dtype=t.dtype, shape=t.shape) for t in TENSORS]


def listing(tensors) -> list:
    return [pb.UpdateWeightsRequest(header=pb.WeightsHeader(version=2, senders=1, tensors=tensors))]


BAD = {
    "unknown name": (listing([pb.Tensor(name="extra"), *LISTED]), Code.INVALID_ARGUMENT, "'extra'"),
    "missing name": (listing(LISTED[:2] + LISTED[3:]), Code.INVALID_ARGUMENT, "'scale' is missing"),
    "name twice": (listing([*LISTED, LISTED[1]]), Code.INVALID_ARGUMENT, "'norm' is listed twice"),
    "shape": (
        listing([pb.Tensor(name="embed", dtype="bfloat16", shape=[4, 6]), *LISTED[1:]]),
        Code.INVALID_ARGUMENT,
        "'embed' has shape [4, 6]; the model's is [6, 4]",
    ),
    "dtype": (
        listing([pb.Tensor(name="embed", dtype="float16", shape=[6, 4]), *LISTED[1:]]),
        Code.INVALID_ARGUMENT,
        "'embed' has dtype 'float16'; the model's is 'bfloat16'",
    ),
    "no header": (SECOND[1:], Code.INVALID_ARGUMENT, "header"),
    "nothing": ([], Code.DATA_LOSS, "ended"),
    "empty message": ([pb.UpdateWeightsRequest()], Code.INVALID_ARGUMENT, "header"),
    "two headers": ([SECOND[0], *SECOND], Code.INVALID_ARGUMENT, "after the header"),
    "long session": ([header(session="a" * 9000)], Code.INVALID_ARGUMENT, "session has 9000"),
    "no senders": ([header(senders=0)], Code.INVALID_ARGUMENT, "senders = 0"),
    "sender": ([header(senders=2, sender=2)], Code.INVALID_ARGUMENT, "sender = 2"),
    "in_flight": ([header(in_flight=9)], Code.INVALID_ARGUMENT, "in_flight = 9"),
    "half": (SECOND[:3], Code.DATA_LOSS, "ended before its `end`"),
    "a tensor less": ([*SECOND[:3], *SECOND[4:]], Code.DATA_LOSS, "sent"),
    "a tensor less, told": ([*SECOND[:4], end(48 + 20 + 4)], Code.DATA_LOSS, "'experts': 0 of its 24"),
    "damaged": ([SECOND[0], damaged(SECOND[1]), *SECOND[2:]], Code.DATA_LOSS, "'embed'"),
    "outside": ([SECOND[0], boxed(0, [5, 0], (2, 4))], Code.INVALID_ARGUMENT, "'embed'"),
    "far outside": ([SECOND[0], boxed(1, [2**63 - 1], (1,))], Code.INVALID_ARGUMENT, "'norm'"),
    "before": ([SECOND[0], boxed(1, [-1], (2,))], Code.INVALID_ARGUMENT, "'norm'"),
    "rank": ([SECOND[0], boxed(1, [0, 0], (5, 1))], Code.INVALID_ARGUMENT, "'norm'"),
    "empty box": ([SECOND[0], boxed(1, [0], (0,))], Code.INVALID_ARGUMENT, "'norm'"),
    "no such tensor": ([SECOND[0], boxed(4, [0], (1,))], Code.INVALID_ARGUMENT, "tensor 4"),
    "overlap": (
        [header(version=2), boxed(1, [0], (3,)), boxed(1, [2], (2,)), *SECOND[1:2], *SECOND[3:5], end(96 + 24)],
        Code.INVALID_ARGUMENT,
        "'norm': parts of it overlap",
    ),
    "too much": ([*SECOND[:-1], SECOND[1]], Code.INVALID_ARGUMENT, "'embed': parts of it overlap"),
    "size": (
        [SECOND[0], pb.UpdateWeightsRequest(chunk=pb.WeightChunk(box=SECOND[1].chunk.box, data=b"123"))],
        Code.INVALID_ARGUMENT,
        "3 bytes, its box 48",
    ),
}


@pytest.mark.parametrize("name", BAD)
async def test_a_bad_update_leaves_the_old_weights(tmp_path, name):
    messages, code, words = BAD[name]
    engine = Probe()
    async with serving(engine, tmp_path) as (_, client):
        await client.update(update(FIRST, version=1))
        await refused(client.update(messages), code, words)
        await serves(engine, client, FIRST, 1)
        await client.update(update(arrays(3), version=3))
        await serves(engine, client, arrays(3), 3)
    assert os.listdir(tmp_path) == []


async def test_headers_may_list_tensors_in_any_order(tmp_path):
    engine, values, order = Probe(), arrays(2), [2, 0, 3, 1]
    async with serving(engine, tmp_path) as (_, client):
        messages = [
            header([TENSORS[i] for i in order], version=2),
            *(chunk(place, values[i]) for place, i in enumerate(order)),
            end(manifest_bytes()),
        ]
        reply = await client.update(messages)
        assert reply.version == 2 and 0 <= reply.paused_s <= reply.apply_s
        await serves(engine, client, values, 2)


@st.composite
def cuts(draw, shape: tuple[int, ...]) -> list[tuple[list[int], list[int]]]:
    """Boxes (offset, shape) that tile a tensor."""
    boxes = [([0] * len(shape), list(shape))]
    for _ in range(draw(st.integers(0, 4)) if shape else 0):
        offset, size = boxes.pop(draw(st.integers(0, len(boxes) - 1)))
        axis = draw(st.integers(0, len(shape) - 1))
        at = draw(st.integers(0, size[axis]))
        for low, length in ((0, at), (at, size[axis] - at)):
            if length:
                boxes.append(
                    (
                        [o + low * (i == axis) for i, o in enumerate(offset)],
                        [length if i == axis else s for i, s in enumerate(size)],
                    )
                )
    return boxes


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_any_cut_in_any_order_from_any_senders_arrives(tmp_path_factory, data):
    values, senders = arrays(4), data.draw(st.integers(1, 3))
    pieces = [(i, *box) for i, tensor in enumerate(TENSORS) for box in data.draw(cuts(tensor.shape))]
    pieces = data.draw(st.permutations(pieces))
    parts = [[header(version=2, sender=k, senders=senders)] for k in range(senders)]
    sizes = [0] * senders
    for i, offset, shape in pieces:
        index = tuple(slice(o, o + s) for o, s in zip(offset, shape, strict=True))
        k = data.draw(st.integers(0, senders - 1))
        parts[k].append(chunk(i, values[i][index], offset))
        sizes[k] += values[i][index].nbytes

    async def test():
        engine = Probe()
        async with serving(engine, tmp_path_factory.mktemp("weights")) as (_, client):
            replies = await asyncio.gather(
                *(client.update([*part, end(size)]) for part, size in zip(parts, sizes, strict=True))
            )
            assert [reply.version for reply in replies] == [2] * senders
            assert len(engine.files) == 1
            await serves(engine, client, values, 2)

    run(test())


@pytest.mark.parametrize("how", ["breaks", "half", "damaged", "twice", "disagrees", "silent", "absent"])
async def test_one_bad_sender_ends_the_update_for_all(tmp_path, how):
    engine = Probe()
    timeout_s = 0.3 if how in ("silent", "absent") else 60.0
    async with serving(engine, tmp_path, peer_timeout_s=timeout_s) as (server, client):
        await client.update(update(FIRST, version=1))
        good = asyncio.create_task(client.update(update(arrays(2), version=2, sender=0, senders=2)))
        while server.servicer.updates.senders < 1:
            await asyncio.sleep(0)
        other = update(arrays(2), version=2, sender=1, senders=2)
        code, words = Code.DATA_LOSS, ""
        if how == "breaks":
            call = client.stub.UpdateWeights()
            await call.write(other[0])
            await call.write(other[1])
            while server.servicer.updates.senders < 2:
                await asyncio.sleep(0)
            call.cancel()  # which the server meets as a broken call, or as the end of the stream
        elif how == "half":
            await refused(client.update(other[:2]), code, words := "ended before")
        elif how == "damaged":
            await refused(client.update([other[0], damaged(other[1]), *other[2:]]), code, words := "checksum")
        elif how == "twice":
            code, words = Code.INVALID_ARGUMENT, "sender 0"
            again = client.update(update(arrays(2), version=2, sender=0, senders=2))
            await refused(again, code, words)
        elif how == "disagrees":
            code, words = Code.INVALID_ARGUMENT, "do not agree"
            await refused(client.update([header(version=2, sender=1, senders=3)]), code, words)
        elif how == "silent":
            call = client.stub.UpdateWeights()
            await call.write(other[0])
            await refused(call, code, words := "waited 0.3 s")
        else:
            words = "waited 0.3 s for the other senders of version 2"
        await refused(good, code, words)
        await serves(engine, client, FIRST, 1)
        await asyncio.gather(*(client.update(update(arrays(5), version=2, sender=k, senders=2)) for k in range(2)))
        await serves(engine, client, arrays(5), 2)


async def test_a_newer_update_takes_the_place_of_one_that_is_collected(tmp_path):
    engine = Probe()
    async with serving(engine, tmp_path) as (_, client):
        old = client.stub.UpdateWeights()
        for message in update(arrays(2), version=2)[:2]:
            await old.write(message)
        while not staged(tmp_path):  # its first chunk is there
            await asyncio.sleep(0)
        await client.update(update(arrays(3), version=3))
        await refused(old, Code.ABORTED, "version 3 took its place")
        await serves(engine, client, arrays(3), 3)


async def test_an_update_that_is_applied_is_not_disturbed(tmp_path):
    engine = Probe()
    engine.may_update.clear()
    async with serving(engine, tmp_path) as (_, client):
        first = client.stub.UpdateWeights(iter(update(arrays(2), version=2)))
        await engine.updating.wait()
        second = asyncio.create_task(client.update(update(arrays(3), version=3)))
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        assert (await client.status()).version == 0
        engine.may_update.set()
        assert (await second).version == 3
        assert [file.starts for file in engine.files] == [engine.files[0].starts] * 2
        await serves(engine, client, arrays(3), 3)


async def test_the_token_comes_first(tmp_path):
    token = token_file(tmp_path / "token", "s3cret\n")
    engine = Probe()
    (tmp_path / "weights").mkdir()
    async with serving(engine, tmp_path / "weights", token_file=token) as (_, client):
        for wrong in ("", "s3cre", "s3cret2", "S3CRET"):
            # Not even the header is looked at: it would be refused otherwise.
            await refused(client.update([header(senders=0)], token=wrong), Code.UNAUTHENTICATED, "token")
        await client.update(update(arrays(2), version=2), token="s3cret")
        await serves(engine, client, arrays(2), 2)


async def test_files_are_private_reused_and_removed(tmp_path):
    engine = Probe()
    async with serving(engine, tmp_path) as (_, client):
        for version in (1, 2, 3):
            await client.update(update(arrays(version), version=version))
        assert len({file.path for file in engine.files}) == 1
        [path] = staged(tmp_path)
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert os.listdir(tmp_path) == []


def test_files_of_dead_processes_are_swept(tmp_path):
    program = f"""
import os
from isocompute_jax.service.weights.files import StagingArea
from isocompute_jax.records.tensors import TensorSpec
StagingArea({str(tmp_path)!r}, [TensorSpec("t", "float32", (3,))]).take()
os._exit(0)
"""
    assert mains.run("-c", [program]).returncode == 0
    [dead] = staged(tmp_path)
    (tmp_path / "someone else's").touch()
    living = StagingArea(str(tmp_path), TENSORS)
    kept = living.take().file.path
    StagingArea(str(tmp_path), TENSORS).close()
    assert staged(tmp_path) == [kept] != [dead]
    living.close()
    assert os.listdir(tmp_path) == ["someone else's"]


def test_a_folder_that_cannot_be_used_is_named(tmp_path):
    with pytest.raises(InputError, match=r"--weights_dir=.*nowhere"):
        StagingArea(str(tmp_path / "nowhere"), TENSORS)


async def test_no_room_is_said_and_the_old_weights_serve_on(tmp_path):
    engine = Probe((*TENSORS, TensorSpec("huge", "float32", (2**40,))))
    async with serving(engine, tmp_path) as (_, client):
        messages = [header(engine.facts.tensors), chunk(0, FIRST[0])]
        await refused(client.update(messages), Code.RESOURCE_EXHAUSTED, "cannot stage")
        assert await client.sample()
        assert staged(tmp_path) == []
