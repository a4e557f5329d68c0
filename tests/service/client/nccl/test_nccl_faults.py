"""Servers that are processes of their own and fail by NCCL: the run goes on by file, within what the deadlines say."""

import os
import signal
import subprocess
import sys
import time

import pytest

from tests.service.client.nccl.test_nccl_push import counts, drawn_versions
from tests.service.fleet_builders import fleet, params, until
from tests.service.receiving_engine import ROOT, Process

pytestmark = pytest.mark.slow


def served(sampler):
    """The versions that its servers are known to serve; None of one that serves none."""
    return {member.weights and member.weights.version for member in sampler._dispatcher._members}


def test_one_that_dies_half_way_takes_no_other_with_it(library, servers, tmp_path):
    good, bad = servers(), servers("dies")
    with fleet(good, bad, directory=tmp_path, push="nccl", stall_s=5) as sampler:
        until(lambda: sum(member.up for member in sampler._dispatcher._members) == 2)
        sampler.update_weights(params(1), version=1)
        assert counts(good) == (1, 1, 0) and drawn_versions(sampler) == {1}
        bad.process.wait(10)
        again = Process("well", port=bad.port)
        try:
            until(lambda: sum(member.up for member in sampler._dispatcher._members) == 2)
            sampler.update_weights(params(2), version=2)
            until(lambda: served(sampler) == {2})
            assert counts(good) == (1, 2, 0)
        finally:
            again.kill()
    until(lambda: library.idle)


def test_one_that_stops_half_way_delays_the_others_by_its_deadline_alone(library, servers, tmp_path, caplog):
    good, bad = servers(), servers("stops", receive_s=1.0)
    with fleet(good, bad, directory=tmp_path, push="nccl", stall_s=4) as sampler:
        until(lambda: sum(member.up for member in sampler._dispatcher._members) == 2)
        began = time.monotonic()
        sampler.update_weights(params(1), version=1)  # until the stopped one is taken out
        took = time.monotonic() - began
        assert counts(good) == (1, 1, 0) and drawn_versions(sampler) == {1}
        assert took < 30, took  # its deadline of 2 s, then the stall of 4: only a hang is longer than this
        assert f"weights of version 1 go to {bad.address} by file: it did not take" in caplog.text
        sampler.update_weights(params(2), version=2)
        assert counts(good) == (1, 2, 0)
        os.kill(bad.process.pid, signal.SIGCONT)  # a minute later
        until(lambda: served(sampler) == {2})
    until(lambda: library.idle)


def test_one_whose_ranks_never_join_is_sent_a_file(library, servers, tmp_path):
    good, bad = servers(), servers("absent", join_s=60.0)
    with fleet(good, bad, directory=tmp_path, push="nccl") as sampler:
        until(lambda: sum(member.up for member in sampler._dispatcher._members) == 2)
        sampler.update_weights(params(1), version=1)
        assert counts(good) == (1, 1, 0)
        assert served(sampler) == {1}
    until(lambda: library.idle)


LEARNER = """
import os, pathlib, sys
from isocompute_jax.service.client import weight_broadcast
from tests.service.fake_nccl import Fake
from tests.service.fleet_builders import fleet, params
address, folder, directory = sys.argv[1:]
fake = Fake(pathlib.Path(folder))
weight_broadcast.libraries = lambda service: fake.libraries()
send_pack = weight_broadcast._broadcast
def dying(link, pack, seen=[]):
    seen.append(pack)
    if len(seen) == 2:
        os.kill(os.getpid(), 9)
    send_pack(link, pack)
weight_broadcast._broadcast = dying
with fleet(address, directory=directory, push="nccl", session="killed") as sampler:
    sampler.update_weights(params(1), version=1)
"""


def test_a_learner_that_dies_half_way_leaves_a_server_that_takes_whole_weights(library, servers, folder, tmp_path):
    server = servers(receive_s=5.0)
    (folder / "killed").mkdir()
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", LEARNER, server.address, str(folder / "killed"), str(tmp_path)]
    assert subprocess.run(command, env=environment, cwd=ROOT, timeout=120).returncode == -signal.SIGKILL
    until(lambda: server.engine.half_taken == 1)
    assert not server.server.servicer.serving
    with fleet(server, directory=tmp_path, push="nccl", session="killed") as sampler:
        sampler.update_weights(params(2), version=2)
        assert server.engine.version == 2 and drawn_versions(sampler) == {2}
