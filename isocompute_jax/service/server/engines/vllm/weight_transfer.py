"""Runs in vLLM's worker processes: takes weights from a file that each of them maps, or from the learner's devices."""

from __future__ import annotations

import dataclasses
import math
import mmap
from collections.abc import Iterator

import torch
from vllm.distributed.weight_transfer.base import (  # pyright: ignore[reportMissingImports]
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import (  # pyright: ignore[reportMissingImports]
    WeightTransferEngineFactory,
)
from vllm.model_executor.model_loader.reload import (  # pyright: ignore[reportMissingImports]
    finalize_layerwise_reload,
    initialize_layerwise_reload,
)
from vllm.platforms import current_platform  # pyright: ignore[reportMissingImports]

from isocompute_jax.records.tensors import TensorSpec
from isocompute_jax.service.proto import convert
from isocompute_jax.service.proto import sampler_pb2 as pb
from isocompute_jax.service.proto.refusal import NOT_FINITE
from isocompute_jax.service.server.engines.vllm import transports
from isocompute_jax.service.weights.device.receiver import Receiver
from isocompute_jax.service.weights.device.schedule import message_to_schedule
from isocompute_jax.service.weights.device.transport import TransferError

BACKEND = "isocompute"
LOOKED_AT = 1 << 26
"""Numbers that are looked at together: the device has room for little beside the weights."""


@dataclasses.dataclass
class InitInfo(WeightTransferInitInfo):
    """A group in which weights come from device to device; files need none.

    Attributes:
      opening: a serialised `OpenTransferRequest`.
    """

    opening: bytes


@dataclasses.dataclass
class UpdateInfo(WeightTransferUpdateInfo):
    """A file that holds every tensor whole (`service.weights.WeightFile`), or what came from device to device.

    Attributes:
      path: the file; empty for what came in the group, which then names no tensors either.
      names: of the tensors, as in the Hugging Face checkpoint.
      dtypes: torch's name of each one's dtype.
      shapes: global shape of each.
      starts: byte at which each begins.
    """

    path: str
    names: list[str]
    dtypes: list[str]
    shapes: list[list[int]]
    starts: list[int]


class WeightTransfer(WeightTransferEngine[InitInfo, UpdateInfo]):
    """Replaces the weights in place: every worker maps the file, or has been sent its part, and takes its own shard.

    Loading goes through vLLM's layer-wise reload, which redoes what a layer did to its weights after they were first
    loaded (packing, on CPU) and keeps the storage that compiled graphs point to.
    """

    init_info_cls = InitInfo
    update_info_cls = UpdateInfo
    supports_draft_weight_update = False
    group: Group | None = None

    def init_transfer_engine(self, init_info: InitInfo) -> None:
        """Joins a group, in place of the former one; returns when all of its members are there."""
        self.shutdown()
        rank = self.parallel_config.data_parallel_index * self.parallel_config.world_size + self.parallel_config.rank
        self.group = Group(pb.OpenTransferRequest.FromString(init_info.opening), rank, self.device)

    def start_weight_update(self) -> None:
        """Layers expect a checkpoint's tensors from here on."""
        initialize_layerwise_reload(self.model)
        # The CPU build packs the weights of experts when it makes their kernel, and a reload keeps the kernel: without
        # one it is made anew, and what was loaded is packed.
        if current_platform.is_cpu():
            for layer in self.model.modules():
                method = getattr(layer, "quant_method", None)
                if method is not None and getattr(method, "moe_kernel", None) is not None:
                    method.moe_kernel = None

    def receive_weights(self, update_info: UpdateInfo) -> None:
        """Loads every tensor of the file, or of the group."""
        if not update_info.path:
            assert self.group is not None
            self.model.load_weights(self.group.tensors())
            return
        with open(update_info.path, "rb") as file:
            # A private mapping: torch wants writable memory. The tensors keep it alive until the layers took them.
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        parts = zip(update_info.names, update_info.dtypes, update_info.shapes, update_info.starts, strict=True)
        self.model.load_weights((name, _tensor(mapped, dtype, shape, start)) for name, dtype, shape, start in parts)

    def update_weights(self, update_info: dict) -> None:
        """Receives one update; on a CPU there is no device to wait for."""
        self.receive_weights(self.parse_update_info(update_info))
        if not current_platform.is_cpu():
            torch.accelerator.synchronize()

    @staticmethod
    def trainer_send_weights(*_: object) -> None:
        """Older interfaces ask for it; here the learner sends, which has no vLLM."""
        raise NotImplementedError("the learner sends its weights itself")

    def finish_weight_update(self) -> None:
        """Processes what is left, and packs a tied head anew."""
        finalize_layerwise_reload(self.model, self.model_config)
        # The CPU build keeps a packed copy of the head's weights. A tied head has no weights of its own to load, so
        # the reload passes it over and the copy would stay that of the old embedding table.
        if current_platform.is_cpu() and self.model_config.hf_config.tie_word_embeddings:
            head = self.model.lm_head
            head.quant_method.process_weights_after_loading(head)
        if self.group is not None and self.group.unproven:
            self._check_nothing_else_was_read()

    def _check_nothing_else_was_read(self) -> None:
        """After the first update of a group: what the plan left out was given as NaN, and none may be in the model."""
        for name, parameter in self.model.named_parameters():
            if parameter.is_floating_point() and bool(parameter.isnan().any()):
                raise RuntimeError(f"{name} holds numbers that this rank was not sent, or that are NaN themselves")
        assert self.group is not None
        self.group.unproven = False

    def shutdown(self) -> None:
        """Leaves the group."""
        if self.group is not None:
            self.group.receiver.close()
            self.group = None


class Group:
    """A worker's membership in a group, and memory for all that it is sent in an update.

    Args:
      opening: how the group is formed.
      rank: of the worker, among those of its server.
      device: the worker's.

    Raises:
      TransferError: the group was not formed, or the device has no room.
    """

    def __init__(self, opening: pb.OpenTransferRequest, rank: int, device: torch.device):
        self._specs = convert.messages_to_tensors(opening.tensors)
        self._device = device
        schedule = message_to_schedule(opening.schedules[rank], self._specs)
        _, size = schedule.starts()
        try:
            self._memory = torch.empty(max(size, 1), dtype=torch.uint8, device=device)
        except RuntimeError as error:
            raise TransferError(
                f"{device} has no room for {size} bytes of weights beside those that it serves: lower "
                "--gpu_memory_utilization, or set config.service.push to 'shared' or 'stream'"
            ) from error
        if not current_platform.is_cpu():
            torch.accelerator.synchronize()  # nothing that was queued before writes there any more
        transport = transports.join(opening, schedule.rank, device.index or 0)
        self.receiver = Receiver(transport, schedule, self._memory.data_ptr())
        self.unproven = True

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Every tensor by name, with this rank's part in it; the rest of it is NaN the first time, then anything."""
        for spec in sorted(self._specs, key=lambda spec: spec.name):  # tensors of a layer follow each other
            yield spec.name, self._tensor(spec)

    def check_finite(self) -> None:
        """Looks at what has arrived, a part at a time: the old weights are still those that serve.

        Raises:
          TransferError: names a tensor with a number that is not finite.
        """
        for name, parts in self.receiver.placed.items():
            for each in parts:
                numbers = self._memory[each.start : each.start + each.box.nbytes].view(getattr(torch, each.box.dtype))
                if not all(bool(part.isfinite().all()) for part in numbers.split(LOOKED_AT)):
                    raise TransferError(f"tensor {name!r} {NOT_FINITE}")

    def _tensor(self, spec: TensorSpec) -> torch.Tensor:
        dtype = getattr(torch, spec.dtype)
        parts = [
            (each.box, self._memory[each.start : each.start + each.box.nbytes].view(dtype).reshape(each.box.shape))
            for each in self.receiver.placed.get(spec.name, ())
        ]
        if len(parts) == 1 and parts[0][0].shape == spec.shape:
            return parts[0][1]
        whole = torch.empty(spec.shape, dtype=dtype, device=self._device)
        if self.unproven:
            whole.fill_(math.nan)
        for box, numbers in parts:
            whole[box.slices] = numbers
        return whole


class WorkerExtension:
    """Calls to a worker beside vLLM's own; importing this module, as its extension class, registers the backend."""

    weight_transfer_engine: WeightTransfer

    def begin_transfer(self) -> None:
        """Receives in a thread from here on."""
        self._group().receiver.begin()

    def join_transfer(self) -> None:
        """Returns when everything is there. Raises TransferError for numbers that are not finite."""
        group = self._group()
        group.receiver.join()
        group.check_finite()

    def abandon_transfer(self) -> None:
        """Gives up what is on its way, and the group."""
        self.weight_transfer_engine.shutdown()

    def _group(self) -> Group:
        group = self.weight_transfer_engine.group
        if group is None:
            raise TransferError("this rank is in no group")
        return group


def _tensor(mapped: mmap.mmap, dtype: str, shape: list[int], start: int) -> torch.Tensor:
    """A view of the mapped file."""
    flat = torch.frombuffer(mapped, dtype=getattr(torch, dtype), count=math.prod(shape), offset=start)
    return flat.reshape(shape)


WeightTransferEngineFactory.register_engine(BACKEND, WeightTransfer)
