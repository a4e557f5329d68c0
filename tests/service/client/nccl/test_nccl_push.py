"""Weights by NCCL to real servers: every rank has the learner's bytes; what fails goes by file, and is remembered."""

import gc
import logging
import os
import threading

import jax
import numpy as np
import pytest

from isocompute_jax import model, sharding
from isocompute_jax.records.errors import InputError, RunError
from isocompute_jax.service.client import weight_broadcast
from isocompute_jax.service.client.service_config import ServiceConfig
from tests.service.fleet_builders import CONFIG, Live, fleet, params, requests, until, until_used


def sharded(seed=0, **axes):
    mesh = sharding.make_mesh(**axes)
    return jax.device_put(params(seed), model.param_shardings(CONFIG, mesh))


def check_ranks(server, seed):
    """Every rank has every tensor, bit for bit."""
    truth = dict(model.hf_tensors(CONFIG, params(seed)))
    assert len(server.engine.tensors_of_ranks) == server.engine.facts.devices
    for found in server.engine.tensors_of_ranks:
        assert found.keys() == truth.keys()
        for name, whole in truth.items():
            assert found[name].tobytes() == whole.tobytes()


def counts(server):
    engine = server.engine
    return engine.opened, engine.received, len(engine.files)


def drawn_versions(sampler):
    sampler.submit(requests(6))
    return {v for group in sampler.completed() for done in group.completions for v in done.policy_versions}


@pytest.mark.parametrize("in_flight", ["abort", "wait", "continue"])
def test_weights_come_by_nccl_and_equal_those_of_the_file(library, servers, folder, tmp_path, caplog, in_flight):
    caplog.set_level(logging.INFO)
    first, second = servers(devices=2), servers()
    with fleet(first, second, directory=tmp_path, push="nccl", in_flight=in_flight) as sampler:
        for version in (1, 2):
            sampler.update_weights(sharded(version, data=2, fsdp=2, tensor=2), version=version)
            assert drawn_versions(sampler) == {version}
            for server in (first, second):
                check_ranks(server, version)
    assert [counts(first), counts(second)] == [(1, 2, 0)] * 2
    assert f"sampler {first.address} joined by NCCL, 2 ranks" in caplog.text
    until(lambda: library.idle)
    assert list(tmp_path.rglob("*")) == list(folder.iterdir()) == []
    with fleet(first, directory=tmp_path, push="stream", session="file") as sampler:
        sampler.update_weights(params(2), version=2)
    for name, found in first.engine.tensors_of_ranks[0].items():
        assert found.tobytes() == first.engine.file_tensors[name].tobytes()


def test_a_server_that_comes_back_is_served_by_file_then_joins(library, servers, tmp_path):
    first, second = servers(), servers()
    with fleet(first, second, directory=tmp_path, push="nccl", stall_s=5) as sampler:
        sampler.update_weights(params(1), version=1)
        second.stop()
        until(lambda: len([m for m in sampler._dispatcher._members if m.up]) == 1)
        again = Live(port=second.port, engine=type(second.engine)(second.engine.facts.tensors, tokens_per_s=4000.0))
        try:
            until_used(sampler, again)
            assert counts(again) == (0, 0, 1)
            sampler.update_weights(params(2), version=2)
            assert (counts(first), counts(again)) == ((1, 2, 0), (1, 1, 1))
            check_ranks(again, 2)
        finally:
            again.stop()


def test_a_half_loaded_server_draws_nothing_until_it_has_whole_weights(library, servers, tmp_path, caplog, monkeypatch):
    good, bad = servers(), servers(do=None)
    with fleet(good, bad, directory=tmp_path, push="nccl") as sampler:
        sampler.update_weights(params(1), version=1)
        bad.engine.do = "refuses"
        served = []
        take = bad.engine.update_weights

        async def observed(*arguments, **keywords):
            served.append(bad.server.servicer.serving)
            return await take(*arguments, **keywords)

        monkeypatch.setattr(bad.engine, "update_weights", observed)
        sampler.update_weights(params(2), version=2)
        assert served == [False] and bad.server.servicer.serving
        assert (bad.engine.half_taken, counts(bad), counts(good)) == (1, (1, 1, 1), (1, 2, 0))
        assert drawn_versions(sampler) == {2}
        why = "half of version 2 came, and the server needs whole weights: there is no room"
        assert f"weights of version 2 go to {bad.address} by file: {why}" in caplog.text
        # It is remembered: the next versions go to it by file at once, to the other one as before.
        bad.engine.do = "well"
        for version in (3, 4):
            sampler.update_weights(params(version), version=version)
        assert (counts(bad), counts(good)) == ((1, 1, 3), (1, 4, 0))
        assert caplog.text.count(f"sampler {bad.address} is sent no weights by NCCL for 60 s") == 1
        # And tried again after a while.
        monkeypatch.setattr(weight_broadcast.time, "monotonic", lambda now=weight_broadcast.time.monotonic: now() + 61)
        sampler.update_weights(params(5), version=5)
        assert counts(bad) == (2, 2, 3)
        check_ranks(bad, 5)


def test_servers_that_cannot_are_sent_files_and_said_why(library, servers, tmp_path, caplog):
    plain, other, absent = Live(), servers(version="2.28.9"), servers(do=None, join_s=0.2)
    absent.engine.do = "absent"
    try:
        with fleet(plain, other, absent, directory=tmp_path, push="nccl") as sampler:
            for version in (1, 2):
                sampler.update_weights(params(version), version=version)
            assert [server.engine.version for server in (plain, other, absent)] == [2, 2, 2]
            assert (counts(other), counts(absent)) == ((0, 0, 2), (0, 0, 2))
    finally:
        plain.stop()
    for server, why in (
        (plain, "its engine, simulated, takes none so here"),
        (other, "it has NCCL 2.28.9, and the learner 2.29.7: install the same on both sides"),
        (absent, "no weights come by NCCL: the learner did not come"),
    ):
        assert caplog.text.count(f"sampler {server.address} is sent no weights by NCCL for 60 s, but files: {why}") == 1


def test_weights_that_are_not_finite_are_never_broadcast(library, servers, tmp_path):
    server = servers()
    with fleet(server, directory=tmp_path, push="nccl") as sampler:
        sampler.update_weights(params(1), version=1)
        broken = params(2)
        broken["final_norm"] = broken["final_norm"].at[0].set(np.inf)
        with pytest.raises(RunError, match=r"version 2: tensor .model\.norm\.weight. holds numbers that are NaN"):
            sampler.update_weights(broken, version=2)
    assert counts(server) == (1, 1, 0) and server.engine.version == 1


@pytest.mark.slow
def test_two_hundred_updates_leave_no_thread_descriptor_or_buffer(library, servers, tmp_path):
    server = servers()

    def held():
        gc.collect()
        # The test's own server has a pool of threads that asyncio fills as it likes.
        threads = sum(not thread.name.startswith("asyncio_") for thread in threading.enumerate())
        return threads, len(os.listdir("/proc/self/fd")), len(jax.live_arrays())

    weights = [params(seed) for seed in (1, 2)]
    with fleet(server, directory=tmp_path, push="nccl") as sampler:
        for version in range(1, 11):
            sampler.update_weights(weights[version % 2], version=version)
        before = held()
        for version in range(11, 201):
            sampler.update_weights(weights[version % 2], version=version)
        assert counts(server) == (1, 200, 0)
        until(lambda: all(now <= then + 2 for now, then in zip(held(), before, strict=True)))
    until(lambda: library.idle)


def test_learners_without_gpus_say_so_before_they_start():
    with pytest.raises(InputError, match=r"push = 'nccl': the learner runs on CPUs, and NCCL joins GPUs: set it to"):
        weight_broadcast.libraries(ServiceConfig(push="nccl"))
    assert weight_broadcast.libraries(ServiceConfig()) is None
