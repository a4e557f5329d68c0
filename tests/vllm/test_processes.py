"""vLLM's processes: freed when a call ends, gone when the server is, and missed when they die."""

import dataclasses
import json
import shutil
import signal
import time

import grpc
import ml_dtypes
import numpy as np
import pytest

from isocompute_jax import model
from isocompute_jax.service.proto import sampler_pb2 as pb
from tests.model.tiny import LLAMA4
from tests.vllm import builders
from tests.vllm.builders import LONG, SHORT, collect, gone, learner_logprobs, stacked, tensors_of

pytestmark = pytest.mark.vllm
POLL_S = 0.1


def test_a_cancelled_call_frees_the_engine(served):
    client, *_ = served("tied")
    before = client.status().tokens_generated
    size = 64
    call = client.stub.Sample(client.request(SHORT, size, 400), timeout=120)
    while client.status().tokens_generated == before:
        assert call.is_active()
    call.cancel()
    while client.status().running_groups:
        pass
    left = client.status().tokens_generated
    assert left - before < size * 400
    client.sample(LONG, 2, 5)
    # Steps that were under way when it was cancelled may still have drawn; nothing goes on.
    assert client.status().tokens_generated - left <= 2 * 5 + 2 * size


def kill(server):
    """SIGKILL; whether every process of the server ends."""
    family = server.family()
    assert len(family) >= 4  # itself, the reaper, an engine process, its resource tracker
    server.process.kill()
    assert server.process.wait(30) == -signal.SIGKILL
    return gone(family[1:])


def test_a_killed_server_leaves_no_process(start, checkpoints):
    starting, serving = (start(checkpoints["untied", 0]) for _ in range(2))
    while not starting.engine_processes():
        assert starting.process.poll() is None, starting.text
        time.sleep(POLL_S)
    assert kill(starting)
    client = serving.client()
    call = client.stub.Sample(client.request(SHORT, 256, 400), timeout=120)
    while not client.status().tokens_generated:
        assert call.is_active()
    assert kill(serving)
    with pytest.raises(grpc.RpcError):
        collect(call)


@pytest.fixture(scope="module")
def narrow(start, checkpoints):
    """A server of the tied model in bfloat16."""
    return start(checkpoints["tied", 0], "--dtype=bfloat16")


def test_bfloat16_weights_arrive_as_they_were_loaded(narrow):
    client = narrow.client()
    assert {tensor.dtype for tensor in client.status(tensors=True).tensors} == {"bfloat16"}
    first, second = (
        tensors_of(builders.TIED, builders.make_params(builders.TIED, seed), dtype=ml_dtypes.bfloat16)
        for seed in (0, 1)
    )

    def draw():  # one after the other: in one batch, rounding would depend on which of them came when
        return stacked([client.sample(LONG, 1, 20, problem_id=name)[0] for name in "abcd"])

    loaded = draw()
    client.update(first, 1)
    pushed = draw()
    # The checkpoint and the update hold the same numbers: what is drawn is the same to the last bit.
    np.testing.assert_array_equal(pushed[0], loaded[0])
    np.testing.assert_array_equal(pushed[1], loaded[1])
    client.update(second, 2)
    assert (draw()[0] != pushed[0]).any(axis=1).all()


def test_a_server_that_is_told_to_end_leaves_no_process(narrow):
    narrow.client()
    family = narrow.family()
    assert narrow.end() == 0, narrow.text
    assert gone(family[1:]) and "Traceback" not in narrow.text


def test_weights_may_come_with_the_first_update_and_a_dead_process_is_an_error(start, checkpoints, tmp_path):
    shutil.copy(checkpoints["untied", 0] / "config.json", tmp_path)
    server = start(tmp_path, "--wait_for_weights")
    client = server.client()
    with pytest.raises(grpc.RpcError) as caught:
        client.sample(SHORT, 2, 5)
    assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
    params = builders.make_params(builders.UNTIED, 1)
    client.update(tensors_of(builders.UNTIED, params), 3)
    tokens, logprobs, versions = stacked(client.sample(LONG, 4, 20))
    np.testing.assert_allclose(logprobs, learner_logprobs(builders.UNTIED, params, LONG, tokens, 1.0), atol=1e-4)
    assert (versions == 3).all()

    call = client.stub.Sample(client.request(SHORT, 64, 400), timeout=120)
    before = client.status().tokens_generated
    while client.status().tokens_generated == before:
        assert call.is_active()
    family = server.family()
    [worker] = [process for process in server.engine_processes() if "Worker" in process.name()]
    worker.kill()
    with pytest.raises(grpc.RpcError) as caught:
        collect(call)
    assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
    assert server.process.wait(60) == 1 and "the engine has failed" in server.text
    assert gone(family[1:])


@pytest.mark.parametrize(
    ("change", "flags", "message"),
    [
        ({"head_dim": 16, "num_heads": 4}, (), "its head size is 16; vLLM's CPU build serves 32, 64"),
        ({"embed_dim": 32}, (), "head_dim = 32, and vLLM's Qwen2 takes hidden_size / num_attention_heads = 16"),
        ({}, ("--max_model_len=100000",), "vLLM refuses it, or the settings"),
        ({}, ("--gpu_memory_utilization=0.5",), "this vLLM runs on the CPU: give --kv_cache_bytes instead"),
        (None, (), "config.json cannot be read"),
    ],
    ids=["head_size", "head_dim", "max_model_len", "gpu_memory", "no_checkpoint"],
)
def test_what_cannot_be_served_is_said(start, tmp_path, change, flags, message):
    if change is not None:
        config = dataclasses.replace(builders.TIED, **change)
        model.save_checkpoint(tmp_path / "model", config, builders.make_params(config, 0), tokenizer_from=None)
    server = start(tmp_path / "model", *flags)
    assert server.process.wait(120) == 2
    assert message in server.text and "Traceback" not in server.text
    assert server.end() == 2


def test_chunks_that_vllm_cannot_cut_are_refused(start, tmp_path):
    """It would start, and fail at the first token."""
    config = dataclasses.replace(builders.TIED, **LLAMA4 | {"attention_chunk": 48, "tied_embeddings": False})
    model.save_checkpoint(tmp_path, config, builders.make_params(config, 0), tokenizer_from=None)
    server = start(tmp_path)
    assert server.process.wait(120) == 2
    assert "attention_chunk_size = 48 is no multiple of vLLM's block of" in server.text
    assert "Traceback" not in server.text


def test_a_model_that_also_sees_is_refused(start, tmp_path):
    """The learner's names of tensors are those of the text alone."""
    config = dataclasses.replace(builders.TIED, **LLAMA4)
    model.save_checkpoint(tmp_path, config, builders.make_params(config, 0), tokenizer_from=None)
    text = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama4", "text_config": text}))
    server = start(tmp_path)
    assert server.process.wait(120) == 2
    assert "this Llama 4 also sees" in server.text and "Traceback" not in server.text


def test_status_answers_while_a_group_is_drawn(served):
    client, *_ = served("tied")
    call = client.stub.Sample(client.request(SHORT, 16, 300), timeout=120)
    while not client.status().running_groups:
        assert call.is_active()
    assert client.status().serving and len(collect(call)) == 16
    assert isinstance(client.status(), pb.StatusReply)
