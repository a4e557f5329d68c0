"""Runs in vLLM's worker processes: vLLM's own NCCL engine, which has no deadline, under a watchdog that has.

What the learner speaks is vLLM's wire format (0.32): a unique id, one float32 added up over all ranks, and packs of
whole tensors as bytes. A pack is as large as the largest bucket here and there is one buffer, so that a bucket is one
broadcast and one load: packs of one layer on two streams would not wait for each other.
"""

from __future__ import annotations

import base64
import contextlib
import os
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from vllm.distributed.weight_transfer.nccl_engine import (  # pyright: ignore[reportMissingImports]
    NCCLWeightTransferEngine,
)
from vllm.platforms import current_platform  # pyright: ignore[reportMissingImports]

from isocompute_jax.records.tensors import TensorSpec
from isocompute_jax.service.weights.transfer import Opening, TransferError

JOIN_S = 20.0
RECEIVE_S = 40.0
"""Longest wait for one bucket: a learner waits half as long for a server that is slower than the others."""
GRACE_S = 10.0
"""A worker that is still stuck so long after its communicator was destroyed ends, and with it the server."""


def init_info(opening: Opening) -> dict[str, Any]:
    """How a worker joins, in vLLM's terms."""
    return {
        "nccl_unique_id_b64": base64.b64encode(opening.unique_id).decode(),
        "rank_offset": 1,
        "world_size": opening.world,
        "packed": True,
        "packed_buffer_size_bytes": max(sum(tensor.nbytes for tensor in bucket) for bucket in opening.buckets),
        "packed_num_buffers": 1,
    }


def update_info(bucket: Sequence[TensorSpec]) -> dict[str, list[Any]]:
    """What a worker is sent next, in vLLM's terms."""
    return {
        "names": [tensor.name for tensor in bucket],
        "dtype_names": [tensor.dtype for tensor in bucket],
        "shapes": [list(tensor.shape) for tensor in bucket],
    }


class Receiver:
    """A worker's membership in a communicator.

    Args:
      arguments: of vLLM's engine: config, vllm_config, device, model.
    """

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
