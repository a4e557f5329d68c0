"""The gateway of a plain vLLM by recorded answers of that server: what it refuses, and what it makes of replies."""

import asyncio
import base64
import contextlib
import copy
import dataclasses
import errno
import functools
import http.server
import io
import json
import os
import pathlib
import threading
import urllib.parse
from typing import Any

import numpy as np
import pytest

from isocompute_jax import model
from isocompute_jax.records.errors import InputError
from isocompute_jax.records.requests import SampleRequest, SamplingParams
from isocompute_jax.records.tensors import TensorSpec
from isocompute_jax.service.server.engines import stock
from isocompute_jax.service.server.engines.base import EngineError, NotTakenError, StockSettings
from isocompute_jax.service.server.engines.stock import StockEngine, _completion
from isocompute_jax.service.weights.files import WeightFile, file_layout
from isocompute_jax.service.weights.nccl import TransferError
from tests.model.tiny import random_params, tiny_config

CONFIG = {
    "model_config": {
        "model": "served",
        "dtype": "torch.float32",
        "quantization": None,
        "logprobs_mode": "processed_logprobs",
        "generation_config": "vllm",
    },
    "device_config": {"device": "cuda"},
    "scheduler_config": {"max_num_seqs": 8},
    "aux_output_config": {"enable_return_routed_experts": False},
}
CHOICE = {
    "index": 0,
    "finish_reason": "length",
    "stop_reason": None,
    "token_ids": [3],
    "routed_experts": None,
    "sampling_mask": None,
    "weight_versions": [{"version": "0", "start": 0, "end": 1}],
    "logprobs": {"content": [{"token_id": 3, "logprob": -1.5, "rank": 2, "top_logprobs": []}]},
}
"""As vLLM 0.32 answered; of fields that are not read the values are left out."""


def answers() -> dict:
    return {
        "/health": None,
        "/server_info": {"vllm_config": copy.deepcopy(CONFIG)},
        "/v1/models": {"data": [{"id": "served", "max_model_len": 64}]},
        "/version": {"version": "0.32.0"},
        "/get_world_size": {"world_size": 2},
        "/weight_info": {"weight_version": "0"},
        "/inference/v1/generate": {"request_id": "r", "choices": [copy.deepcopy(CHOICE)]},
    }


@contextlib.contextmanager
def recorded(said: dict):
    """A server that gives recorded answers; one that is an int is a status, one of bytes the whole body."""
    asked = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def answer(self):
            path = urllib.parse.urlsplit(self.path).path
            length = int(self.headers.get("Content-Length") or 0)
            asked.append((self.path, json.loads(self.rfile.read(length) or b"null")))
            found = said.get(path, {})
            body = b"" if found is None else found
            if not isinstance(body, bytes):
                body = json.dumps({} if isinstance(found, int) else found).encode()
            self.send_response(found if isinstance(found, int) else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = answer

        def log_message(self, format, *args):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", asked
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    directory = tmp_path_factory.mktemp("checkpoint") / "model"
    config = tiny_config(tied_embeddings=False)
    model.save_checkpoint(directory, config, random_params(config), tokenizer_from=None)
    return directory


def settings(checkpoint, url, directory, **fields: Any) -> StockSettings:
    return StockSettings(model=str(checkpoint), url=url, reload_dir=str(directory), **fields)


def request(**fields) -> SampleRequest:
    return SampleRequest("p", np.array([1, 2], np.int32), 3, 1, 2, (0,), SamplingParams(1.0, 1.0, 1), **fields)


def test_every_rollout_is_asked_for_with_a_seed_of_its_own(checkpoint, tmp_path):
    async def play(engine):
        await engine.start()
        found = [pair async for ready in engine.generate(request()) for pair in ready]
        await engine.stop()
        return found

    with recorded(answers()) as (url, asked):
        engine = StockEngine(settings(checkpoint, url, tmp_path))
        found = asyncio.run(play(engine))
    assert sorted(index for index, _ in found) == [0, 1, 2]
    assert all(completion.logprobs.tolist() == [-1.5] for _, completion in found)
    bodies = [body for path, body in asked if path == "/inference/v1/generate"][1:]
    assert len({body["sampling_params"]["seed"] for body in bodies}) == 3
    assert {body["cache_salt"] for body in bodies} == {"weights-0"}
    assert engine.facts.max_model_len == 64 and engine.tokens_generated == 3


@pytest.mark.parametrize(
    ("path", "answer", "message"),
    [
        ("/server_info", 404, "VLLM_SERVER_DEV_MODE=1"),
        ("/inference/v1/generate", 403, "--enable-scale-out"),
        (("model_config", "logprobs_mode"), "raw_logprobs", "--logprobs-mode processed_logprobs"),
        (("model_config", "generation_config"), "auto", "--generation-config vllm"),
        (("model_config", "quantization"), "fp8", "serves the model quantised, by fp8"),
        (("model_config", "dtype"), "torch.bfloat16", "--dtype=float32: vLLM at .* serves bfloat16"),
        ("logprobs", None, "1 tokens with 0 log-probabilities"),
        ("token_ids", None, "0 tokens with 1 log-probabilities"),
        ("weight_versions", None, "1 log-probabilities and 0 versions"),
        ("weight_versions", [{"version": "17", "start": 0, "end": 1}], "weights '17', which this run did not send"),
    ],
)
def test_a_server_that_a_run_cannot_use_is_refused(checkpoint, tmp_path, path, answer, message):
    said = answers()
    if isinstance(path, tuple):
        said["/server_info"]["vllm_config"][path[0]][path[1]] = answer
    elif path.startswith("/"):
        said[path] = answer
    else:
        said["/inference/v1/generate"]["choices"][0][path] = answer
    with recorded(said) as (url, _), pytest.raises(InputError, match=message):
        asyncio.run(StockEngine(settings(checkpoint, url, tmp_path, dtype="float32")).start())


@pytest.mark.parametrize("odd", [b"<html>", b"", [], {}, None, {"vllm_config": "{}"}], ids=repr)
@pytest.mark.parametrize("path", ["server_info", "v1/models", "version", "get_world_size", "inference/v1/generate"])
def test_what_is_no_vllm_is_refused_in_a_sentence(checkpoint, tmp_path, path, odd):
    said = answers() | {f"/{path}": odd} | ({"/health": odd} if odd == b"<html>" else {})
    with recorded(said) as (url, _), pytest.raises(InputError, match=f"--url={url}: what answers there is no vLLM"):
        asyncio.run(StockEngine(settings(checkpoint, url, tmp_path)).start())


@pytest.mark.parametrize("odd", [b"<html>", [], {}, {"choices": []}, {"choices": [None]}], ids=repr)
def test_an_odd_answer_in_place_of_a_rollout_is_an_engine_that_has_failed(checkpoint, tmp_path, odd):
    async def play(engine):
        await engine.start()
        said["/inference/v1/generate"] = odd
        async for _ in engine.generate(request()):
            raise AssertionError("there is none")

    said = answers()
    with recorded(said) as (url, _), pytest.raises(EngineError, match="vLLM gave no rollout"):
        asyncio.run(play(StockEngine(settings(checkpoint, url, tmp_path))))


def test_a_server_that_came_back_with_other_weights_has_failed(checkpoint, tmp_path, monkeypatch):
    async def watched(engine):
        await engine.start()
        said["/weight_info"] = {"weight_version": "default"}
        while engine._failure is None:
            await asyncio.sleep(0.02)
        await engine.check_health()

    said = answers()
    monkeypatch.setattr("isocompute_jax.service.server.engines.stock.WATCH_S", 0.02)
    with recorded(said) as (url, _), pytest.raises(EngineError, match="it was restarted, or somebody else sends it"):
        asyncio.run(watched(StockEngine(settings(checkpoint, url, tmp_path))))


@pytest.mark.parametrize("odd", [[], {}, None, b"<html>", {"weight_version": None}], ids=repr)
def test_an_odd_answer_does_not_end_the_watch_and_is_said_once(checkpoint, tmp_path, monkeypatch, caplog, odd):
    async def watched(engine):
        await engine.start()
        said["/weight_info"] = odd
        before = len(asked)
        while len(asked) < before + 3:
            await asyncio.sleep(0.01)
        await engine.check_health()
        said["/weight_info"] = {"weight_version": "default"}
        while engine._failure is None:
            assert not engine._watching.done()
            await asyncio.sleep(0.01)

    said = answers()
    monkeypatch.setattr(stock, "WATCH_S", 0.01)
    with recorded(said) as (url, asked):
        asyncio.run(watched(StockEngine(settings(checkpoint, url, tmp_path))))
    [line] = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert line.startswith(f"{url}/weight_info does not say which weights vLLM has (")


def file_of(engine, directory) -> WeightFile:
    """Zeros for every tensor that the engine serves."""
    starts, size = file_layout(engine.facts.tensors)
    (directory / "zeros").write_bytes(bytes(size))
    return WeightFile(str(directory / "zeros"), engine.facts.tensors, starts)


def test_gateways_that_share_a_directory_leave_each_other_alone(checkpoint, tmp_path):
    """The second takes the same version while the first one's vLLM reads; a leftover of a former one is in the way."""
    shared = tmp_path / "shared"
    (shared / "version-1").mkdir(parents=True)

    async def play(*engines):
        for engine in engines:
            await engine.start()
        weights = file_of(engines[0], tmp_path)
        plain, read = engines[0]._asked, []

        async def asked(method, path, *rest):
            if path == "/collective_rpc":
                await engines[1].update_weights(weights, version=1, recompute=False)
                directory = pathlib.Path(rest[0]["kwargs"]["weights_path"])
                read.extend(sorted(file.name for file in directory.iterdir()))
            return await plain(method, path, *rest)

        engines[0]._asked = asked
        await engines[0].update_weights(weights, version=1, recompute=False)
        for engine in engines:
            await engine.check_health()
            await engine.stop()
        return read

    with recorded(answers()) as (one, _), recorded(answers()) as (other, _):
        read = asyncio.run(play(*(StockEngine(settings(checkpoint, url, shared)) for url in (one, other))))
    assert read == ["config.json", "model.safetensors"]
    assert [path.name for path in shared.rglob("*")] == ["version-1"]


def test_weights_that_cannot_be_laid_down_are_not_taken(checkpoint, tmp_path, monkeypatch):
    """The disk is full when their numbers are written: the old ones serve on, and the next ones are taken."""

    def full(weights):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    async def play(engine):
        await engine.start()
        weights = file_of(engine, tmp_path)
        with monkeypatch.context() as patch:
            patch.setattr(stock, "_in_file", full)
            with pytest.raises(NotTakenError, match=r"--reload_dir: version 1 cannot be laid down: .*No space left"):
                await engine.update_weights(weights, version=1, recompute=False)
        assert not list((tmp_path / "shared").iterdir()) and not [path for path, _ in asked if "pause" in path]
        assert [pair async for ready in engine.generate(request()) for pair in ready]
        await engine.update_weights(weights, version=1, recompute=False)
        await engine.stop()

    with recorded(answers()) as (url, asked):
        asyncio.run(play(StockEngine(settings(checkpoint, url, tmp_path / "shared"))))


def test_routed_experts_are_those_of_the_tokens(checkpoint, tmp_path):
    """By the encoding that vLLM's interface gives them: an array [tokens read, layers, experts] as base64 of .npy."""
    chosen = np.arange(12, dtype=np.int16).reshape(3, 2, 2)
    with io.BytesIO() as buffer:
        np.save(buffer, chosen, allow_pickle=False)
        encoded = base64.b64encode(buffer.getvalue()).decode()
    found = _completion({"choices": [{**CHOICE, "routed_experts": encoded}]}, versions=None)
    np.testing.assert_array_equal(found.experts, chosen)


def with_masks() -> dict:
    said = answers()
    said["/server_info"]["vllm_config"]["model_config"]["return_sampling_mask"] = True
    said["/inference/v1/generate"]["choices"][0] |= {
        "token_ids": [3, 4],
        "sampling_mask": [[7, 3], [4, 1, 9]],
        "weight_versions": [{"version": "0", "start": 0, "end": 2}],
        "logprobs": {"content": [{"token_id": 3, "logprob": -0.5}, {"token_id": 4, "logprob": -1.0}]},
    }
    return said


def test_sampling_masks_are_what_could_be_drawn(checkpoint, tmp_path):
    """By the interface's encoding, a list of ids for each token; vLLM draws then only with a top_k."""

    async def play(engine):
        await engine.start()
        asked = request()
        with pytest.raises(InputError, match="top_k = 0: a vLLM with --return-sampling-mask"):
            [pair async for pair in engine.generate(asked)]
        cut = dataclasses.replace(asked, params=SamplingParams(1.0, 0.9, 2, top_k=4))
        found = [pair async for ready in engine.generate(cut) for pair in ready]
        await engine.stop()
        return found

    with recorded(with_masks()) as (url, asked):
        engine = StockEngine(settings(checkpoint, url, tmp_path))
        found = asyncio.run(play(engine))
    assert engine.facts.support
    for _, completion in found:
        np.testing.assert_array_equal(completion.support, [[7, 3, -1], [4, 1, 9]])
        assert completion.support_of(4).shape == (2, 4)
    asked_for = [body["sampling_params"] for path, body in asked if path == "/inference/v1/generate"]
    assert [params["top_k"] for params in asked_for] == [1, 4, 4, 4] and asked_for[1]["top_p"] == 0.9


def test_masks_of_other_tokens_are_found():
    with pytest.raises(EngineError, match="1 tokens with 2 sampling masks"):
        _completion({"choices": [{**CHOICE, "sampling_mask": [[3], [4]]}]}, versions=None)


@pytest.mark.parametrize(("env", "lacks"), [({"VLLM_BATCH_INVARIANT": True}, ()), ({}, ("same_bits",))])
def test_it_is_said_whether_what_is_drawn_depends_on_what_else_is_drawn(checkpoint, tmp_path, env, lacks):
    said = answers()
    said["/server_info"]["vllm_env"] = env
    with recorded(said) as (url, _):
        engine = StockEngine(settings(checkpoint, url, tmp_path))
        asyncio.run(engine.start())
    assert tuple(lack.partition(":")[0] for lack in engine.facts.lacks) == lacks


BUCKETS = ((TensorSpec("a", "bfloat16", (2, 3)),), (TensorSpec("b", "float32", (4,)), TensorSpec("c", "float32", (1,))))
UNIQUE_ID = bytes(range(128))


def with_nccl() -> dict:
    said = answers()
    said["/server_info"] |= {"system_env": {"pip_packages": "[pip3] numpy==2.0.0\n[pip3] nvidia-nccl-cu13==2.29.7"}}
    said["/server_info"]["vllm_config"]["weight_transfer_config"] = {"backend": "nccl"}
    return said


def test_weights_by_vllms_own_nccl_engine(checkpoint, tmp_path):
    """By the calls and bodies of its interface; the learner is rank 0, and both devices of this server its peers."""
    order = []

    async def receiving():
        order.append(asked[-1][0])

    async def play(engine):
        await engine.start()
        await engine.open_transfer(UNIQUE_ID, BUCKETS)
        seconds = await engine.take_sent_weights(receiving, version=7, recompute=True)
        await engine.check_health()
        await engine.stop()
        return seconds

    with recorded(with_nccl()) as (url, asked):
        engine = StockEngine(settings(checkpoint, url, ""))
        assert asyncio.run(play(engine)) > 0
    assert engine.facts.nccl == "2.29.7"
    start = next(i for i, (path, _) in enumerate(asked) if path == "/init_weight_transfer_engine")
    assert [(path, body) for path, body in asked[start - 1 :] if path != "/weight_info"] == [
        ("/pause?mode=keep", None),
        (
            "/init_weight_transfer_engine",
            {
                "init_info": {
                    "nccl_unique_id_b64": base64.b64encode(UNIQUE_ID).decode(),
                    "rank_offset": 1,
                    "world_size": 3,
                    "packed": True,
                    "packed_buffer_size_bytes": 20,
                    "packed_num_buffers": 1,
                }
            },
        ),
        ("/resume", None),
        ("/pause?mode=keep", None),
        ("/reset_prefix_cache?reset_running_requests=true", None),
        ("/start_weight_update", None),
        ("/update_weights", {"update_info": {"names": ["a"], "dtype_names": ["bfloat16"], "shapes": [[2, 3]]}}),
        (
            "/update_weights",
            {"update_info": {"names": ["b", "c"], "dtype_names": ["float32", "float32"], "shapes": [[4], [1]]}},
        ),
        ("/finish_weight_update", None),
        ("/update_weight_version", {"new_version": "7"}),
        ("/resume", None),
    ]
    assert order == ["/start_weight_update"]


def test_a_transfer_that_does_not_come(checkpoint, tmp_path):
    """Refused, vLLM serves on, and weights come by file; half of them is the end of it."""

    async def gone():
        raise ConnectionError("the learner is gone")

    async def play(engine):
        await engine.start()
        said["/init_weight_transfer_engine"] = 500
        with pytest.raises(TransferError, match="answered 500"):
            await engine.open_transfer(UNIQUE_ID, BUCKETS)
        assert [path for path, _ in asked if path != "/weight_info"][-1] == "/resume"
        await engine.check_health()
        del said["/init_weight_transfer_engine"]
        await engine.open_transfer(UNIQUE_ID, BUCKETS)
        with pytest.raises(EngineError, match=r"failed while it took version 8 \(the learner is gone\)"):
            await engine.take_sent_weights(gone, version=8, recompute=False)
        with pytest.raises(EngineError, match="version 8"):
            await engine.check_health()
        await engine.stop()

    said = with_nccl()
    with recorded(said) as (url, asked):
        asyncio.run(play(StockEngine(settings(checkpoint, url, tmp_path))))


def test_a_vllm_that_waits_for_a_learner_in_vain_is_of_no_more_use(checkpoint, tmp_path, monkeypatch):
    async def play(engine):
        await engine.start()
        engine._asked = functools.partial(silent, engine._asked)
        with pytest.raises(TransferError, match="timed out"):
            await engine.open_transfer(UNIQUE_ID, BUCKETS)
        with pytest.raises(EngineError, match="waits for a learner that did not come"):
            await engine.check_health()

    async def silent(asked, method, path, *rest):
        if path == "/init_weight_transfer_engine":
            raise EngineError("timed out") from TimeoutError()
        return await asked(method, path, *rest)

    with recorded(with_nccl()) as (url, _):
        asyncio.run(play(StockEngine(settings(checkpoint, url, tmp_path))))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"url": ""}, "--url: --engine=stock needs it"),
        ({"reload_dir": ""}, "--reload_dir: vLLM at .* takes no weights by NCCL: name a directory"),
        ({"kv_cache_bytes": 1}, "a stock vLLM has its own"),
        ({"lora_rank": 4}, "takes all weights"),
    ],
)
def test_flags_that_mean_nothing_here(checkpoint, tmp_path, fields, message):
    with recorded(answers()) as (url, _), pytest.raises(InputError, match=message):
        given = {"model": str(checkpoint), "url": url, "reload_dir": str(tmp_path)} | fields
        asyncio.run(StockEngine(StockSettings(**given)).start())
