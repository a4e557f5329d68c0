"""Files through which processes of one machine, or of one shared storage, hand weights to each other.

They lie in a folder that is locked while its process lives: what nobody has locked was left by one that was killed.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import pathlib
import secrets

import numpy as np


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
