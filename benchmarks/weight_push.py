"""New weights to a server, each way, beside what the machine can do, in one run.

    python -m benchmarks.weight_push --mib=1024 --streams=2

What stands beside them: `cp` of the same bytes from /dev/shm to /dev/shm; and a raw loopback socket to a process of its
own, one connection, both sides with the checksum that the service uses. All ways take turns within a round, so that a
busy machine slows all of them; each line is the median round. `laid down` is from the learner's arrays to a finished
file with its checksum, once for all endpoints; the two pushes are from the file to the server's reply: sent, checked,
and told to the (simulated) engine; the last two lines are both together.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import pathlib
import socket
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection

import numpy as np
import xxhash
from absl import flags

from benchmarks.servers import serving
from benchmarks.shared import in_turns
from isocompute_jax import app
from isocompute_jax.records.tensors import Box, TensorSpec
from isocompute_jax.service.client.connection import Endpoint, update_calls
from isocompute_jax.service.client.service_config import ServiceConfig
from isocompute_jax.service.proto import sampler_pb2 as pb
from isocompute_jax.service.weights.files import Outbox, Parcel

TENSOR_MIB = 64
BLOCK = 1 << 20
"""What the raw socket hashes and sends at once."""

_MIB = flags.DEFINE_integer("mib", 1024, f"Size of the model, in MiB; a multiple of {TENSOR_MIB}.", TENSOR_MIB)
_STREAMS = flags.DEFINE_integer("streams", ServiceConfig().streams, "Streams of a streamed push.", 1)
_REPEATS = flags.DEFINE_integer("repeats", 7, "Rounds.", 1)


def main() -> None:
    """Flags -> table."""
    count = _MIB.value // TENSOR_MIB
    tensors = [TensorSpec(f"weight.{i}", "float32", (TENSOR_MIB * 256, 1024)) for i in range(count)]
    random = np.random.default_rng(0)
    boxes = [(tensor.box, random.random(tensor.shape, np.float32)) for tensor in tensors]
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory, contextlib.ExitStack() as stack:
        root = pathlib.Path(directory)
        source, target = root / "source", root / "target"
        source.write_bytes(b"".join(numbers.tobytes() for _, numbers in boxes))
        arguments = [f"--weights_dir={root}", *[f"--tensor_mib={TENSOR_MIB}"] * count]
        [server] = stack.enter_context(serving("benchmarks.simulated", arguments, count=1, root=root))
        sink = stack.enter_context(_sink())
        learner = stack.enter_context(_Learner(root, tensors, boxes, server.address))
        ways: dict[str, Callable[[], None]] = {
            "cp to /dev/shm": lambda: _copy(source, target),
            "raw socket": lambda: _send(sink, boxes),
            "laid down": learner.lay_down,
            "push, shared": lambda: learner.push(shared=True),
            "push, streamed": lambda: learner.push(shared=False),
        }
        turns = in_turns(ways, _REPEATS.value)  # the round that is not counted makes the files' pages, and connects
    seconds = {name: statistics.median(times) for name, times in turns.items()}
    for name in ("push, shared", "push, streamed"):
        seconds[f"both, {name[6:]}"] = seconds["laid down"] + seconds[name]
    _report(seconds, count * TENSOR_MIB * 2**20 / 1e9)


def _report(seconds: dict[str, float], gigabytes: float) -> None:
    print(f"{'':18}{'GB/s':>7}{'of cp':>8}{'of the socket':>15}")
    for name, taken in seconds.items():
        shares = [seconds[peer] / taken for peer in ("cp to /dev/shm", "raw socket")]
        print(f"{name:18}{gigabytes / taken:7.2f}{shares[0]:8.0%}{shares[1]:15.0%}")


class _Learner:
    """An outbox and an endpoint, on an event loop of its own; a context manager."""

    def __init__(self, root: pathlib.Path, tensors: list[TensorSpec], boxes: list[tuple[Box, np.ndarray]], target: str):
        self._boxes = boxes
        self._version = 0
        self._outbox = Outbox(str(root), run="benchmark", tensors=tensors, whole=True)
        self._runner = asyncio.Runner()
        self._endpoint = self._runner.run(_connect(target))
        self._parcel: Parcel

    def __enter__(self) -> _Learner:
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.run(self._endpoint.close())
        self._runner.close()
        self._outbox.close()

    def lay_down(self) -> None:
        """Arrays to a finished file with its checksum."""
        self._version += 1
        self._parcel = self._outbox.write(self._boxes, version=self._version)

    def push(self, *, shared: bool) -> None:
        """The file to the server's reply."""
        calls = update_calls(
            self._parcel, session="benchmark", in_flight=pb.IN_FLIGHT_ABORT, shared=shared, streams=_STREAMS.value
        )
        self._runner.run(self._endpoint.push(calls, sent=lambda: None))


async def _connect(target: str) -> Endpoint:
    return Endpoint(target, ServiceConfig())


@contextlib.contextmanager
def _sink() -> Iterator[socket.socket]:
    """A connection to a process that hashes what it receives, and answers with the hash of every `size` bytes."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_receive, args=(theirs,), daemon=True)
    process.start()
    with socket.create_connection(("127.0.0.1", ours.recv())) as connection:
        yield connection
    process.join()


def _receive(pipe: Connection) -> None:
    """The other end of `_sink`: 8 bytes of length, the bytes, and again."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        pipe.send(listener.getsockname()[1])
        connection, _ = listener.accept()
    block = memoryview(bytearray(BLOCK))
    with connection:
        while header := connection.recv(8, socket.MSG_WAITALL):
            left, digest = int.from_bytes(header, "little"), xxhash.xxh3_64()
            while left:
                got = connection.recv_into(block[: min(left, BLOCK)], 0, socket.MSG_WAITALL)
                digest.update(block[:got])
                left -= got
            connection.sendall(digest.digest())


def _send(connection: socket.socket, boxes: list[tuple[Box, np.ndarray]]) -> None:
    """Sends all numbers block by block, and compares the checksums of both sides."""
    digest = xxhash.xxh3_64()
    connection.sendall(sum(numbers.nbytes for _, numbers in boxes).to_bytes(8, "little"))
    for _, numbers in boxes:
        data = numbers.reshape(-1).view(np.uint8).data
        for start in range(0, len(data), BLOCK):
            block = data[start : start + BLOCK]
            digest.update(block)
            connection.sendall(block)
    if connection.recv(8, socket.MSG_WAITALL) != digest.digest():
        raise RuntimeError("the socket's checksums differ")


def _copy(source: pathlib.Path, target: pathlib.Path) -> None:
    subprocess.run(["cp", os.fspath(source), os.fspath(target)], check=True)


if __name__ == "__main__":
    app.run(main)
