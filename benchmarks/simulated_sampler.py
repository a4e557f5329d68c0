"""A sampler that draws nothing: numbers come from a hash, as fast as they are asked for.

What it gives depends on (seed, step, problem id, rollout) alone, as with a real one, in whatever order it comes.
"""

from __future__ import annotations

import collections
import hashlib
from collections.abc import Iterator, Sequence

import numpy as np

from isocompute_jax.records.requests import SampleRequest
from isocompute_jax.records.rollout import Completion, RolloutGroup
from isocompute_jax.sampling import NO_DEVICES, TRAIN
from isocompute_jax.tasks import Tokenizer


class SimulatedSampler:
    """Implements `sampling.protocol.Sampler`; its completions end with the number 1 or 2.

    A problem whose answer is 1 is solved at a rate of its own, drawn evenly from 0 to 1.

    Args:
      tokenizer: writes them.
      length: median length, in tokens.
      tail: standard deviation of the logarithm of the length.
      ahead: of so many groups that wait, any may finish next.
    """

    concurrent = False
    redrawn_rollouts = 0
    device_seconds = NO_DEVICES

    def __init__(self, tokenizer: Tokenizer, *, length: float = 8.0, tail: float = 0.5, ahead: int = 64):
        self._answers = [np.append(tokenizer.encode(text), tokenizer.eos_ids[0]) for text in ("=2", "=1")]
        self._filler = int(tokenizer.encode("+")[0])
        self._length = length
        self._tail = tail
        self._ahead = ahead
        self._order = np.random.default_rng(0)
        self.waiting: collections.deque[SampleRequest] = collections.deque()

    def submit(self, requests: Sequence[SampleRequest], *, lane: str = TRAIN) -> None:
        """Queues groups."""
        self.waiting.extend(requests)

    def completed(self, *, lane: str = TRAIN) -> Iterator[RolloutGroup]:
        """Yields them, the first `ahead` in any order."""
        while self.waiting:
            self.waiting.rotate(-int(self._order.integers(min(self._ahead, len(self.waiting)))))
            request = self.waiting.popleft()
            completions = tuple(self._draw(request, i) for i in range(request.group_size))
            yield RolloutGroup(request.problem_id, request.step, request.prompt_tokens, completions)

    def update_weights(self, params: object, *, version: int) -> None:
        """Weights change nothing."""

    def close(self) -> None:
        """Drops what is queued."""
        self.waiting.clear()

    def _draw(self, request: SampleRequest, index: int) -> Completion:
        rate = _random(f"{request.problem_id}").random()
        random = _random(f"{request.seed}/{request.step}/{request.problem_id}/{index}")
        answer = self._answers[random.random() < rate]
        length = max(len(answer), round(self._length * np.exp(self._tail * random.standard_normal())))
        cut = length > request.params.max_tokens
        tokens = np.full(min(length, request.params.max_tokens), self._filler, np.int32)
        if not cut:
            tokens[-len(answer) :] = answer
        zeros = np.zeros(len(tokens), np.int32)
        return Completion.drawn(tokens, zeros.astype(np.float32), zeros, "length" if cut else "stop")


def _random(key: str) -> np.random.Generator:
    return np.random.default_rng(int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "little"))
