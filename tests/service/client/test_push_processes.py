"""Weights of several learner processes, real ones, each of which sends its share to real servers."""

import contextlib
import os
import subprocess
import sys
import tempfile

import numpy as np
import pytest

from isocompute_jax import model
from isocompute_jax.service.weights.files import file_layout
from tests.launch.processes import free_ports
from tests.service.fleet_builders import CONFIG, Live, live, params, tensors
from tests.service.receiving_engine import ReceivingSimulated

pytestmark = pytest.mark.slow

LEARNER = """
import dataclasses, logging, os, pathlib, sys, time
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
from isocompute_jax.service.client import fleet, weight_broadcast, weight_sender
from isocompute_jax.service.client.service_config import ServiceConfig
from tests.service.fake_nccl import Fake
from tests.service.fleet_builders import CONFIG, params, requests

place = find_place(
    cluster="auto", coordinator=coordinator, process_count=count, process_index=index, environ={}
)
with joined(place, {}, records=(), stall_s=60.0, start_s=60.0) as team:
    mesh = sharding.make_mesh(fsdp=2, tensor=count)
    wanted = model.param_shardings(CONFIG, mesh)

    def sharded(seed):
        return jax.tree.map(lambda x, where: sharding.placed(np.asarray(x), where), params(seed), wanted)

    service = ServiceConfig(endpoints=servers, shared_dir=directory, push="stream")
    if do == "nccl":
        service = dataclasses.replace(service, push="nccl")
        fake = Fake(pathlib.Path(os.environ["TMPDIR"]))
        weight_broadcast.libraries = lambda service: fake.libraries()
    if do == "stranger":
        token = os.path.join(directory, "wrong" if index else "right")
        service = dataclasses.replace(service, token_file=token)
    sender = weight_sender.Sender(
        service, CONFIG, session="several", in_flight="abort", start="first", team=team
    )
    if index:
        sampler = weight_sender.ShareSender(sender)
    else:
        sampler = fleet.RemoteSampler(sender)
        members = sampler._dispatcher._members  # a server that answers late, on a busy machine, would get no weights
        while do != "stranger" and sum(member.up for member in members) < len(members):
            time.sleep(0.05)
    for version in (1, 2, 3):
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


def learn(servers, directory, do="well", count=2, **environment):
    """Three updates by several processes, each with two devices; what process 0 said."""
    coordinator = f"127.0.0.1:{free_ports(2)}"
    targets = ",".join(server.address for server in servers)
    with contextlib.ExitStack() as stack:
        logs = [stack.enter_context((directory / f"{i}.log").open("w+")) for i in range(count)]
        processes = []
        for i in range(count):
            command = [sys.executable, "-c", LEARNER, str(i), str(count), coordinator, targets, str(directory), do]
            process = subprocess.Popen(
                command, stdout=logs[i], stderr=subprocess.STDOUT, env={**os.environ, **environment}
            )
            stack.callback(process.wait)
            stack.callback(process.kill)
            processes.append(process)
        codes = [process.wait(120) for process in processes]
    said = [(directory / f"{i}.log").read_text() for i in range(count)]
    assert codes == [0] * count, "\n".join(said)
    return said[0]


def test_the_shares_of_all_processes_make_the_weights_and_leave_nothing_behind(tmp_path):
    with live(2) as servers:
        learn(servers, tmp_path)
        truth = dict(model.hf_tensors(CONFIG, params(3)))
        for server in servers:
            assert server.engine.version == 3
            for spec, start in zip(tensors(), file_layout(tensors())[0], strict=True):
                found = np.frombuffer(server.engine.weights, spec.dtype, truth[spec.name].size, start)
                np.testing.assert_array_equal(found.reshape(spec.shape), truth[spec.name])
    assert {path.suffix for path in tmp_path.iterdir()} == {".log"}


def test_all_processes_gather_what_process_0_sends_by_nccl(tmp_path):
    """One server takes it so, one refuses half-way: it is sent the shares of both processes."""
    good, bad = (ReceivingSimulated(tensors(), tokens_per_s=4000.0, devices=2) for _ in range(2))
    bad.do = "refuses"
    ends = [Live(engine=engine, weights_dir=str(tmp_path)) for engine in (good, bad)]
    with tempfile.TemporaryDirectory(prefix="p", dir="/tmp") as folder:  # a local socket's address is short
        try:
            said = learn(ends, tmp_path, "nccl", TMPDIR=folder)
        finally:
            for end in ends:
                end.stop()
        assert os.listdir(folder) == []
    truth = dict(model.hf_tensors(CONFIG, params(3)))
    assert [(each.opened, each.received, len(each.files)) for each in (good, bad)] == [(1, 3, 0), (1, 0, 3)]
    assert f"weights of version 1 go to {ends[1].address} by file: half of version 1 came" in said
    for found in (*good.tensors_of_ranks, bad.file_tensors):
        assert all(found[name].tobytes() == whole.tobytes() for name, whole in truth.items())


def test_a_process_with_a_wrong_token_is_named_and_nobody_waits_for_it(tmp_path):
    for name in ("right", "wrong"):
        (tmp_path / name).touch(mode=0o600)
        (tmp_path / name).write_text(name)
    with live(token_file=str(tmp_path / "right")) as servers:
        said = learn(servers, tmp_path, "stranger")
    assert f"{servers[0].address} refuses the token of config.service.token_file" in said and "process 1 (" in said
    assert "no sampler is left" not in said
