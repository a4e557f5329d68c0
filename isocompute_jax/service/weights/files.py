"""Files through which processes of one machine, or of one shared storage, hand weights to each other.

They lie in a folder that is locked while its process lives: what nobody has locked was left by one that was killed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import math
import mmap
import os
import pathlib
import secrets
from collections.abc import Sequence

import numpy as np

from isocompute_jax.records.tensors import DTYPE_BYTES, Box, TensorSpec

ALIGNMENT = 64
BITS = {2: np.dtype("<u2"), 4: np.dtype("<u4")}
"""Numbers are only bits here: float32 is viewed as uint32, bfloat16 and float16 as uint16."""


class SharedFolder:
    """A folder that this user alone may enter, locked until it is removed or its process ends.

    Args:
      path: the folder. One that an earlier process left is taken over and emptied.

    Raises:
      BlockingIOError: a live process holds it.
      OSError: it cannot be made, or belongs to another user.
    """

    def __init__(self, path: str | os.PathLike[str]):
        self.path = pathlib.Path(path)
        lock = _locked(self.path)
        while lock is None:  # swept away between its making and its locking
            lock = _locked(self.path)
        self._lock = lock
        # Never written over: somebody may still be reading what the earlier process left.
        _empty(self.path)
        self._files: list[SharedFile] = []

    def new_file(self) -> SharedFile:
        """A file in it, with a name of its own."""
        file = SharedFile(str(self.path / secrets.token_hex(8)))
        self._files.append(file)
        return file

    def remove(self) -> None:
        """Removes it with its files, if it is still there; what is mapped of them stays until it is let go."""
        if self._lock >= 0:
            for file in self._files:
                file.remove()
            self.path.rmdir()
            os.close(self._lock)
            self._lock = -1


class SharedFile:
    """A file that only this user reads, made when it is first needed."""

    def __init__(self, path: str):
        self.path = path
        self._file = -1
        self._map: memoryview | None = None

    def reserve(self, size: int) -> None:
        """Gives it `size` bytes of storage; writing to a map of a full tmpfs would kill the process.

        Raises:
          OSError: there is no room for it.
        """
        if os.fstat(self._open()).st_size != size:
            os.posix_fallocate(self._open(), 0, size)

    def write(self, numbers: np.ndarray, start: int) -> None:
        """Writes a C-contiguous array at byte `start`."""
        left = numbers.reshape(-1).view(np.uint8).data
        while left:
            done = os.pwrite(self._open(), left, start)
            left, start = left[done:], start + done

    def truncate(self, size: int) -> None:
        """Ends it at byte `size`."""
        os.ftruncate(self._open(), size)

    def map(self) -> memoryview:
        """The whole file; the same memory as long as its size stays."""
        size = os.fstat(self._open()).st_size
        if self._map is None or len(self._map) != size:
            self._map = memoryview(mmap.mmap(self._open(), size) if size else b"")
        return self._map

    def remove(self) -> None:
        """Removes it, if it was ever made; its memory goes with the last map."""
        if self._file >= 0:
            os.unlink(self.path)
            os.close(self._file)
            self._file = -1

    def _open(self) -> int:
        if self._file < 0:
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        return self._file


def sweep(directory: str, prefix: str) -> None:
    """Removes the folders of this user's killed processes whose names begin with `prefix`."""
    for entry in os.scandir(directory):
        if entry.name.startswith(prefix) and entry.is_dir(follow_symlinks=False):
            with contextlib.suppress(OSError):  # alive, another user's, or gone already
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


@dataclasses.dataclass(frozen=True)
class WeightFile:
    """What an engine reads: tensor i begins at byte `starts[i]`, little-endian and row-major."""

    path: str
    tensors: tuple[TensorSpec, ...]
    starts: tuple[int, ...]


class WeightWriter:
    """Puts numbers in their places in a shared file, box by box and in any order.

    Args:
      file: where to.
      tensors: what it is to hold, laid out as `file_layout` says.

    Raises:
      OSError: there is no room for them.
    """

    def __init__(self, file: SharedFile, tensors: Sequence[TensorSpec]):
        starts, size = file_layout(tensors)
        file.reserve(max(size, 1))
        self.file = file
        self.weights = WeightFile(file.path, tuple(tensors), starts)
        data = file.map()
        self._views = {
            tensor.name: np.frombuffer(data, BITS[DTYPE_BYTES[tensor.dtype]], math.prod(tensor.shape), start).reshape(
                tensor.shape
            )
            for tensor, start in zip(tensors, starts, strict=True)
        }

    def write(self, box: Box, numbers: np.ndarray) -> None:
        """Puts the numbers of a box in their place: a C-contiguous array of exactly its bytes, of any dtype."""
        view = self._views[box.name]
        view[box.slices] = numbers.reshape(-1).view(view.dtype).reshape(box.shape)


def file_layout(tensors: Sequence[TensorSpec]) -> tuple[tuple[int, ...], int]:
    """Where tensors stand in a file that holds all of them: the byte each begins at, and the file's size."""
    starts, end = [], 0
    for tensor in tensors:
        start = aligned(end)
        starts.append(start)
        end = start + tensor.nbytes
    return tuple(starts), end


def aligned(byte: int) -> int:
    """The next byte at which a tensor may begin."""
    return -(-byte // ALIGNMENT) * ALIGNMENT
