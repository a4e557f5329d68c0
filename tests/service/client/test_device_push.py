"""Weights from device to device, over sockets: the learner's eight fake devices, and the ranks of real servers."""

import logging
import pathlib
import tempfile

import jax
import numpy as np
import pytest

from isocompute_jax import model, sharding
from isocompute_jax.records.errors import InputError
from isocompute_jax.service.server.engines.vllm.layout import Heads
from tests.service.fleet_builders import CONFIG, Live, fleet, params, requests, tensors, until, until_used
from tests.service.receiving_engine import ReceivingSimulated

HEADS = Heads(CONFIG.num_heads, CONFIG.num_kv_heads)


def receiving(**settings):
    """A server whose engine has ranks."""
    return Live(engine=ReceivingSimulated(tensors(), HEADS, tokens_per_s=4000.0, **settings))


@pytest.fixture
def ends():
    servers = []
    yield servers
    for server in servers:
        server.stop()


def sharded(seed=0, **axes):
    mesh = sharding.make_mesh(**axes)
    return jax.device_put(params(seed), model.param_shardings(CONFIG, mesh))


def check_ranks(server, seed):
    """Every rank has what it wants, bit for bit, and nothing else."""
    engine = server.engine
    truth = dict(model.hf_tensors(CONFIG, params(seed)))
    assert len(engine.tensors_of_ranks) == len(engine.ranks)
    for boxes, found in zip(engine.ranks, engine.tensors_of_ranks, strict=True):
        for name, whole in truth.items():
            asked = np.zeros(whole.shape, bool)
            for box in boxes:
                if box.name == name:
                    asked[box.slices] = True
            np.testing.assert_array_equal(found[name][asked], whole[asked])
            assert np.isnan(found[name][~asked]).all()


def test_weights_come_from_device_to_device_and_equal_those_of_the_file(ends, tmp_path, caplog, monkeypatch):
    caplog.set_level(logging.INFO)
    sockets = pathlib.Path(tempfile.mkdtemp(prefix="s", dir="/tmp"))  # a local socket's address is short
    monkeypatch.setattr(tempfile, "tempdir", str(sockets))
    ends += [receiving(tensor_parallel=2, data_parallel=2), receiving()]
    with fleet(*ends, directory=tmp_path, push="device") as sampler:
        for version in (1, 2):
            sampler.update_weights(sharded(version, data=2, fsdp=2, tensor=2), version=version)
            sampler.submit(requests(6))
            drawn = [completion for group in sampler.completed() for completion in group.completions]
            assert {v for completion in drawn for v in completion.policy_versions} == {version}
            for server in ends:
                check_ranks(server, version)
    assert [(server.engine.opened, server.engine.received, server.engine.files) for server in ends] == [(1, 2, [])] * 2
    assert "to 2 servers (5 ranks) by sockets" in caplog.text
    assert list(tmp_path.rglob("*")) == []
    sockets.rmdir()  # nothing is left in it
    # The same version by file: what the ranks were sent are parts of it, bit for bit.
    with fleet(*ends, directory=tmp_path, push="stream", session="file") as sampler:
        sampler.update_weights(sharded(2, data=2, fsdp=2, tensor=2), version=2)
    for server in ends:
        for boxes, found in zip(server.engine.ranks, server.engine.tensors_of_ranks, strict=True):
            for box in boxes:
                sent, filed = found[box.name][box.slices], server.engine.file_tensors[box.name][box.slices]
                assert sent.tobytes() == filed.tobytes()


def test_a_server_that_comes_back_is_served_by_file_then_joins(ends, tmp_path):
    first, second = receiving(), receiving()
    ends += [first, second]
    with fleet(first, second, directory=tmp_path, push="device", stall_s=5) as sampler:
        sampler.update_weights(params(1), version=1)
        assert (first.engine.received, second.engine.received) == (1, 1)
        second.stop()
        until(lambda: len([m for m in sampler._dispatcher._members if m.up]) == 1)
        again = Live(port=second.port, engine=ReceivingSimulated(tensors(), HEADS, tokens_per_s=4000.0))
        ends.append(again)
        until_used(sampler, again)
        assert (again.engine.received, len(again.engine.files)) == (0, 1)
        sampler.update_weights(params(2), version=2)
        assert (first.engine.opened, first.engine.received) == (2, 2)
        assert (again.engine.opened, again.engine.received, len(again.engine.files)) == (1, 1, 1)
        check_ranks(again, 2)


def test_what_does_not_come_through_goes_by_file(ends, tmp_path, caplog):
    first, second = receiving(), receiving()
    ends += [first, second]
    with fleet(first, second, directory=tmp_path, push="device") as sampler:
        sampler.update_weights(params(1), version=1)
        second.engine.deaf = True
        sampler.update_weights(params(2), version=2)
        # What the other one was sent may have come whole; if not, it has a file as well.
        assert (second.engine.received, len(second.engine.files)) == (1, 1)
        assert first.engine.received + len(first.engine.files) == 2
        assert first.engine.version == second.engine.version == 2
        assert f"weights of version 2 go to {second.address} by file" in caplog.text
        second.engine.deaf = False
        sampler.update_weights(params(3), version=3)
        for server in (first, second):
            assert (server.engine.opened, server.engine.version) == (2, 3)
            check_ranks(server, 3)


def test_a_server_that_cannot_is_refused_where_it_is_asked_for(ends, tmp_path):
    ends += [Live()]
    with (
        fleet(*ends, directory=tmp_path, push="device") as sampler,
        pytest.raises(InputError, match=r"takes weights by file or stream alone \(its engine is simulated\).*'auto'"),
    ):
        sampler.update_weights(params(), version=1)
    ends += [receiving(transports=(("nccl", "2.29.7"),))]
    with (
        fleet(ends[-1], directory=tmp_path, push="device") as sampler,
        pytest.raises(InputError, match="by nccl, and the learner sends them by sockets: put both on GPUs"),
    ):
        sampler.update_weights(params(), version=1)


def test_on_cpus_weights_go_by_file_unless_asked(ends, tmp_path):
    ends += [receiving()]
    with fleet(*ends, directory=tmp_path, push="auto") as sampler:
        sampler.update_weights(params(), version=1)
    assert (ends[0].engine.opened, len(ends[0].engine.files)) == (0, 1)
