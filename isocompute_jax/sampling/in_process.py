"""The sampler inside the learner's process: groups are cut into dispatch units of one compiled shape.

A unit is a fixed number of rollouts of fixed length, prefilled and decoded by one compiled program; a prompt is read
once, and its keys are shared by its rollouts.

Groups of unequal size that are asked for in one step are cut into pieces of one size, the largest that divides them
all; a piece is sampled as a group is. Deals of B rollouts so have a shape for each size of a piece.

A unit retried whole is bit-identical. Another cut of the same requests draws the same random numbers, so it gives the
same tokens up to float rounding of differently shaped batches (log-probabilities within 1e-5).
"""

from __future__ import annotations

import bisect
import collections
import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int, UInt32

from isocompute_jax import model, sharding
from isocompute_jax.model import ModelConfig, Params
from isocompute_jax.records.requests import SampleRequest
from isocompute_jax.records.rollout import Completion, RolloutGroup
from isocompute_jax.sampling.draw import draw_uniforms, key_words, pick, pick_of_top
from isocompute_jax.sampling.protocol import NO_DEVICES, TRAIN


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
        self._params = model.sampling_params(config, params, mesh)
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
            for together in _by_size_or_step(alike):
                yield from self._run(together)

    def update_weights(self, params: Params, *, version: int) -> None:
        """Takes a copy of `params` (`model.sampling_params`) for all that is sampled from now on."""
        self._params = model.sampling_params(self._config, params, self._mesh)
        self._version = version

    def close(self) -> None:
        """Drops what is queued."""
        self._queues.clear()

    def _longest_prompt(self, request: SampleRequest) -> tuple[int, str]:
        """The longest prompt that a request may have, and what that is called."""
        if request.turn:
            return self._max_continued_tokens, "max_continued_tokens"
        return self._max_prompt_tokens, "max_prompt_tokens"

    def _compiled_prompt(self, requests: Sequence[SampleRequest]) -> int:
        """The prompt length that requests of one kind are sampled with.

        Prompts of later turns grow from turn to turn: their units come in the longest that there may be, and in
        PROMPT_LENGTHS - 1 equal parts of it.
        """
        longest, _ = self._longest_prompt(requests[0])
        if not requests[0].turn:
            return longest
        part = -(-longest // PROMPT_LENGTHS)
        return min(longest, -(-max(len(request.prompt_tokens) for request in requests) // part) * part)

    def _run(self, requests: list[SampleRequest]) -> Iterator[RolloutGroup]:
        """Samples requests of one kind."""
        params, shape, prompt = requests[0].params, self._shape(requests), self._compiled_prompt(requests)
        rows = [(request, first) for request in requests for first in range(0, request.group_size, shape.rollouts)]
        unfinished: dict[int, list[Completion]] = {}
        for start in range(0, len(rows), shape.problems):
            chunk = rows[start : start + shape.problems]
            unit = self.make_unit(chunk, shape, prompt)
            asked = unit, params.temperature, params.top_p, params.max_tokens, requests[0].stop_tokens, params.top_k
            self._announce(*asked)
            samples = self.draw(*asked)
            for row, (request, first) in enumerate(chunk):
                completions = unfinished.setdefault(id(request), [])
                wanted = min(shape.rollouts, request.group_size - first)
                completions.extend(unpack(samples, row, wanted, self._version, len(request.prompt_tokens)))
                if len(completions) == request.group_size:
                    del unfinished[id(request)]
                    yield request.grouped(completions)

    def _shape(self, requests: Sequence[SampleRequest]) -> UnitShape:
        """The shape that requests of one kind are sampled in."""
        piece, shards = math.gcd(*(request.group_size for request in requests)), sharding.shards(self._mesh, "batch")
        groups = sum(request.group_size for request in requests) // piece
        if requests[0].turn and piece == 1:
            return later_unit_shape(groups, self._max_rollouts, batch_shards=shards)
        if groups < self._round_below:
            groups = min(1 << (groups - 1).bit_length(), self._round_below)
        return unit_shape(groups, piece, self._max_rollouts, batch_shards=shards)

    def draw(
        self, unit: Unit, temperature: float, top_p: float, max_tokens: int, stop_tokens: tuple[int, ...], top_k: int
    ) -> Samples:
        """What is drawn of a unit, on the host; see `sample_unit`."""
        args = self._params, self._placed(unit), np.float32(temperature), np.float32(top_p)
        return sharding.to_host(sample_unit(*args, **self._static(max_tokens, stop_tokens, top_k)))

    def _static(self, max_tokens: int, stop_tokens: tuple[int, ...], top_k: int) -> dict[str, Any]:
        """What is fixed in a compiled unit."""
        fixed = {"config": self._config, "routing": self._routing, "mesh": self._mesh}
        return {**fixed, "max_tokens": max_tokens, "stop_tokens": stop_tokens, "top_k": top_k}

    def compile(self, requests: Sequence[SampleRequest]) -> None:
        """As in `protocol.Compiles`; requests of one kind, with groups of one size or of one step."""
        first, params = requests[0], requests[0].params
        unit = self._placed(self.make_unit([(first, 0)], self._shape(requests), self._compiled_prompt(requests)))
        args = sharding.abstract(self._params), unit, np.float32(params.temperature), np.float32(params.top_p)
        sample_unit.lower(*args, **self._static(params.max_tokens, first.stop_tokens, params.top_k)).compile()

    def make_unit(self, rows: Sequence[tuple[SampleRequest, int]], shape: UnitShape, prompt: int) -> Unit:
        """The arrays of one unit from (request, first rollout index) rows, filled up with inactive problems."""
        tokens = np.full((shape.problems, prompt), self._pad_token, np.int32)
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
    return request.params, request.stop_tokens, request.turn > 0


def _by_size_or_step(requests: Sequence[SampleRequest]) -> Iterator[list[SampleRequest]]:
    """Requests of one kind, those of a size in a row together; where a step mixes sizes, those of a step."""
    sizes: dict[int, set[int]] = collections.defaultdict(set)
    for request in requests:
        sizes[request.step].add(request.group_size)

    def alike(request: SampleRequest) -> tuple[bool, int]:
        mixed = len(sizes[request.step]) > 1
        return mixed, request.step if mixed else request.group_size

    return (list(together) for _, together in itertools.groupby(requests, alike))


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
            None if samples.support is None else samples.support[row, i, :length],
        )


# --- units


@dataclasses.dataclass(frozen=True)
class UnitShape:
    """Shape of a dispatch unit: `problems` x `rollouts` completions; a group of G is cut into ceil(G / rollouts)."""

    problems: int
    rollouts: int


def unit_shape(groups: int, group_size: int, max_rollouts: int, *, batch_shards: int = 1) -> UnitShape:
    """The one shape that `groups` groups of G rollouts are sampled in: as few units as fit the budget, evenly filled.

    Whole groups where they fit, equal parts of one group otherwise. `max_rollouts` is the memory budget, in completions
    decoded at once; the problems of a unit are a multiple of `batch_shards`, so that they can be sharded.
    """
    budget = max(1, max_rollouts // batch_shards)
    parts = -(-group_size // budget)
    rollouts = -(-group_size // parts)
    rows = -(-groups * parts // batch_shards)
    units = -(-rows // max(1, budget // rollouts))
    return UnitShape(problems=-(-rows // units) * batch_shards, rollouts=rollouts)


LEAST_LATER = 8
"""Rows of the smallest unit of later turns, on each shard."""
PROMPT_LENGTHS = 4
"""Prompt lengths that units of later turns come in."""


def later_unit_shape(rollouts: int, max_rollouts: int, *, batch_shards: int = 1) -> UnitShape:
    """The shape that so many rollouts are continued in, each with a prompt of its own.

    How many there are changes from step to step, and each shape is compiled: so units come in the budget (as in
    `unit_shape`), its half, its quarter, and so on, as far as LEAST_LATER rows a shard.
    """
    size = max(1, max_rollouts // batch_shards)
    while size > LEAST_LATER and -(-size // 2) * batch_shards >= rollouts:
        size = -(-size // 2)
    return UnitShape(problems=size * batch_shards, rollouts=1)


MARGIN = 1.15
"""What a compiler may take for a unit, over `unit_bytes`."""


def unit_bytes(
    config: ModelConfig, shape: UnitShape, *, prompt: int, tokens: int, batch_shards: int = 1, tensor: int = 1
) -> float:
    """Bytes of each device that a unit takes beside the weights, by the arrays that it holds.

    Keys and values of all that its rollouts may reach; and the larger of what a token needs (one layer's keys and
    values as a copy, scores of all positions, logits) and what reading the prompts does (scores of all pairs).

    `prompt` and `tokens` are S and T, the compiled prompt length and the longest completion; `batch_shards` and
    `tensor` the parts that the unit's problems, and that heads and vocabulary, are cut into.
    """
    rows = -(-shape.problems // batch_shards)
    rollouts, width = rows * shape.rollouts, jnp.dtype(config.dtype).itemsize
    keys = 2 * width * config.num_kv_heads * config.head_dim * (rows * prompt + rollouts * tokens) / tensor
    drawn = 4 * 3 * rollouts * tokens  # uniforms, tokens, log-probabilities
    heads, vocabulary = config.num_heads / tensor, config.vocab_size / tensor
    decoding = keys + 4 * rollouts * (2 * heads * (prompt + tokens) + 3 * vocabulary)
    reading = 4 * 2 * rows * heads * prompt**2
    return config.num_layers * keys + drawn + max(decoding, reading)


MOST_ROLLOUTS = 4096
"""On each shard, whatever has room: a unit ends with its longest completion."""


def largest_unit(
    config: ModelConfig,
    room: float,
    *,
    group_size: int,
    prompt: int,
    tokens: int,
    batch_shards: int = 1,
    tensor: int = 1,
) -> int:
    """The most rollouts for `unit_shape` of whose units none takes more than `room` bytes of a device, margin included.

    `group_size` is that of the smallest groups that are sampled: the fewer rollouts share a prompt, the more prompts
    are read. All else is as in `unit_bytes`.

    Returns:
      a multiple of `batch_shards`; 0 where not even one rollout a shard has room.
    """

    def fits(count: int) -> bool:
        prompts = max(1, count // group_size)
        shape = UnitShape(prompts * batch_shards, -(-count // prompts))
        needed = unit_bytes(config, shape, prompt=prompt, tokens=tokens, batch_shards=batch_shards, tensor=tensor)
        return MARGIN * needed <= room

    most = bisect.bisect(range(1, MOST_ROLLOUTS + 1), False, key=lambda count: not fits(count))
    return most * batch_shards  # more rollouts never take less


class Unit(NamedTuple):
    """One dispatch unit: the arrays of one call of one compiled shape."""

    tokens: Int[Array, "P S"]  # left-padded prompts
    mask: Bool[Array, "P S"]  # False on padding
    key_words: UInt32[Array, "P 5"]  # uint32, as `draw.key_words` gives them
    rollouts: UInt32[Array, "P G"]  # uint32 rollout indices
    budgets: Int[Array, "P G"]  # longest completions, in tokens
    active: Bool[Array, "P"]  # False on padding problems, which are not decoded


class Samples(NamedTuple):
    """Completions; entries at and beyond a completion's length are zero."""

    tokens: Int[Array, "P G T"]
    logprobs: Float[Array, "P G T"]  # float32, of the distribution drawn from
    lengths: Int[Array, "P G"]
    stopped: Bool[Array, "P G"]  # a stop token ended it
    # those that the tokens went to, where it was asked; a completion's last is never read
    prompt_experts: Int[Array, "P S L A"] | None = None
    experts: Int[Array, "P G T L A"] | None = None
    support: Int[Array, "P G T K"] | None = None  # ids that could be drawn, with `top_k`; else -1


@functools.partial(jax.jit, static_argnames=("config", "max_tokens", "stop_tokens", "top_k", "routing", "mesh"))
def sample_unit(
    params: Params,
    unit: Unit,
    temperature: Array,
    top_p: Array,
    *,
    config: ModelConfig,
    max_tokens: int,
    stop_tokens: tuple[int, ...],
    top_k: int = 0,
    routing: bool = False,
    mesh: Mesh | None = None,
) -> Samples:
    """Samples G completions for each of P prompts, up to their budgets; ends early once all have stopped.

    `temperature` > 0 and `top_p`, 1 for the whole distribution, are scalars and traced (others compile nothing).
    `max_tokens` is T, the longest budget there may be; a stop token is part of the completion that it ends. With
    `top_k` only so many of the most probable tokens are drawn from, and the samples say which. With `routing` they say
    which experts of a mixture the tokens went to. Weights and problems are sharded on `mesh`.
    """
    problems, rollouts = unit.rollouts.shape
    uniforms = draw_uniforms(unit.key_words, unit.rollouts, max_tokens)

    def draw(hidden: Array, t: Array) -> tuple[Array, ...]:
        scaled, sizes = model.logits(config, params, hidden) / temperature, jnp.full(unit.rollouts.shape, top_p)
        if top_k:
            return pick_of_top(scaled, uniforms[..., t], sizes, top_k)
        return pick(scaled, uniforms[..., t], sizes)

    def unfinished(samples: Samples) -> Array:
        return unit.active[:, None] & ~samples.stopped & (samples.lengths < unit.budgets)

    def store(samples: Samples, t: Array, token: Array, logprob: Array, support: Array | None = None) -> Samples:
        running = unfinished(samples) & (samples.lengths == t)
        if samples.support is not None and support is not None:
            samples = samples._replace(support=samples.support.at[..., t, :].set(support))
        stops = functools.reduce(jnp.logical_or, [token == stop for stop in stop_tokens], jnp.zeros_like(running))
        return samples._replace(
            tokens=samples.tokens.at[..., t].set(jnp.where(running, token, 0)),
            logprobs=samples.logprobs.at[..., t].set(jnp.where(running, logprob, 0.0)),
            lengths=samples.lengths + running,
            stopped=samples.stopped | (running & stops),
        )

    hidden, prefix = model.prefill(config, params, unit.tokens, unit.mask, mesh=mesh)
    last = jnp.broadcast_to(hidden[:, -1:], (problems, rollouts, hidden.shape[-1]))
    token, *drawn = draw(last, jnp.int32(0))
    chosen = jnp.moveaxis(prefix.routed.experts, 0, 2) if routing and prefix.routed is not None else None
    nothing = _nothing_drawn((problems, rollouts, max_tokens), chosen, min(top_k, config.vocab_size))
    samples = store(nothing, jnp.int32(0), token, *drawn)
    caches = model.init_caches(config, prefix, rollouts, max(1, max_tokens - 1))

    layered = model.split_layers(config, params)

    def running(carry: tuple) -> Array:
        t, samples, _, _ = carry
        return (t < max_tokens) & jnp.any(unfinished(samples))

    def body(carry: tuple) -> tuple:
        t, samples, token, caches = carry
        hidden, caches, routed = model.decode(config, layered, token, t - 1, prefix, caches, mesh=mesh)
        if samples.experts is not None and routed is not None:
            chosen = jnp.moveaxis(routed.experts, 0, 2)
            samples = samples._replace(experts=samples.experts.at[:, :, t - 1].set(chosen))
        token, *drawn = draw(hidden, t)
        return t + 1, store(samples, t, token, *drawn), token, caches

    _, samples, _, _ = jax.lax.while_loop(running, body, (jnp.int32(1), samples, token, caches))
    return samples


def _nothing_drawn(shape: tuple[int, int, int], prompt_experts: Array | None, top_k: int) -> Samples:
    """The samples [P, G, T] before the first token; with the experts of the prompts, and support, where asked for."""
    lengths, stopped = jnp.zeros(shape[:2], jnp.int32), jnp.zeros(shape[:2], bool)
    samples = Samples(jnp.zeros(shape, jnp.int32), jnp.zeros(shape, jnp.float32), lengths, stopped)
    if top_k:
        samples = samples._replace(support=jnp.full((*shape, top_k), -1, jnp.int32))
    if prompt_experts is None:
        return samples
    experts = jnp.zeros((*shape, *prompt_experts.shape[2:]), prompt_experts.dtype)
    return samples._replace(prompt_experts=prompt_experts, experts=experts)
