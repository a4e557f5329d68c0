"""Weights in files that the server reads itself: used in place, copied, or refused."""

import asyncio
import os

import grpc
import pytest
import xxhash

from isocompute_jax.service.proto import sampler_pb2 as pb
from isocompute_jax.service.weights import check
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
    run,
    serves,
    serving,
    staged,
    update,
)

Code = grpc.StatusCode
FIRST = arrays(1)


def test_a_whole_file_is_used_in_place(tmp_path):
    async def test():
        engine = Probe()
        async with serving(engine, tmp_path) as (_, client):
            path = tmp_path / "pushed"
            await client.update([header(version=2), manifest(path, arrays(2)), end(manifest_bytes())])
            assert engine.files[-1].path.startswith("/proc/")  # the file that was checked, whatever its name is by now
            assert not os.path.exists(engine.files[-1].path)  # closed
            assert staged(tmp_path) == []
            await serves(engine, client, arrays(2), 2)

    run(test())


def test_a_part_of_a_file_is_copied(tmp_path):
    async def test():
        engine, values = Probe(), arrays(2)
        async with serving(engine, tmp_path) as (_, client):
            # Sender 0 has columns 1.. of `embed` and one of two experts in a file; sender 1 sends the rest.
            data = values[0][:, 1:].tobytes() + values[3][1:].tobytes()
            (tmp_path / "pushed").write_bytes(b"xy" + data)
            part = pb.Manifest(
                path=str(tmp_path / "pushed"),
                size=2 + len(data),
                checksum=xxhash.xxh3_64_intdigest(b"xy" + data),
                boxes=[
                    pb.Box(tensor=0, offset=[0, 1], shape=[6, 3]),
                    pb.Box(tensor=3, offset=[1, 0, 0], shape=[1, 3, 4]),
                ],
                starts=[2, 2 + 36],
            )
            rest = [
                chunk(0, values[0][:, :1]),
                chunk(1, values[1]),
                chunk(2, values[2]),
                chunk(3, values[3][:1]),
            ]
            await asyncio.gather(
                client.update([header(version=2, senders=2), pb.UpdateWeightsRequest(manifest=part), end(len(data))]),
                client.update([header(version=2, sender=1, senders=2), *rest, end(manifest_bytes() - len(data))]),
            )
            assert engine.files[-1].path != part.path
            await serves(engine, client, values, 2)

    run(test())


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
def test_a_bad_manifest_leaves_the_old_weights(tmp_path, change, code, words):
    (tmp_path / "weights").mkdir()

    async def test():
        engine = Probe()
        async with serving(engine, tmp_path / "weights") as (_, client):
            await client.update(update(FIRST, version=1))
            if callable(change):
                message = change(tmp_path, arrays(2))
            else:
                message = manifest(tmp_path / "weights" / "pushed", arrays(2), **change)
            await refused(client.update([header(version=2), message, end(manifest_bytes())]), code, words)
            await serves(engine, client, FIRST, 1)

    run(test())


def test_files_and_parts_beyond_the_models_are_refused_before_they_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(check, "MOST_BOXES", 3)

    async def test():
        async with serving(Probe(), tmp_path) as (_, client):
            sparse = tmp_path / "sparse"
            with open(sparse, "wb") as file:
                file.truncate(1 << 40)
            message = pb.UpdateWeightsRequest(manifest=pb.Manifest(path=str(sparse), size=1 << 40))
            words = "a file of 1099511627776 bytes"
            await refused(client.update([header(version=2), message, end(0)]), Code.INVALID_ARGUMENT, words)
            one = pb.Box(tensor=0, offset=[0, 0], shape=[1, 1])
            message = pb.UpdateWeightsRequest(manifest=pb.Manifest(boxes=[one] * 13, starts=[0] * 13))
            await refused(
                client.update([header(version=2), message, end(0)]), Code.INVALID_ARGUMENT, "13 boxes; 12 are"
            )
            parts = [chunk(0, arrays(2)[0][:1, i : i + 1], [0, i]) for i in range(4)]
            await refused(client.update([header(version=2), *parts]), Code.INVALID_ARGUMENT, "in more than 3 parts")
            await refused(client.update([header([*TENSORS] * 3, version=2)]), Code.INVALID_ARGUMENT, "lists 12 tensors")

    run(test())
