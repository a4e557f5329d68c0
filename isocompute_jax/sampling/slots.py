"""Continuous batching on the device: sequences in slots of one cache, refilled as completions end.

Every function is compiled for one shape, whatever the load: prompts are read in chunks of `prefill` rows, a group's
rollouts copy the prompt's keys in `admit`, and `advance` draws tokens in all slots at once. The last prompt token is
the first that `advance` reads, so every token of a completion is drawn by the same program.

Bit-identity: what a slot computes depends on its own sequence alone. Reductions run over fixed shapes; keys of other
positions have weight zero exactly, and are finite; chunks of a prompt begin at fixed positions; and the number of
blocks read, of steps run at once and of other sequences changes no operand. What is left is where a row stands in a
matrix product, which must not matter to the backend: see `ROW_MULTIPLE`.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int, UInt32

from isocompute_jax import model, sharding
from isocompute_jax.model import ModelConfig, Params, Routed, SlotCache
from isocompute_jax.sampling.draw import draw_uniforms, pick

ROW_MULTIPLE = 8
"""Numbers of slots per shard whose rows are all computed alike.

XLA:CPU's matrix products take leftover rows in another order: with 13 slots the last digit of log-probabilities
depended on the slot, with multiples of 8 (8 to 72 tried, float32 and bfloat16, AVX-512) it did not.
"""

KEY_BLOCK = 256
"""Positions of a block of keys: attention reads as many blocks as the longest running sequence has."""


class Slots(NamedTuple):
    """What runs in each of S slots, of up to T tokens with their prompts."""

    cache: SlotCache  # keys and values of every token before the last
    token: Int[Array, "S"]  # the last token, which `advance` reads next
    position: Int[Array, "S"]  # its position
    drawn: Int[Array, "S"]  # tokens drawn so far
    left: Int[Array, "S"]  # tokens that may still be drawn; 0 in an idle slot
    uniforms: Float[Array, "S T"]  # the random numbers of the completion's tokens, as `draw_uniforms` gives them
    temperature: Float[Array, "S"]  # float32
    top_p: Float[Array, "S"]  # float32
    stops: Bool[Array, "S V"]  # True for tokens that end the completion


class Admission(NamedTuple):
    """Sequences that enter slots. Those that fill the shape up have the slot S, which does not exist."""

    slot: Int[Array, "A"]  # where to
    source: Int[Array, "A"]  # slot that holds the keys of the prompt but its last token (`prefill`)
    token: Int[Array, "A"]  # the prompt's last token
    position: Int[Array, "A"]  # its position
    left: Int[Array, "A"]  # the longest completion
    key_words: UInt32[Array, "A 5"]  # as `draw.key_words` gives them
    rollout: UInt32[Array, "A"]  # rollout index
    temperature: Float[Array, "A"]
    top_p: Float[Array, "A"]
    stops: Bool[Array, "A V"]


class Drawn(NamedTuple):
    """What one call of `advance` drew."""

    tokens: Int[Array, "K S"]  # a slot's are the first `counts` of its column
    logprobs: Float[Array, "K S"]  # float32, of the distribution drawn from
    counts: Int[Array, "S"]
    running: Bool[Array, "S"]  # whether the slot still runs
    # those that the tokens went to that were read, one before each that was drawn; None unless asked
    experts: Int[Array, "K S L A"] | None = None


@functools.partial(jax.jit, static_argnames=("config", "slots", "length", "key_block", "mesh"))
def init_slots(
    config: ModelConfig, *, slots: int, length: int, key_block: int = KEY_BLOCK, mesh: Mesh | None = None
) -> Slots:
    """Idle slots for sequences of up to `length` tokens; on a mesh the slots are cut as a batch, and the kv heads."""
    return _constrain(_idle(config, slots, length, key_block), mesh)


def slots_that_fit(config: ModelConfig, *, length: int, cache_bytes: int, mesh: Mesh | None = None) -> int:
    """The most slots whose keys and values fit `cache_bytes` of each device, a multiple of `slot_multiple`; maybe 0."""
    cache = jax.eval_shape(lambda: _idle(config, 1, length, KEY_BLOCK)).cache
    parts = 1 if mesh is None else mesh.shape["tensor"]
    if config.num_kv_heads % parts:
        parts = 1  # then each device has all heads
    of_each = cache_bytes * parts // (sum(x.size * x.dtype.itemsize for x in cache) * ROW_MULTIPLE)
    return of_each * slot_multiple(mesh)


def slot_multiple(mesh: Mesh | None) -> int:
    """Numbers of slots are multiples of it: ROW_MULTIPLE in each shard."""
    return ROW_MULTIPLE * sharding.shards(mesh, "batch")


@functools.partial(jax.jit, static_argnames=("config", "routing", "mesh"), donate_argnames="slots")
def prefill(
    params: Params,
    slots: Slots,
    tokens: Int[Array, "P C"],
    positions: Int[Array, "P C"],
    rows: Int[Array, "P"],
    *,
    config: ModelConfig,
    routing: bool = False,
    mesh: Mesh | None = None,
) -> tuple[Slots, Int[Array, "P C L A"] | None]:
    """Puts the keys and values of C tokens into each of P slots; those of earlier positions must be there already.

    `slots` are donated. `positions` are `slots.cache.length` on padding, which changes nothing; sequence i goes into
    slot `rows[i]`. With `routing` the second value says which experts of a mixture the tokens went to.
    """
    _, cache, routed = model.extend_slots(config, params, tokens, positions, rows, slots.cache, mesh=mesh)
    chosen = _experts(routed) if routing and routed is not None else None
    return _constrain(slots._replace(cache=cache), mesh), chosen


@functools.partial(jax.jit, static_argnames="mesh", donate_argnames="slots")
def admit(slots: Slots, admission: Admission, *, mesh: Mesh | None = None) -> Slots:
    """Starts completions: copies the keys of their prompts from slots that hold them, and sets the slots' state."""
    _, _, _, _, block, _ = slots.cache.k.shape
    valid = admission.slot < slots.token.shape[0]
    num_blocks = (jnp.max(jnp.where(valid, admission.position, 0)) + block - 1) // block

    def copy(index: Array, cache: SlotCache) -> SlotCache:
        return SlotCache(
            *(x.at[:, index, admission.slot].set(x[:, index, admission.source], mode="drop") for x in cache)
        )

    def put(old: Array, new: Array) -> Array:
        return old.at[admission.slot].set(new, mode="drop")

    uniforms = draw_uniforms(admission.key_words, admission.rollout[:, None], slots.uniforms.shape[1])[:, 0]
    started = Slots(
        cache=jax.lax.fori_loop(0, num_blocks, copy, slots.cache),
        token=put(slots.token, admission.token),
        position=put(slots.position, admission.position),
        drawn=put(slots.drawn, jnp.zeros_like(admission.token)),
        left=put(slots.left, admission.left),
        uniforms=put(slots.uniforms, uniforms),
        temperature=put(slots.temperature, admission.temperature),
        top_p=put(slots.top_p, admission.top_p),
        stops=put(slots.stops, admission.stops),
    )
    return _constrain(started, mesh)


@functools.partial(jax.jit, static_argnames=("config", "steps", "routing", "mesh"), donate_argnames="slots")
def advance(
    params: Params,
    slots: Slots,
    at_least: Int[Array, ""],
    *,
    config: ModelConfig,
    steps: int,
    routing: bool = False,
    mesh: Mesh | None = None,
) -> tuple[Slots, Drawn]:
    """Draws up to `steps` tokens in every running slot; ends early once fewer than `at_least` slots run.

    `slots` are donated. `at_least` is 1 or more, and traced (another number compiles nothing); `steps` is K. With
    `routing` what was drawn says which experts of a mixture the tokens went to.
    """
    every = jnp.arange(slots.token.shape[0])

    def enough_run(carry: tuple[Array, Slots, Drawn]) -> Array:
        step, slots, _ = carry
        return (step < steps) & (jnp.sum(slots.left > 0) >= at_least)

    def body(carry: tuple[Array, Slots, Drawn]) -> tuple[Array, Slots, Drawn]:
        step, slots, drawn = carry
        running = slots.left > 0
        positions = jnp.where(running, slots.position, slots.cache.length)
        hidden, cache, routed = model.extend_slots(
            config, params, slots.token[:, None], positions[:, None], None, slots.cache, mesh=mesh
        )
        scaled = model.logits(config, params, hidden[:, 0]) / slots.temperature[:, None]
        token, logprob = pick(scaled, slots.uniforms[every, slots.drawn], slots.top_p, running)
        ends = slots.stops[every, token]
        new = slots._replace(
            cache=cache,
            token=jnp.where(running, token, slots.token),
            position=slots.position + running,
            drawn=slots.drawn + running,
            left=jnp.where(running & ~ends, slots.left - 1, 0),
        )
        drawn = drawn._replace(
            tokens=drawn.tokens.at[step].set(token),
            logprobs=drawn.logprobs.at[step].set(logprob),
            counts=drawn.counts + running,
            running=new.left > 0,
        )
        if drawn.experts is not None and routed is not None:
            drawn = drawn._replace(experts=drawn.experts.at[step].set(_experts(routed)[:, 0]))
        return step + 1, _constrain(new, mesh), drawn

    shape = (steps, slots.token.shape[0])
    none = Drawn(
        jnp.zeros(shape, jnp.int32), jnp.zeros(shape, jnp.float32), jnp.zeros(shape[1:], jnp.int32), slots.left > 0
    )
    if routing and config.num_experts:
        chosen = (*shape, config.num_layers, config.experts_per_token)
        none = none._replace(experts=jnp.zeros(chosen, jnp.int16))
    _, slots, drawn = jax.lax.while_loop(enough_run, body, (jnp.int32(0), slots, none))
    if mesh is not None:
        drawn = jax.lax.with_sharding_constraint(drawn, sharding.replicated(mesh))
    return slots, drawn


@functools.partial(jax.jit, static_argnames="mesh", donate_argnames="slots")
def release(slots: Slots, chosen: Bool[Array, "S"], *, mesh: Mesh | None = None) -> Slots:
    """Makes the chosen slots idle."""
    return _constrain(slots._replace(left=jnp.where(chosen, 0, slots.left)), mesh)


@functools.partial(jax.jit, static_argnames="mesh", donate_argnames="slots")
def clear(slots: Slots, chosen: Bool[Array, "S"], *, mesh: Mesh | None = None) -> Slots:
    """Zeroes the keys and values of the chosen slots: 0 x NaN, after weights that overflowed, would outlive them."""
    cache = SlotCache(*(jnp.where(chosen[:, None, None, None], 0, x) for x in slots.cache))
    return _constrain(slots._replace(cache=cache), mesh)


def _experts(routed: Routed) -> Int[Array, "R T L A"]:
    """Where tokens went, token by token; few bytes, because they leave the device."""
    return jnp.moveaxis(routed.experts, 0, 2).astype(jnp.int16)


def _idle(config: ModelConfig, slots: int, length: int, key_block: int) -> Slots:
    block = min(key_block, length)
    shape = (config.num_layers, -(-length // block), slots, config.num_kv_heads, block, config.head_dim)
    count = jnp.zeros(slots, jnp.int32)
    return Slots(
        cache=SlotCache(jnp.zeros(shape, config.dtype), jnp.zeros(shape, config.dtype)),
        token=count,
        position=count,
        drawn=count,
        left=count,
        uniforms=jnp.zeros((slots, length), jnp.float32),
        temperature=jnp.ones(slots, jnp.float32),
        top_p=jnp.ones(slots, jnp.float32),
        stops=jnp.zeros((slots, config.vocab_size), bool),
    )


def _constrain(slots: Slots, mesh: Mesh | None) -> Slots:
    """Keeps the state where `init_slots` put it, so that no call sees another sharding than the one before."""
    if mesh is None:
        return slots
    keys = (None, None, "batch", "kv_heads", None, None)

    def kept(x: Array) -> Array:
        axes = keys if x.ndim == 6 else ("batch", None)[: x.ndim]
        return jax.lax.with_sharding_constraint(x, sharding.named_sharding(mesh, x.shape, axes))

    return jax.tree.map(kept, slots)
