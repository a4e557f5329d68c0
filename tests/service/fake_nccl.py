"""A stand-in of NCCL and CUDA's runtime with the same C signatures, for rank 0, on host memory: bytes go over sockets.

It keeps to what NCCL promises of non-blocking communicators: calls return before they are done, joining is in progress
until all ranks are there, what is queued shows on its stream, and a dead rank as an asynchronous error.
"""

from __future__ import annotations

import ctypes
import itertools
import pathlib
import threading

from isocompute_jax.service.weights import nccl
from isocompute_jax.service.weights.nccl import UNIQUE_ID_BYTES
from tests.service.nccl_wire import Root, path_of, unlink

OK, REMOTE_ERROR = 0, 6
VERSION = 22907


class _Communicator:
    def __init__(self, path: str, world: int):
        self.path = path
        self.root = Root(path, world)
        self.joined = False
        self.failed = False
        self.start(self.root.join)

    def start(self, call, *arguments):
        def work():
            try:
                call(*arguments)
                self.joined = True
            except (OSError, AssertionError):
                self.failed = True

        job = threading.Thread(target=work, name="fake-nccl", daemon=True)
        job.start()  # before others see it: one that has not begun cannot be joined
        self.job = job


class Fake:
    """Both libraries of one process; communicators meet in `folder`, whose path must be short."""

    def __init__(self, folder: pathlib.Path):
        self._folder = folder
        self._numbers = itertools.count(1)
        self._streams: dict[int, _Communicator | None] = {}
        self.communicators: dict[int, _Communicator] = {}
        self.device: int | None = None
        for name in (*nccl.NCCL_CALLS, *nccl.CUDA_CALLS):
            # Functions of a C library have attributes of their own; bound methods have none.
            setattr(self, name, _function(getattr(self, f"_{name}")))

    def libraries(self) -> nccl.Nccl:
        return nccl.Nccl(self, self)

    def _ncclGetVersion(self, version):
        version._obj.value = VERSION
        return OK

    def _ncclGetUniqueId(self, found):
        path = str(self._folder / str(next(self._numbers))).encode()
        ctypes.memmove(ctypes.byref(found._obj), path.ljust(UNIQUE_ID_BYTES, b"\0"), UNIQUE_ID_BYTES)
        return OK

    def _ncclCommInitRankConfig(self, handle, world, unique_id, rank, config):
        config = config._obj
        assert (rank, config.size, config.magic, config.blocking) == (0, 24, 0xCAFEBEEF, 0)
        number = handle._obj.value = next(self._numbers)
        self.communicators[number] = _Communicator(path_of(bytes(unique_id.internal)), world)
        return nccl.IN_PROGRESS

    def _ncclCommGetAsyncError(self, handle, error):
        found = self.communicators[handle.value]
        joining = not found.joined and not found.failed
        error._obj.value = REMOTE_ERROR if found.failed else nccl.IN_PROGRESS if joining else OK
        return OK

    def _ncclAllReduce(self, source, target, count, dtype, operation, handle, stream):
        assert source == target and (count, dtype, operation) == (1, nccl.FLOAT32, nccl.SUM)
        number = ctypes.c_float.from_address(source)

        def add():
            number.value = self.communicators[handle.value].root.add(number.value)

        return self._queue(handle, stream, add)

    def _ncclBroadcast(self, source, target, count, dtype, root, handle, stream):
        assert source == target and (dtype, root) == (nccl.UINT8, 0)
        data = memoryview((ctypes.c_char * count).from_address(source)).cast("B")
        return self._queue(handle, stream, self.communicators[handle.value].root.broadcast, data)

    def _queue(self, handle, stream, call, *arguments):
        found = self.communicators[handle.value]
        assert found.joined and not found.job.is_alive()
        self._streams[stream.value] = found
        found.start(call, *arguments)
        return OK

    def _ncclCommAbort(self, handle):
        found = self.communicators.pop(handle.value)
        found.root.close()
        found.job.join()
        unlink(found.path)
        return OK

    def _cudaSetDevice(self, device):
        self.device = device
        return OK

    def _cudaStreamCreateWithFlags(self, stream, flags):
        assert flags == nccl.NON_BLOCKING and self.device is not None
        stream._obj.value = next(self._numbers)
        self._streams[stream._obj.value] = None
        return OK

    def _cudaStreamQuery(self, stream):
        found = self._streams[stream.value]
        return OK if found is None or (not found.job.is_alive() and not found.failed) else nccl.NOT_READY

    def _cudaStreamDestroy(self, stream):
        del self._streams[stream.value]
        return OK

    @property
    def idle(self) -> bool:
        """Whether nothing is left of any communicator."""
        return not self.communicators and not self._streams


def _function(method):
    def call(*arguments):
        return method(*arguments)

    return call
