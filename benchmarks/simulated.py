"""A sampler server around an engine that only waits: it takes time as a real one does, but no processor.

    python -m benchmarks.simulated --port=50051 --tokens_per_s=2000 --slots=64

Completions are made of random tokens; lengths are log-normal, so that the tail is as long as asked for. What is drawn
depends on (seed, step, problem id, rollout) alone, as with a real engine.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator

import numpy as np
from absl import flags

from isocompute_jax import app
from isocompute_jax.records.rollout import Completion
from isocompute_jax.service import server_flags
from isocompute_jax.service.engines.base import EngineError, EngineFacts, GroupRequest
from isocompute_jax.service.server import serve
from isocompute_jax.service.weights import TensorSpec, WeightFile

TICK_S = 0.005
KEPT_BYTES = 1 << 20


class SimulatedEngine:
    """Implements `service.engines.base.Engine`: `slots` rollouts at once, each at `tokens_per_s`.

    Args:
      tensors: what updates must hold.
      tokens_per_s: of each slot.
      slots: rollouts drawn at once; the others wait.
      median_length: of completions, in tokens.
      tail: standard deviation of the logarithm of the length; 0 makes all alike.
      vocab_size: V.
      max_model_len: longest prompt and completion together.
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
    ):
        self.facts = EngineFacts("simulated", "1", "simulated", vocab_size, max_model_len, 1024, tensors)
        self.tokens_generated = 0
        self.version = 0
        self.frozen = False
        self.dead = False
        self.weights = b""
        self._tokens_per_s = tokens_per_s
        self._median_length = median_length
        self._tail = tail
        self._slots = asyncio.Semaphore(slots)

    async def start(self) -> None:
        """Nothing to load."""

    async def generate(self, request: GroupRequest) -> AsyncGenerator[list[tuple[int, Completion]], None]:
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

    async def _draw(self, request: GroupRequest, index: int, finished: asyncio.Queue) -> None:
        key = f"{request.seed}/{request.step}/{request.problem_id}/{index}".encode()
        random = np.random.default_rng(int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little"))
        wanted = int(max(1.0, self._median_length * np.exp(self._tail * random.standard_normal())))
        length = min(wanted, request.params.max_tokens)
        tokens = random.integers(0, self.facts.vocab_size, length).astype(np.int32)
        versions = np.empty(length, np.int32)
        async with self._slots:
            done, debt = 0, 0.0
            while done < length:
                await asyncio.sleep(TICK_S)
                if self.frozen:
                    continue
                debt += TICK_S * self._tokens_per_s
                new = min(length - done, int(debt))
                debt -= new
                versions[done : done + new] = self.version
                done += new
                self.tokens_generated += new
        reason = "stop" if wanted <= request.params.max_tokens else "length"
        logprobs = np.full(length, -np.log(self.facts.vocab_size), np.float32)
        await finished.put((index, Completion(tokens, logprobs, np.ones(length, bool), versions, reason)))

    async def update_weights(self, weights: WeightFile, *, version: int, recompute: bool) -> float:
        """Keeps the file's bytes, or the first of them, for tests to look at."""
        with open(weights.path, "rb") as file:
            self.weights = file.read(KEPT_BYTES)
        self.version = version
        return 0.0

    async def check_health(self) -> None:
        """Raises once `dead` is set."""
        if self.dead:
            raise EngineError("the simulated engine was told to die")

    async def stop(self) -> None:
        """Nothing to end."""


flags.adopt_module_key_flags(server_flags)
_TOKENS_PER_S = flags.DEFINE_float("tokens_per_s", 1000.0, "Tokens per second of each slot.")
_SLOTS = flags.DEFINE_integer("slots", 64, "Rollouts drawn at once; the others wait.", 1)
_MEDIAN_LENGTH = flags.DEFINE_float("median_length", 8.0, "Median length of completions, in tokens.")
_TAIL = flags.DEFINE_float("tail", 0.0, "Standard deviation of the logarithm of the length.")
_VOCAB_SIZE = flags.DEFINE_integer("vocab_size", 32, "Token ids.", 1)
_MAX_MODEL_LEN = flags.DEFINE_integer("max_model_len", 4096, "Longest prompt and completion together.", 2)
_TENSOR_MIB = flags.DEFINE_multi_integer(
    "tensor_mib", [], "Updates hold a float32 tensor of so many MiB; may be given several times. A 4 x 4 one if absent."
)


def main() -> None:
    """Flags -> one call."""
    tensors = tuple(TensorSpec(f"weight.{i}", "float32", (mib * 256, 1024)) for i, mib in enumerate(_TENSOR_MIB.value))
    engine = SimulatedEngine(
        tensors or (TensorSpec("weight", "float32", (4, 4)),),
        tokens_per_s=_TOKENS_PER_S.value,
        slots=_SLOTS.value,
        median_length=_MEDIAN_LENGTH.value,
        tail=_TAIL.value,
        vocab_size=_VOCAB_SIZE.value,
        max_model_len=_MAX_MODEL_LEN.value,
    )
    asyncio.run(serve(engine, server_flags.server_config()))


if __name__ == "__main__":
    app.run(main)
