"""The sampler inside the learner's process: groups are cut into dispatch units of one compiled shape.

A unit retried whole is bit-identical. Another cut of the same requests draws the same random numbers, so it gives the
same tokens up to float rounding of differently shaped batches (log-probabilities within 1e-5).
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from jax.sharding import Mesh

from isocompute_jax import model, sharding
from isocompute_jax.model import ModelConfig, Params
from isocompute_jax.records.requests import SampleRequest
from isocompute_jax.records.rollout import Completion, RolloutGroup
from isocompute_jax.sampling.protocol import NO_DEVICES, TRAIN
from isocompute_jax.sampling.randomness import key_words
from isocompute_jax.sampling.units import Samples, Unit, UnitShape, later_unit_shape, sample_unit, unit_shape


class InProcessSampler:
    """Implements `sampling.protocol.Sampler` with this process's devices.

    Args:
      config: model shape.
      params: weights to start from, version 0; cast to the dtype of `config`.
      pad_token: id that fills prompts up.
      max_prompt_tokens: S, the compiled prompt length; longer prompts are an error.
      max_continued_tokens: the same for the prompts of later turns (see `sampling.turns`); 0 where there are none.
      max_rollouts_per_dispatch: memory budget of one unit, in completions.
      mesh: where units are sharded over problems; None for one device.
      routing: whether completions say which experts of a mixture their tokens went to.
      round_below: fewer groups than this are sampled as the next power of two, filled up, so that rounds of all sizes
        share a few compiled programs; 0 for units of the size that is asked for.
      announce: called with the arguments of `draw` before each unit is drawn, so that other processes that share the
        mesh draw it too.
    """

    concurrent = False
    redrawn_rollouts = 0  # nothing is ever lost
    device_seconds = NO_DEVICES

    def __init__(
        self,
        config: ModelConfig,
        params: Params,
        *,
        pad_token: int,
        max_prompt_tokens: int,
        max_continued_tokens: int = 0,
        max_rollouts_per_dispatch: int,
        mesh: Mesh | None = None,
        routing: bool = False,
        round_below: int = 0,
        announce: Callable[..., None] = lambda *unit: None,
    ):
        self._config = config
        self._params = model.cast_params(params, config.dtype)
        self._version = 0
        self._pad_token = pad_token
        self._max_prompt_tokens = max_prompt_tokens
        self._max_continued_tokens = max_continued_tokens
        self._max_rollouts = max_rollouts_per_dispatch
        self._mesh = mesh
        self._routing = routing
        self._round_below = round_below
        self._announce = announce
        self._queues: dict[str, collections.deque[SampleRequest]] = collections.defaultdict(collections.deque)

    def submit(self, requests: Sequence[SampleRequest], *, lane: str = TRAIN) -> None:
        """Queues groups. Raises InputError when a prompt is longer than `max_prompt_tokens`, or empty."""
        for request in requests:
            request.check_prompt(*self._longest_prompt(request))
        self._queues[lane].extend(requests)

    def completed(self, *, lane: str = TRAIN) -> Iterator[RolloutGroup]:
        """Runs a lane's queue, unit by unit, and yields each group once all of its parts are there."""
        queue = self._queues[lane]
        while queue:
            kind = _kind(queue[0])
            alike = []
            while queue and _kind(queue[0]) == kind:
                alike.append(queue.popleft())
            yield from self._run(alike)

    def update_weights(self, params: Params, *, version: int) -> None:
        """Takes `params`, cast to the dtype it computes in, for all that is sampled from now on."""
        self._params = model.cast_params(params, self._config.dtype)
        self._version = version

    def close(self) -> None:
        """Drops what is queued."""
        self._queues.clear()

    def _longest_prompt(self, request: SampleRequest) -> tuple[int, str]:
        """The compiled prompt length of a request, and its name."""
        if request.turn:
            return self._max_continued_tokens, "max_continued_tokens"
        return self._max_prompt_tokens, "max_prompt_tokens"

    def _run(self, requests: list[SampleRequest]) -> Iterator[RolloutGroup]:
        """Samples requests of one kind."""
        group_size, params = requests[0].group_size, requests[0].params
        shards = sharding.shards(self._mesh, "batch")
        if requests[0].turn and group_size == 1:
            shape = later_unit_shape(len(requests), self._max_rollouts, batch_shards=shards)
        else:
            groups = len(requests)
            if groups < self._round_below:
                groups = min(1 << (groups - 1).bit_length(), self._round_below)
            shape = unit_shape(groups, group_size, self._max_rollouts, batch_shards=shards)
        parts = -(-group_size // shape.rollouts)
        rows = [(request, part * shape.rollouts) for request in requests for part in range(parts)]
        unfinished: dict[int, list[Completion]] = {}
        for start in range(0, len(rows), shape.problems):
            chunk = rows[start : start + shape.problems]
            unit = self.make_unit(chunk, shape)
            self._announce(unit, params.temperature, params.top_p, params.max_tokens, requests[0].stop_tokens)
            samples = self.draw(unit, params.temperature, params.top_p, params.max_tokens, requests[0].stop_tokens)
            for row, (request, first) in enumerate(chunk):
                completions = unfinished.setdefault(id(request), [])
                wanted = min(shape.rollouts, group_size - first)
                completions.extend(unpack(samples, row, wanted, self._version, len(request.prompt_tokens)))
                if len(completions) == group_size:
                    del unfinished[id(request)]
                    yield request.grouped(completions)

    def draw(
        self, unit: Unit, temperature: float, top_p: float, max_tokens: int, stop_tokens: tuple[int, ...]
    ) -> Samples:
        """What is drawn of a unit, on the host; see `sample_unit`."""
        samples = sample_unit(
            self._params,
            self._placed(unit),
            np.float32(temperature),
            np.float32(top_p),
            config=self._config,
            max_tokens=max_tokens,
            stop_tokens=stop_tokens,
            routing=self._routing,
            mesh=self._mesh,
        )
        return sharding.to_host(samples)

    def make_unit(self, rows: Sequence[tuple[SampleRequest, int]], shape: UnitShape) -> Unit:
        """The arrays of one unit from (request, first rollout index) rows, filled up with inactive problems."""
        longest, _ = self._longest_prompt(rows[0][0])
        tokens = np.full((shape.problems, longest), self._pad_token, np.int32)
        mask = np.zeros(tokens.shape, bool)
        mask[:, -1] = True
        words = np.zeros((shape.problems, 5), np.uint32)
        rollouts = np.zeros((shape.problems, shape.rollouts), np.uint32)
        budgets = np.ones((shape.problems, shape.rollouts), np.int32)  # of rollouts that nobody asked for
        active = np.zeros(shape.problems, bool)
        for row, (request, first) in enumerate(rows):
            length = len(request.prompt_tokens)
            tokens[row, -length:] = request.prompt_tokens
            mask[row, -length:] = True
            words[row] = key_words(request)
            rollouts[row] = request.first_rollout + first + np.arange(shape.rollouts)
            for i in range(min(shape.rollouts, request.group_size - first)):
                budgets[row, i] = request.budget(first + i)
            active[row] = True
        arrays: Any = (tokens, mask, words, rollouts, budgets, active)  # the host's: they travel with the call
        return Unit(*arrays)

    def _placed(self, unit: Unit) -> Unit:
        """A unit on the devices."""
        if self._mesh is None:
            return unit
        axes = ("batch", None)
        return Unit(*(sharding.placed(x, sharding.named_sharding(self._mesh, x.shape, axes[: x.ndim])) for x in unit))


def _kind(request: SampleRequest) -> tuple[Any, ...]:
    """What the requests of a unit have in common."""
    return request.params, request.group_size, request.stop_tokens, request.turn > 0


def unpack(samples: Any, row: int, rollouts: int, version: int, prompt: int) -> Iterator[Completion]:
    """The first `rollouts` completions of one row of `Samples` on the host, to a prompt of `prompt` tokens."""
    for i in range(rollouts):
        length = int(samples.lengths[row, i])
        experts = None
        if samples.experts is not None:
            read = samples.prompt_experts[row, -prompt:], samples.experts[row, i, : length - 1]
            experts = np.concatenate(read).astype(np.int16)
        yield Completion.drawn(
            samples.tokens[row, i, :length],
            samples.logprobs[row, i, :length],
            np.full(length, version, np.int32),
            "stop" if samples.stopped[row, i] else "length",
            experts,
        )
