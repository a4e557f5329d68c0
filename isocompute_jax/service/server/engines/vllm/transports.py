"""By which transports a vLLM worker can be sent weights, and how it joins a group. Imports no vllm."""

from __future__ import annotations

import logging

from isocompute_jax.service.proto import sampler_pb2 as pb
from isocompute_jax.service.proto.host_id import host_id
from isocompute_jax.service.weights.device import nccl
from isocompute_jax.service.weights.device.sockets import SocketTransport
from isocompute_jax.service.weights.device.transport import NCCL, SOCKETS, TransferError, Transport

JOIN_S = 60.0
log = logging.getLogger(__name__)


def available(*, cpu: bool) -> tuple[tuple[str, str], ...]:
    """Each transport's name and version."""
    if cpu:
        return ((SOCKETS, ""),)
    try:
        return ((NCCL, nccl.load().version),)
    except TransferError as error:
        log.warning("weights cannot come from device to device: %s", error)
        return ()


def join(opening: pb.OpenTransferRequest, rank: int, device: int) -> Transport:
    """Makes a rank a member of its group.

    Args:
      opening: how the group is formed.
      rank: in it.
      device: number of its GPU in this process.

    Raises:
      TransferError: the group was not formed.
    """
    if opening.transport == SOCKETS:
        return SocketTransport(opening.rendezvous.decode(), [rank], opening.world, timeout_s=JOIN_S)
    libraries = nccl.load()
    own = f"{host_id()}/{libraries.bus_id(device)}"
    if own in opening.occupied:
        raise TransferError(f"the learner uses the same GPU, {own}: NCCL connects no GPU with itself")
    return nccl.NcclTransport(libraries, opening.rendezvous, {rank: device}, opening.world, timeout_s=JOIN_S)
