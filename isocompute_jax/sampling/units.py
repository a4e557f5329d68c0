"""Dispatch units: a fixed number of rollouts of fixed length, prefilled and decoded by one compiled program.

A prompt is read once, and its keys are shared by its rollouts.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int, UInt32

from isocompute_jax import model
from isocompute_jax.model import ModelConfig, Params
from isocompute_jax.sampling.choice import pick
from isocompute_jax.sampling.randomness import draw_uniforms


@dataclasses.dataclass(frozen=True)
class UnitShape:
    """Shape of a dispatch unit: `problems` x `rollouts` completions; a group of G is cut into ceil(G / rollouts)."""

    problems: int
    rollouts: int


def unit_shape(groups: int, group_size: int, max_rollouts: int, *, batch_shards: int = 1) -> UnitShape:
    """The one shape that `groups` groups of G rollouts are sampled in: as few units as fit the budget, evenly filled.

    Whole groups where they fit, equal parts of one group otherwise.

    Args:
      groups: how many groups there are to sample.
      group_size: G.
      max_rollouts: memory budget, in completions decoded at once.
      batch_shards: the problems of a unit are a multiple of it, so that they can be sharded.
    """
    budget = max(1, max_rollouts // batch_shards)
    parts = -(-group_size // budget)
    rollouts = -(-group_size // parts)
    rows = -(-groups * parts // batch_shards)
    units = -(-rows // max(1, budget // rollouts))
    return UnitShape(problems=-(-rows // units) * batch_shards, rollouts=rollouts)


LEAST_LATER = 8
"""Rows of the smallest unit of later turns, on each shard."""


def later_unit_shape(rollouts: int, max_rollouts: int, *, batch_shards: int = 1) -> UnitShape:
    """The shape that so many rollouts are continued in, each with a prompt of its own.

    How many there are changes from step to step, and each shape is compiled: so units come in the budget, its quarter,
    its sixteenth, and so on, as far as LEAST_LATER rows a shard.

    Args:
      rollouts: how many there are to continue.
      max_rollouts: memory budget, in completions decoded at once.
      batch_shards: units are a multiple of it, so that they can be sharded.
    """
    size = max(1, max_rollouts // batch_shards)
    while size > LEAST_LATER and -(-size // 4) * batch_shards >= rollouts:
        size = -(-size // 4)
    return UnitShape(problems=size * batch_shards, rollouts=1)


MARGIN = 1.15
"""What a compiler may take for a unit, over `unit_bytes`."""


def unit_bytes(
    config: ModelConfig, shape: UnitShape, *, prompt: int, tokens: int, batch_shards: int = 1, tensor: int = 1
) -> float:
    """Bytes of each device that a unit takes beside the weights, by the arrays that it holds.

    Keys and values of all that its rollouts may reach; and the larger of what a token needs (one layer's keys and
    values as a copy, scores of all positions, logits) and what reading the prompts does (scores of all pairs).

    Args:
      config: model shape.
      shape: of the unit.
      prompt: S, the compiled prompt length.
      tokens: T, the longest completion.
      batch_shards: parts that its problems are cut into.
      tensor: parts that heads and vocabulary are cut into.
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

    Args:
      config: model shape.
      room: bytes of each device that are left for a unit.
      group_size: of the smallest groups that are sampled: the fewer rollouts share a prompt, the more prompts are read.
      prompt: S, the compiled prompt length.
      tokens: T, the longest completion.
      batch_shards: parts that its problems are cut into.
      tensor: parts that heads and vocabulary are cut into.

    Returns:
      a multiple of `batch_shards`; 0 where not even one rollout a shard has room.
    """

    def fits(count: int) -> bool:
        prompts = max(1, count // group_size)
        shape = UnitShape(prompts * batch_shards, -(-count // prompts))
        needed = unit_bytes(config, shape, prompt=prompt, tokens=tokens, batch_shards=batch_shards, tensor=tensor)
        return MARGIN * needed <= room

    low, high = 0, MOST_ROLLOUTS
    while low < high:  # more rollouts never take less
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low * batch_shards


class Unit(NamedTuple):
    """One dispatch unit: the arrays of one call of one compiled shape."""

    tokens: Int[Array, "P S"]  # left-padded prompts
    mask: Bool[Array, "P S"]  # False on padding
    key_words: UInt32[Array, "P 5"]  # uint32, as `randomness.key_words` gives them
    rollouts: UInt32[Array, "P G"]  # uint32 rollout indices
    budgets: Int[Array, "P G"]  # longest completions, in tokens
    active: Bool[Array, "P"]  # False on padding problems, which are not decoded


class Samples(NamedTuple):
    """Completions [P, G, T]: `tokens`, float32 `logprobs` of the distribution drawn from, and `lengths` [P, G].

    Entries at and beyond a completion's length are zero. `stopped` [P, G] is True when a stop token ended it.
    `prompt_experts` [P, S, L, A] and `experts` [P, G, T, L, A] are those that the tokens went to where it was asked; a
    completion's last is never read.
    """

    tokens: Int[Array, "P G T"]
    logprobs: Float[Array, "P G T"]
    lengths: Int[Array, "P G"]
    stopped: Bool[Array, "P G"]
    prompt_experts: Int[Array, "P S L A"] | None = None
    experts: Int[Array, "P G T L A"] | None = None


@functools.partial(jax.jit, static_argnames=("config", "max_tokens", "stop_tokens", "routing", "mesh"))
def sample_unit(
    params: Params,
    unit: Unit,
    temperature: Array,
    top_p: Array,
    *,
    config: ModelConfig,
    max_tokens: int,
    stop_tokens: tuple[int, ...],
    routing: bool = False,
    mesh: Mesh | None = None,
) -> Samples:
    """Samples G completions for each of P prompts, up to their budgets; ends early once all have stopped.

    Args:
      params: parameters.
      unit: prompts and the words their random numbers are keyed by.
      temperature: scalar > 0, traced (another temperature compiles nothing).
      top_p: scalar, traced: nucleus size; 1 samples from the whole distribution.
      config: model shape.
      max_tokens: T, the longest budget there may be.
      stop_tokens: token ids that end a completion; the stop token is part of it.
      routing: whether to say which experts the tokens of a mixture went to.
      mesh: where weights and problems are sharded; None for one device.
    """
    problems, rollouts = unit.rollouts.shape
    uniforms = draw_uniforms(unit.key_words, unit.rollouts, max_tokens)

    def draw(hidden: Array, t: Array) -> tuple[Array, Array]:
        scaled = model.logits(config, params, hidden) / temperature
        return pick(scaled, uniforms[..., t], jnp.full(unit.rollouts.shape, top_p))

    def unfinished(samples: Samples) -> Array:
        return unit.active[:, None] & ~samples.stopped & (samples.lengths < unit.budgets)

    def store(samples: Samples, t: Array, token: Array, logprob: Array) -> Samples:
        running = unfinished(samples) & (samples.lengths == t)
        stops = functools.reduce(jnp.logical_or, [token == stop for stop in stop_tokens], jnp.zeros_like(running))
        return samples._replace(
            tokens=samples.tokens.at[..., t].set(jnp.where(running, token, 0)),
            logprobs=samples.logprobs.at[..., t].set(jnp.where(running, logprob, 0.0)),
            lengths=samples.lengths + running,
            stopped=samples.stopped | (running & stops),
        )

    hidden, prefix = model.prefill(config, params, unit.tokens, unit.mask, mesh=mesh)
    last = jnp.broadcast_to(hidden[:, -1:], (problems, rollouts, hidden.shape[-1]))
    token, logprob = draw(last, jnp.int32(0))
    empty = Samples(
        jnp.zeros((problems, rollouts, max_tokens), jnp.int32),
        jnp.zeros((problems, rollouts, max_tokens), jnp.float32),
        jnp.zeros((problems, rollouts), jnp.int32),
        jnp.zeros((problems, rollouts), bool),
    )
    if routing and prefix.routed is not None:
        chosen = jnp.moveaxis(prefix.routed.experts, 0, 2)
        shape = (problems, rollouts, max_tokens, *chosen.shape[2:])
        empty = empty._replace(prompt_experts=chosen, experts=jnp.zeros(shape, chosen.dtype))
    samples = store(empty, jnp.int32(0), token, logprob)
    cache = model.init_cache(config, problems, rollouts, max(1, max_tokens - 1))

    layered = model.split_layers(config, params)

    def running(carry: tuple) -> Array:
        t, samples, _, _ = carry
        return (t < max_tokens) & jnp.any(unfinished(samples))

    def body(carry: tuple) -> tuple:
        t, samples, token, cache = carry
        hidden, cache, routed = model.decode(config, layered, token, t - 1, prefix, cache, mesh=mesh)
        if samples.experts is not None and routed is not None:
            chosen = jnp.moveaxis(routed.experts, 0, 2)
            samples = samples._replace(experts=samples.experts.at[:, :, t - 1].set(chosen))
        token, logprob = draw(hidden, t)
        return t + 1, store(samples, t, token, logprob), token, cache

    _, samples, _, _ = jax.lax.while_loop(running, body, (jnp.int32(1), samples, token, cache))
    return samples
