"""What stands in for CUDA and NCCL in vLLM's processes: streams that are none, and a communicator over sockets.

Installed as one of vLLM's own plugins, which it loads in every process; all else that receives weights is vLLM's.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import sys
from typing import Any

from tests.service.nccl_wire import Rank, path_of

ENGINE = "isocompute_jax.service.server.engines.vllm"
VERSION = "2.29.7"
DEADLINE_S = 3.0


def environment(directory: pathlib.Path) -> dict[str, str]:
    """What a process needs in its environment to load it; `directory` is empty."""
    info = directory / "isocompute_stand_in-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: isocompute-stand-in\nVersion: 0\n")
    (info / "entry_points.txt").write_text(f"[vllm.general_plugins]\nstand_in = {__name__}:install\n")
    paths = (str(directory), str(pathlib.Path(__file__).parents[2]), os.environ.get("PYTHONPATH", ""))
    return {"PYTHONPATH": os.pathsep.join(filter(None, paths))}


class Stream:
    def synchronize(self) -> None:
        """What a CPU does is done."""


class Communicator:
    """In the place of vLLM's PyNcclCommunicator."""

    rank: Rank

    @classmethod
    def from_unique_id_bytes(cls, unique_id_bytes, rank, world_size, device, library_path=None):
        self = cls()
        self.rank = Rank(path_of(unique_id_bytes), rank)
        assert 0 < rank < world_size and self.rank.add(0.0) == 0.0
        return self

    def broadcast(self, tensor, src):
        assert src == 0 and tensor.is_contiguous()
        self.rank.receive(memoryview(tensor.numpy()).cast("B"))

    def destroy(self):
        self.rank.close()


def install() -> None:
    """Puts them in their places."""
    import torch
    from vllm.distributed.device_communicators import pynccl  # pyright: ignore[reportMissingImports]
    from vllm.distributed.weight_transfer import packed_tensor  # pyright: ignore[reportMissingImports]

    pynccl.PyNcclCommunicator = Communicator
    packed_tensor._get_streams = lambda device, count: (Stream(),) * count
    torch.cuda.stream = lambda stream: contextlib.nullcontext()
    torch.accelerator.current_device_index = lambda: 0
    from isocompute_jax.service.server.engines.vllm import weight_transfer

    weight_transfer.JOIN_S = weight_transfer.RECEIVE_S = DEADLINE_S
    launch: Any = sys.modules.get(f"{ENGINE}.launch")  # in the server itself, which must say that it can
    if launch is not None:
        launch.nccl_version = lambda: VERSION
