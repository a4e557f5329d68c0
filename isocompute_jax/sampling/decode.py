"""Prefill and decode, jitted: one prefill per problem, whose keys its G rollouts share.

Randomness: rollout i of a problem draws from a key folded from (seed, step, problem id, i), one uniform number per
token, and picks the token by inverting the distribution's CDF. What else is in the batch cannot matter.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt32

from isocompute_jax import model
from isocompute_jax.model import ModelConfig, Params


class Unit(NamedTuple):
    """One dispatch unit: the arrays of one call of one compiled shape.

    Attributes:
      tokens: [P, S] left-padded prompts.
      mask: [P, S], False on padding.
      key_words: [P, 4] uint32, (seed, step, two words of the problem id).
      rollouts: [P, G] uint32 rollout indices.
      active: [P] False on padding problems, which are not decoded.
    """

    tokens: Int[Array, "P S"]
    mask: Bool[Array, "P S"]
    key_words: UInt32[Array, "P 4"]
    rollouts: UInt32[Array, "P G"]
    active: Bool[Array, "P"]


class Samples(NamedTuple):
    """Completions [P, G, T]: `tokens`, float32 `logprobs` of the distribution drawn from, and `lengths` [P, G].

    Entries at and beyond a completion's length are zero. `stopped` [P, G] is True when a stop token ended it.
    """

    tokens: Int[Array, "P G T"]
    logprobs: Float[Array, "P G T"]
    lengths: Int[Array, "P G"]
    stopped: Bool[Array, "P G"]


@functools.partial(jax.jit, static_argnames=("config", "top_p", "max_tokens", "stop_tokens"))
def sample_unit(
    params: Params,
    unit: Unit,
    temperature: Array,
    *,
    config: ModelConfig,
    top_p: float,
    max_tokens: int,
    stop_tokens: tuple[int, ...],
) -> Samples:
    """Samples G completions of up to `max_tokens` tokens for each of P prompts; ends early once all have stopped.

    Args:
      params: parameters.
      unit: prompts and the words their random numbers are keyed by.
      temperature: scalar > 0, traced (another temperature compiles nothing).
      config: model shape.
      top_p: nucleus size; 1 samples from the whole distribution.
      max_tokens: T.
      stop_tokens: token ids that end a completion; the stop token is part of it.
    """
    problems, rollouts = unit.rollouts.shape
    uniforms = draw_uniforms(unit.key_words, unit.rollouts, max_tokens)

    def draw(hidden: Array, t: Array) -> tuple[Array, Array]:
        scaled = model.logits(config, params, hidden) / temperature
        return pick(scaled, uniforms[..., t], top_p=top_p)

    def store(samples: Samples, t: Array, token: Array, logprob: Array) -> Samples:
        running = unit.active[:, None] & ~samples.stopped & (samples.lengths == t)
        stops = functools.reduce(jnp.logical_or, [token == stop for stop in stop_tokens], jnp.zeros_like(running))
        return Samples(
            samples.tokens.at[..., t].set(jnp.where(running, token, 0)),
            samples.logprobs.at[..., t].set(jnp.where(running, logprob, 0.0)),
            samples.lengths + running,
            samples.stopped | (running & stops),
        )

    hidden, prefix = model.prefill(config, params, unit.tokens, unit.mask)
    last = jnp.broadcast_to(hidden[:, -1:], (problems, rollouts, hidden.shape[-1]))
    token, logprob = draw(last, jnp.int32(0))
    empty = Samples(
        jnp.zeros((problems, rollouts, max_tokens), jnp.int32),
        jnp.zeros((problems, rollouts, max_tokens), jnp.float32),
        jnp.zeros((problems, rollouts), jnp.int32),
        jnp.zeros((problems, rollouts), bool),
    )
    samples = store(empty, jnp.int32(0), token, logprob)
    cache = model.init_cache(config, problems, rollouts, max(1, max_tokens - 1))

    def running(carry: tuple) -> Array:
        t, samples, _, _ = carry
        return (t < max_tokens) & jnp.any(unit.active[:, None] & ~samples.stopped)

    def body(carry: tuple) -> tuple:
        t, samples, token, cache = carry
        hidden, cache = model.decode(config, params, token, t - 1, prefix, cache)
        token, logprob = draw(hidden, t)
        return t + 1, store(samples, t, token, logprob), token, cache

    _, samples, _, _ = jax.lax.while_loop(running, body, (jnp.int32(1), samples, token, cache))
    return samples


def draw_uniforms(key_words: UInt32[Array, "P 4"], rollouts: UInt32[Array, "P G"], length: int) -> Array:
    """[P, G, length] uniforms in [0, 1), one stream for each (seed, step, problem, rollout)."""

    def stream(words: Array, rollout: Array) -> Array:
        key = jax.random.key(words[0])
        for word in (words[1], words[2], words[3], rollout):
            key = jax.random.fold_in(key, word)
        return jax.random.uniform(key, (length,))

    return jax.vmap(jax.vmap(stream, (None, 0)))(key_words, rollouts)


def pick(
    scaled: Float[Array, "... V"], uniform: Float[Array, "..."], *, top_p: float
) -> tuple[Int[Array, "..."], Float[Array, "..."]]:
    """Draws a token by inverting the CDF of softmax(scaled), cut to its nucleus when top_p < 1.

    Returns:
      token ids, and their log-probabilities under the distribution drawn from (after the cut).
    """
    logprobs = jax.nn.log_softmax(scaled, axis=-1)
    probs = jnp.exp(logprobs)
    if top_p < 1:
        probs = jnp.where(nucleus(probs, top_p), probs, 0.0)
    token, total = invert_cdf(probs, uniform)
    picked = jnp.take_along_axis(logprobs, token[..., None], axis=-1)[..., 0]
    return token, picked - jnp.log(total[..., 0]) if top_p < 1 else picked


def invert_cdf(
    probs: Float[Array, "... V"], uniform: Float[Array, "..."]
) -> tuple[Int[Array, "..."], Float[Array, "... 1"]]:
    """The token whose slice of the CDF of `probs` holds `uniform`, and the sum of `probs`, which need not be 1."""
    cdf = jnp.cumsum(probs, axis=-1)
    # A parallel cumsum rounds every entry by itself: over a large vocabulary it dips, and rises where the probability
    # is zero. So the total is taken over tokens that can be drawn, and the draw is the first of them above u x total.
    total = jnp.max(jnp.where(probs > 0, cdf, 0.0), axis=-1, keepdims=True)
    above = (probs > 0) & (cdf > uniform[..., None] * total)
    vocab = probs.shape[-1]
    token = jnp.min(jnp.where(above, jnp.arange(vocab, dtype=jnp.int32), vocab - 1), axis=-1)
    return token, total


def nucleus(probs: Float[Array, "... V"], top_p: float | Array) -> Bool[Array, "... V"]:
    """The smallest set of most probable tokens whose probability reaches `top_p` (ties at its edge are kept)."""
    descending = jnp.sort(probs, axis=-1, descending=True)
    before = jnp.cumsum(descending, axis=-1) - descending
    smallest = jnp.min(jnp.where(before < top_p, descending, jnp.inf), axis=-1, keepdims=True)
    return probs >= smallest
