"""The transport of machines without GPUs, and of tests: Unix sockets in a folder that all ranks of one machine see."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import pathlib
import shutil
import socket
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait

from isocompute_jax.service.weights.device.transport import Move, TransferError

POLL_S = 0.01


class SocketTransport:
    """Implements `Transport`: each rank listens at a file with its number; who first sends to it connects.

    Args:
      folder: of this group alone; other users may not enter it.
      ranks: those of this process.
      world: ranks in all.
      timeout_s: longest wait until all of them listen.
      owner: whether the folder is removed in the end.
      given_up: whether nobody waits for them any more.

    Raises:
      TransferError: they do not, or the folder cannot be used.
    """

    def __init__(
        self,
        folder: str,
        ranks: Sequence[int],
        world: int,
        *,
        timeout_s: float,
        owner: bool = False,
        given_up: Callable[[], bool] = lambda: False,
    ):
        self._owner = owner
        self._folder = pathlib.Path(folder)
        self._closed = False
        self._listeners: dict[int, socket.socket] = {}
        self._connections: dict[tuple[int, int], socket.socket] = {}
        self._lock = threading.Condition()
        try:
            for rank in ranks:
                self._listeners[rank] = self._listen(rank)
            self._await(world, time.monotonic() + timeout_s, given_up)
        except (OSError, TransferError) as error:
            self.close()
            raise TransferError(f"the group of {world} ranks in {folder} was not formed: {error}") from error
        for rank in ranks:
            threading.Thread(target=self._accept, args=(rank,), name="transfer", daemon=True).start()
        self._threads = ThreadPoolExecutor(thread_name_prefix="transfer", max_workers=2 * world * len(ranks))

    def _listen(self, rank: int) -> socket.socket:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # Renamed when it listens: what the others see can be connected to.
            waiting = self._folder / f"{rank}.new"
            listener.bind(str(waiting))
            listener.listen()
            waiting.rename(self._folder / str(rank))
        except OSError:
            listener.close()
            raise
        return listener

    def _await(self, world: int, deadline: float, given_up: Callable[[], bool]) -> None:
        missing = [str(rank) for rank in range(world)]
        while missing := [name for name in missing if not (self._folder / name).exists()]:
            if time.monotonic() > deadline or given_up():
                raise TransferError(f"rank {missing[0]} did not come")
            time.sleep(POLL_S)

    def _accept(self, rank: int) -> None:
        """Takes connections to one of our ranks, each from a rank that says who it is."""
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listeners[rank].accept()
                peer = int.from_bytes(connection.recv(4, socket.MSG_WAITALL), "little")
                with self._lock:
                    self._connections[peer, rank] = connection
                    self._lock.notify_all()

    def exchange(self, moves: Sequence[Move], *, timeout_s: float) -> None:
        """Each pair of ranks in a thread of its own; see `Transport`."""
        deadline = time.monotonic() + timeout_s

        def pair(move: Move) -> tuple[bool, int, int]:
            return move.outgoing, move.rank, move.peer

        jobs = [
            self._threads.submit(self._carry, list(group), deadline)
            for _, group in itertools.groupby(sorted(moves, key=pair), key=pair)
        ]
        done, late = wait(jobs, timeout=timeout_s)
        failed = next((job.exception() for job in done if job.exception() is not None), None)
        if failed is not None or late:
            self.close()
            wait(jobs)
            if not isinstance(failed, OSError | TransferError | None):
                raise failed
            raise TransferError(str(failed) if failed else f"not done within {timeout_s:g} s") from failed

    def _carry(self, moves: Sequence[Move], deadline: float) -> None:
        """The moves between two ranks in one direction, in order."""
        first = moves[0]
        if first.outgoing:
            connection = self._outgoing(first.rank, first.peer)
        else:
            connection = self._incoming(first.peer, first.rank, deadline)
        for move in moves:
            view = memoryview((ctypes.c_char * move.nbytes).from_address(move.address)).cast("B")
            if move.outgoing:
                connection.sendall(view)
            else:
                _fill(view, connection.recv_into, f"rank {move.peer} is gone")

    def _outgoing(self, rank: int, peer: int) -> socket.socket:
        with self._lock:
            if (rank, peer) not in self._connections:
                connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                self._connections[rank, peer] = connection
                connection.connect(str(self._folder / str(peer)))
                connection.sendall(rank.to_bytes(4, "little"))
            return self._connections[rank, peer]

    def _incoming(self, peer: int, rank: int, deadline: float) -> socket.socket:
        with self._lock:
            while (peer, rank) not in self._connections:
                if self._closed or not self._lock.wait(max(0.0, deadline - time.monotonic())):
                    raise TransferError(f"rank {peer} did not connect")
            return self._connections[peer, rank]

    def close(self) -> None:
        """See `Transport`."""
        with self._lock:
            self._closed = True
            for each in (*self._listeners.values(), *self._connections.values()):
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
                each.close()
            self._lock.notify_all()
        if self._owner:
            # Under another name, as a rank that comes late would put something in it meanwhile.
            gone = self._folder.with_name(f"{self._folder.name}.gone")
            with contextlib.suppress(OSError):
                self._folder.rename(gone)
            shutil.rmtree(gone, ignore_errors=True)
        if hasattr(self, "_threads"):
            self._threads.shutdown(wait=False)


def _fill(view: memoryview, receive: Callable[[memoryview], int], gone: str) -> None:
    """Receives until the view is full."""
    while view:
        got = receive(view)
        if not got:
            raise TransferError(gone)
        view = view[got:]
