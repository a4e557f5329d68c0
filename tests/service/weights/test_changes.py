"""What changed of the weights: there and back, over a real channel, and wherever a server has lost its place."""

import asyncio
import dataclasses

import grpc
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.simulated_engine import SimulatedEngine
from isocompute_jax.model import hf_boxes
from isocompute_jax.service.client import connection
from isocompute_jax.service.client.connection import Endpoint
from isocompute_jax.service.client.service_config import ServiceConfig
from isocompute_jax.service.client.weight_sender import Sender
from isocompute_jax.service.proto import convert
from isocompute_jax.service.proto import sampler_pb2 as pb
from isocompute_jax.service.weights import files
from isocompute_jax.service.weights.changes import changed, changes
from tests.model.tiny import random_params, tiny_config
from tests.service.fleet_builders import live, tensors
from tests.service.weights.test_push import calls_of, make_outbox, push_all, wanted_file, without_padding

CONFIG = tiny_config(vocab_size=32, dtype="bfloat16")


@given(
    size=st.integers(1, 3000),
    share=st.sampled_from([0.0, 0.001, 0.02, 0.5]),
    seed=st.integers(0, 99),
    wide=st.booleans(),
)
def test_there_and_back(size, share, seed, wide):
    rng, dtype = np.random.default_rng(seed), np.uint32 if wide else np.uint16
    old = rng.integers(0, 1 << 16, size).astype(dtype)
    new = np.where(rng.random(size) < share, old ^ 1, old)
    found = changes(old, new)
    if found is not None:
        np.testing.assert_array_equal(changed(old, *found), new)
        assert found.nbytes < new.nbytes
    else:
        assert np.mean(old != new) > 0.2 or size < 4


def test_gaps_by_hand():
    old = np.zeros(1000, np.uint16)
    new = old.copy()
    new[[0, 3, 700]] = 7
    found = changes(old, new)
    assert found is not None
    # 700 is 697 numbers after 3: at 259 and 515 two that did not change are put in.
    assert found.gaps.tolist() == [0, 2, 255, 255, 184] and found.numbers.tolist() == [7, 7, 0, 0, 7]
    assert changes(old, new + 1) is None  # everything: the whole is smaller


@pytest.mark.parametrize("gaps", [[5, 4], [255]])
def test_changes_beyond_the_end_are_refused(gaps):
    with pytest.raises(ValueError, match="do not fit a box of 10"):
        changed(np.zeros(10, np.uint16), np.array(gaps, np.uint8), np.ones(len(gaps), np.uint16))


@pytest.mark.parametrize("gaps", [None, b"", b"\x00\x07"])
def test_a_chunk_is_read_as_protobuf_reads_it(gaps):
    box, data = pb.Box(tensor=3, offset=[1], shape=[2]), b"1234"
    view = None if gaps is None else memoryview(gaps)
    message = convert.write_chunk(box, memoryview(data), 99, view)
    parsed = pb.UpdateWeightsRequest.FromString(message)
    assert parsed == pb.UpdateWeightsRequest(chunk=pb.WeightChunk(box=box, data=data, checksum=99, gaps=gaps))
    for found in (convert.read_request(message), convert.read_request(parsed.SerializeToString() + b"")):
        assert isinstance(found, convert.Chunk)
        assert (None if found.gaps is None else bytes(found.gaps)) == gaps and bytes(found.data) == data


# --- over a channel


def steps(params, count, share=0.02):
    """Versions of the weights, each a little changed; some tensors in no number, one in all."""
    rng = np.random.default_rng(0)
    for _ in range(count):
        yield params
        params = jax.tree.map(lambda x: jnp.where(rng.random(x.shape) < share, x + 0.5, x).astype(x.dtype), params)
        params = {**params, "final_norm": params["final_norm"] + 1}


def sent_bytes(calls):
    return [sum(pb.UpdateWeightsRequest.FromString(message).end.bytes for message in call) for call in calls]


@pytest.fixture
def outbox(tmp_path, monkeypatch):
    monkeypatch.setattr(connection, "CHUNK_BYTES", 512)
    outbox = make_outbox(tmp_path, CONFIG)
    yield outbox
    outbox.close()


def test_a_server_gets_every_bit_of_a_row_of_changes(tmp_path, outbox):
    whole, sizes = sum(tensor.nbytes for tensor in tensors(CONFIG)), []
    with live(engine=SimulatedEngine(tensors(CONFIG)), weights_dir=str(tmp_path)) as [server]:
        for version, params in enumerate(steps(random_params(CONFIG), 5)):
            parcel = outbox.write(hf_boxes(CONFIG, params), version=version)
            sizes.append(sum(sent_bytes(calls_of(parcel, keep=True, base=version - 1))))
            push_all(server, calls_of(parcel, keep=True, base=version - 1 if version else None))
            expected = without_padding(CONFIG, wanted_file(CONFIG, params))
            assert without_padding(CONFIG, server.engine.weights) == expected
    assert sizes[0] == whole and max(sizes[1:]) < 0.2 * whole


@pytest.mark.parametrize(
    ("keep", "session", "base"),
    [(False, "s", 0), (True, "another", 0), (True, "s", 7)],
    ids=["not kept", "run", "version"],
)
def test_changes_of_what_a_server_has_not_are_refused(tmp_path, outbox, caplog, keep, session, base):
    [first, second] = steps(random_params(CONFIG), 2)
    with live(engine=SimulatedEngine(tensors(CONFIG)), weights_dir=str(tmp_path)) as [server]:
        push_all(server, calls_of(outbox.write(hf_boxes(CONFIG, first), version=0), keep=keep))
        parcel = outbox.write(hf_boxes(CONFIG, second), version=8)
        parcel = dataclasses.replace(parcel, before=dataclasses.replace(parcel.before, version=base))
        with pytest.raises(grpc.aio.AioRpcError):
            push_all(server, calls_of(parcel, session=session, keep=True, base=base))
        assert f"this server has not kept version {base}: send whole chunks" in caplog.text
        assert without_padding(CONFIG, server.engine.weights) == without_padding(CONFIG, wanted_file(CONFIG, first))


def test_changes_of_other_numbers_do_not_have_the_checksum(tmp_path, outbox, caplog):
    [first, second] = steps(random_params(CONFIG), 2)
    with live(engine=SimulatedEngine(tensors(CONFIG)), weights_dir=str(tmp_path)) as [server]:
        push_all(server, calls_of(outbox.write(hf_boxes(CONFIG, first), version=0), keep=True))
        parcel = outbox.write(hf_boxes(CONFIG, second), version=1)
        spoilt = memoryview(bytes(len(parcel.data)))  # what the learner believes that the server has
        few = dataclasses.replace(parcel, data=memoryview(bytes(len(parcel.data) - 64) + bytes(parcel.data[-64:])))
        few = dataclasses.replace(few, before=dataclasses.replace(parcel.before, data=spoilt))
        with pytest.raises(grpc.aio.AioRpcError):
            push_all(server, calls_of(few, keep=True, base=0))
        assert "with its changes a chunk does not have its checksum" in caplog.text
        assert without_padding(CONFIG, server.engine.weights) == without_padding(CONFIG, wanted_file(CONFIG, first))


def test_without_room_for_a_second_copy_the_whole_is_sent(tmp_path, outbox, monkeypatch, caplog):
    reserve, made = files.SharedFile.reserve, []
    versions = list(steps(random_params(CONFIG), 3))
    with live(engine=SimulatedEngine(tensors(CONFIG)), weights_dir=str(tmp_path)) as [server]:

        def full(self, size):
            if files.STAGING in self.path and self not in made:
                made.append(self)
            if len(made) > 1 and self is not made[0]:
                raise OSError(28, "No space left on device")
            reserve(self, size)

        monkeypatch.setattr(files.SharedFile, "reserve", full)
        push_all(server, calls_of(outbox.write(hf_boxes(CONFIG, versions[0]), version=0), keep=True))
        parcel = outbox.write(hf_boxes(CONFIG, versions[1]), version=1)
        with pytest.raises(grpc.aio.AioRpcError):
            push_all(server, calls_of(parcel, keep=True, base=0))
        assert "has not kept version 0" in caplog.text
        push_all(server, calls_of(parcel, keep=True))
        assert without_padding(CONFIG, server.engine.weights) == without_padding(
            CONFIG, wanted_file(CONFIG, versions[1])
        )


def test_a_server_that_has_lost_its_place_gets_the_whole(tmp_path, caplog):
    """As one that was started again: the learner believes that it has the version before."""
    caplog.set_level("INFO")
    versions = list(steps(random_params(CONFIG), 3))
    servers = [SimulatedEngine(tensors(CONFIG)) for _ in range(2)]
    with (
        live(engine=servers[0], weights_dir=str(tmp_path)) as [a],
        live(engine=servers[1], weights_dir=str(tmp_path)) as [b],
    ):

        async def run():
            service = ServiceConfig(endpoints=f"{a.address},{b.address}", shared_dir=str(tmp_path), push="stream")
            sender = Sender(service, CONFIG, session="run", in_flight="abort")
            endpoints = [Endpoint(server.address, service) for server in (a, b)]
            for version, params in enumerate(versions):
                weights = sender.take(params, version=version)
                endpoints[1].keeps = version - 1 if version else None
                for endpoint in endpoints[: 1 if version == 0 else 2]:
                    await sender.send(weights, endpoint, "elsewhere", sent=lambda: None)
            for endpoint in endpoints:
                await endpoint.close()
            sender.close()

        asyncio.run(run())
        for server in (a, b):
            expected = without_padding(CONFIG, wanted_file(CONFIG, versions[-1]))
            assert without_padding(CONFIG, server.engine.weights) == expected
    # Of version 1, which b was sent first; after that it had its place.
    assert caplog.text.count("go to") == 1 and "weights of version 1 go to" in caplog.text
