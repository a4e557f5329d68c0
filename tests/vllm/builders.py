"""Small checkpoints, real servers with vLLM in them, and a client that speaks plain gRPC."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import signal
import subprocess
import threading
from collections.abc import Iterator

import grpc
import jax
import jax.numpy as jnp
import numpy as np
import psutil
import xxhash

from isocompute_jax import model
from isocompute_jax.learner import completion_logprobs
from isocompute_jax.model import EMBEDDED, ModelConfig, Params
from isocompute_jax.records.rollout import Completion
from isocompute_jax.records.tensors import TensorSpec
from isocompute_jax.service.proto import convert, sampler_pb2_grpc
from isocompute_jax.service.proto import sampler_pb2 as pb

ROOT = pathlib.Path(__file__).parents[2]
PYTHON = ROOT / ".venv-vllm" / "bin" / "python"
TOKEN = "a token for tests"
START_S = 600
"""Only so that a server that hangs fails a test; others may load the machine."""
TIED = dataclasses.replace(EMBEDDED, max_positions=512, vocab_size=48)
UNTIED = dataclasses.replace(TIED, tied_embeddings=False)
BLOCK = 128
"""Tokens of one block of vLLM's CPU key and value cache: longer prompts are cached."""
LONG = tuple(i * i % 47 for i in range(2 * BLOCK + 50))
SHORT = (5, 9, 33, 2, 17, 40)


def make_params(config: ModelConfig, seed: int) -> Params:
    """Random parameters, three times as large as for training: distributions are then far from flat."""
    params = model.init_params(config, jax.random.key(seed))
    return jax.tree.map(lambda leaf: leaf * 3 if leaf.ndim > 1 else leaf, params)


def tensors_of(config: ModelConfig, params: Params, dtype: type[np.generic] = np.float32) -> dict[str, np.ndarray]:
    """Parameters as a learner sends them."""
    return {name: value.astype(dtype) for name, value in model.hf_tensors(config, params)}


def learner_logprobs(
    config: ModelConfig, params: Params, prompt: tuple[int, ...], tokens: np.ndarray, temperature: float
) -> np.ndarray:
    """[R, T] log-probabilities that the learner gives to [R, T] tokens."""
    scores, _ = completion_logprobs(
        config,
        params,
        jnp.array([prompt]),
        jnp.ones((1, len(prompt)), bool),
        jnp.array(tokens)[None],
        temperature=temperature,
        chunk_tokens=256,
    )
    return np.asarray(scores[0])


class Client:
    """One server, called over a real channel."""

    def __init__(self, address: str):
        self.channel = grpc.insecure_channel(address)
        self.stub = sampler_pb2_grpc.SamplerStub(self.channel)
        self._groups = 0

    def request(self, prompt: tuple[int, ...], group_size: int, max_tokens: int, **fields) -> pb.SampleRequest:
        self._groups += 1
        fields = {"seed": 1, "step": 2, "problem_id": "p", "temperature": 1.0} | fields
        return pb.SampleRequest(
            group_id=f"group {self._groups}",
            prompt_tokens=prompt,
            group_size=group_size,
            max_tokens=max_tokens,
            **fields,
        )

    def sample(self, prompt: tuple[int, ...], group_size: int, max_tokens: int, **fields) -> list[Completion]:
        return collect(self.stub.Sample(self.request(prompt, group_size, max_tokens, **fields), timeout=120))

    def status(self, *, tensors: bool = False) -> pb.StatusReply:
        return self.stub.Status(pb.StatusRequest(tensors=tensors), timeout=30)

    def update(
        self, tensors: dict[str, np.ndarray], version: int, in_flight: pb.InFlight = pb.IN_FLIGHT_WAIT
    ) -> pb.UpdateWeightsReply:
        """Streams every tensor in one chunk each."""
        metadata = [("authorization", f"Bearer {TOKEN}")]
        return self.stub.UpdateWeights(messages(tensors, version, in_flight), metadata=metadata, timeout=120)


def messages(tensors: dict[str, np.ndarray], version: int, in_flight: pb.InFlight) -> Iterator[pb.UpdateWeightsRequest]:
    specs = [TensorSpec(name, str(value.dtype), value.shape) for name, value in tensors.items()]
    header = pb.WeightsHeader(
        session="tests", version=version, tensors=convert.tensors_to_messages(specs), in_flight=in_flight, senders=1
    )
    yield pb.UpdateWeightsRequest(header=header)
    for index, value in enumerate(tensors.values()):
        data = value.tobytes()
        box = pb.Box(tensor=index, offset=[0] * value.ndim, shape=value.shape)
        chunk = pb.WeightChunk(box=box, data=data, checksum=xxhash.xxh3_64_intdigest(data))
        yield pb.UpdateWeightsRequest(chunk=chunk)
    yield pb.UpdateWeightsRequest(end=pb.WeightsEnd(bytes=sum(value.nbytes for value in tensors.values())))


def collect(replies) -> list[Completion]:
    """The completions of a `Sample` call in rollout order; each must come once."""
    found = {}
    for reply in replies:
        for message in reply.completions:
            assert message.index not in found
            found[message.index] = convert.message_to_completion(message)
    return [found[index] for index in range(len(found))]


def stacked(completions: list[Completion]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Tokens, log-probabilities and versions of completions of one length, [R, T] each."""
    return (
        np.stack([completion.tokens for completion in completions]),
        np.stack([completion.logprobs for completion in completions]),
        np.stack([completion.policy_versions for completion in completions]),
    )


class Server:
    """`python -m isocompute_jax.serve` as a process of its own, with vLLM in it; its log is read as it comes."""

    engine = (str(PYTHON), "vllm", f"--kv_cache_bytes={64 << 20}")
    """Who runs it, and its engine with a flag of its own."""

    def __init__(self, directory: pathlib.Path, checkpoint: pathlib.Path, *flags: str):
        python, engine, *own = self.engine
        self.token = token = directory / "token"
        token.write_text(TOKEN)
        token.chmod(0o600)
        command = [
            *(python, "-m", "isocompute_jax.serve", f"--engine={engine}", f"--model={checkpoint}"),
            *(f"--token_file={token}", f"--weights_dir={directory}", "--grace_s=1", *own, *flags),
        ]
        # Not JAX's fake devices and caches, which are the tests' own.
        env = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "XLA_"))}
        self.process = subprocess.Popen(
            command, cwd=ROOT, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        self.log: list[str] = []
        self._address = ""
        self._known = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        stderr = self.process.stderr
        assert stderr is not None
        with contextlib.closing(stderr):
            for line in stderr:
                self.log.append(line)
                if "listening on " in line:
                    self._address = line.split("listening on ")[1].strip()
                    self._known.set()
        self._known.set()

    def client(self) -> Client:
        """A client, once the server listens."""
        return Client(self.address())

    def address(self) -> str:
        """Where it listens, once it does."""
        assert self._known.wait(START_S) and self._address, self.text
        return self._address

    @property
    def text(self) -> str:
        return "".join(self.log)

    def family(self) -> list[psutil.Process]:
        """The server and every process below it."""
        root = psutil.Process(self.process.pid)
        return [root, *root.children(recursive=True)]

    def engine_processes(self) -> list[psutil.Process]:
        found = []
        for process in self.family():
            with contextlib.suppress(psutil.NoSuchProcess):  # it has others for a moment, while it starts
                found += [process] if process.name().startswith("VLLM::") else []
        return found

    def end(self) -> int:
        """Ends it as a launcher would; its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(60)
        self._reader.join()
        return code


def gone(processes: list[psutil.Process]) -> bool:
    """Whether all of them end soon; those that were the server's children are zombies of nobody."""
    _, alive = psutil.wait_procs(processes, timeout=30)
    return not alive
