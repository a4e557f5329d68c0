"""How a token is chosen: by inverting the CDF of the tempered distribution, cut to its nucleus, at a random number.

Random numbers are keyed by (seed, step, problem id, rollout index), and the turn of later turns, alone: rollout i of a
problem draws one uniform number for each token from a key folded from these. What else is in the batch cannot matter.
"""

from __future__ import annotations

import hashlib

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt32

from isocompute_jax.records.requests import SampleRequest

SMALLEST_PROBABILITY = 2.0**-33
"""Tokens less probable than this are never drawn: it is the smallest number that `open_uniform` gives."""


def pick(
    scaled: Float[Array, "... V"],
    uniform: Float[Array, "..."],
    top_p: Float[Array, "..."],
    running: Bool[Array, "..."] | None = None,
) -> tuple[Int[Array, "..."], Float[Array, "..."]]:
    """Draws a token of each row from softmax(scaled), cut to its nucleus where top_p < 1.

    Args:
      scaled: logits divided by the temperature.
      uniform: a number in (0, 1) for each row.
      top_p: nucleus size of each row; nothing is sorted while it is 1 in every row that runs.
      running: rows whose tokens are used; None for all.

    Returns:
      token ids, and their log-probabilities under the distribution drawn from (after the cut).
    """
    cut = top_p < 1

    def of_nuclei() -> tuple[Array, Array]:
        kept = ~cut[..., None] | nucleus(jax.nn.softmax(scaled, axis=-1), top_p[..., None])
        # The barrier: rows that are not cut are to be drawn by the very arithmetic of the other branch.
        return invert_cdf(jax.lax.optimization_barrier(jnp.where(kept, scaled, -jnp.inf)), uniform)

    # A condition of the one program, not a second program, whose logits might be rounded otherwise.
    sorts = jnp.any(cut if running is None else running & cut)
    return jax.lax.cond(sorts, of_nuclei, lambda: invert_cdf(scaled, uniform))


def pick_of_top(
    scaled: Float[Array, "... V"], uniform: Float[Array, "..."], top_p: Float[Array, "..."], top_k: int
) -> tuple[Int[Array, "..."], Float[Array, "..."], Int[Array, "... K"]]:
    """As `pick`, of the `top_k` most probable tokens alone; says beside it which ids could be drawn, else -1."""
    highest, ids = jax.lax.top_k(scaled, min(top_k, scaled.shape[-1]))
    kept = nucleus(jax.nn.softmax(highest, axis=-1), top_p[..., None])
    place, logprob = invert_cdf(jnp.where(kept, highest, -jnp.inf), uniform)
    token = jnp.take_along_axis(ids, place[..., None], axis=-1)[..., 0]
    return token, logprob, jnp.where(kept, ids, -1)


BLOCK = 256
"""Tokens that are summed at once: nothing as large as the logits is made, which takes longer than the arithmetic."""


def invert_cdf(
    scaled: Float[Array, "... V"], uniform: Float[Array, "..."]
) -> tuple[Int[Array, "..."], Float[Array, "..."]]:
    """The token of softmax(scaled) whose slice of the CDF holds `uniform`, and its log-probability.

    First the block of tokens whose slice holds it, then the token in the block. Tokens less probable than
    SMALLEST_PROBABILITY are passed over.
    """
    vocab = scaled.shape[-1]
    blocks = -(-vocab // BLOCK)
    filled = jnp.pad(scaled, [(0, 0)] * uniform.ndim + [(0, blocks * BLOCK - vocab)], constant_values=-jnp.inf)
    parts = filled.reshape(*uniform.shape, blocks, BLOCK)
    maxima = jnp.max(parts, axis=-1)
    highest = jnp.max(maxima, axis=-1, keepdims=True)
    sums = jnp.sum(jnp.exp(parts - highest[..., None]), axis=-1)
    ends = jnp.cumsum(sums, axis=-1)
    total = jnp.max(ends, axis=-1, keepdims=True)
    wanted, least = uniform[..., None] * total, SMALLEST_PROBABILITY * total
    block = _first(ends > wanted, jnp.exp(maxima - highest) >= least)[..., None]
    logits = jnp.take_along_axis(parts, block[..., None], axis=-2)[..., 0, :]
    inside = jnp.exp(logits - highest)
    before = jnp.take_along_axis(ends - sums, block, axis=-1)
    within = _first(before + jnp.cumsum(inside, axis=-1) > wanted, inside >= least)[..., None]
    logprob = jnp.take_along_axis(logits, within, axis=-1) - highest - jnp.log(total)
    return (block * BLOCK + within)[..., 0], logprob[..., 0]


def _first(above: Bool[Array, "... N"], possible: Bool[Array, "... N"]) -> Int[Array, "..."]:
    """The first possible entry that is above, or else the last possible one.

    Sums are rounded, and a parallel cumsum rounds every entry by itself: it may dip, and rise where there is nothing.
    """
    at = jnp.arange(above.shape[-1], dtype=jnp.int32)
    last = jnp.max(jnp.where(possible, at, 0), axis=-1)
    return jnp.min(jnp.where(above & possible, at, last[..., None]), axis=-1)


def nucleus(probs: Float[Array, "... V"], top_p: float | Array) -> Bool[Array, "... V"]:
    """The smallest set of most probable tokens whose probability reaches `top_p` (ties at its edge are kept)."""
    descending = jnp.sort(probs, axis=-1, descending=True)
    before = jnp.cumsum(descending, axis=-1) - descending
    smallest = jnp.min(jnp.where(before < top_p, descending, jnp.inf), axis=-1, keepdims=True)
    return probs >= smallest


# --- random numbers


def problem_words(problem_id: str) -> tuple[int, int]:
    """Two 32-bit words that stand for a problem id in random keys."""
    digest = hashlib.blake2b(problem_id.encode(), digest_size=8).digest()
    return int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:], "little")


def key_words(request: SampleRequest) -> tuple[int, int, int, int, int]:
    """What keys the random numbers of a request's rollouts: seed, step, two words of the problem id, and the turn."""
    return request.seed, request.step, *problem_words(request.problem_id), request.turn


def draw_uniforms(
    words: UInt32[Array, "P 5"], rollouts: UInt32[Array, "P G"], length: int
) -> Float[Array, "P G {length}"]:
    """Uniform numbers in (0, 1), one stream for each (seed, step, problem, rollout, turn).

    The key of turn 0 is folded from the first four, and that of a later turn from it and the turn. A shorter stream is
    the beginning of a longer one. `words` are as `key_words` gives them.
    """

    def stream(words: Array, rollout: Array) -> Array:
        key = jax.random.key(words[0])
        for word in (*words[1:4], rollout):
            key = jax.random.fold_in(key, word)
        key = jnp.where(words[4] > 0, jax.random.fold_in(key, words[4]), key)
        return open_uniform(jax.random.bits(key, (length,), jnp.uint32))

    return jax.vmap(jax.vmap(stream, (None, 0)))(words, rollouts)


def open_uniform(bits: UInt32[Array, "..."]) -> Float[Array, "..."]:
    """The number (bits + 1/2) / 2^32 in float32: from 2^-33 to 1 - 2^-24, never 0 and never 1.

    `jax.random.uniform` makes of the same words the multiples of 2^-23 that their upper 23 bits give, 0 among them.
    This is the same draw, refined by the lower nine bits: it stays within its cell of width 2^-23, so another token is
    drawn only where a boundary between two tokens falls into that cell.
    """
    cell = (bits >> 9).astype(jnp.float32) * 2.0**-23
    inside = ((bits & 511).astype(jnp.float32) + 0.5) * 2.0**-32
    # The sum is rounded; it must not be rounded up to the next cell, the last of which is 1.
    return jnp.minimum(cell + inside, jnp.nextafter(cell + 2.0**-23, jnp.float32(0)))
