"""Weights out: what is laid down, how it is cut, and that a real server puts it together bit for bit."""

import asyncio
import os
import pathlib
import re
import stat

import jax
import pytest
import xxhash

from benchmarks.simulated_engine import SimulatedEngine
from isocompute_jax import model, sharding
from isocompute_jax.model import hf_boxes, hf_tensors
from isocompute_jax.records.errors import InputError, RunError
from isocompute_jax.service.client import connection
from isocompute_jax.service.client.connection import Endpoint, update_calls
from isocompute_jax.service.client.service_config import ServiceConfig
from isocompute_jax.service.proto import sampler_pb2 as pb
from isocompute_jax.service.weights import files
from isocompute_jax.service.weights.files import Outbox, file_layout
from tests import mains
from tests.model.tiny import random_params, tiny_config
from tests.service.fleet_builders import CONFIG, live, tensors


def wanted_file(config, params) -> bytes:
    """All tensors as `file_layout` says, from the one-host export."""
    starts, size = file_layout(tensors(config))
    data = bytearray(size)
    for start, (_, tensor) in zip(starts, hf_tensors(config, params), strict=True):
        data[start : start + tensor.nbytes] = tensor.tobytes()
    return bytes(data)


def without_padding(config, data: bytes) -> list[bytes]:
    starts, _ = file_layout(tensors(config))
    return [data[start : start + tensor.nbytes] for start, tensor in zip(starts, tensors(config), strict=True)]


def make_outbox(directory, config=CONFIG, **changes) -> Outbox:
    return Outbox(str(directory), **{"run": "run", "tensors": tensors(config), "whole": True, **changes})


def push_all(server, *batches) -> list[pb.UpdateWeightsReply]:
    """Pushes at the same time, each over connections of its own."""

    async def run():
        endpoints = [Endpoint(server.address, ServiceConfig()) for _ in batches]
        try:
            return await asyncio.gather(
                *(end.push(calls, sent=lambda: None) for end, calls in zip(endpoints, batches, strict=True))
            )
        finally:
            for endpoint in endpoints:
                await endpoint.close()

    return asyncio.run(run())


def calls_of(parcel, **changes):
    settings = {"session": "s", "in_flight": pb.IN_FLIGHT_ABORT, "shared": False, "streams": 2}
    return update_calls(parcel, **settings | changes)


@pytest.mark.parametrize("mesh_axes", [None, dict(fsdp=2, tensor=4)])
def test_a_whole_models_file_is_laid_out_as_servers_read_it(tmp_path, mesh_axes):
    params = random_params(CONFIG)
    where = None if mesh_axes is None else model.param_shardings(CONFIG, sharding.make_mesh(**mesh_axes))
    sharded = params if where is None else jax.device_put(params, where)
    outbox = make_outbox(tmp_path)
    parcel = outbox.write(hf_boxes(CONFIG, sharded), version=1)
    with open(parcel.path, "rb") as file:
        content = file.read()
    assert content == bytes(parcel.data) == wanted_file(CONFIG, params)
    assert parcel.checksum == xxhash.xxh3_64_intdigest(content)
    assert stat.S_IMODE(os.stat(parcel.path).st_mode) == 0o600
    assert [box.shape for box in parcel.boxes] == [tensor.shape for tensor in tensors()]
    outbox.close()
    assert os.listdir(tmp_path) == []


def test_two_files_in_turn_and_the_last_parcel_stays_whole(tmp_path):
    outbox = make_outbox(tmp_path)
    versions = [random_params(CONFIG, seed) for seed in range(4)]
    parcels = []
    for version, params in enumerate(versions):
        parcels.append(outbox.write(hf_boxes(CONFIG, params), version=version))
        for parcel in parcels[-2:]:
            assert bytes(parcel.data) == wanted_file(CONFIG, versions[parcel.version])
    assert len({parcel.path for parcel in parcels}) == 2
    assert parcels[2].path == parcels[0].path
    outbox.close()


def left_by_a_killed_learner(directory, run: str) -> pathlib.Path:
    """The file that a learner leaves when it is killed."""
    program = f"""
import os
import numpy as np
from isocompute_jax.records.tensors import TensorSpec
from isocompute_jax.service.weights import files
tensor = TensorSpec("t", "float32", (3,))
parcel = files.Outbox({str(directory)!r}, run={run!r}, tensors=[tensor], whole=True).write(
    [(tensor.box, np.zeros(3, np.float32))], version=1
)
print(parcel.path, flush=True)
os._exit(0)
"""
    done = mains.run("-c", [program])
    assert done.returncode == 0, done.stderr
    return pathlib.Path(done.stdout.strip())


def test_a_restart_empties_the_folder_of_the_same_run_alone(tmp_path):
    other = left_by_a_killed_learner(tmp_path, "other")
    stale = left_by_a_killed_learner(tmp_path, "run")
    outbox = make_outbox(tmp_path)
    with pytest.raises(RunError, match="'run' is alive"):
        make_outbox(tmp_path)
    assert not stale.exists() and other.exists()
    again = outbox.write(hf_boxes(CONFIG, random_params(CONFIG)), version=1)
    assert os.path.dirname(again.path) == os.fspath(stale.parent)
    outbox.close()
    assert os.listdir(tmp_path) == [other.parent.name]


def test_what_killed_learners_left_in_memory_is_swept_away(tmp_path, monkeypatch):
    left = left_by_a_killed_learner(tmp_path, "dead")
    alive = make_outbox(tmp_path, run="alive")
    kept = alive.write(hf_boxes(CONFIG, random_params(CONFIG)), version=1)
    assert left.exists()
    monkeypatch.setattr(files, "LOCAL", str(tmp_path))  # where no other machine's learner can be alive
    other = make_outbox(tmp_path, run="other")
    assert os.path.exists(kept.path) and not left.parent.exists()
    for outbox in (alive, other):
        outbox.close()
    assert os.listdir(tmp_path) == []


def test_no_folder_is_an_error_that_names_the_field(tmp_path):
    with pytest.raises(InputError, match=re.escape("config.service.shared_dir")):
        make_outbox(tmp_path / "nowhere")


def test_a_folder_of_another_user_is_not_used(tmp_path, monkeypatch):
    other = os.getuid() + 1
    monkeypatch.setattr(os, "getuid", lambda: other)
    with pytest.raises(InputError, match="belongs to another user"):
        make_outbox(tmp_path)


def test_no_room_is_said(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    outbox = make_outbox(tmp_path)
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(RunError, match="No space left"):
        outbox.write(hf_boxes(CONFIG, random_params(CONFIG)), version=1)
    outbox.close()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("shared", [True, False])
def test_a_server_gets_every_bit(tmp_path, monkeypatch, dtype, shared):
    monkeypatch.setattr(connection, "CHUNK_BYTES", 256)
    config = tiny_config(vocab_size=32, dtype=dtype)
    params = random_params(config)
    outbox = make_outbox(tmp_path, config)
    parcel = outbox.write(hf_boxes(config, params), version=3)
    with live(engine=SimulatedEngine(tensors(config)), weights_dir=str(tmp_path)) as [server]:
        [reply] = push_all(server, calls_of(parcel, shared=shared, streams=3))
    assert reply.version == 3 == server.engine.version
    assert without_padding(config, server.engine.weights) == without_padding(config, wanted_file(config, params))
    outbox.close()


@pytest.mark.parametrize("shared", [(True, True), (True, False), (False, False)])
def test_two_hosts_each_send_their_shards(tmp_path, monkeypatch, shared):
    """Whatever way each of them sends; neither holds the whole model."""
    monkeypatch.setattr(connection, "CHUNK_BYTES", 256)
    params = random_params(CONFIG)
    mesh = sharding.make_mesh(fsdp=2, tensor=4)
    boxes = list(hf_boxes(CONFIG, jax.device_put(params, model.param_shardings(CONFIG, mesh))))
    outboxes = [make_outbox(tmp_path, run=f"run-{i}", whole=False) for i in range(2)]
    parcels = [outbox.write(boxes[i::2], version=1) for i, outbox in enumerate(outboxes)]
    whole = sum(tensor.nbytes for tensor in tensors())
    assert all(len(parcel.data) < 0.9 * whole for parcel in parcels)
    with live(engine=SimulatedEngine(tensors()), weights_dir=str(tmp_path)) as [server]:
        batches = [
            calls_of(parcel, shared=shared[i], process_index=i, process_count=2) for i, parcel in enumerate(parcels)
        ]
        push_all(server, *batches)
    assert without_padding(CONFIG, server.engine.weights) == without_padding(CONFIG, wanted_file(CONFIG, params))
    for outbox in outboxes:
        outbox.close()


def test_a_host_without_a_shard_of_its_own_sends_nothing(tmp_path):
    params = random_params(CONFIG)
    outboxes = [make_outbox(tmp_path, run=f"run-{i}", whole=False) for i in range(2)]
    parcels = [outboxes[0].write(hf_boxes(CONFIG, params), version=1), outboxes[1].write([], version=1)]
    with live(engine=SimulatedEngine(tensors()), weights_dir=str(tmp_path)) as [server]:
        for shared in (True, False):
            push_all(
                server, *(calls_of(p, shared=shared, process_index=i, process_count=2) for i, p in enumerate(parcels))
            )
    assert without_padding(CONFIG, server.engine.weights) == without_padding(CONFIG, wanted_file(CONFIG, params))
    for outbox in outboxes:
        outbox.close()


def test_calls_share_the_bytes_and_never_one_call_per_tensor(tmp_path):
    outbox = make_outbox(tmp_path)
    parcel = outbox.write(hf_boxes(CONFIG, random_params(CONFIG)), version=1)
    messages = [[pb.UpdateWeightsRequest.FromString(m) for m in call] for call in calls_of(parcel, streams=2)]
    headers = [call[0].header for call in messages]
    assert [(header.sender, header.senders) for header in headers] == [(0, 2), (1, 2)]
    assert sum(call[-1].end.bytes for call in messages) == sum(tensor.nbytes for tensor in tensors())
    for call in messages:
        for message in call[1:-1]:
            assert message.chunk.checksum == xxhash.xxh3_64_intdigest(message.chunk.data)
    outbox.close()
