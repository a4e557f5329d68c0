"""Runs in vLLM's worker processes: takes weights from a file that each of them maps, or by vLLM's own NCCL engine.

vLLM's NCCL engine has no deadline, so that a watchdog has one. What the learner speaks is vLLM's wire format (0.32): a
unique id, one float32 added up over all ranks, and packs of whole tensors as bytes. A pack is as large as the largest
bucket here and there is one buffer, so that a bucket is one broadcast and one load: packs of one layer on two streams
would not wait for each other.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import mmap
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from vllm.config import set_current_vllm_config  # pyright: ignore[reportMissingImports]
from vllm.distributed.weight_transfer.base import (  # pyright: ignore[reportMissingImports]
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import (  # pyright: ignore[reportMissingImports]
    WeightTransferEngineFactory,
)
from vllm.distributed.weight_transfer.nccl_engine import (  # pyright: ignore[reportMissingImports]
    NCCLWeightTransferEngine,
)
from vllm.model_executor.model_loader.reload import (  # pyright: ignore[reportMissingImports]
    finalize_layerwise_reload,
    initialize_layerwise_reload,
)
from vllm.platforms import current_platform  # pyright: ignore[reportMissingImports]

from isocompute_jax.service.weights.nccl import TransferError

JOIN_S = 20.0
RECEIVE_S = 40.0
"""Longest wait for one bucket: a learner waits half as long for a server that is slower than the others."""
GRACE_S = 10.0
"""A worker that is still stuck so long after its communicator was destroyed ends, and with it the server."""

BACKEND = "isocompute"


class Receiver:
    """A worker's membership in a communicator; `arguments` are vLLM's engine's: config, vllm_config, device, model."""

    def __init__(self, *arguments: Any):
        self._arguments = arguments
        self._device: torch.device = arguments[2]
        self._engine: NCCLWeightTransferEngine | None = None
        self._joining: threading.Thread | None = None

    def join(self, info: dict[str, Any]) -> None:
        """Joins a communicator, in place of the former one; returns when all of its members are there.

        Raises:
          TransferError: they were not in time, or there is no room for a bucket.
        """
        self.leave()
        if self._joining is not None and self._joining.is_alive():
            raise TransferError("a rank still waits for a learner that did not come: start the server again")
        self._check_room(info["packed_buffer_size_bytes"])
        engine = NCCLWeightTransferEngine(*self._arguments)
        outcome: list[BaseException | None] = []
        late = threading.Event()

        def enter() -> None:
            try:
                if not current_platform.is_cpu():
                    torch.accelerator.set_device_index(self._device.index)  # each thread has its own
                engine.init_transfer_engine(engine.parse_init_info(info))
                outcome.append(None)
            except Exception as error:
                outcome.append(error)
            if late.is_set():
                engine.shutdown()

        self._joining = threading.Thread(target=enter, name="join", daemon=True)
        self._joining.start()
        self._joining.join(JOIN_S)
        if not outcome:
            late.set()
            raise TransferError(f"the learner did not come within {JOIN_S:g} s")
        if outcome[0] is not None:
            raise TransferError(str(outcome[0])) from outcome[0]
        self._engine = engine

    def receive(self, info: dict[str, list[Any]]) -> None:
        """Loads what is broadcast next.

        Raises:
          TransferError: it did not come in time; what was loaded is worth nothing.
        """
        engine = self._engine
        if engine is None:
            raise TransferError("this rank is in no communicator")
        with self._watched(engine):
            engine.receive_weights(engine.parse_update_info(info))
            if not current_platform.is_cpu():
                torch.accelerator.synchronize()

    def leave(self) -> None:
        """Leaves the communicator, if it is in one."""
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.shutdown()

    @contextlib.contextmanager
    def _watched(self, engine: NCCLWeightTransferEngine) -> Iterator[None]:
        """Destroys the communicator when the block takes too long, which ends what waits on the device."""
        done, late = threading.Event(), threading.Event()

        def watch() -> None:
            if done.wait(RECEIVE_S):
                return
            late.set()
            engine.shutdown()
            if not done.wait(GRACE_S):
                os._exit(1)

        thread = threading.Thread(target=watch, name="watchdog", daemon=True)
        thread.start()
        failure: Exception | None = None
        try:
            yield
        except Exception as error:
            failure = error
        done.set()
        thread.join()
        if late.is_set():
            raise TransferError(f"the learner sent nothing for {RECEIVE_S:g} s") from failure
        if failure is not None:
            raise failure

    def _check_room(self, size: int) -> None:
        try:
            torch.empty(size, dtype=torch.uint8, device=self._device)
        except RuntimeError as error:
            raise TransferError(
                f"{self._device} has no room for {size} bytes beside what it serves: lower --gpu_memory_utilization"
            ) from error


@dataclasses.dataclass
class UpdateInfo(WeightTransferUpdateInfo):
    """A `WeightFile` of `service.weights.files`, field by field, as vLLM sends it to its workers."""

    path: str
    names: list[str]
    dtypes: list[str]
    shapes: list[list[int]]
    starts: list[int]


class WeightTransfer(WeightTransferEngine[WeightTransferInitInfo, UpdateInfo]):
    """Replaces the weights in place: every worker maps the file, or is sent every tensor, and takes its own shard.

    Loading goes through vLLM's layer-wise reload, which redoes what a layer did to its weights after they were first
    loaded (packing, on CPU) and keeps the storage that compiled graphs point to.
    """

    init_info_cls = WeightTransferInitInfo
    update_info_cls = UpdateInfo
    supports_draft_weight_update = False

    def __init__(self, *arguments: Any):
        super().__init__(*arguments)
        self.receiver = Receiver(*arguments)

    def init_transfer_engine(self, init_info: WeightTransferInitInfo) -> None:
        """Files need none, and `WorkerExtension.join_transfer` is what NCCL needs."""

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
        """Loads every tensor of the file."""
        with open(update_info.path, "rb") as file:
            # A private mapping: torch wants writable memory. The tensors keep it alive until the layers took them.
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        parts = zip(update_info.names, update_info.dtypes, update_info.shapes, update_info.starts, strict=True)
        self.model.load_weights((name, _tensor(mapped, dtype, shape, start)) for name, dtype, shape, start in parts)

    def update_weights(self, update_info: dict) -> None:
        """Takes a whole file, or what is broadcast next; on a CPU there is no device to wait for."""
        if "path" not in update_info:
            self.receiver.receive(update_info)
            return
        self.receive_weights(self.parse_update_info(update_info))
        if not current_platform.is_cpu():
            torch.accelerator.synchronize()

    def finish_weight_update(self) -> None:
        """Processes what is left, and packs a tied head anew."""
        finalize_layerwise_reload(self.model, self.model_config)
        # The CPU build keeps a packed copy of the head's weights. A tied head has no weights of its own to load, so
        # the reload passes it over and the copy would stay that of the old embedding table.
        if current_platform.is_cpu() and self.model_config.hf_config.tie_word_embeddings:
            head = self.model.lm_head
            head.quant_method.process_weights_after_loading(head)

    def give_up(self) -> None:
        """Leaves the communicator; layers that were loaded in part are put together, to be loaded again."""
        self.receiver.leave()
        finalize_layerwise_reload(self.model, self.model_config)

    def shutdown(self) -> None:
        """Leaves the communicator."""
        self.receiver.leave()


class WorkerExtension:
    """Calls to a worker beside vLLM's own, each of which says what went wrong in place of raising it.

    Importing this module, as a worker's extension class, registers the backend.
    """

    weight_transfer_engine: WeightTransfer
    vllm_config: Any
    update_weights: Callable[[dict], None]
    _weight_update_active: bool

    def join_transfer(self, info: dict) -> str:
        """Joins a communicator, in place of the former one."""
        return _error_of(self.weight_transfer_engine.receiver.join, info)

    def receive(self, info: dict) -> str:
        """Takes what is broadcast next."""
        return _error_of(self.update_weights, info)

    def give_up(self) -> str:
        """Ends an update of which not everything came: the model is of no use until it is sent whole weights."""
        with set_current_vllm_config(self.vllm_config):
            self.weight_transfer_engine.give_up()
        self._weight_update_active = False
        return ""


def _error_of(call: Callable[[dict], None], info: dict) -> str:
    try:
        call(info)
    except Exception as error:  # whatever it is, the server is to hear of it
        return f"{type(error).__name__}: {error}"
    return ""


def _tensor(mapped: mmap.mmap, dtype: str, shape: list[int], start: int) -> torch.Tensor:
    """A view of the mapped file."""
    flat = torch.frombuffer(mapped, dtype=getattr(torch, dtype), count=math.prod(shape), offset=start)
    return flat.reshape(shape)


WeightTransferEngineFactory.register_engine(BACKEND, WeightTransfer)
