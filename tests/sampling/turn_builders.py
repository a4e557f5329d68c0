"""A sampler that draws by hand-made rules, and policies, for the tests of turns."""

import hashlib
from collections.abc import Iterator, Sequence

import numpy as np

from isocompute_jax.records.requests import SampleRequest
from isocompute_jax.records.rollout import Completion, RolloutGroup
from isocompute_jax.sampling import NO_DEVICES, TRAIN
from isocompute_jax.sampling.turn_policies import Interruption

STOP, END = 0, 7
"""A token that ends completions, and one that ends thinking."""
PHRASE = np.array([8, END, 9], np.int32)


def rule(request: SampleRequest, index: int, version: int = 3) -> Completion:
    """What a rollout draws follows from its key, its turn and what it reads, as with a real engine."""
    rollout = request.first_rollout + index
    key = (
        f"{request.seed}/{request.step}/{request.problem_id}/{rollout}/{request.turn}/{request.prompt_tokens.tolist()}"
    )
    random = np.random.default_rng(int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "little"))
    tokens = random.integers(0, 12, request.budget(index)).astype(np.int32)
    stops = np.flatnonzero(np.isin(tokens, request.stop_tokens))
    tokens = tokens[: stops[0] + 1] if len(stops) else tokens
    logprobs = -1 - random.random(len(tokens)).astype(np.float32)
    versions = np.full(len(tokens), version + request.turn, np.int32)
    return Completion.drawn(tokens, logprobs, versions, "stop" if len(stops) else "length")


class RuleSampler:
    """Draws by `rule`; which group that is out finishes next is up to `choose`. It may be called from two threads."""

    concurrent = False
    redrawn_rollouts = 0
    device_seconds = NO_DEVICES

    def __init__(self, choose=lambda out: 0):
        self.asked: list[SampleRequest] = []
        self._choose = choose
        self._out: dict[str, list[SampleRequest]] = {}

    def submit(self, requests: Sequence[SampleRequest], *, lane: str = TRAIN) -> None:
        self.asked += requests
        self._out.setdefault(lane, []).extend(requests)

    def completed(self, *, lane: str = TRAIN) -> Iterator[RolloutGroup]:
        out = self._out.setdefault(lane, [])
        while out:
            request = out.pop(self._choose(len(out)))
            yield request.grouped([self.draw(request, i) for i in range(request.group_size)])

    def draw(self, request: SampleRequest, index: int) -> Completion:
        return rule(request, index)

    def update_weights(self, params, *, version: int) -> None:
        raise NotImplementedError

    def close(self) -> None:
        self._out.clear()


class Scripted(RuleSampler):
    """Draws what it is told, turn by turn."""

    def __init__(self, *turns):
        super().__init__()
        self._turns = turns

    def draw(self, request, index):
        del index
        tokens = np.array(self._turns[request.turn], np.int32)
        versions = np.full(len(tokens), request.turn, np.int32)
        reason = "stop" if tokens[-1] in request.stop_tokens else "length"
        return Completion.drawn(tokens, np.full(len(tokens), -1, np.float32), versions, reason)


def ends(tokens: np.ndarray) -> int | None:
    """How many tokens are thought, by the token END."""
    found = np.flatnonzero(tokens == END)
    return int(found[0]) + 1 if len(found) else None


def interruption(low=2, high=6, answer_tokens=4) -> Interruption:
    return Interruption(low=low, high=high, answer_tokens=answer_tokens, phrase=PHRASE, thought=ends)


def assert_equal_completions(ours: Completion, theirs: Completion, *, atol=0.0) -> None:
    for name in ("tokens", "mask", "policy_versions"):
        np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name), strict=True)
    np.testing.assert_allclose(ours.logprobs, theirs.logprobs, rtol=0, atol=atol)
    assert ours.finish_reason == theirs.finish_reason
