"""Weights in files that processes of one machine, or of one shared storage, hand to each other.

The files lie in a folder that is locked while its process lives: what nobody has locked was left by one that was
killed. A learner lays each version down once (`Outbox`), and may overwrite its parameters then: an endpoint that comes
back late is served from the file. A server puts together in one (`StagingArea`) what does not come as a whole file.
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

import grpc
import numpy as np
import xxhash

from isocompute_jax.records.errors import CONFIG, InputError, RunError
from isocompute_jax.records.tensors import DTYPE_BYTES, Box, TensorSpec
from isocompute_jax.service.proto.terms import Refusal

OUTBOX, STAGING = "isocompute-outbox-", "isocompute-staging-"
"""What the names of a learner's and of a server's folders begin with."""
LOCAL = "/dev/shm"
"""Only this host's processes use it, so that what no process of it has locked is nobody's."""

ALIGNMENT = 64
BITS = {2: np.dtype("<u2"), 4: np.dtype("<u4")}
"""Numbers are only bits here: float32 is viewed as uint32, bfloat16 and float16 as uint16."""


class SharedFolder:
    """A folder that this user alone may enter, locked until it is removed or its process ends.

    One that an earlier process left at `path` is taken over and emptied.

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
    """Puts tensors into a shared file, laid out as `file_layout` says, box by box and in any order.

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

    def read(self, box: Box) -> np.ndarray:
        """The numbers of a box, as bits, in a row."""
        return self._views[box.name][box.slices].reshape(-1)


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


@dataclasses.dataclass(frozen=True, eq=False)
class Parcel:
    """One version of the weights, or this host's share of it, in a finished file."""

    version: int  # policy version
    tensors: tuple[TensorSpec, ...]  # all of the model's
    path: str
    checksum: int  # xxh3_64 of the whole file
    boxes: tuple[Box, ...]  # what it holds
    starts: tuple[int, ...]  # the byte at which each box begins
    data: memoryview  # the file, mapped
    before: Parcel | None = None  # the one before it, of the same boxes; whole until the next is written


class Outbox:
    """A learner's two files, in a folder that a restart of the same run finds again, empties and uses on.

    They are used in turn: fresh pages cost more than what they hold, and the older file may still be on its way.

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
        self.tensors = tuple(tensors)
        self._whole = whole
        own = f"{OUTBOX}{os.getuid()}-"
        if os.path.realpath(directory) == LOCAL:
            sweep(directory, own)
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", run)[-40:]
        digest = hashlib.blake2b(run.encode(), digest_size=6).hexdigest()
        path = pathlib.Path(directory) / f"{own}{name}-{digest}"
        try:
            self._folder = SharedFolder(path)
        except BlockingIOError:
            raise RunError(f"{path} is in use: another learner of the run {run!r} is alive") from None
        except OSError as error:
            raise InputError(f"{CONFIG.service.shared_dir} = {directory!r}: {error}") from error
        self._files = [self._folder.new_file() for _ in range(2)]
        self._last: Parcel | None = None

    def write(self, boxes: Iterable[tuple[Box, np.ndarray]], *, version: int) -> Parcel:
        """Lays weights down: boxes with their numbers, C-contiguous, all that this process has.

        The parcel before this one stays whole; the one before that is gone.

        Raises:
          RunError: there is no room.
        """
        self._files.reverse()
        file, before, self._last = self._files[0], self._last, None
        try:
            if self._whole:
                writer = WeightWriter(file, self.tensors)
                for box, numbers in boxes:
                    writer.write(box, numbers)
                written, starts = [tensor.box for tensor in self.tensors], writer.weights.starts
            else:
                written, starts = _write_packed(file, boxes)
        except OSError as error:
            raise RunError(f"weights of version {version} cannot be written to {file.path}: {error}") from error
        data = file.map()
        checksum = xxhash.xxh3_64_intdigest(data)
        parcel = Parcel(version, self.tensors, file.path, checksum, tuple(written), tuple(starts), data)
        if before is not None and (before.boxes, before.starts) == (parcel.boxes, parcel.starts):
            parcel = dataclasses.replace(parcel, before=dataclasses.replace(before, before=None))
        self._last = parcel
        return parcel

    def close(self) -> None:
        """Removes the folder; parcels keep what they have mapped."""
        self._folder.remove()


def _write_packed(file: SharedFile, boxes: Iterable[tuple[Box, np.ndarray]]) -> tuple[list[Box], list[int]]:
    """Writes one box behind the other; which, and the byte at which each begins."""
    written, starts, end = [], [], 0
    for box, numbers in boxes:
        written.append(box)
        starts.append(aligned(end))
        file.write(numbers, starts[-1])
        end = starts[-1] + box.nbytes
    file.truncate(end)
    return written, starts


class StagingArea:
    """A server's files, each of all tensors; one is kept between updates, as fresh pages cost more than what they hold.

    Their folder is made in `directory`, where the folders that dead processes left are removed.

    Raises:
      InputError: the directory cannot be written.
    """

    def __init__(self, directory: str, tensors: Sequence[TensorSpec]):
        self.directory = os.path.realpath(directory)
        self.tensors = tuple(tensors)
        self._idle: list[WeightWriter] = []
        check_directory(directory)
        sweep(self.directory, STAGING)
        self._folder = SharedFolder(pathlib.Path(self.directory) / f"{STAGING}{os.getpid()}-{secrets.token_hex(8)}")

    def take(self) -> WeightWriter:
        """A file to write to; what it holds is anything."""
        if self._idle:
            return self._idle.pop()
        file = self._folder.new_file()
        try:
            return WeightWriter(file, self.tensors)
        except OSError as error:
            file.remove()
            raise Refusal(
                grpc.StatusCode.RESOURCE_EXHAUSTED, f"the server cannot stage weights in {self.directory}: {error}"
            ) from error

    def give_back(self, writer: WeightWriter) -> None:
        """Keeps a file for the next update, unless one is kept already."""
        if self._idle:
            writer.file.remove()
        else:
            self._idle.append(writer)

    def close(self) -> None:
        """Removes every file."""
        self._idle.clear()
        self._folder.remove()


def check_directory(directory: str) -> None:
    """Raises InputError for a folder in which weights cannot be staged."""
    if not os.path.isdir(directory) or not os.access(directory, os.R_OK | os.W_OK | os.X_OK):
        raise InputError(f"--weights_dir={directory}: not a folder that can be written")
