"""A plain vLLM server behind the gateway: what it draws, how it takes weights, and what becomes of a run it dies in."""

import contextlib
import dataclasses
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request

import numpy as np
import pytest

from isocompute_jax import model
from isocompute_jax.distributed import alone
from isocompute_jax.experiment import loop
from isocompute_jax.experiment.config import override
from isocompute_jax.experiment.teacher import ServedTeacher
from isocompute_jax.records import run_files
from isocompute_jax.records.rollout import Completion, RolloutGroup
from isocompute_jax.service.client.service_config import ServiceConfig
from isocompute_jax.service.server.engines.vllm.environment import ALWAYS, DEFAULTS
from tests.experiment import builders as runs
from tests.vllm import builders
from tests.vllm.builders import SHORT, UNTIED, learner_logprobs, make_params, stacked, tensors_of

pytestmark = pytest.mark.vllm

FLAGS = (
    *("--skip-tokenizer-init", "--dtype=float32", "--enforce-eager", "--max-model-len=512", "--generation-config=vllm"),
    *("--logprobs-mode=processed_logprobs", "--enable-scale-out", "--no-enable-chunked-prefill", "--max-num-seqs=64"),
    f"--kv-cache-memory-bytes={64 << 20}",
)


class StockServer:
    """What `vllm serve` starts (its command asks for a distribution that the CPU build has under another name)."""

    def __init__(self, checkpoint: pathlib.Path, port: int):
        self.url = f"http://127.0.0.1:{port}"
        command = [str(builders.PYTHON), "-m", "vllm.entrypoints.openai.api_server", f"--model={checkpoint}"]
        env = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "XLA_"))}
        self.process = subprocess.Popen(
            [*command, f"--port={port}", *FLAGS],
            env={**env, **DEFAULTS, **ALWAYS, "VLLM_SERVER_DEV_MODE": "1"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def await_health(self) -> None:
        for _ in range(builders.START_S):
            assert self.process.poll() is None
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{self.url}/health", timeout=5):
                return
            time.sleep(1)
        raise AssertionError("it does not start")

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


class Gateway(builders.Server):
    engine = (sys.executable, "stock")


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@pytest.fixture(scope="module")
def tokenizer_and_inputs(tmp_path_factory):
    directory = tmp_path_factory.mktemp("inputs")
    config = runs.make_inputs(directory)
    served = directory / "served"
    model.save_checkpoint(served, UNTIED, make_params(UNTIED, 0), tokenizer_from=directory / "tokenizer")
    return dataclasses.replace(config, model=str(served)), served


@pytest.fixture(scope="module")
def stock(tokenizer_and_inputs):
    if not builders.PYTHON.exists():
        pytest.fail("these tests need the environment that `make vllm-env` makes")
    server = StockServer(tokenizer_and_inputs[1], free_port())
    try:
        server.await_health()
        yield server
    finally:
        server.kill()


@contextlib.contextmanager
def gateway(stock, checkpoint, directory):
    directory.mkdir()
    server = Gateway(directory, checkpoint, f"--url={stock.url}", f"--reload_dir={directory}")
    try:
        yield server
    finally:
        server.end()


def test_it_draws_and_takes_weights_as_the_learner_has_them(stock, tokenizer_and_inputs, tmp_path):
    with gateway(stock, tokenizer_and_inputs[1], tmp_path / "gateway") as server:
        client = server.client()
        for version, seed in ((0, 0), (4, 1), (5, 0)):
            params = make_params(UNTIED, seed)
            if version:
                client.update(tensors_of(UNTIED, params), version)
            drawn = client.sample(SHORT, 8, 12, temperature=1.5)
            tokens, logprobs, versions = stacked(drawn)
            assert (versions == version).all() and len({tuple(row) for row in tokens.tolist()}) == 8
            np.testing.assert_allclose(
                logprobs, learner_logprobs(UNTIED, params, SHORT, tokens, 1.5), rtol=0, atol=2e-5
            )
            again, _, _ = stacked(client.sample(SHORT, 8, 12, temperature=1.5))
            np.testing.assert_array_equal(again, tokens)  # each rollout has its own seed
        status = client.status()
        assert (status.engine, status.version) == ("stock vLLM", 5)
        assert not list((tmp_path / "gateway").glob("gateway-*"))


def test_a_stop_token_ends_a_rollout_and_budgets_hold(stock, tokenizer_and_inputs, tmp_path):
    with gateway(stock, tokenizer_and_inputs[1], tmp_path / "gateway") as server:
        client = server.client()
        drawn = client.sample(SHORT, 16, 30, stop_token_ids=list(range(0, 48, 3)), budgets=[20] * 16)
        assert {one.finish_reason for one in drawn} >= {"stop"}
        assert all((one.tokens[-1] % 3 == 0) == (one.finish_reason == "stop") for one in drawn)
        assert all(len(one.tokens) <= 20 and (one.tokens[:-1] % 3 != 0).all() for one in drawn)


def test_a_served_teacher_says_what_the_learner_computes(stock):
    """Of prompts as well as completions, and of a token that is never the likeliest."""
    rng = np.random.default_rng(0)

    def drawn(length):
        tokens = rng.integers(0, UNTIED.vocab_size, length).astype(np.int32)
        return Completion.drawn(tokens, np.zeros(length, np.float32), np.zeros(length, np.int32), "stop")

    prompt = np.array(SHORT, np.int32)
    groups = [RolloutGroup(str(i), 0, prompt, tuple(drawn(8) for _ in range(3))) for i in range(2)]
    for group in ServedTeacher(stock.url, alone(), wait_s=0.0).taught(groups):
        tokens, found = (np.stack([getattr(c, name) for c in group.completions]) for name in ("tokens", "logprobs"))
        expected = learner_logprobs(UNTIED, make_params(UNTIED, 0), SHORT, tokens, 1.0)
        np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5)


@pytest.mark.parametrize(("name", "message"), [("tied", "its head is its embedding"), ("other", "another model")])
def test_models_that_it_cannot_serve_are_refused(stock, checkpoints, tmp_path, name, message):
    checkpoint = checkpoints["tied", 0] if name == "tied" else checkpoints["untied", 1]
    directory = tmp_path / "gateway"
    directory.mkdir()
    server = Gateway(directory, checkpoint, f"--url={stock.url}", f"--reload_dir={directory}")
    assert server.process.wait(120) == 2 and message in server.text
    server.end()


def test_a_run_goes_on_when_vllm_is_killed_and_replaced(tokenizer_and_inputs, tmp_path):
    """Both vLLM and its gateway are restarted, as a supervisor would; the run loses nothing, and agreement holds."""
    config, checkpoint = tokenizer_and_inputs
    port, address = free_port(), f"127.0.0.1:{free_port()}"
    started: list = []

    def start():
        stock = StockServer(checkpoint, port)
        directory = tmp_path / f"gateway-{len(started)}"
        directory.mkdir()
        flags = f"--url={stock.url}", f"--reload_dir={directory}", f"--port={address.rpartition(':')[2]}"
        started.append((stock, Gateway(directory, checkpoint, *flags)))

    def replace_in_the_middle():
        metrics = tmp_path / "run" / run_files.METRICS
        while not metrics.exists() or metrics.read_text().count("\n") < 4:
            time.sleep(0.1)
        stock, server = started[-1]
        stock.kill()
        server.process.wait(120)  # it ends by itself, when it sees that vLLM is gone
        start()

    service = ServiceConfig(endpoints=address, push="stream", token_file=str(tmp_path / "gateway-0" / "token"))
    config = override(
        override(dataclasses.replace(config, service=service), "max_compute", 64 * 12), "agreement.every", 4
    )
    start()
    try:
        watcher = threading.Thread(target=replace_in_the_middle, daemon=True)
        watcher.start()
        loop.train(config, tmp_path / "run")
        watcher.join(60)
        assert len(started) == 2
        lines = runs.log_lines(tmp_path / "run", run_files.METRICS)
        assert len(lines) == 12 and all(line["logprob_difference_max"] < 1e-3 for line in lines)
        assert [line["staleness"] for line in lines] == [0] * 12
    finally:
        for stock, server in started:
            stock.kill()
            server.end()
