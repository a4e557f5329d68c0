"""A simulated engine whose ranks can be sent weights: they keep what came, for tests to compare."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable

import ml_dtypes  # noqa: F401  (numpy learns bfloat16)
import numpy as np

from benchmarks.simulated_engine import SimulatedEngine
from isocompute_jax.records.tensors import TensorSpec
from isocompute_jax.service.proto import convert
from isocompute_jax.service.proto import sampler_pb2 as pb
from isocompute_jax.service.proto.host_id import host_id
from isocompute_jax.service.server.engines.base import NotTakenError
from isocompute_jax.service.server.engines.vllm.layout import Heads, places, wanted
from isocompute_jax.service.weights.device import nccl
from isocompute_jax.service.weights.device.plan import Device
from isocompute_jax.service.weights.device.receiver import Receiver
from isocompute_jax.service.weights.device.schedule import message_to_schedule
from isocompute_jax.service.weights.device.sockets import SocketTransport
from isocompute_jax.service.weights.device.transport import SOCKETS, TransferError
from isocompute_jax.service.weights.weight_file import WeightFile

JOIN_S = 20.0


class ReceivingSimulated(SimulatedEngine):
    """Implements `ReceivingEngine` with ranks laid out as vLLM's, each in a thread.

    Args:
      tensors: of the model.
      heads: of its attention.
      tensor_parallel, data_parallel: its ranks.
      transports: what it can be sent weights by.
      libraries: makes the stand-in of NCCL's libraries.
    """

    def __init__(
        self,
        tensors: tuple[TensorSpec, ...],
        heads: Heads,
        *,
        tensor_parallel: int = 1,
        data_parallel: int = 1,
        transports: tuple[tuple[str, str], ...] = ((SOCKETS, ""),),
        libraries: Callable[[], nccl.Nccl] = nccl.load,
        **settings,
    ):
        super().__init__(tensors, **settings)
        self.ranks = [tuple(wanted(tensors, place, heads)) for place in places(tensor_parallel, data_parallel)]
        devices = tuple(Device(host_id(), boxes) for boxes in self.ranks)
        self.facts = self.facts.__class__(**{**vars(self.facts), "transports": transports, "ranks": devices})
        self._libraries = libraries
        self._receivers: list[Receiver] = []
        self._memory: list[np.ndarray] = []
        self.opened = self.received = 0
        self.deaf = False
        self.files: list[WeightFile] = []
        self.tensors_of_ranks: list[dict[str, np.ndarray]] = []

    async def open_transfer(self, opening: pb.OpenTransferRequest) -> None:
        await self.abandon_transfer()
        tensors = convert.messages_to_tensors(opening.tensors)
        schedules = [message_to_schedule(each, tensors) for each in opening.schedules]
        with concurrent.futures.ThreadPoolExecutor(len(schedules)) as pool:
            transports = list(pool.map(lambda each: self._join(opening, each.rank), schedules))
        self._memory = [np.zeros(max(1, schedule.starts()[1]), np.uint8) for schedule in schedules]
        self._receivers = [
            Receiver(transport, schedule, memory.ctypes.data)
            for transport, schedule, memory in zip(transports, schedules, self._memory, strict=True)
        ]
        self._shapes = {spec.name: spec for spec in tensors}
        self.opened += 1

    def _join(self, opening, rank):
        if opening.transport == SOCKETS:
            return SocketTransport(opening.rendezvous.decode(), [rank], opening.world, timeout_s=JOIN_S)
        return nccl.NcclTransport(self._libraries(), opening.rendezvous, {rank: rank}, opening.world, timeout_s=JOIN_S)

    async def begin_transfer(self) -> None:
        if self.deaf:
            raise TransferError("this engine was told not to listen")
        for receiver in self._receivers:
            receiver.begin()

    async def take_sent_weights(self, *, version: int, recompute: bool) -> float:
        try:
            for receiver in self._receivers:
                receiver.join()
        except TransferError as error:
            raise NotTakenError(str(error)) from error
        self.tensors_of_ranks = [self._assembled(*each) for each in zip(self._receivers, self._memory, strict=True)]
        self.received += 1
        self._mark(version)
        return 0.0

    def _mark(self, version: int) -> None:
        self.version = version
        self._updated_at.append(self._now())
        self._versions.append(version)

    def _assembled(self, receiver: Receiver, memory: np.ndarray) -> dict[str, np.ndarray]:
        """A rank's part of each tensor, as bits; what it was not sent is 0xFF."""
        found = {}
        for name, spec in self._shapes.items():
            dtype = np.dtype(spec.dtype)
            whole = np.full(spec.nbytes, 0xFF, np.uint8).view(dtype).reshape(spec.shape)
            for each in receiver.placed.get(name, ()):
                part = memory[each.start : each.start + each.box.nbytes].view(dtype)
                whole[each.box.slices] = part.reshape(each.box.shape)
            found[name] = whole
        return found

    async def abandon_transfer(self) -> None:
        for receiver in self._receivers:
            receiver.close()
        self._receivers = []

    async def update_weights(self, weights, *, version, recompute):
        self.files.append(weights)
        with open(weights.path, "rb") as file:
            data = file.read()
        self.file_tensors = {
            spec.name: np.frombuffer(data, np.dtype(spec.dtype), spec.nbytes // np.dtype(spec.dtype).itemsize, start)
            .reshape(spec.shape)
            .copy()
            for spec, start in zip(weights.tensors, weights.starts, strict=True)
        }
        return await super().update_weights(weights, version=version, recompute=recompute)
