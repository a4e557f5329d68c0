"""Weights of several learner processes, real ones: from their devices over sockets to the ranks of real servers."""

import contextlib
import os
import pathlib
import subprocess
import sys
import tempfile

import pytest

from isocompute_jax.service.server.engines.vllm.layout import Heads
from tests.launch.processes import free_ports
from tests.service import receiving_engine
from tests.service.client.test_device_push import check_ranks
from tests.service.fleet_builders import CONFIG, Live, live, tensors
from tests.service.receiving_engine import ReceivingSimulated

pytestmark = pytest.mark.slow

HEADS = Heads(CONFIG.num_heads, CONFIG.num_kv_heads)

LEARNER = """
import dataclasses, logging, os, sys, time
index, count, coordinator, servers, directory, do = sys.argv[1:]
index, count = int(index), int(count)
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=2"
logging.basicConfig(level=logging.INFO)

import jax
import numpy as np
from isocompute_jax import model, sharding
from isocompute_jax.distributed.environment import find_place
from isocompute_jax.distributed.start import joined
from isocompute_jax.records.errors import InputError
from isocompute_jax.service.client import fleet, shares
from isocompute_jax.service.client.device import ranks
from isocompute_jax.service.client.service_config import ServiceConfig
from isocompute_jax.service.proto import sampler_pb2 as pb
from isocompute_jax.service.weights.device.transport import TransferError
from tests.service.fleet_builders import CONFIG, params, requests

place = find_place(
    cluster="auto", coordinator=coordinator, process_count=count, process_index=index, environ={}
)
with joined(place, {}, records=(), stall_s=60.0, start_s=60.0) as team:
    mesh = sharding.make_mesh(fsdp=2, tensor=count)
    wanted = model.param_shardings(CONFIG, mesh)

    def sharded(seed):
        return jax.tree.map(lambda x, where: sharding.placed(np.asarray(x), where), params(seed), wanted)

    service = ServiceConfig(endpoints=servers, shared_dir=directory, push="device")
    if do == "mixed" and index:
        service = dataclasses.replace(service, push="stream")
    if do == "stranger":
        token = os.path.join(directory, "wrong" if index else "right")
        service = dataclasses.replace(service, push="stream", token_file=token)
    run = dict(session="several", start="first", team=team)
    if index:
        sampler = shares.ShareSender(service, CONFIG, in_flight=pb.IN_FLIGHT_ABORT, **run)
    else:
        sampler = fleet.RemoteSampler(service, CONFIG, in_flight="abort", **run)
        members = sampler._dispatcher._members  # a server that answers late, on a busy machine, would get no weights
        while do != "stranger" and sum(member.up for member in members) < 2:
            time.sleep(0.05)
    if do == "lame" and index:
        def join(*_, **__):
            raise TransferError("no GPU answers")
        ranks.LearnerRanks.join = join
    for version in (1, 2, 3):
        if do == "broken" and version == 2 and index:
            [group] = sampler._devices._groups.values()
            group.transport.close()
        try:
            sampler.update_weights(sharded(version), version=version)
        except InputError as error:
            print(error)
            team.everywhere(lambda: None)
            break
        if not index:
            sampler.submit(requests(4))
            drawn = [completion for group in sampler.completed() for completion in group.completions]
            assert {v for completion in drawn for v in completion.policy_versions} == {version}
        team.everywhere(lambda: None)
        if do == "stranger":
            break
    sampler.close()
"""


@pytest.fixture
def servers(monkeypatch):
    monkeypatch.setattr(receiving_engine, "JOIN_S", 2.0)  # they wait in vain where a learner does not join
    made = [
        Live(engine=ReceivingSimulated(tensors(), HEADS, tokens_per_s=4000.0, tensor_parallel=2, data_parallel=2)),
        Live(engine=ReceivingSimulated(tensors(), HEADS, tokens_per_s=4000.0)),
    ]
    yield made
    for server in made:
        server.stop()


@pytest.fixture
def folder():
    """A local socket's address is short."""
    with tempfile.TemporaryDirectory(prefix="s", dir="/tmp") as path:
        yield pathlib.Path(path)


def learn(servers, folder, directory, do="well", count=2):
    """Three updates by several processes, each with two devices; what process 0 said."""
    coordinator = f"127.0.0.1:{free_ports(2)}"
    targets = ",".join(server.address for server in servers)
    with contextlib.ExitStack() as stack:
        logs = [stack.enter_context((directory / f"{i}.log").open("w+")) for i in range(count)]
        processes = []
        for i in range(count):
            command = [sys.executable, "-c", LEARNER, str(i), str(count), coordinator, targets, str(directory), do]
            environment = {**os.environ, "TMPDIR": str(folder)}
            process = subprocess.Popen(command, stdout=logs[i], stderr=subprocess.STDOUT, env=environment)
            stack.callback(process.wait)
            stack.callback(process.kill)
            processes.append(process)
        codes = [process.wait(120) for process in processes]
    said = [(directory / f"{i}.log").read_text() for i in range(count)]
    assert codes == [0] * count, "\n".join(said)
    return said[0]


def test_the_devices_of_all_processes_send_and_leave_nothing_behind(servers, folder, tmp_path):
    said = learn(servers, folder, tmp_path)
    for server in servers:
        assert (server.engine.opened, server.engine.received, server.engine.files) == (1, 3, [])
        check_ranks(server, 3)
    assert "to 2 servers (5 ranks) by sockets" in said
    assert list(folder.iterdir()) == [] and {path.suffix for path in tmp_path.iterdir()} == {".log"}


@pytest.mark.parametrize(("do", "why"), [("lame", "no GPU answers"), ("mixed", "its devices cannot send weights")])
def test_a_process_that_cannot_is_named_and_all_goes_by_file(servers, folder, tmp_path, do, why):
    said = learn(servers, folder, tmp_path, do)
    for server in servers:
        assert (server.engine.received, len(server.engine.files)) == (0, 3), said
    assert said.count("go by file: process 1 (") == 3 and why in said
    assert list(folder.iterdir()) == []


def test_a_group_that_one_process_has_lost_is_formed_again(servers, folder, tmp_path):
    learn(servers, folder, tmp_path, "broken")
    for server in servers:
        # What one of them was sent of the second version may have come whole.
        assert server.engine.opened == 2 and server.engine.received + len(server.engine.files) == 3
        assert server.engine.version == 3
        check_ranks(server, 3)


def test_a_process_with_a_wrong_token_is_named_and_nobody_waits_for_it(folder, tmp_path):
    for name in ("right", "wrong"):
        (tmp_path / name).touch(mode=0o600)
        (tmp_path / name).write_text(name)
    with live(token_file=str(tmp_path / "right")) as servers:
        said = learn(servers, folder, tmp_path, "stranger")
    assert f"{servers[0].address} refuses the token of config.service.token_file" in said and "process 1 (" in said
    assert "no sampler is left" not in said
