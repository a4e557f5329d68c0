"""Where weights are put together while they arrive: one flat file, and which boxes of which tensors are in it.

Arrived numbers are only bits here: float32 is viewed as uint32, bfloat16 and float16 as uint16.
"""

from __future__ import annotations

import dataclasses
import fcntl
import math
import mmap
import os
import secrets
from collections.abc import Sequence

import grpc
import numpy as np

from isocompute_jax.records.errors import InputError
from isocompute_jax.records.tensors import DTYPE_BYTES, TensorSpec
from isocompute_jax.service.proto import sampler_pb2 as pb
from isocompute_jax.service.proto.refusal import Refusal, invalid
from isocompute_jax.service.weights.weight_file import WeightFile, file_layout

PREFIX = "isocompute-staging-"
BITS = {2: np.dtype("<u2"), 4: np.dtype("<u4")}
READ_BYTES = 4 << 20
"""How much of a manifest's file is read at a time: it stays in the processor's cache between reading and hashing."""


@dataclasses.dataclass(frozen=True)
class Part:
    """A box of tensor `tensor` (index into the engine's tensors): `shape` numbers from `offset` on."""

    tensor: int
    offset: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def slices(self) -> tuple[slice, ...]:
        """The box as an index of its tensor."""
        return tuple(slice(low, low + size) for low, size in zip(self.offset, self.shape, strict=True))


def _locked_file(directory: str) -> tuple[str, int]:
    """A new file and its descriptor; made again if another process swept it away before it was locked."""
    while True:
        path = os.path.join(directory, f"{PREFIX}{os.getpid()}-{secrets.token_hex(8)}")
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        fcntl.flock(file, fcntl.LOCK_EX)
        if os.fstat(file).st_nlink:
            return path, file
        os.close(file)


class StagingFile:
    """A file of all tensors as `file_layout` says, readable by this user alone, and locked while its process lives.

    Raises:
      OSError: there is no room for it.
    """

    def __init__(self, directory: str, tensors: Sequence[TensorSpec]):
        self.tensors = tuple(tensors)
        self.starts, size = file_layout(tensors)
        self.path, self._file = _locked_file(directory)
        try:
            # Reserved, not only sized: writing to a map of a full tmpfs would kill the process.
            os.posix_fallocate(self._file, 0, max(size, 1))
            memory = mmap.mmap(self._file, max(size, 1))
        except OSError:
            self.remove()
            raise
        self._views = [
            np.frombuffer(memory, BITS[DTYPE_BYTES[tensor.dtype]], math.prod(tensor.shape), start).reshape(tensor.shape)
            for tensor, start in zip(self.tensors, self.starts, strict=True)
        ]

    @property
    def weights(self) -> WeightFile:
        """What an engine reads."""
        return WeightFile(self.path, self.tensors, self.starts)

    def write(self, part: Part, data: bytes | bytearray | memoryview) -> None:
        """Puts the numbers of a box in their place; `data` has exactly its size."""
        view = self._views[part.tensor]
        view[part.slices] = np.frombuffer(data, view.dtype).reshape(part.shape)

    def remove(self) -> None:
        """Removes it from its directory; its memory goes with the last reference."""
        os.unlink(self.path)
        os.close(self._file)


class StagingArea:
    """Staging files in a directory; one is kept between updates, because fresh pages cost more than what they hold.

    Args:
      directory: where; files that dead processes left there are removed.
      tensors: what each file holds.

    Raises:
      InputError: the directory cannot be written.
    """

    def __init__(self, directory: str, tensors: Sequence[TensorSpec]):
        self.directory = os.path.realpath(directory)
        self.tensors = tuple(tensors)
        self._files: set[StagingFile] = set()
        self._idle: list[StagingFile] = []
        check_directory(directory)
        sweep(self.directory)

    def take(self) -> StagingFile:
        """A file to write to; what it holds is anything."""
        if self._idle:
            return self._idle.pop()
        try:
            file = StagingFile(self.directory, self.tensors)
        except OSError as error:
            raise Refusal(
                grpc.StatusCode.RESOURCE_EXHAUSTED, f"the server cannot stage weights in {self.directory}: {error}"
            ) from error
        self._files.add(file)
        return file

    def give_back(self, file: StagingFile) -> None:
        """Keeps a file for the next update, unless one is kept already."""
        if self._idle:
            self._files.discard(file)
            file.remove()
        else:
            self._idle.append(file)

    def close(self) -> None:
        """Removes every file."""
        self._idle.clear()
        while self._files:
            self._files.pop().remove()


def check_directory(directory: str) -> None:
    """Raises InputError for a folder in which weights cannot be staged."""
    if not os.path.isdir(directory) or not os.access(directory, os.R_OK | os.W_OK | os.X_OK):
        raise InputError(f"--weights_dir={directory}: not a folder that can be written")


def sweep(directory: str) -> None:
    """Removes staging files whose process is gone: nobody holds their lock."""
    for entry in os.scandir(directory):
        if not entry.name.startswith(PREFIX) or not entry.is_file(follow_symlinks=False):
            continue
        try:
            file = os.open(entry.path, os.O_RDWR | os.O_NOFOLLOW)
        except OSError:
            continue  # another user's, or gone already
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(entry.path)
        except OSError:
            pass  # its process lives
        finally:
            os.close(file)


class Ledger:
    """Which parts of which tensors have arrived."""

    def __init__(self, tensors: Sequence[TensorSpec]):
        self._tensors = tuple(tensors)
        self._parts: list[list[Part]] = [[] for _ in tensors]
        self._counts = [0] * len(self._tensors)

    def add(self, part: Part) -> None:
        """Books a part; refuses it when more arrives than its tensor has."""
        tensor = self._tensors[part.tensor]
        self._parts[part.tensor].append(part)
        self._counts[part.tensor] += math.prod(part.shape)
        if self._counts[part.tensor] > math.prod(tensor.shape):
            raise invalid(f"tensor {tensor.name!r}: parts of it overlap; more numbers arrived than it has")

    def check_complete(self) -> None:
        """Refuses weights of which a number is missing, or was sent twice."""
        for tensor, parts, count in zip(self._tensors, self._parts, self._counts, strict=True):
            if _overlap(parts):
                raise invalid(f"tensor {tensor.name!r}: parts of it overlap")
            if count < math.prod(tensor.shape):
                raise Refusal(
                    grpc.StatusCode.DATA_LOSS,
                    f"tensor {tensor.name!r}: {count} of its {math.prod(tensor.shape)} numbers arrived",
                )


def _overlap(parts: Sequence[Part]) -> bool:
    """Whether any two boxes of one tensor share a number."""
    if len(parts) < 2:
        return False
    low = np.array([part.offset for part in parts], np.int64)
    high = low + np.array([part.shape for part in parts], np.int64)
    return any(
        np.any(np.all((low[i] < high[i + 1 :]) & (low[i + 1 :] < high[i]), axis=1)) for i in range(len(parts) - 1)
    )


def tensor_order(given: Sequence[pb.Tensor], expected: Sequence[TensorSpec]) -> list[int]:
    """For each tensor of a header the index of the engine's tensor of that name; headers may have any order.

    Raises:
      Refusal: names the first tensor that is wrong, unknown, repeated or missing.
    """
    index = {tensor.name: i for i, tensor in enumerate(expected)}
    order: list[int] = []
    seen: set[str] = set()
    for tensor in given:
        if tensor.name not in index:
            raise invalid(f"tensor {tensor.name!r} is not one of the model's")
        if tensor.name in seen:
            raise invalid(f"tensor {tensor.name!r} is listed twice")
        seen.add(tensor.name)
        ours = expected[index[tensor.name]]
        if tensor.dtype != ours.dtype:
            raise invalid(f"tensor {tensor.name!r} has dtype {tensor.dtype!r}; the model's is {ours.dtype!r}")
        if tuple(tensor.shape) != ours.shape:
            raise invalid(f"tensor {tensor.name!r} has shape {list(tensor.shape)}; the model's is {list(ours.shape)}")
        order.append(index[tensor.name])
    for tensor in expected:
        if tensor.name not in seen:
            raise invalid(f"tensor {tensor.name!r} is missing from the header")
    return order


def part_of(box: pb.Box, order: Sequence[int], tensors: Sequence[TensorSpec]) -> Part:
    """A box, checked to lie in its tensor and to hold something.

    Args:
      box: as it was sent.
      order: of `tensor_order`.
      tensors: the engine's.

    Raises:
      Refusal: it does not.
    """
    if box.tensor >= len(order):
        raise invalid(f"a box names tensor {box.tensor}; the header lists {len(order)}")
    part = Part(order[box.tensor], tuple(box.offset), tuple(box.shape))
    tensor = tensors[part.tensor]
    if not len(part.offset) == len(part.shape) == len(tensor.shape) or any(
        low < 0 or size < 1 or low + size > whole
        for low, size, whole in zip(part.offset, part.shape, tensor.shape, strict=True)
    ):
        raise invalid(
            f"tensor {tensor.name!r} of shape {list(tensor.shape)}: the box at {list(part.offset)} of shape "
            f"{list(part.shape)} is empty or lies outside it"
        )
    return part


def part_bytes(part: Part, tensors: Sequence[TensorSpec]) -> int:
    """Size of a part in bytes."""
    return math.prod(part.shape) * DTYPE_BYTES[tensors[part.tensor].dtype]
