"""The learner's devices as ranks of a group: rank i is the i-th of the mesh, whichever process it belongs to."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
from jax.sharding import NamedSharding

from isocompute_jax.model import ModelConfig
from isocompute_jax.model.hf_devices import HeldBox, device_boxes
from isocompute_jax.service.client.device.outgoing import Outgoing
from isocompute_jax.service.proto.host_id import host_id
from isocompute_jax.service.weights.device import nccl
from isocompute_jax.service.weights.device.schedule import Schedule
from isocompute_jax.service.weights.device.sockets import SocketTransport
from isocompute_jax.service.weights.device.transport import NCCL, SOCKETS, Transport

JOIN_S = 90.0
"""Longer than a server waits for the other members, so that its reason is heard."""


@dataclasses.dataclass(frozen=True)
class LearnerRanks:
    """All of them, and those of this process.

    Attributes:
      held: by rank, what the device holds.
      processes: by rank, the process whose device it is.
      devices: the devices of this process, by rank.
    """

    held: tuple[tuple[HeldBox, ...], ...]
    processes: tuple[int, ...]
    devices: Mapping[int, Any]

    def of(self, process: int) -> list[int]:
        """The ranks of a process."""
        return [rank for rank, owner in enumerate(self.processes) if owner == process]

    def outgoing(self, config: ModelConfig, schedules: Iterable[Schedule]) -> Outgoing:
        """The sending end of this process's ranks, whose schedules these are."""
        held = {rank: self.held[rank] for rank in self.devices}
        return Outgoing(config, held, {each.rank: each for each in schedules}, self.devices)

    def gpus(self, transport: str) -> list[str]:
        """This process's GPUs, so that a server on one of them is found out; nothing where there are none."""
        if transport != NCCL:
            return []
        libraries = nccl.load()
        return [f"{host_id()}/{libraries.bus_id(number)}" for number in self._numbers().values()]

    def join(
        self, transport: str, rendezvous: bytes, world: int, *, owner: bool, given_up: Callable[[], bool]
    ) -> Transport:
        """This process's part of a group; blocks until all of its `world` ranks are there.

        Args:
          transport: its name.
          rendezvous: by what the ranks find each other.
          world: ranks in all.
          owner: whether this process made the rendezvous.
          given_up: whether nobody waits for the group any more.

        Raises:
          TransferError: they did not come.
        """
        if transport == SOCKETS:
            ranks, folder = list(self.devices), rendezvous.decode()
            return SocketTransport(folder, ranks, world, timeout_s=JOIN_S, owner=owner, given_up=given_up)
        numbers = self._numbers()
        return nccl.NcclTransport(nccl.load(), rendezvous, numbers, world, timeout_s=JOIN_S, given_up=given_up)

    def _numbers(self) -> dict[int, int]:
        """CUDA's numbers of this process's GPUs."""
        return {rank: device.local_hardware_id or 0 for rank, device in self.devices.items()}


def learner_ranks(config: ModelConfig, leaves: Sequence[jax.Array]) -> LearnerRanks:
    """Those of the mesh that `to_hf_layout` has laid parameters out on; one device without a mesh."""
    sharding = leaves[0].sharding
    mesh: Any = sharding.mesh if isinstance(sharding, NamedSharding) else None
    devices = [jax.devices()[0]] if mesh is None else list(mesh.devices.flat)
    own = {rank: device for rank, device in enumerate(devices) if device.process_index == jax.process_index()}
    return LearnerRanks(tuple(device_boxes(config, mesh)), tuple(device.process_index for device in devices), own)


async def joined(join: Callable[..., Transport], *arguments: Any, **options: Any) -> Transport:
    """`LearnerRanks.join` in a thread; given up, and what comes of it closed, when it is cancelled."""
    given_up = threading.Event()
    joining = asyncio.ensure_future(asyncio.to_thread(join, *arguments, given_up=given_up.is_set, **options))
    try:
        return await asyncio.shield(joining)
    except asyncio.CancelledError:
        given_up.set()
        joining.add_done_callback(close_formed)
        raise


def close_formed(joined: asyncio.Future[Transport]) -> None:
    """Closes what was formed, when nobody wants it any more."""
    if not joined.cancelled() and joined.exception() is None:
        joined.result().close()
