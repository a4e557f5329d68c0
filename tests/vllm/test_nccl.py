"""Weights by vLLM's own NCCL engine, all of it but its communicator and CUDA's streams (`stand_in`)."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import logging
import os
import pathlib
import shutil
import subprocess
import tempfile
import time

import grpc
import jax
import numpy as np
import pytest

from isocompute_jax import model, sharding
from isocompute_jax.model import hf_packs
from isocompute_jax.records.requests import SampleRequest, SamplingParams
from isocompute_jax.service.client import weight_broadcast
from isocompute_jax.service.client.fleet import RemoteSampler
from isocompute_jax.service.client.service_config import ServiceConfig
from isocompute_jax.service.client.weight_sender import Sender
from isocompute_jax.service.proto import sampler_pb2 as pb
from isocompute_jax.service.weights.nccl import Communicator, TransferError
from tests.service.fake_nccl import Fake
from tests.vllm import builders, stand_in
from tests.vllm.builders import LONG, SHORT, TIED, UNTIED, learner_logprobs, make_params
from tests.vllm.test_families import FAMILIES

pytestmark = pytest.mark.vllm
CASES = {
    "tied, one rank": (TIED, ()),
    "tied, two slices": (TIED, ("--tensor_parallel=2",)),
    "two replicas": (UNTIED, ("--data_parallel=2",)),
    "qwen3_moe": (dataclasses.replace(TIED, **FAMILIES["qwen3_moe"]), ("--tensor_parallel=2",)),
    "llama4_text": (dataclasses.replace(TIED, **FAMILIES["llama4_text"]), ("--tensor_parallel=2",)),
}
FIRST, SECOND, *OTHERS = CASES


@pytest.fixture
def library(monkeypatch):
    folder = pathlib.Path(tempfile.mkdtemp(prefix="v", dir="/tmp"))  # a local socket's address is short
    fake = Fake(folder)
    monkeypatch.setattr(weight_broadcast, "libraries", lambda service: fake.libraries())
    monkeypatch.setattr(weight_broadcast, "LATE_S", 60.0)
    yield fake
    shutil.rmtree(folder)


@pytest.mark.parametrize("ranks", [1, 2])
def test_vllms_receiver_loads_the_learners_bytes(library, monkeypatch, ranks):
    monkeypatch.setattr(hf_packs, "BUCKET_BYTES", 1)
    config = dataclasses.replace(UNTIED, dtype="bfloat16")
    buckets, leaves = hf_packs.buckets(config), hf_packs.lay_out(config, make_params(config, 1))
    unique_id = library.libraries().unique_id()
    init = {
        "nccl_unique_id_b64": base64.b64encode(unique_id).decode(),
        "rank_offset": 1,
        "world_size": 1 + ranks,
        "packed": True,
        "packed_buffer_size_bytes": max(sum(t.nbytes for t in bucket.tensors) for bucket in buckets),
        "packed_num_buffers": 1,
    }
    updates = [
        {
            "names": [t.name for t in bucket.tensors],
            "dtype_names": [t.dtype for t in bucket.tensors],
            "shapes": [list(t.shape) for t in bucket.tensors],
        }
        for bucket in buckets
    ]
    processes = []
    for rank in range(ranks):
        info = {"init_info": init, "rank": rank, "ranks": ranks, "updates": updates}
        command = [str(builders.PYTHON), "-m", "tests.vllm.receive", json.dumps(info)]
        processes.append(subprocess.Popen(command, cwd=builders.ROOT, stdout=subprocess.PIPE, text=True))
    communicator = Communicator(library.libraries(), unique_id, 1 + ranks, 0)
    link = weight_broadcast.ServerLink("", "", 0, communicator)
    wait(communicator)
    number = jax.numpy.zeros(1)
    communicator.add(number.unsafe_buffer_pointer(), number)
    wait(communicator)
    weight_broadcast.send(hf_packs.packed(buckets, leaves), [link])
    assert not link.failed
    truth = [
        [name, f"torch.{config.dtype}", list(value.shape), hashlib.sha256(value.tobytes()).hexdigest()]
        for name, value in model.hf_tensors(config, make_params(config, 1))
    ]
    for process in processes:
        out, _ = process.communicate(timeout=120)
        assert sorted(map(json.loads, out.splitlines())) == sorted(truth)
    communicator.abort()


def wait(communicator):
    while not communicator.done():
        time.sleep(0.01)


@dataclasses.dataclass
class Run:
    """A learner and one server of vLLM."""

    config: model.ModelConfig
    sampler: RemoteSampler

    def update(self, version, seed):
        """New weights from a mesh; what is drawn with them."""
        params = make_params(self.config, seed)
        mesh = sharding.make_mesh(fsdp=2, tensor=2)
        self.sampler.update_weights(jax.device_put(params, model.param_shardings(self.config, mesh)), version=version)
        request = SampleRequest("p", np.array(LONG, np.int32), 1, 7, 0, (), SamplingParams(1.0, 1.0, 30))
        self.sampler.submit([request])
        [group] = self.sampler.completed()
        [drawn] = group.completions
        wanted = learner_logprobs(self.config, params, LONG, drawn.tokens[None], 1.0)[0]
        np.testing.assert_allclose(drawn.logprobs, wanted, atol=1e-4)
        assert set(drawn.policy_versions) == {version}
        return drawn


@pytest.mark.parametrize("case", [FIRST, SECOND, *(pytest.param(case, marks=pytest.mark.slow) for case in OTHERS)])
def test_half_of_the_weights_never_serve_and_whole_ones_are_the_learners(
    start, library, tmp_path, tmp_path_factory, caplog, monkeypatch, case
):
    caplog.set_level(logging.INFO)
    config, flags = CASES[case]
    model.save_checkpoint(tmp_path / "model", config, make_params(config, 0), tokenizer_from=None)
    with monkeypatch.context() as patch:
        for name, value in stand_in.environment(tmp_path_factory.mktemp("plugin")).items():
            patch.setitem(os.environ, name, value)
        server = start(tmp_path / "model", *flags)
    service = ServiceConfig(
        endpoints=server.address(), push="nccl", shared_dir=str(tmp_path), token_file=str(server.token), stall_s=120
    )
    sampler = RemoteSampler(Sender(service, config, session="tests", in_flight="wait"))
    try:
        run = Run(config, sampler)
        first, second = run.update(1, 1), run.update(2, 2)
        assert "joined by NCCL" in caplog.text and "by file" not in caplog.text
        assert first.logprobs.tobytes() != second.logprobs.tobytes()
        # The learner falls silent half-way: the server is without weights until it has been sent a file.
        send_pack, seen = weight_broadcast._broadcast, []

        def silent(link, pack):
            seen.append(pack)
            if len(seen) == 2:
                raise TransferError("the learner fell silent")
            send_pack(link, pack)

        monkeypatch.setattr(weight_broadcast, "_broadcast", silent)
        by_file = run.update(3, 2)
        assert f"weights of version 3 go to {server.address()} by file: " in caplog.text
        assert by_file.tokens.tobytes() == second.tokens.tobytes()
        assert by_file.logprobs.tobytes() == second.logprobs.tobytes()
        run.update(4, 1)
        assert "is sent no weights by NCCL for 60 s, but files: the learner fell silent" in caplog.text
    finally:
        sampler.close()
    check_that_nobody_is_waited_for(server.client())
    server.end()


def check_that_nobody_is_waited_for(client):
    """A learner that asks the ranks to join and does not come: they are free again, and draw."""
    status = client.status(tensors=True)
    opening = pb.OpenTransferRequest(
        transfer=1,
        unique_id=b"/tmp/nobody-is-here".ljust(128, b"\0"),
        world=1 + status.devices.count,
        tensors=status.tensors,
        buckets=[len(status.tensors)],
    )
    metadata = [("authorization", f"Bearer {builders.TOKEN}")]
    for why in ("the learner did not come within 3 s", "start the server again"):
        with pytest.raises(grpc.RpcError) as caught:
            client.stub.OpenTransfer(opening, metadata=metadata, timeout=60)
        assert why in (caught.value.details() or "")
        assert len(client.sample(SHORT, 2, 4)) == 2
