"""An engine that only waits: it takes time as a real one does, but no processor.

Completions are made of random tokens; lengths are log-normal, so that the tail is as long as asked for. What is drawn
depends on (seed, step, problem id, rollout) alone, as with a real engine.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncGenerator

import numpy as np

from isocompute_jax.records.requests import SampleRequest
from isocompute_jax.records.rollout import Completion
from isocompute_jax.records.tensors import TensorSpec
from isocompute_jax.service.server.engines.base import EngineError, EngineFacts
from isocompute_jax.service.weights.files import WeightFile

THAW_POLL_S = 0.005
KEPT_BYTES = 1 << 20


class SimulatedEngine:
    """Implements `service.server.engines.base.Engine`: `slots` rollouts at once, each at `tokens_per_s`.

    A rollout sleeps once, for as long as its tokens take; which of them were drawn by a moment follows from the clock.

    Args:
      tensors: what updates must hold.
      tokens_per_s: of each slot.
      slots: rollouts drawn at once; the others wait.
      median_length: of completions, in tokens.
      tail: standard deviation of the logarithm of the length; 0 makes all alike.
      vocab_size: V.
      max_model_len: longest prompt and completion together.
      routing: claims to say the experts that tokens went to.
    """

    def __init__(
        self,
        tensors: tuple[TensorSpec, ...] = (TensorSpec("weight", "float32", (4, 4)),),
        *,
        tokens_per_s: float = 1000.0,
        slots: int = 64,
        median_length: float = 8.0,
        tail: float = 0.0,
        vocab_size: int = 32,
        max_model_len: int = 4096,
        routing: bool = False,
        devices: int = 1,
    ):
        self.facts = EngineFacts(
            "simulated", "1", "simulated", vocab_size, max_model_len, 1024, tensors, devices, "simulated", routing
        )
        self.version = 0
        self.dead = False
        self.weights = b""
        self._tokens_per_s = tokens_per_s
        self._median_length = median_length
        self._tail = tail
        self._slots: asyncio.Queue[None] = asyncio.Queue()  # a semaphore's waiters cost more
        for _ in range(slots):
            self._slots.put_nowait(None)
        self._frozen_at: float | None = None
        self._frozen_s = 0.0
        self._updated_at: list[float] = []
        self._versions = [0]
        self._running: dict[object, tuple[float, int]] = {}
        self._ended_tokens = 0

    @property
    def frozen(self) -> bool:
        """Whether it draws nothing, though it has work."""
        return self._frozen_at is not None

    @frozen.setter
    def frozen(self, frozen: bool) -> None:
        now = time.monotonic()
        if self._frozen_at is not None:
            self._frozen_s += now - self._frozen_at
        self._frozen_at = now if frozen else None

    @property
    def tokens_generated(self) -> int:
        """Tokens drawn since the start, those of rollouts that are still being drawn included."""
        return self._ended_tokens + sum(self._drawn(began, length) for began, length in [*self._running.values()])

    def _now(self) -> float:
        """Seconds on a clock that stands still while the engine is frozen."""
        return (time.monotonic() if self._frozen_at is None else self._frozen_at) - self._frozen_s

    def _drawn(self, began: float, length: int) -> int:
        return min(length, int((self._now() - began) * self._tokens_per_s))

    async def start(self) -> None:
        """Nothing to load."""

    async def generate(self, request: SampleRequest) -> AsyncGenerator[list[tuple[int, Completion]], None]:
        """Each rollout waits for a slot, then for its tokens."""
        finished: asyncio.Queue[tuple[int, Completion]] = asyncio.Queue()
        tasks = [asyncio.create_task(self._draw(request, i, finished)) for i in range(request.group_size)]
        try:
            left = request.group_size
            while left:
                ready = [await finished.get()]
                while not finished.empty():
                    ready.append(finished.get_nowait())
                left -= len(ready)
                if self.dead:
                    raise EngineError("the simulated engine was told to die")
                yield ready
        finally:
            for task in tasks:
                task.cancel()

    async def _draw(self, request: SampleRequest, index: int, finished: asyncio.Queue) -> None:
        key = f"{request.seed}/{request.step}/{request.problem_id}/{request.first_rollout + index}"
        if request.turn:
            key += f"/{request.turn}"
        random = np.random.default_rng(int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "little"))
        wanted = int(max(1.0, self._median_length * np.exp(self._tail * random.standard_normal())))
        length = min(wanted, request.budget(index))
        tokens = random.integers(0, self.facts.vocab_size, length).astype(np.int32)
        if request.stop_tokens:
            ordinary = np.setdiff1d(np.arange(self.facts.vocab_size, dtype=np.int32), request.stop_tokens)
            tokens = ordinary[tokens % len(ordinary)]
            tokens[-1] = request.stop_tokens[0] if length == wanted else tokens[-1]
        await self._slots.get()
        try:
            began = self._now()
            await self._wait(began, length)
        finally:
            self._slots.put_nowait(None)
        reason = "stop" if wanted <= request.budget(index) else "length"
        logprobs = np.full(length, -np.log(self.facts.vocab_size), np.float32)
        drawn_at = began + np.arange(1, length + 1) / self._tokens_per_s
        versions = np.array(self._versions, np.int32)[np.searchsorted(self._updated_at, drawn_at)]
        finished.put_nowait((index, Completion.drawn(tokens, logprobs, versions, reason)))

    async def _wait(self, began: float, length: int) -> None:
        """Until `length` tokens are drawn."""
        slot = object()
        self._running[slot] = began, length
        try:
            while (left := began + length / self._tokens_per_s - self._now()) > 0:
                await asyncio.sleep(THAW_POLL_S if self.frozen else left)
            self._running[slot] = began, 0
            self._ended_tokens += length
        finally:
            self._ended_tokens += self._drawn(*self._running.pop(slot))

    async def update_weights(self, weights: WeightFile, *, version: int, recompute: bool) -> float:
        """Keeps the file's bytes, or the first of them, for tests to look at."""
        with open(weights.path, "rb") as file:
            self.weights = file.read(KEPT_BYTES)
        self.version = version
        self._updated_at.append(self._now())
        self._versions.append(version)
        return 0.0

    async def check_health(self) -> None:
        """Raises once `dead` is set."""
        if self.dead:
            raise EngineError("the simulated engine was told to die")

    async def stop(self) -> None:
        """Nothing to end."""
