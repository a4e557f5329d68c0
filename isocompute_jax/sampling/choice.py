"""How a token is chosen: by inverting the CDF of the tempered distribution, cut to its nucleus."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

SMALLEST_PROBABILITY = 2.0**-33
"""Tokens less probable than this are never drawn: it is the smallest number that `randomness.open_uniform` gives."""


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
    logprobs = jax.nn.log_softmax(scaled, axis=-1)
    probs = jnp.exp(logprobs)
    cut = top_p < 1
    # A condition of the one program, not a second program, whose logits might be rounded otherwise.
    kept = jax.lax.cond(
        jnp.any(cut if running is None else running & cut),
        lambda: ~cut[..., None] | nucleus(probs, top_p[..., None]),
        lambda: jnp.ones(probs.shape, bool),
    )
    token, total = invert_cdf(jnp.where(kept, probs, 0.0), uniform)
    picked = jnp.take_along_axis(logprobs, token[..., None], axis=-1)[..., 0]
    return token, jnp.where(cut, picked - jnp.log(total), picked)


def invert_cdf(
    probs: Float[Array, "... V"], uniform: Float[Array, "..."]
) -> tuple[Int[Array, "..."], Float[Array, "..."]]:
    """The token whose slice of the CDF of `probs` holds `uniform`, and the sum of `probs`, which need not be 1."""
    cdf = jnp.cumsum(probs, axis=-1)
    # A parallel cumsum rounds every entry by itself: over a large vocabulary it dips, and rises where there is next to
    # no probability. So the total is taken over tokens that can be drawn, and the draw is the first of them above
    # u x total.
    possible = probs >= SMALLEST_PROBABILITY
    total = jnp.max(jnp.where(possible, cdf, 0.0), axis=-1)
    above = possible & (cdf > (uniform * total)[..., None])
    vocab = probs.shape[-1]
    token = jnp.min(jnp.where(above, jnp.arange(vocab, dtype=jnp.int32), vocab - 1), axis=-1)
    return token, total


def nucleus(probs: Float[Array, "... V"], top_p: float | Array) -> Bool[Array, "... V"]:
    """The smallest set of most probable tokens whose probability reaches `top_p` (ties at its edge are kept)."""
    descending = jnp.sort(probs, axis=-1, descending=True)
    before = jnp.cumsum(descending, axis=-1) - descending
    smallest = jnp.min(jnp.where(before < top_p, descending, jnp.inf), axis=-1, keepdims=True)
    return probs >= smallest
