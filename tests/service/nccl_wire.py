"""What stands in for NCCL between real processes: one socket for each rank, and its rules.

Joining blocks until all ranks are there; every call is a collective, which all ranks make in the same order with the
same count; whose peer is gone fails, and who is not answered waits. Imports nothing heavy: vLLM's workers use it, too.
"""

from __future__ import annotations

import contextlib
import pathlib
import socket
import struct
import threading
import time

ADD, BROADCAST = 1, 2
HEADER = struct.Struct("<BQ")
GO = b"\1"


def path_of(unique_id: bytes) -> str:
    """Where the ranks of a unique id meet."""
    return unique_id.rstrip(b"\0").decode()


class Root:
    """Rank 0."""

    def __init__(self, path: str, world: int):
        self._world = world
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen(world)
        self._peers: dict[int, socket.socket] = {}

    def join(self) -> None:
        """Returns when all ranks are there."""
        while len(self._peers) < self._world - 1:
            peer, _ = self._listener.accept()
            rank = int.from_bytes(_read(peer, 4), "little")
            assert 0 < rank < self._world and rank not in self._peers
            self._peers[rank] = peer
        for peer in self._peers.values():
            peer.sendall(GO)

    def add(self, number: float) -> float:
        """One float32 over all ranks."""
        for peer in self._peers.values():
            kind, count = HEADER.unpack(_read(peer, HEADER.size))
            assert (kind, count) == (ADD, 1)
            number += struct.unpack("<f", _read(peer, 4))[0]
        for peer in self._peers.values():
            peer.sendall(struct.pack("<f", number))
        return number

    def broadcast(self, data: memoryview) -> None:
        """Bytes to all ranks, each of which must ask for as many."""
        for peer in self._peers.values():
            kind, count = HEADER.unpack(_read(peer, HEADER.size))
            assert (kind, count) == (BROADCAST, len(data)), (kind, count, len(data))
            peer.sendall(data)

    def close(self) -> None:
        """Ends what waits, too."""
        for each in (self._listener, *self._peers.values()):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


class Rank:
    """Another rank; it comes whenever the learner is there."""

    def __init__(self, path: str, rank: int, timeout_s: float | None = None):
        end = None if timeout_s is None else time.monotonic() + timeout_s
        self._lock = threading.Lock()
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(timeout_s)
        while True:
            try:
                self._socket.connect(path)
                break
            except OSError:
                if end is not None and time.monotonic() > end:
                    self._socket.close()
                    raise TimeoutError("the learner did not come") from None
                time.sleep(0.01)
        self._socket.sendall(rank.to_bytes(4, "little"))
        assert _read(self._socket, 1) == GO

    def add(self, number: float) -> float:
        self._socket.sendall(HEADER.pack(ADD, 1) + struct.pack("<f", number))
        return struct.unpack("<f", _read(self._socket, 4))[0]

    def receive(self, into: memoryview) -> None:
        """What rank 0 broadcasts."""
        self._socket.sendall(HEADER.pack(BROADCAST, len(into)))
        done = 0
        while done < len(into):
            got = self._socket.recv_into(into[done:])
            if not got:
                raise ConnectionError("rank 0 is gone")
            done += got

    def wait_at_most(self, timeout_s: float) -> None:
        self._socket.settimeout(timeout_s)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def _read(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        got = connection.recv(size - len(data))
        if not got:
            raise ConnectionError("a rank is gone")
        data += got
    return data


def unlink(path: str) -> None:
    pathlib.Path(path).unlink(missing_ok=True)
