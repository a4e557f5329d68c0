"""A stand-in of NCCL and CUDA's runtime with the same C signatures, on host memory: bytes go over sockets.

It keeps to what NCCL promises and asks: communicators appear when their group of calls ends, calls queue on streams and
return before they are done, and a dead peer shows as an asynchronous error.
"""

from __future__ import annotations

import ctypes
import pathlib
import threading

from isocompute_jax.service.weights.device import nccl
from isocompute_jax.service.weights.device.sockets import SocketTransport
from isocompute_jax.service.weights.device.transport import Move, TransferError

OK, REMOTE_ERROR, INVALID = 0, 6, 4
VERSION = 22907
WAIT_S = 10.0


class _Stream:
    def __init__(self):
        self.job: threading.Thread | None = None
        self.failed = False


class Fake:
    """Both libraries of one process. `folder` is where a unique id leads."""

    def __init__(self, folder: pathlib.Path | None = None):
        self._folder = folder
        self._device = threading.local()
        self._grouped = False
        self._joining: list = []
        self._queued: list = []
        self._streams: dict[int, _Stream] = {}
        self._communicators: dict[int, tuple[int, int]] = {}  # handle -> rank, device
        self._transport: SocketTransport | None = None
        self.aborted: list[int] = []
        for name in (*nccl.NCCL_CALLS, *nccl.CUDA_CALLS):
            # Functions of a C library have attributes of their own; bound methods have none.
            setattr(self, name, _function(getattr(self, f"_{name}")))

    def libraries(self) -> nccl.Nccl:
        return nccl.Nccl(self, self)

    def _ncclGetVersion(self, version):
        version._obj.value = VERSION
        return OK

    def _ncclGetUniqueId(self, found):
        path = str(self._folder).encode()
        ctypes.memmove(ctypes.byref(found._obj), path.ljust(nccl.UNIQUE_ID_BYTES, b"\0"), nccl.UNIQUE_ID_BYTES)
        return OK

    def _ncclGroupStart(self):
        self._grouped = True
        return OK

    def _ncclCommInitRank(self, communicator, world, unique_id, rank):
        assert self._grouped and 0 <= rank < world
        self._joining.append((communicator._obj, world, bytes(unique_id.internal).rstrip(b"\0").decode(), rank))
        return OK

    def _ncclSend(self, *arguments):
        return self._queue(True, *arguments)

    def _ncclRecv(self, *arguments):
        return self._queue(False, *arguments)

    def _queue(self, outgoing, address, count, dtype, peer, communicator, stream):
        rank, device = self._communicators[communicator.value]
        assert self._grouped and dtype == nccl.UINT8 and device == self._device.number
        self._queued.append((stream.value, Move(rank, peer, outgoing, address, count)))
        return OK

    def _ncclGroupEnd(self):
        self._grouped = False
        if self._joining:
            _, world, folder, _ = self._joining[0]
            ranks = [rank for *_, rank in self._joining]
            try:
                self._transport = SocketTransport(folder, ranks, world, timeout_s=WAIT_S)
            except TransferError:
                return REMOTE_ERROR
            for device, (communicator, _, _, rank) in enumerate(self._joining):
                communicator.value = 1000 + rank
                self._communicators[1000 + rank] = rank, self._devices_of(device)
            self._joining = []
        if self._queued:
            streams = {stream for stream, _ in self._queued}
            moves = [move for _, move in self._queued]
            self._queued = []
            job = threading.Thread(target=self._work, args=(moves, streams), daemon=True)
            for stream in streams:
                self._streams[stream].job = job
            job.start()
        return OK

    def _devices_of(self, number):
        return self.devices[number]

    devices: tuple[int, ...] = ()

    def _work(self, moves, streams):
        assert self._transport is not None
        try:
            self._transport.exchange(moves, timeout_s=WAIT_S)
        except TransferError:
            for stream in streams:
                self._streams[stream].failed = True

    def _ncclCommGetAsyncError(self, communicator, error):
        failed = any(stream.failed for stream in self._streams.values())
        error._obj.value = REMOTE_ERROR if failed else OK
        return OK

    def _ncclCommAbort(self, communicator):
        self.aborted.append(communicator.value)
        assert self._transport is not None
        self._transport.close()
        return OK

    def _cudaGetDevice(self, device):
        device._obj.value = self._device.number
        return OK

    def _cudaSetDevice(self, device):
        self._device.number = device
        return OK

    def _cudaDeviceGetPCIBusId(self, found, size, device):
        found.value = f"0000:{device:02X}:00.0".encode()
        return OK

    def _cudaStreamCreateWithFlags(self, stream, flags):
        assert flags == nccl.NON_BLOCKING
        stream._obj.value = 1 + len(self._streams)
        self._streams[stream._obj.value] = _Stream()
        self.devices += (self._device.number,)
        return OK

    def _cudaStreamQuery(self, stream):
        found = self._streams[stream.value]
        return nccl.NOT_READY if found.failed or (found.job is not None and found.job.is_alive()) else OK

    def _cudaStreamDestroy(self, stream):
        return OK


def _function(method):
    def call(*arguments):
        return method(*arguments)

    return call
