"""What a learner sends is checked: boxes cover the model, numbers are finite, a file is what its manifest says."""

import asyncio
import os

import grpc
import jax.numpy as jnp
import ml_dtypes  # noqa: F401  (numpy learns bfloat16)
import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from isocompute_jax.records.errors import RunError
from isocompute_jax.records.tensors import DTYPE_BYTES, Box, TensorSpec
from isocompute_jax.service.proto import sampler_pb2 as pb
from isocompute_jax.service.proto.terms import Refusal
from isocompute_jax.service.weights import check
from isocompute_jax.service.weights.check import Coverage, FiniteSpans, is_finite
from tests.service.builders import (
    TENSORS,
    Probe,
    arrays,
    chunk,
    end,
    header,
    manifest,
    manifest_bytes,
    refused,
    serves,
    serving,
    staged,
    update,
)
from tests.service.fleet_builders import fleet, live, params

Code = grpc.StatusCode
BITS = {"float32": np.uint32, "bfloat16": np.uint16, "float16": np.uint16}
FIRST = arrays(1)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(1, 2), st.integers(1, 2)), max_size=8))
def test_what_is_missing_and_what_came_twice_is_known(boxes):
    tensor = TensorSpec("t", "float32", (5, 5))
    counts, coverage, refusal = np.zeros((5, 5), int), Coverage([tensor]), None
    try:
        for row, column, height, width in boxes:
            counts[row : row + height, column : column + width] += 1
            coverage.add(Box("t", "float32", (height, width), (row, column)))
        coverage.check_complete()
    except Refusal as error:
        refusal = error
    if counts.max() > 1:
        assert refusal and refusal.code == grpc.StatusCode.INVALID_ARGUMENT and "overlap" in refusal.message
    else:
        assert counts.sum() < 25 and refusal and refusal.code == grpc.StatusCode.DATA_LOSS
        assert f"{counts.sum()} of its 25" in refusal.message


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_every_pattern_of_16_bits_is_judged_as_numpy_does(dtype):
    bits = np.arange(1 << 16, dtype=np.uint16)
    expected = np.isfinite(bits.view(dtype).astype(np.float32))
    data = bits.tobytes()
    assert [is_finite(data[2 * i : 2 * i + 2], dtype) for i in range(1 << 16)] == expected.tolist()


@given(st.lists(st.integers(0, 2**32 - 1), max_size=9))
def test_patterns_of_32_bits(patterns):
    bits = np.array(patterns, np.uint32)
    assert is_finite(bits.tobytes(), "float32") == np.isfinite(bits.view(np.float32)).all()


@settings(deadline=None)
@given(st.data())
def test_a_bad_number_is_found_in_whatever_box_and_block_it_lies(data):
    """Boxes one behind the other, with gaps, and blocks as `ManifestFile` reads them."""
    boxes, starts, at = [], [], 0
    for i in range(data.draw(st.integers(1, 5))):
        dtype = data.draw(st.sampled_from(sorted(DTYPE_BYTES)))
        at = -(-(at + data.draw(st.integers(0, 9))) // 4) * 4
        boxes.append(Box(str(i), dtype, (data.draw(st.integers(1, 9)),), (0,)))
        starts.append(at)
        at += boxes[-1].nbytes
    file = bytearray(b"\xff") * at  # what is in no box is not looked at
    for box, start in zip(boxes, starts, strict=True):
        file[start : start + box.nbytes] = bytes(box.nbytes)
    bad = data.draw(st.none() | st.integers(0, len(boxes) - 1))
    if bad is not None:
        size = DTYPE_BYTES[boxes[bad].dtype]
        place = starts[bad] + size * data.draw(st.integers(0, boxes[bad].shape[0] - 1))
        number = np.array([data.draw(st.sampled_from([np.nan, -np.nan, np.inf, -np.inf]))], boxes[bad].dtype)
        file[place : place + size] = number.tobytes()
    spans, width = FiniteSpans(boxes, starts), data.draw(st.sampled_from([4, 8, 16, 1024]))
    for start in range(0, at, width):
        spans.look(start, memoryview(file)[start : start + width])
    assert spans.bad == ("" if bad is None else str(bad))


@pytest.mark.parametrize("way", ["chunks", "manifest"])
@pytest.mark.parametrize("which", range(len(TENSORS)))
@pytest.mark.parametrize("number", [np.nan, -np.inf])
async def test_such_weights_are_refused_by_the_tensors_name_and_the_old_ones_serve_on(tmp_path, way, which, number):
    engine, values, tensor = Probe(), arrays(2), TENSORS[which]
    bits = np.array([number], tensor.dtype).view(BITS[tensor.dtype])
    values[which] = np.array(values[which])
    values[which].reshape(-1)[-1] = bits[0]
    async with serving(engine, tmp_path) as (_, client):
        await client.update(update(arrays(1), version=1))
        messages = update(values, version=2)
        if way == "manifest":
            messages = [header(version=2), manifest(tmp_path / "pushed", values), end(manifest_bytes())]
        await refused(client.update(messages), Code.INVALID_ARGUMENT, f"tensor {tensor.name!r} holds numbers that")
        await serves(engine, client, arrays(1), 1)


@pytest.mark.parametrize("push", ["auto", "stream"])
def test_a_learner_whose_weights_are_refused_for_it_ends_and_says_why(tmp_path, push):
    broken = {**params(2), "embed": jnp.full_like(params(2)["embed"], jnp.nan)}
    with (
        live(weights_dir=str(tmp_path)) as [server],
        fleet(server, directory=tmp_path, push=push) as sampler,
        pytest.raises(RunError, match=r"of version 0: tensor .* NaN .*Nothing was trained yet: look at .*config.model"),
    ):
        sampler.update_weights(broken, version=0)
    with live(weights_dir=str(tmp_path)) as [server], fleet(server, directory=tmp_path, push=push) as sampler:
        sampler.update_weights(params(), version=1)
        with pytest.raises(RunError, match=r"refuses the weights of version 2: tensor .* NaN .*Training has diverged"):
            sampler.update_weights(broken, version=2)
        assert server.engine.version == 1


async def test_a_whole_file_is_used_in_place(tmp_path):
    engine = Probe()
    async with serving(engine, tmp_path) as (_, client):
        path = tmp_path / "pushed"
        await client.update([header(version=2), manifest(path, arrays(2)), end(manifest_bytes())])
        assert engine.files[-1].path.startswith("/proc/")  # the file that was checked, whatever its name is by now
        assert not os.path.exists(engine.files[-1].path)  # closed
        assert staged(tmp_path) == []
        await serves(engine, client, arrays(2), 2)


async def test_a_part_of_a_file_is_copied(tmp_path):
    engine, values = Probe(), arrays(2)
    async with serving(engine, tmp_path) as (_, client):
        # Sender 0 has columns 1.. of `embed` and one of two experts in a file; sender 1 sends the rest.
        data = values[0][:, 1:].tobytes() + values[3][1:].tobytes()
        (tmp_path / "pushed").write_bytes(b"xy" + data)
        part = pb.Manifest(
            path=str(tmp_path / "pushed"),
            size=2 + len(data),
            checksum=xxhash.xxh3_64_intdigest(b"xy" + data),
            boxes=[pb.Box(tensor=0, offset=[0, 1], shape=[6, 3]), pb.Box(tensor=3, offset=[1, 0, 0], shape=[1, 3, 4])],
            starts=[2, 2 + 36],
        )
        rest = [chunk(0, values[0][:, :1]), chunk(1, values[1]), chunk(2, values[2]), chunk(3, values[3][:1])]
        await asyncio.gather(
            client.update([header(version=2, senders=2), pb.UpdateWeightsRequest(manifest=part), end(len(data))]),
            client.update([header(version=2, sender=1, senders=2), *rest, end(manifest_bytes() - len(data))]),
        )
        assert engine.files[-1].path != part.path
        await serves(engine, client, values, 2)


def outside(tmp_path, values):
    return manifest(tmp_path / "outside", values)


def link(tmp_path, values):
    message = manifest(tmp_path / "outside", values)
    (tmp_path / "weights" / "link").symlink_to(tmp_path / "outside")
    message.manifest.path = str(tmp_path / "weights" / "link")
    return message


def dots(tmp_path, values):
    message = manifest(tmp_path / "outside", values)
    message.manifest.path = str(tmp_path / "weights" / ".." / "outside")
    return message


def pipe(tmp_path, values):
    message = manifest(tmp_path / "outside", values)
    message.manifest.path = str(tmp_path / "weights" / "pipe")
    os.mkfifo(message.manifest.path)
    return message


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        (outside, Code.INVALID_ARGUMENT, "--weights_dir"),
        (link, Code.INVALID_ARGUMENT, "--weights_dir"),
        (dots, Code.INVALID_ARGUMENT, "--weights_dir"),
        (pipe, Code.DATA_LOSS, "not a file"),
        ({"path": "nowhere"}, Code.INVALID_ARGUMENT, "--weights_dir"),
        ({"path": ""}, Code.INVALID_ARGUMENT, "--weights_dir"),
        ({"path": "\0"}, Code.INVALID_ARGUMENT, "cannot be read"),
        ({"size": 10**6}, Code.DATA_LOSS, "1000000 bytes"),
        ({"checksum": 1}, Code.DATA_LOSS, "checksum"),
        ({"starts": [0, 64]}, Code.INVALID_ARGUMENT, "4 boxes have 2 starts"),
        ({"starts": [0, 64, 128, 10**6]}, Code.INVALID_ARGUMENT, "'experts'"),
        ({"starts": [0, 64, 129, 192]}, Code.INVALID_ARGUMENT, "'scale'"),
        ({"starts": [-2, 64, 128, 192]}, Code.INVALID_ARGUMENT, "'embed'"),
        ({"boxes": [pb.Box(tensor=0, offset=[0, 0], shape=[7, 4])], "starts": [0]}, Code.INVALID_ARGUMENT, "'embed'"),
    ],
)
async def test_a_bad_manifest_leaves_the_old_weights(tmp_path, change, code, words):
    (tmp_path / "weights").mkdir()
    engine = Probe()
    async with serving(engine, tmp_path / "weights") as (_, client):
        await client.update(update(FIRST, version=1))
        if callable(change):
            message = change(tmp_path, arrays(2))
        else:
            message = manifest(tmp_path / "weights" / "pushed", arrays(2), **change)
        await refused(client.update([header(version=2), message, end(manifest_bytes())]), code, words)
        await serves(engine, client, FIRST, 1)


async def test_files_and_parts_beyond_the_models_are_refused_before_they_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(check, "MOST_BOXES", 3)
    async with serving(Probe(), tmp_path) as (_, client):
        sparse = tmp_path / "sparse"
        with open(sparse, "wb") as file:
            file.truncate(1 << 40)
        message = pb.UpdateWeightsRequest(manifest=pb.Manifest(path=str(sparse), size=1 << 40))
        words = "a file of 1099511627776 bytes"
        await refused(client.update([header(version=2), message, end(0)]), Code.INVALID_ARGUMENT, words)
        one = pb.Box(tensor=0, offset=[0, 0], shape=[1, 1])
        message = pb.UpdateWeightsRequest(manifest=pb.Manifest(boxes=[one] * 13, starts=[0] * 13))
        await refused(client.update([header(version=2), message, end(0)]), Code.INVALID_ARGUMENT, "13 boxes; 12 are")
        parts = [chunk(0, arrays(2)[0][:1, i : i + 1], [0, i]) for i in range(4)]
        await refused(client.update([header(version=2), *parts]), Code.INVALID_ARGUMENT, "in more than 3 parts")
        await refused(client.update([header([*TENSORS] * 3, version=2)]), Code.INVALID_ARGUMENT, "lists 12 tensors")
