"""Weights on their way out: laid down in a file once, sent from there as often as needed.

The learner may overwrite its parameters as soon as they are laid down. An endpoint that comes back late is served from
the file. Two files are used in turn, because fresh pages cost more than what they hold, and because the older one may
still be on its way.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import math
import mmap
import os
import pathlib
import re
import secrets
from collections.abc import Iterable, Sequence

import numpy as np
import xxhash

from isocompute_jax.records.errors import InputError, RunError
from isocompute_jax.records.tensors import DTYPE_BYTES, Box, TensorSpec
from isocompute_jax.service.weights.weight_file import ALIGNMENT, file_layout

HostBox = tuple[Box, np.ndarray]
"""A box and its numbers, C-contiguous."""

PREFIX = "isocompute-outbox-"
LOCAL = "/dev/shm"
"""Only this host's processes use it, so that what no process of it has locked is nobody's."""
BITS = {2: np.dtype("<u2"), 4: np.dtype("<u4")}


@dataclasses.dataclass(frozen=True)
class FileBox:
    """A box of tensor `tensor` (index): `shape` numbers from `offset` on, in row-major order from byte `start` on."""

    tensor: int
    offset: tuple[int, ...]
    shape: tuple[int, ...]
    start: int


@dataclasses.dataclass(frozen=True, eq=False)
class Parcel:
    """One version of the weights, or this host's share of it, in a finished file.

    Attributes:
      version: policy version.
      tensors: every tensor of the model.
      path: the file.
      size: its size in bytes.
      checksum: xxh3_64 of all of it.
      boxes: what it holds.
      data: the file, mapped.
    """

    version: int
    tensors: tuple[TensorSpec, ...]
    path: str
    size: int
    checksum: int
    boxes: tuple[FileBox, ...]
    data: memoryview

    def nbytes(self, box: FileBox) -> int:
        """Size of a box in bytes."""
        return math.prod(box.shape) * DTYPE_BYTES[self.tensors[box.tensor].dtype]


class Outbox:
    """The two files, in a folder that a restart of the same run finds again, empties and goes on with.

    Args:
      directory: where the folder is made.
      run: names the run (with the process, where several share the directory).
      tensors: every tensor of the model, all that a server expects.
      whole: all of the model comes from this process: the file holds every tensor whole, and a server can use it as
        it is. Else boxes stand one behind the other.

    Raises:
      InputError: the folder cannot be made.
      RunError: another live process uses it.
    """

    def __init__(self, directory: str, *, run: str, tensors: Sequence[TensorSpec], whole: bool):
        self._tensors = tuple(tensors)
        self._index = {tensor.name: i for i, tensor in enumerate(self._tensors)}
        self._starts, self._size = file_layout(self._tensors)
        self._whole = whole
        if os.path.realpath(directory) == LOCAL:
            sweep(directory)
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", run)[-40:]
        digest = hashlib.blake2b(run.encode(), digest_size=6).hexdigest()
        self._folder = pathlib.Path(directory) / f"{PREFIX}{os.getuid()}-{name}-{digest}"
        try:
            lock = _locked(self._folder)
            while lock is None:  # swept away between its making and its locking
                lock = _locked(self._folder)
        except BlockingIOError:
            raise RunError(f"{self._folder} is in use: another learner of the run {run!r} is alive") from None
        except OSError as error:
            raise InputError(f"config.service.shared_dir = {directory!r}: {error}") from error
        self._lock = lock
        # Never written over: a server may still be reading what an earlier start of this run sent.
        _empty(self._folder)
        start = secrets.token_hex(4)
        self._files = [_File(str(self._folder / f"{start}.{i}")) for i in range(2)]

    def write(self, boxes: Iterable[HostBox], *, version: int) -> Parcel:
        """Lays weights down. The parcel before this one stays whole; the one before that is gone.

        Raises:
          RunError: there is no room.
        """
        self._files.reverse()
        file = self._files[0]
        try:
            found = self._write_whole(file, boxes) if self._whole else self._write_packed(file, boxes)
        except OSError as error:
            raise RunError(f"weights of version {version} cannot be written to {file.path}: {error}") from error
        data = file.map()
        checksum = xxhash.xxh3_64_intdigest(data)
        return Parcel(version, self._tensors, file.path, len(data), checksum, found, data)

    def close(self) -> None:
        """Removes the folder; parcels keep what they have mapped."""
        for file in self._files:
            file.remove()
        self._folder.rmdir()
        os.close(self._lock)

    def _write_whole(self, file: _File, boxes: Iterable[HostBox]) -> tuple[FileBox, ...]:
        """Every box at its place in its tensor."""
        file.reserve(self._size)
        data = file.map()
        views = [
            np.frombuffer(data, BITS[DTYPE_BYTES[tensor.dtype]], math.prod(tensor.shape), start).reshape(tensor.shape)
            for tensor, start in zip(self._tensors, self._starts, strict=True)
        ]
        for box, numbers in boxes:
            view = views[self._index[box.name]]
            here = tuple(slice(low, low + size) for low, size in zip(box.offset, box.shape, strict=True))
            view[here] = numbers.view(view.dtype)
        zeros = ((0,) * len(tensor.shape) for tensor in self._tensors)
        return tuple(
            FileBox(i, offset, tensor.shape, start)
            for i, (tensor, start, offset) in enumerate(zip(self._tensors, self._starts, zeros, strict=True))
        )

    def _write_packed(self, file: _File, boxes: Iterable[HostBox]) -> tuple[FileBox, ...]:
        """One box behind the other."""
        found, end = [], 0
        for box, numbers in boxes:
            start = -(-end // ALIGNMENT) * ALIGNMENT
            file.write(numbers, start)
            found.append(FileBox(self._index[box.name], box.offset, box.shape, start))
            end = start + numbers.nbytes
        file.cut(end)
        return tuple(found)


def sweep(directory: str) -> None:
    """Removes what killed learners of this user left, by that nobody holds its lock: two copies of a model each."""
    for entry in os.scandir(directory):
        if entry.name.startswith(f"{PREFIX}{os.getuid()}-") and entry.is_dir(follow_symlinks=False):
            with contextlib.suppress(OSError):  # alive, or gone already
                lock = _locked(pathlib.Path(entry.path))
                if lock is not None:
                    _empty(pathlib.Path(entry.path))
                    os.rmdir(entry.path)
                    os.close(lock)


def _locked(folder: pathlib.Path) -> int | None:
    """Makes a folder where there is none, and locks it; None when somebody removed it meanwhile.

    Raises:
      BlockingIOError: a live process holds the lock.
      OSError: it cannot be made, or belongs to another user.
    """
    folder.mkdir(mode=0o700, exist_ok=True)
    try:
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    try:
        if os.fstat(lock).st_uid != os.getuid():
            raise PermissionError(f"{folder} belongs to another user")
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.exists(folder) and os.path.samestat(os.fstat(lock), os.stat(folder)):
            return lock
    except OSError:
        os.close(lock)
        raise
    os.close(lock)
    return None


def _empty(folder: pathlib.Path) -> None:
    for stale in folder.iterdir():
        stale.unlink()


class _File:
    """A file that only this user reads, made when it is first needed."""

    def __init__(self, path: str):
        self.path = path
        self._file = -1
        self._map: memoryview | None = None

    @property
    def number(self) -> int:
        """The open file's descriptor."""
        if self._file < 0:
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        return self._file

    def reserve(self, size: int) -> None:
        """Gives it `size` bytes of storage; writing to a map of a full tmpfs would kill the process."""
        if os.fstat(self.number).st_size != size:
            os.posix_fallocate(self.number, 0, size)

    def write(self, numbers: np.ndarray, start: int) -> None:
        """Writes an array at byte `start`."""
        left = numbers.reshape(-1).view(np.uint8).data
        while left:
            done = os.pwrite(self.number, left, start)
            left, start = left[done:], start + done

    def cut(self, size: int) -> None:
        """Ends it at byte `size`."""
        os.ftruncate(self.number, size)

    def map(self) -> memoryview:
        """The whole file; the same memory as long as its size stays."""
        size = os.fstat(self.number).st_size
        if self._map is None or len(self._map) != size:
            self._map = memoryview(mmap.mmap(self.number, size))
        return self._map

    def remove(self) -> None:
        """Removes it, if it was ever made."""
        if self._file >= 0:
            os.unlink(self.path)
            os.close(self._file)
            self._file = -1
