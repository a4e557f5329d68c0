"""Samplers for tests of the loop: completions in any order, weights of any age the window allows, faults."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from isocompute_jax.records.errors import RunError
from isocompute_jax.records.requests import SampleRequest
from isocompute_jax.records.rollout import Completion, RolloutGroup
from isocompute_jax.sampling import TRAIN, InProcessSampler


class ScriptedSampler:
    """Draws nothing: what finishes next is up to `choose`, and a rollout goes on under whatever weights arrive.

    Its first token is of the weights at its submission, its last of those at its end, and the one between them of the
    weights half-way.

    Args:
      choose: from the number of groups that are out, the place of the one that finishes next.
    """

    concurrent = False

    def __init__(self, choose: Callable[[int], int]):
        self.version = -1
        self.out: list[tuple[SampleRequest, int]] = []
        self._choose = choose

    def submit(self, requests: Sequence[SampleRequest], *, lane: str = TRAIN) -> None:
        assert lane == TRAIN and self.version >= 0
        self.out += [(request, self.version) for request in requests]

    def completed(self, *, lane: str = TRAIN) -> Iterator[RolloutGroup]:
        while self.out:
            request, start = self.out.pop(self._choose(len(self.out)))
            versions = np.array([start, (start + self.version) // 2, self.version], np.int32)
            completion = Completion(
                np.zeros(3, np.int32), np.zeros(3, np.float32), np.ones(3, bool), versions, finish_reason="stop"
            )
            yield request.grouped((completion,) * request.group_size)

    def update_weights(self, params, *, version: int) -> None:
        self.version = version

    def close(self) -> None:
        self.out.clear()


class LaggingSampler(InProcessSampler):
    """Draws real rollouts, early or late and in any order, as chance has it: under weights of any age that is allowed.

    A group is drawn when it is submitted, just before an update, or when it is asked for, each time with chance 1/3.
    """

    def __init__(self, *args, seed: int = 0, **kwargs):
        super().__init__(*args, **kwargs)
        self._random = np.random.default_rng(seed)
        self._waiting: dict[str, list[SampleRequest]] = collections.defaultdict(list)
        self._done: dict[str, list[RolloutGroup]] = collections.defaultdict(list)
        self.closed = False

    def submit(self, requests, *, lane=TRAIN):
        self._waiting[lane] += requests
        self._draw_some()

    def _draw_some(self):
        for lane, requests in self._waiting.items():
            drawn = [request for request in requests if self._random.random() < 1 / 3]
            self._waiting[lane] = [request for request in requests if request not in drawn]
            self._draw(drawn, lane)

    def _draw(self, requests, lane):
        for request in requests:  # one by one: every draw has the same compiled shape
            super().submit([request], lane=lane)
            self._done[lane] += super().completed(lane=lane)

    def completed(self, *, lane=TRAIN):
        while self._waiting[lane] or self._done[lane]:
            if not self._done[lane] or (self._waiting[lane] and self._random.random() < 1 / 2):
                self._draw([self._waiting[lane].pop(self._random.integers(len(self._waiting[lane])))], lane)
            yield self._done[lane].pop(self._random.integers(len(self._done[lane])))

    def update_weights(self, params, *, version):
        self._draw_some()
        # Copied: the learner reuses the memory of its old weights, and a service has weights of its own.
        super().update_weights(jax.tree.map(jnp.copy, params), version=version)

    def close(self):
        super().close()
        self.closed = True


class ShuffledSampler(InProcessSampler):
    """Groups arrive in any order; what they are is not changed."""

    closed = False

    def completed(self, *, lane=TRAIN):
        groups = list(super().completed(lane=lane))
        yield from (groups[i] for i in np.random.default_rng(len(groups)).permutation(len(groups)))

    def close(self):
        super().close()
        self.closed = True


class FailingSampler(ShuffledSampler):
    """Its service is lost at the `fatal`-th call of `method`, in lane `lane` where there is one.

    A class attribute, because the loop makes the sampler (see `Makes`).
    """

    method = ""
    lane = ""
    fatal = -1
    redrawn_rollouts = 5

    def _call(self, method, lane=""):
        if (method, lane) == (self.method, self.lane):
            type(self).fatal -= 1
            if type(self).fatal < 0:
                raise RunError("no endpoint has answered for 1800 s")

    def submit(self, requests, *, lane=TRAIN):
        self._call("submit", lane)
        super().submit(requests, lane=lane)

    def completed(self, *, lane=TRAIN):
        groups = super().completed(lane=lane)
        yield next(groups)
        self._call("completed", lane)
        yield from groups

    def update_weights(self, params, *, version):
        self._call("update_weights")
        super().update_weights(params, version=version)


class Makes:
    """`make_sampler` for `train`: samplers of a class, whatever the config says; keeps those that it made."""

    def __init__(self, cls: type, **options):
        self.cls = cls
        self.options = options
        self.samplers: list = []

    def __call__(
        self, config, model_config, params, *, workdir, tokenizer, mesh, interrupted, team=None, environment=None
    ):
        sampler = self.cls(
            model_config,
            params,
            pad_token=tokenizer.pad_id,
            max_prompt_tokens=config.sampling.max_prompt_tokens,
            max_rollouts_per_dispatch=config.sampling.max_rollouts_per_dispatch or 512,
            mesh=mesh,
            **self.options,
        )
        sampler.interrupted = interrupted
        self.samplers.append(sampler)
        return sampler
