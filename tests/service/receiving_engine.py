"""A simulated engine whose ranks are sent weights: they keep what came, for tests to compare. Also as a process."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import pathlib
import signal
import subprocess
import sys

import ml_dtypes  # noqa: F401  (numpy learns bfloat16)
import numpy as np

from benchmarks.simulated_engine import SimulatedEngine
from isocompute_jax.records.tensors import TensorSpec
from isocompute_jax.service.server.engines.base import HalfTakenError
from isocompute_jax.service.weights.files import WeightFile
from isocompute_jax.service.weights.nccl import TransferError
from tests.service.nccl_wire import Rank, path_of

ROOT = pathlib.Path(__file__).parents[2]


class ReceivingSimulated(SimulatedEngine):
    """Implements `ReceivingEngine` with `devices` ranks.

    Args:
      tensors: of the model.
      version: of its NCCL.
      do: how it behaves: `well`; `absent` (its ranks do not join); `dies` or `stops` (its process does, when it has
        half of the first update), `refuses` (a bucket, as for lack of memory).
      join_s, receive_s: its deadlines.
    """

    def __init__(
        self,
        tensors: tuple[TensorSpec, ...],
        *,
        version: str = "2.29.7",
        do: str = "well",
        join_s: float = 20.0,
        receive_s: float = 20.0,
        **settings,
    ):
        super().__init__(tensors, **settings)
        self.facts = self.facts.__class__(**{**vars(self.facts), "nccl": version})
        self.do = do
        self._join_s, self._receive_s = join_s, receive_s
        self._ranks: list[Rank] = []
        self._buckets: tuple[tuple[TensorSpec, ...], ...] | None = None
        self.opened = self.received = self.half_taken = 0
        self.files: list[WeightFile] = []
        self.tensors_of_ranks: list[dict[str, np.ndarray]] = []

    async def open_transfer(self, unique_id: bytes, buckets) -> None:
        self._leave()
        if self.do == "absent":
            await asyncio.sleep(self._join_s)
            raise TransferError("the learner did not come")
        path = path_of(unique_id)

        def join(rank: int) -> Rank:
            member = Rank(path, rank, self._join_s)
            assert member.add(0.0) == 0.0
            member.wait_at_most(self._receive_s)
            return member

        with concurrent.futures.ThreadPoolExecutor(self.facts.devices) as pool:
            joined = [pool.submit(join, 1 + rank) for rank in range(self.facts.devices)]
            await asyncio.to_thread(concurrent.futures.wait, joined)
        try:
            self._ranks = [each.result() for each in joined]
        except OSError as error:
            raise TransferError(str(error)) from error
        self._buckets = buckets
        self.opened += 1

    async def take_sent_weights(self, receiving, *, version: int, recompute: bool) -> float:
        assert self._buckets is not None
        try:
            await receiving()
            found: list[dict[str, np.ndarray]] = [{} for _ in self._ranks]
            for number, bucket in enumerate(self._buckets):
                if number == len(self._buckets) // 2:
                    self._misbehave()
                for each, data in zip(found, await asyncio.to_thread(self._receive, bucket), strict=True):
                    each |= _tensors(bucket, data)
        except OSError as error:
            self._leave()
            self.half_taken += 1
            raise HalfTakenError(str(error)) from error
        self.tensors_of_ranks = found
        self.received += 1
        self.version = version
        self._updated_at.append(self._now())
        self._versions.append(version)
        return 0.0

    def _misbehave(self) -> None:
        if self.do == "dies":
            os._exit(1)
        if self.do == "stops":
            self.do = "well"
            os.kill(os.getpid(), signal.SIGSTOP)
        if self.do == "refuses":
            raise OSError("there is no room")

    def _receive(self, bucket: tuple[TensorSpec, ...]) -> list[np.ndarray]:
        """Every rank's copy: root sends to one after the other."""
        memory = [np.zeros(sum(tensor.nbytes for tensor in bucket), np.uint8) for _ in self._ranks]
        with concurrent.futures.ThreadPoolExecutor(len(memory)) as pool:
            list(pool.map(lambda pair: pair[0].receive(pair[1].data), zip(self._ranks, memory, strict=True)))
        return memory

    def _leave(self) -> None:
        for rank in self._ranks:
            rank.close()
        self._ranks = []

    async def update_weights(self, weights, *, version, recompute):
        self.files.append(weights)
        with open(weights.path, "rb") as file:
            data = np.frombuffer(file.read(), np.uint8)
        whole = zip(weights.tensors, weights.starts, strict=True)
        self.file_tensors = {spec.name: _numbers(spec, data[start : start + spec.nbytes]) for spec, start in whole}
        return await super().update_weights(weights, version=version, recompute=recompute)

    async def stop(self) -> None:
        self._leave()


def _tensors(bucket, data: np.ndarray) -> dict[str, np.ndarray]:
    ends = np.cumsum([tensor.nbytes for tensor in bucket])
    return {
        tensor.name: _numbers(tensor, data[end - tensor.nbytes : end]) for tensor, end in zip(bucket, ends, strict=True)
    }


def _numbers(spec: TensorSpec, data: np.ndarray) -> np.ndarray:
    return data.view(np.dtype(spec.dtype)).reshape(spec.shape).copy()


class Process:
    """A server around it as a process of its own; a name of `ReceivingSimulated.do` says how it behaves."""

    def __init__(self, do: str, port: int = 0, **settings):
        given = ", ".join(f"{name}={value!r}" for name, value in {"do": do, **settings}.items())
        script = (
            "import logging, signal; logging.basicConfig(level=logging.INFO)\n"
            "from tests.service.fleet_builders import Live, tensors\n"
            "from tests.service.receiving_engine import ReceivingSimulated\n"
            f"server = Live({port}, ReceivingSimulated(tensors(), tokens_per_s=4000.0, {given}))\n"
            "print(server.address, flush=True)\n"
            "signal.pause()\n"
        )
        environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
        self.process = subprocess.Popen(
            [sys.executable, "-c", script], cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().strip()
        assert self.address
        self.port = int(self.address.rsplit(":", 1)[1])

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
