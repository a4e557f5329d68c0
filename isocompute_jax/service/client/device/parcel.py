"""Weights kept on the learner's devices until the next ones: sent from there, or from a file to who needs one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Protocol

import jax

from isocompute_jax.model import ModelConfig, Params, to_hf_layout
from isocompute_jax.model.hf_layout import boxes_of_layout
from isocompute_jax.records.errors import InputError
from isocompute_jax.records.tensors import TensorSpec
from isocompute_jax.service.client.connection import Endpoint
from isocompute_jax.service.client.device.group import Group, Round
from isocompute_jax.service.client.device.maker import Maker
from isocompute_jax.service.client.orders import Orders
from isocompute_jax.service.client.service_config import ServiceConfig
from isocompute_jax.service.weights.device import nccl
from isocompute_jax.service.weights.device.transport import NCCL, SOCKETS, TransferError
from isocompute_jax.service.weights.outbox import Outbox, Parcel

LOG = logging.getLogger(__name__)


class Receiver(Protocol):
    """A server, as far as it matters here."""

    target: str
    endpoint: Endpoint

    @property
    def incarnation(self) -> str:
        """Another one after every start of the server."""
        ...


class DeviceParcel:
    """One version of the weights in Hugging Face layout, on the devices.

    Args:
      config: model shape.
      leaves: of `to_hf_layout`; nobody donates them.
      version: policy version.
      outbox: where they are laid down for servers that no devices can send them to.
    """

    def __init__(self, config: ModelConfig, leaves: Sequence[jax.Array], version: int, outbox: Outbox):
        self.version = version
        self.leaves = leaves
        self.round: Round | None = None
        self._config = config
        self._outbox = outbox
        self._file: asyncio.Future[Parcel] | None = None

    def round_for(self, target: str) -> Round | None:
        """The update through a group that a server is in, as long as it can succeed."""
        return self.round if self.round is not None and self.round.serves(target) else None

    async def laid_down(self) -> Parcel:
        """The same in a file, written when it is first asked for.

        Raises:
          RunError: there is no room for it.
        """
        if self._file is None:
            boxes = boxes_of_layout(self._config, self.leaves)
            self._file = asyncio.ensure_future(asyncio.to_thread(self._outbox.write, boxes, version=self.version))
        return await asyncio.shield(self._file)


class DeviceParcels:
    """Keeps the group that parcels are sent through.

    Args:
      config: model shape.
      tensors: the model's.
      transport: name and version of what the learner's devices send by.
    """

    def __init__(self, config: ModelConfig, tensors: Sequence[TensorSpec], transport: tuple[str, str]):
        self.transport = transport
        self._maker = Maker(config, tuple(tensors), transport)
        self._group: Group | None = None
        self._members: frozenset[tuple[str, str]] = frozenset()

    async def prepare(self, parcel: DeviceParcel, receivers: Sequence[Receiver], orders: Orders | None) -> None:
        """Lets a parcel go through a group with these servers; where none can be formed it goes by file.

        Args:
          parcel: the weights.
          receivers: the servers.
          orders: has the other learner hosts do their share; None without any.
        """
        members = frozenset((each.target, each.incarnation) for each in receivers)
        if self._group is not None and (self._group.broken or members != self._members):
            self._group.close()
            self._group = None
        if self._group is None and members:
            endpoints = [each.endpoint for each in receivers]
            try:
                self._group = await self._maker.form(parcel.leaves, parcel.version, endpoints, orders)
                self._members = members
            except TransferError as error:
                LOG.warning("weights of version %d go by file: %s", parcel.version, error)
        if self._group is not None:
            parcel.round = Round(self._group, parcel.leaves, parcel.version)

    def close(self) -> None:
        """Ends the group."""
        if self._group is not None:
            self._group.close()


def lay_out(config: ModelConfig, params: Params, version: int, outbox: Outbox) -> DeviceParcel:
    """A copy of the parameters that outlives them, in `config.dtype`; every process of a mesh must make it."""
    leaves = jax.tree.leaves(jax.block_until_ready(to_hf_layout(config, params)))
    return DeviceParcel(config, leaves, version, outbox)


def own_transport(service: ServiceConfig) -> tuple[str, str] | None:
    """Name and version of what this process's devices send weights by; None where they go by file or stream.

    Raises:
      InputError: `service.push` is `device`, and they cannot; says why.
    """
    if service.push not in ("auto", "device"):
        return None
    platform, reason = jax.default_backend(), ""
    if platform == "gpu":
        try:
            return NCCL, nccl.load().version
        except TransferError as error:
            reason = str(error)
    elif platform == "cpu" and service.push == "device":
        return SOCKETS, ""
    else:
        reason = f"the learner runs on {platform.upper()}s"
    if service.push == "device":
        raise InputError(f"config.service.push = 'device': {reason}: set it to 'auto', 'shared' or 'stream'")
    return None
