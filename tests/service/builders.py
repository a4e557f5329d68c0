"""Servers in this process around the simulated engine, and the messages that tests send them."""

import asyncio
import contextlib
import pathlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc
import numpy as np
import xxhash
from grpc_health.v1 import health_pb2_grpc

from benchmarks.simulated_engine import SimulatedEngine
from isocompute_jax.records.tensors import TensorSpec
from isocompute_jax.service.proto import convert, sampler_pb2_grpc
from isocompute_jax.service.proto import sampler_pb2 as pb
from isocompute_jax.service.proto.terms import PUSHBACK
from isocompute_jax.service.server.refusals import SERVICE
from isocompute_jax.service.server.server import Server, ServerConfig
from isocompute_jax.service.weights.files import STAGING, WeightFile, file_layout

TENSORS = (
    TensorSpec("embed", "bfloat16", (6, 4)),
    TensorSpec("norm", "float32", (5,)),
    TensorSpec("scale", "float32", ()),
    TensorSpec("experts", "float16", (2, 3, 4)),
)
LIMIT_S = 20.0
"""Only so that a test that hangs fails; nothing is timed by it."""


class Probe(SimulatedEngine):
    """The simulated engine, with its doings to be looked at and waited for."""

    def __init__(self, tensors: Sequence[TensorSpec] = TENSORS, *, frozen: bool = False, **settings):
        defaults: dict[str, Any] = {"tokens_per_s": 1e6}
        super().__init__(tuple(tensors), **(defaults | settings))
        self.frozen = frozen
        self.started = asyncio.Semaphore(0)
        self.open = 0
        self.closed = asyncio.Condition()
        self.updating = asyncio.Event()
        self.may_update = asyncio.Event()
        self.may_update.set()
        self.update_error: Exception | None = None
        self.files: list[WeightFile] = []
        self.recomputed: list[bool] = []

    async def generate(self, request):
        self.open += 1
        self.started.release()
        try:
            async with contextlib.aclosing(super().generate(request)) as replies:
                async for ready in replies:
                    yield ready
        finally:
            self.open -= 1
            async with self.closed:
                self.closed.notify_all()

    async def freed(self):
        """Waits until no generator is open."""
        async with self.closed:
            await self.closed.wait_for(lambda: not self.open)

    async def update_weights(self, weights, *, version, recompute):
        self.updating.set()
        await self.may_update.wait()
        if self.update_error is not None:
            raise self.update_error
        self.files.append(weights)
        self.recomputed.append(recompute)
        return await super().update_weights(weights, version=version, recompute=recompute)


class Client:
    """Channels to a server, and its methods.

    Streams go out over a blocking channel: one of asyncio reports INTERNAL instead of the server's status when the
    server ends a call while the client still writes to it.
    """

    def __init__(self, channel: grpc.aio.Channel, blocking: grpc.Channel):
        self.channel = channel
        self.blocking = blocking
        self.stub = sampler_pb2_grpc.SamplerStub(channel)

    async def status(self, *, tensors: bool = False) -> pb.StatusReply:
        return await self.stub.Status(pb.StatusRequest(tensors=tensors))

    def start(self, **fields) -> grpc.aio.UnaryStreamCall:
        return self.stub.Sample(request(**fields))

    async def sample(self, **fields) -> list[pb.Completion]:
        return [done async for reply in self.start(**fields) for done in reply.completions]

    async def update(self, messages, *, token: str = "") -> pb.UpdateWeightsReply:
        return await self.stream("UpdateWeights", [message.SerializeToString() for message in messages], token=token)

    async def stream(self, method: str, messages: Sequence[bytes], *, token: str = "") -> pb.UpdateWeightsReply:
        metadata = (("authorization", f"Bearer {token}"),) if token else None
        call = self.blocking.stream_unary(
            f"/{SERVICE}/{method}", response_deserializer=pb.UpdateWeightsReply.FromString
        )
        return await asyncio.to_thread(call, iter(messages), timeout=LIMIT_S, metadata=metadata)


@contextlib.asynccontextmanager
async def serving(
    engine: SimulatedEngine, weights_dir: pathlib.Path, *, credentials=None, options=(), **settings
) -> AsyncIterator[tuple[Server, Client]]:
    """A server around an engine, and a client of it."""
    server = Server(engine, ServerConfig(weights_dir=str(weights_dir), **settings))
    await server.start()
    if credentials is None:
        channel = grpc.aio.insecure_channel(server.address, options=options)
        blocking = grpc.insecure_channel(server.address)
    else:
        channel = grpc.aio.secure_channel(server.address, credentials, options=options)
        blocking = grpc.secure_channel(server.address, credentials)
    try:
        async with channel:
            with blocking:
                yield server, Client(channel, blocking)
    finally:
        await server.stop(0)


def run(test) -> None:
    """Runs a test's coroutine; one that hangs fails."""
    asyncio.run(asyncio.wait_for(test, LIMIT_S))


async def begun(client: Client, engine: Probe, names: Sequence[str] = "g", **fields) -> list[asyncio.Task]:
    """Groups of these names, once the engine draws them."""
    tasks = [asyncio.create_task(client.sample(group_id=name, **fields)) for name in names]
    for _ in tasks:
        await engine.started.acquire()
    return tasks


def token_file(path: pathlib.Path, token: str) -> str:
    """A token in a file that this user alone may read; the file's name."""
    path.touch(mode=0o600)
    path.write_text(token)
    return str(path)


def request(**fields) -> pb.SampleRequest:
    """A request that is right, but for `fields`."""
    return pb.SampleRequest(**({"group_id": "g", "problem_id": "p", "prompt_tokens": [1, 2], "group_size": 2} | fields))


def secured(directory: pathlib.Path, token: str) -> dict[str, Any]:
    """Settings of a server (see `serving`) with a token, a folder of weights, and messages of at most a MiB."""
    (directory / "weights").mkdir()
    file = token_file(directory / "token", token)
    return {"weights_dir": directory / "weights", "token_file": file, "max_message_mib": 1}


def pushback_ms(error: grpc.RpcError) -> int:
    """When a full server asked to come again."""
    trailing: Any = error.trailing_metadata()
    return int(dict(trailing)[PUSHBACK])


def health_stub(client: Client) -> Any:
    """Of a class that makes its methods when it is made."""
    return health_pb2_grpc.HealthStub(client.channel)


async def refused(awaitable, code: grpc.StatusCode, *words: str) -> grpc.RpcError:
    """Awaits a call that must end with a status whose message has these words."""
    try:
        result = await awaitable
    except grpc.RpcError as error:
        assert error.code() == code, error
        for word in words:
            assert word in (error.details() or ""), error.details()
        return error
    raise AssertionError(f"no error, but {result}")


def arrays(seed: int, tensors: Sequence[TensorSpec] = TENSORS) -> list[np.ndarray]:
    """Random bits for each tensor, of numbers that are finite: one bit of the exponent is 0."""
    random = np.random.default_rng(seed)
    kinds = {"float32": np.uint32, "bfloat16": np.uint16, "float16": np.uint16}
    return [random.integers(0, 2**16, tensor.shape).astype(kinds[tensor.dtype]) & 0xBFFF for tensor in tensors]


def file_bytes(values: Sequence[np.ndarray], tensors: Sequence[TensorSpec] = TENSORS) -> dict[str, bytes]:
    """Each tensor's bytes."""
    return {tensor.name: value.tobytes() for tensor, value in zip(tensors, values, strict=True)}


def tensor_bytes(file: bytes, weights: WeightFile) -> dict[str, bytes]:
    """Each tensor's bytes in a file."""
    pairs = zip(weights.tensors, weights.starts, strict=True)
    return {tensor.name: file[start : start + tensor.nbytes] for tensor, start in pairs}


def header(tensors: Sequence[TensorSpec] = TENSORS, **fields) -> pb.UpdateWeightsRequest:
    settings = {"session": "s", "version": 1, "sender": 0, "senders": 1} | fields
    return pb.UpdateWeightsRequest(header=pb.WeightsHeader(tensors=convert.tensors_to_messages(tensors), **settings))


def chunk(tensor: int, value: np.ndarray, offset: Sequence[int] | None = None) -> pb.UpdateWeightsRequest:
    """A chunk with a box of its array's shape."""
    data = value.tobytes()
    box = pb.Box(tensor=tensor, offset=[0] * value.ndim if offset is None else offset, shape=value.shape)
    checksum = xxhash.xxh3_64_intdigest(data)
    return pb.UpdateWeightsRequest(chunk=pb.WeightChunk(box=box, data=data, checksum=checksum))


def end(size: int) -> pb.UpdateWeightsRequest:
    return pb.UpdateWeightsRequest(end=pb.WeightsEnd(bytes=size))


def update(values: Sequence[np.ndarray], **fields) -> list[pb.UpdateWeightsRequest]:
    """All messages of one sender's update with a chunk for each tensor that falls to it."""
    sender, senders = fields.get("sender", 0), fields.get("senders", 1)
    parts = [(i, value) for i, value in enumerate(values) if i % senders == sender]
    return [header(**fields), *(chunk(i, value) for i, value in parts), end(sum(value.nbytes for _, value in parts))]


def manifest(file: pathlib.Path, values: Sequence[np.ndarray], **fields) -> pb.UpdateWeightsRequest:
    """Writes all tensors to a file as `file_layout` says, and names it."""
    starts, size = file_layout(TENSORS)
    content = bytearray(size)
    for start, value in zip(starts, values, strict=True):
        content[start : start + value.nbytes] = value.tobytes()
    file.write_bytes(content)
    settings = {
        "path": str(file),
        "size": size,
        "checksum": xxhash.xxh3_64_intdigest(bytes(content)),
        "boxes": [pb.Box(tensor=i, offset=[0] * len(t.shape), shape=t.shape) for i, t in enumerate(TENSORS)],
        "starts": starts,
    } | fields
    return pb.UpdateWeightsRequest(manifest=pb.Manifest(**settings))


def manifest_bytes() -> int:
    return sum(tensor.nbytes for tensor in TENSORS)


async def serves(engine, client, values, version, group="check") -> None:
    """The engine has exactly these weights, and samples with their version."""
    assert tensor_bytes(engine.weights, engine.files[-1]) == file_bytes(values)
    assert {span.version for done in await client.sample(group_id=group) for span in done.spans} == {version}


def staged(directory) -> list[str]:
    """The files in which a server puts weights together."""
    return [str(file) for folder in directory.glob(f"{STAGING}*") for file in folder.iterdir()]
