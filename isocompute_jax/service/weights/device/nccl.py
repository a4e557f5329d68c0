"""The transport of GPUs: NCCL's point-to-point calls, through ctypes, so that neither side needs the other's framework.

Both libraries are those that the process has loaded for its own framework already, JAX's or torch's. The declarations
follow nccl.h (2.7 and later, which have point-to-point calls) and cuda_runtime_api.h.
"""

from __future__ import annotations

import contextlib
import ctypes
import fnmatch
import glob
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from isocompute_jax.service.weights.device.transport import Move, TransferError

UNIQUE_ID_BYTES = 128
UINT8 = 1  # ncclUint8
IN_PROGRESS, NOT_READY = 7, 600  # ncclInProgress, cudaErrorNotReady
NON_BLOCKING = 1  # cudaStreamNonBlocking
BUS_ID_BYTES = 32
POLL_S = 0.0005
JOIN_POLL_S = 0.1
POINTER, INT, SIZE = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t


class UniqueId(ctypes.Structure):
    """ncclUniqueId, which is passed by value."""

    _fields_ = [("internal", ctypes.c_byte * UNIQUE_ID_BYTES)]


NCCL_CALLS: Mapping[str, list[Any]] = {
    "ncclGetVersion": [ctypes.POINTER(INT)],
    "ncclGetUniqueId": [ctypes.POINTER(UniqueId)],
    "ncclCommInitRank": [ctypes.POINTER(POINTER), INT, UniqueId, INT],
    "ncclCommGetAsyncError": [POINTER, ctypes.POINTER(INT)],
    "ncclCommAbort": [POINTER],
    "ncclGroupStart": [],
    "ncclGroupEnd": [],
    "ncclSend": [POINTER, SIZE, INT, INT, POINTER, POINTER],
    "ncclRecv": [POINTER, SIZE, INT, INT, POINTER, POINTER],
}
CUDA_CALLS: Mapping[str, list[Any]] = {
    "cudaGetDevice": [ctypes.POINTER(INT)],
    "cudaSetDevice": [INT],
    "cudaDeviceGetPCIBusId": [ctypes.c_char_p, INT, INT],
    "cudaStreamCreateWithFlags": [ctypes.POINTER(POINTER), ctypes.c_uint],
    "cudaStreamQuery": [POINTER],
    "cudaStreamDestroy": [POINTER],
}


class Library:
    """The calls of a C library that return 0, or a status that is an error.

    Args:
      name: for messages.
      library: of ctypes, or what has the same functions.
      calls: the arguments of each.
    """

    def __init__(self, name: str, library: Any, calls: Mapping[str, list[Any]]):
        self._name = name
        self._library = library
        for call, arguments in calls.items():
            function = getattr(library, call)
            function.argtypes, function.restype = arguments, INT

    def __call__(self, call: str, *arguments: Any, passing: int = 0) -> int:
        """Calls it; its status, which is 0 or `passing`.

        Raises:
          TransferError: any other status.
        """
        status = getattr(self._library, call)(*arguments)
        if status not in (0, passing):
            raise TransferError(f"{self._name}: {call} gave status {status}")
        return status


class Nccl:
    """NCCL and CUDA's runtime, as far as they are needed.

    Args:
      nccl: the library, or what has the same functions.
      cuda: likewise.
    """

    def __init__(self, nccl: Any, cuda: Any):
        self.nccl = Library("NCCL", nccl, NCCL_CALLS)
        self.cuda = Library("CUDA", cuda, CUDA_CALLS)

    @property
    def version(self) -> str:
        """Such as 2.29.7."""
        code = INT()
        self.nccl("ncclGetVersion", ctypes.byref(code))
        return f"{code.value // 10_000}.{code.value // 100 % 100}.{code.value % 100}"

    def unique_id(self) -> bytes:
        """By which the ranks of a new group find each other; this process must stay alive until they have."""
        found = UniqueId()
        self.nccl("ncclGetUniqueId", ctypes.byref(found))
        return bytes(found.internal)

    def bus_id(self, device: int) -> str:
        """Which GPU of the machine a device of this process is."""
        found = ctypes.create_string_buffer(BUS_ID_BYTES)
        self.cuda("cudaDeviceGetPCIBusId", found, BUS_ID_BYTES, device)
        return found.value.decode()


def load() -> Nccl:
    """The libraries that this process has loaded, or else those that are installed.

    Raises:
      TransferError: one cannot be loaded.
    """
    try:
        return Nccl(ctypes.CDLL(find("libnccl.so.2")), ctypes.CDLL(find("libcudart.so.1[23]")))
    except (OSError, AttributeError) as error:
        raise TransferError(f"NCCL cannot be loaded: {error}") from error


def find(name: str) -> str:
    """The path of a library: loaded already, beside NVIDIA's wheels, or left to the loader's own search."""
    with open("/proc/self/maps", encoding="utf-8") as maps:
        loaded = {line.split()[-1] for line in maps if "/" in line}
    for path in sorted(loaded):
        if fnmatch.fnmatch(os.path.basename(path), f"{name}*"):
            return path
    for entry in sys.path:
        for found in sorted(glob.glob(os.path.join(entry, "nvidia", "**", name), recursive=True)):
            return found
    return name.replace("[23]", "2")


class NcclTransport:
    """Implements `Transport` with one communicator and one stream for each of this process's ranks.

    Args:
      libraries: of `load`.
      unique_id: of the group.
      devices: of each rank of this process, the number of its GPU here.
      world: ranks in all.
      timeout_s: longest wait until all of them are there.
      given_up: whether nobody waits for them any more.

    Raises:
      TransferError: they did not come.
    """

    def __init__(
        self,
        libraries: Nccl,
        unique_id: bytes,
        devices: Mapping[int, int],
        world: int,
        *,
        timeout_s: float,
        given_up: Callable[[], bool] = lambda: False,
    ):
        self._nccl, self._cuda = libraries.nccl, libraries.cuda
        self._devices = devices
        self._world = world
        self._communicators: dict[int, ctypes.c_void_p] = {}
        self._streams: dict[int, ctypes.c_void_p] = {}
        self._lock = threading.Lock()
        self._closed = False
        # The call returns only when all ranks are there: one that never comes must not hold up its caller for ever.
        failed: list[BaseException] = []
        joining = threading.Thread(target=self._join, args=(unique_id, failed), name="nccl", daemon=True)
        joining.start()
        deadline = time.monotonic() + timeout_s
        while joining.is_alive() and time.monotonic() < deadline and not given_up():
            joining.join(JOIN_POLL_S)
        if joining.is_alive() or failed:
            self._closed = True
            why = failed[0] if failed else f"not all of {world} ranks came within {timeout_s:g} s"
            raise TransferError(f"the group of {world} ranks was not formed: {why}")

    def _join(self, unique_id: bytes, failed: list[BaseException]) -> None:
        try:
            given = UniqueId.from_buffer_copy(unique_id)
            self._nccl("ncclGroupStart")
            for rank, device in self._devices.items():
                self._cuda("cudaSetDevice", device)
                communicator, stream = POINTER(), POINTER()
                self._cuda("cudaStreamCreateWithFlags", ctypes.byref(stream), NON_BLOCKING)
                self._nccl("ncclCommInitRank", ctypes.byref(communicator), self._world, given, rank)
                self._communicators[rank], self._streams[rank] = communicator, stream
            self._nccl("ncclGroupEnd")
        except Exception as error:
            failed.append(error)

    def exchange(self, moves: Sequence[Move], *, timeout_s: float) -> None:
        """One group of NCCL's calls; see `Transport`."""
        deadline = time.monotonic() + timeout_s
        try:
            with self._lock:
                self._check_open()
                self._nccl("ncclGroupStart")
                for move in moves:
                    self._cuda("cudaSetDevice", self._devices[move.rank])
                    self._nccl(
                        "ncclSend" if move.outgoing else "ncclRecv",
                        *(move.address, move.nbytes, UINT8, move.peer),
                        *(self._communicators[move.rank], self._streams[move.rank]),
                    )
                self._nccl("ncclGroupEnd")
            for rank in sorted({move.rank for move in moves}):
                self._finish(rank, deadline)
        except TransferError:
            self.close()
            raise

    def _finish(self, rank: int, deadline: float) -> None:
        """Waits until the stream of a rank is empty; a plain wait would outlast peers that have died."""
        while True:
            with self._lock:
                self._check_open()
                self._cuda("cudaSetDevice", self._devices[rank])
                if self._cuda("cudaStreamQuery", self._streams[rank], passing=NOT_READY) == 0:
                    return
                error = INT()
                self._nccl("ncclCommGetAsyncError", self._communicators[rank], ctypes.byref(error))
            if error.value not in (0, IN_PROGRESS):
                raise TransferError(f"NCCL: rank {rank} met error {error.value}; a peer is gone")
            if time.monotonic() > deadline:
                raise TransferError(f"rank {rank} was not done in time")
            time.sleep(POLL_S)

    def _check_open(self) -> None:
        if self._closed:
            raise TransferError("the group was ended")

    def close(self) -> None:
        """See `Transport`. Aborting ends what is under way, where destroying would wait for it."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            for rank, communicator in self._communicators.items():
                with contextlib.suppress(TransferError):  # it may have failed already
                    self._cuda("cudaSetDevice", self._devices[rank])
                    self._nccl("ncclCommAbort", communicator)
                    self._cuda("cudaStreamDestroy", self._streams[rank])
