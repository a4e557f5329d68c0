"""The other learner hosts' part of a group: they join it, send and leave it when process 0 says so."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Mapping, Sequence

import jax

from isocompute_jax.model import ModelConfig
from isocompute_jax.records.tensors import TensorSpec
from isocompute_jax.service.client.device.outgoing import Outgoing
from isocompute_jax.service.client.device.ranks import joined, learner_ranks
from isocompute_jax.service.client.orders import Deed
from isocompute_jax.service.proto import sampler_pb2 as pb
from isocompute_jax.service.proto.host_id import host_id
from isocompute_jax.service.weights.device.schedule import message_to_schedule
from isocompute_jax.service.weights.device.transport import TransferError, Transport

DESCRIBE, JOIN, SEND, LEAVE = "describe ranks", "join transfer", "send transfer", "leave transfer"
"""What process 0 orders."""


@dataclasses.dataclass(frozen=True)
class _Joined:
    """A group that this process is in."""

    transport: Transport
    outgoing: Outgoing


class DeviceShares:
    """Another host's; used on one event loop.

    Args:
      config: model shape.
      tensors: the model's.
      transport: name and version of what this process's devices send by.
      leaves: what is laid out of a version of the weights, as soon as there is something.
    """

    def __init__(
        self,
        config: ModelConfig,
        tensors: Sequence[TensorSpec],
        transport: tuple[str, str],
        leaves: Callable[[int], Awaitable[Sequence[jax.Array]]],
    ):
        self._config = config
        self._tensors = tensors
        self._transport = transport
        self._leaves = leaves
        self._groups: dict[int, _Joined] = {}

    @property
    def deeds(self) -> Mapping[str, Deed]:
        """What can be ordered."""
        return {DESCRIBE: self._describe, JOIN: self._join, SEND: self._send, LEAVE: self._leave}

    def close(self) -> None:
        """Leaves every group; what is under way fails."""
        for number in list(self._groups):
            self._groups.pop(number).transport.close()

    async def _describe(self, version: int, *, tell: Callable[[], None]) -> tuple[tuple[str, str], str, list[str]]:
        """What this process sends by, its host, and its GPUs."""
        ranks = learner_ranks(self._config, await self._leaves(version))
        return self._transport, host_id(), ranks.gpus(self._transport[0])

    async def _join(
        self,
        version: int,
        transfer: int,
        rendezvous: bytes,
        world: int,
        schedules: Sequence[bytes],
        *,
        tell: Callable[[], None],
    ) -> None:
        ranks = learner_ranks(self._config, await self._leaves(version))
        parsed = [message_to_schedule(pb.TransferSchedule.FromString(each), self._tensors) for each in schedules]
        outgoing = ranks.outgoing(self._config, parsed)
        transport = await joined(ranks.join, self._transport[0], rendezvous, world, owner=False)
        self._groups[transfer] = _Joined(transport, outgoing)

    async def _send(self, version: int, transfer: int, *, tell: Callable[[], None]) -> None:
        leaves = await self._leaves(version)
        group = self._groups.get(transfer)
        if group is None:
            raise TransferError("it has left the group")
        loop = asyncio.get_running_loop()

        def progress() -> None:
            loop.call_soon_threadsafe(tell)

        try:
            await asyncio.to_thread(group.outgoing.send, leaves, group.transport, progress)
        except BaseException:
            await self._leave(transfer, tell=tell)
            raise

    async def _leave(self, transfer: int, *, tell: Callable[[], None]) -> None:
        group = self._groups.pop(transfer, None)
        if group is not None:
            group.transport.close()
