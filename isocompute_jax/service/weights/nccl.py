"""NCCL through ctypes: what a learner needs of it to be rank 0 of a communicator with vLLM's workers, without torch.

The library is the one that the process has loaded for JAX already. Nothing here waits for a peer: communicators are
non-blocking, whoever uses one asks again and again whether its last call is `done`, and `abort` ends it at any time.
The declarations follow nccl.h (2.14 and later, which have non-blocking communicators) and cuda_runtime_api.h.
"""

from __future__ import annotations

import contextlib
import ctypes
import fnmatch
import glob
import os
import sys
import threading
from collections.abc import Mapping
from typing import Any

UINT8, FLOAT32, SUM = 1, 7, 0  # ncclUint8, ncclFloat32, ncclSum
IN_PROGRESS, NOT_READY = 7, 600  # ncclInProgress, cudaErrorNotReady
NON_BLOCKING = 1  # cudaStreamNonBlocking
MAGIC, CONFIG_VERSION = 0xCAFEBEEF, 21400
POINTER, INT, SIZE = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t

RECEIVING = "isocompute-receiving"
"""Initial metadata of an update: the engine has stopped sampling, and waits for the first broadcast."""
UNIQUE_ID_BYTES = 128


class TransferError(Exception):
    """Weights did not come through; the message says why."""


class UniqueId(ctypes.Structure):
    """ncclUniqueId, which is passed by value."""

    _fields_ = [("internal", ctypes.c_byte * UNIQUE_ID_BYTES)]


class Config(ctypes.Structure):
    """ncclConfig_t as 2.14 had it; later versions take the rest for unset by its `size` and `version`."""

    _fields_ = [("size", SIZE), ("magic", ctypes.c_uint), ("version", ctypes.c_uint), ("blocking", INT)]


NCCL_CALLS: Mapping[str, list[Any]] = {
    "ncclGetVersion": [ctypes.POINTER(INT)],
    "ncclGetUniqueId": [ctypes.POINTER(UniqueId)],
    "ncclCommInitRankConfig": [ctypes.POINTER(POINTER), INT, UniqueId, INT, ctypes.POINTER(Config)],
    "ncclCommGetAsyncError": [POINTER, ctypes.POINTER(INT)],
    "ncclCommAbort": [POINTER],
    "ncclAllReduce": [POINTER, POINTER, SIZE, INT, INT, POINTER, POINTER],
    "ncclBroadcast": [POINTER, POINTER, SIZE, INT, INT, POINTER, POINTER],
}


CUDA_CALLS: Mapping[str, list[Any]] = {
    "cudaSetDevice": [INT],
    "cudaStreamCreateWithFlags": [ctypes.POINTER(POINTER), ctypes.c_uint],
    "cudaStreamQuery": [POINTER],
    "cudaStreamDestroy": [POINTER],
}


class Nccl:
    """NCCL and CUDA's runtime, as ctypes loads them: their calls, which return 0, or a status that is an error."""

    def __init__(self, nccl: Any, cuda: Any):
        self._functions: dict[str, Any] = {}
        for library, calls in ((nccl, NCCL_CALLS), (cuda, CUDA_CALLS)):
            for call, arguments in calls.items():
                function = self._functions[call] = getattr(library, call)
                function.argtypes, function.restype = arguments, INT

    def __call__(self, call: str, *arguments: Any, passing: int = 0) -> int:
        """Calls it; its status, which is 0 or `passing`. Raises TransferError: any other status."""
        status = self._functions[call](*arguments)
        if status not in (0, passing):
            raise TransferError(f"{call} gave status {status}")
        return status

    @property
    def version(self) -> str:
        """Such as 2.29.7."""
        code = INT()
        self("ncclGetVersion", ctypes.byref(code))
        return f"{code.value // 10_000}.{code.value // 100 % 100}.{code.value % 100}"

    def unique_id(self) -> bytes:
        """By which the ranks of a new communicator find each other; this process must stay alive until they have."""
        unique_id = UniqueId()
        self("ncclGetUniqueId", ctypes.byref(unique_id))
        return bytes(unique_id.internal)


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
        for path in sorted(glob.glob(os.path.join(entry, "nvidia", "**", name), recursive=True)):
            return path
    return name.replace("[23]", "2")


class Communicator:
    """Rank 0 of a communicator, on a stream of its own. It begins to join when it is made; nothing here waits.

    One thread at a time uses it; any may abort it. `world` is the number of its ranks, `device` CUDA's number of a GPU.

    Raises:
      TransferError: NCCL or CUDA refuses.
    """

    def __init__(self, libraries: Nccl, unique_id: bytes, world: int, device: int):
        self._nccl, self._device = libraries, device
        self._handle, self._stream = POINTER(), POINTER()
        self._kept: object = None
        self._aborting: threading.Thread | None = None
        self._lock = threading.Lock()
        self._nccl("cudaSetDevice", device)
        self._nccl("cudaStreamCreateWithFlags", ctypes.byref(self._stream), NON_BLOCKING)
        config = Config(ctypes.sizeof(Config), MAGIC, CONFIG_VERSION, 0)
        given = UniqueId.from_buffer_copy(unique_id)
        arguments = (ctypes.byref(self._handle), world, given, 0, ctypes.byref(config))
        try:
            self._nccl("ncclCommInitRankConfig", *arguments, passing=IN_PROGRESS)
        except TransferError:
            self._nccl("cudaStreamDestroy", self._stream)
            raise

    def add(self, address: int, kept: object) -> None:
        """Begins to add up one float32 over all ranks, in place: what vLLM's communicators do first of all.

        The number is at `address` on the device; `kept` owns it, and is held as long as it is read.
        """
        self._kept = kept
        self._call("ncclAllReduce", address, address, 1, FLOAT32, SUM)

    def broadcast(self, address: int, nbytes: int, kept: object) -> None:
        """Begins to send bytes to every rank; the last call must be done.

        They are at `address` on the device; `kept` owns them, and is held until the next call.
        """
        self._kept = kept
        self._call("ncclBroadcast", address, address, nbytes, UINT8, 0)

    def _call(self, name: str, *arguments: int) -> None:
        self._check()
        self._nccl("cudaSetDevice", self._device)
        self._nccl(name, *arguments, self._handle, self._stream, passing=IN_PROGRESS)

    def done(self) -> bool:
        """Whether the last call, or the joining, is over. It returns at once.

        Raises:
          TransferError: it failed, or was aborted.
        """
        self._check()
        error = INT()
        self._nccl("ncclCommGetAsyncError", self._handle, ctypes.byref(error))
        if error.value == IN_PROGRESS:
            return False
        if error.value:
            raise TransferError(f"NCCL met error {error.value}: a rank is gone, or was refused")
        self._nccl("cudaSetDevice", self._device)
        return self._nccl("cudaStreamQuery", self._stream, passing=NOT_READY) == 0

    def _check(self) -> None:
        if self._aborting is not None:
            raise TransferError("the communicator was given up")

    def abort(self) -> None:
        """Gives it up with what is under way, in a thread, as the library may take its time. May be called twice."""
        with self._lock:
            if self._aborting is not None:
                return
            self._aborting = threading.Thread(target=self._abort, name="nccl-abort", daemon=True)
        self._aborting.start()

    def _abort(self) -> None:
        with contextlib.suppress(TransferError):  # it may have failed already
            self._nccl("cudaSetDevice", self._device)
            self._nccl("ncclCommAbort", self._handle)
            self._nccl("cudaStreamDestroy", self._stream)
        self._kept = None
