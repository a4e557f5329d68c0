"""Attention over packed rows in chunks, in plain XLA: for every platform and dtype.

The forward pass keeps its output and the log-sum-exp of each query's scores, and the backward pass computes the scores
anew (FlashAttention, arXiv 2205.14135 and 2307.08691). Scores exist for one chunk of queries and one of keys at a time,
so that memory is linear in T. Chunks of keys before the first sequence of a chunk of queries, or after its end, are not
read at all; they could not be seen in the result: whatever is masked adds an exact 0, or multiplies by an exact 1, so
that a sequence's numbers do not depend on what else lies in its row, to the bit.

Dimensions: N rows, T tokens, K kv heads, R = query heads / K, H head size, I chunks, C tokens of a chunk.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float, Int

from isocompute_jax.model.kernels import ATTENTION_OUTPUT, filled_up


def chunked_attention(
    q: Float[Array, "N T Q H"],
    k: Float[Array, "N T K H"],
    v: Float[Array, "N T K H"],
    first: Int[Array, "N T"],
    *,
    chunk: int,
) -> Float[Array, "N T Q H"]:
    """Grouped-query attention of each token to those from `first` to itself.

    Rows are computed one after the other, so that each reads only the chunks that it needs. Scores, softmax and sums
    are float32 at least.

    Args:
      q: queries; query heads Q i to (i + 1) Q - 1 read kv head i, where Q = Q / K.
      k: keys.
      v: values.
      first: of each token, where in its row its sequence begins.
      chunk: tokens of a chunk, at most.
    """
    return _attention(q, k, v, first, chunk)


def chunk_size(length: int, chunk: int) -> int:
    """Tokens of a chunk when `length` tokens are cut into as few chunks as `chunk` allows, all alike."""
    count = -(-length // chunk)
    return length if count == 1 else -(-length // (8 * count)) * 8


class _Row(NamedTuple):
    """A row in chunks: q [I K RC H], k, v [I K C H], first [I C]."""

    q: Array
    k: Array
    v: Array
    first: Array


def _cut(x: Float[Array, "T Q H"], kv_heads: int, chunk: int) -> Float[Array, "I K RC H"]:
    """Heads before tokens in each chunk, the query heads of a kv head one after the other; padded with zeros."""
    length, heads, size = x.shape
    chunks = -(-length // chunk)
    x = jnp.pad(x, ((0, chunks * chunk - length), (0, 0), (0, 0)))
    x = x.reshape(chunks, chunk, kv_heads, heads // kv_heads, size).transpose(0, 2, 3, 1, 4)
    return x.reshape(chunks, kv_heads, heads // kv_heads * chunk, size)


def _joined(x: Float[Array, "I K RC H"], length: int, chunk: int) -> Float[Array, "T Q H"]:
    """The inverse of `_cut`."""
    chunks, kv_heads, width, size = x.shape
    x = x.reshape(chunks, kv_heads, width // chunk, chunk, size).transpose(0, 3, 1, 2, 4)
    return x.reshape(chunks * chunk, kv_heads * (width // chunk), size)[:length]


def _cut_row(q: Array, k: Array, v: Array, first: Array, chunk: int) -> _Row:
    """Tokens that fill up the last chunk see themselves."""
    length, kv_heads = len(first), k.shape[1]
    chunks = -(-length // chunk)
    first = filled_up(first, chunks * chunk).reshape(chunks, chunk)
    return _Row(_cut(q, kv_heads, chunk), _cut(k, kv_heads, chunk), _cut(v, kv_heads, chunk), first)


def _scores(q: Array, k: Array, first: Array, query: Array, key: Array) -> tuple[Array, Array]:
    """Scores [K RC C] of a chunk of queries and a chunk of keys, and which of them count."""
    wide = jnp.promote_types(q.dtype, jnp.float32)
    chunk, repeats = k.shape[1], q.shape[1] // k.shape[1]
    scores = jnp.einsum("kqh,kch->kqc", q, k, preferred_element_type=wide) * q.shape[-1] ** -0.5
    keys, queries = key * chunk + jnp.arange(chunk), query * chunk + jnp.arange(chunk)
    visible = (keys >= first[:, None]) & (keys <= queries[:, None])
    return scores, jnp.tile(visible, (repeats, 1))


def _attend(row: _Row, q: Array, first: Array, query: Array) -> tuple[Array, Array]:
    """A chunk of queries: output [K RC H], and log-sum-exp of its scores [K RC]."""
    wide = jnp.promote_types(q.dtype, jnp.float32)
    chunk, lowest = len(first), jnp.finfo(wide).min

    def add(key: Array, sums: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        highest, total, out = sums
        k, v = row.k[key], row.v[key]
        scores, visible = _scores(q, k, first, query, key)
        higher = jnp.maximum(highest, jnp.max(scores, axis=-1, initial=lowest, where=visible))
        # Where nothing was visible yet, `higher` is the lowest number, and only the mask makes its weights 0.
        weights = jnp.where(visible, jnp.exp(scores - higher[..., None]), 0.0)
        scale = jnp.exp(highest - higher)
        added = jnp.einsum("kqc,kch->kqh", weights.astype(v.dtype), v, preferred_element_type=wide)
        return higher, total * scale + jnp.sum(weights, axis=-1), out * scale[..., None] + added

    sums = (jnp.full(q.shape[:-1], lowest, wide), jnp.zeros(q.shape[:-1], wide), jnp.zeros(q.shape, wide))
    highest, total, out = jax.lax.fori_loop(jnp.min(first) // chunk, query + 1, add, sums)
    return (out / total[..., None]).astype(q.dtype), highest + jnp.log(total)


def _forward(q: Array, k: Array, v: Array, first: Array, chunk: int) -> tuple[Array, tuple[Array, ...]]:
    length = q.shape[1]
    if not q.size:
        empty = jnp.zeros_like(q)
        return empty, (q, k, v, first, empty, jnp.zeros((0,), q.dtype))
    chunk = chunk_size(length, chunk)

    def one(given: tuple[Array, Array, Array, Array]) -> tuple[Array, Array]:
        row = _cut_row(*given, chunk)
        queries = (row.q, row.first, jnp.arange(len(row.first), dtype=row.first.dtype))
        out, normalizer = jax.lax.map(lambda query: _attend(row, *query), queries)
        return _joined(out, length, chunk), normalizer

    out, normalizer = jax.lax.map(one, (q, k, v, first))
    out, normalizer = checkpoint_name(out, ATTENTION_OUTPUT), checkpoint_name(normalizer, ATTENTION_OUTPUT)
    return out, (q, k, v, first, out, normalizer)


def _query_gradients(
    row: _Row, sums: tuple[Array, Array], query: tuple[Array, ...]
) -> tuple[tuple[Array, Array], Array]:
    """Adds a chunk of queries to the gradients of keys and values (dk, dv [I K H C]); returns them, and its own.

    With weights P = exp(scores - log-sum-exp): dV = P' dO, dS = P (dO V' - sum(dO O)), dQ = dS K, dK = dS' Q.
    """
    q, first, out, normalizer, gradient, index = query
    wide = jnp.promote_types(q.dtype, jnp.float32)
    # sum(dO O) is the mean of dO V' under the weights: what the softmax takes off.
    mean = jnp.sum(gradient.astype(wide) * out.astype(wide), axis=-1)
    # Turned once, and dK' = Q' dS: where the product turns them, or dS is turned for every chunk, it takes XLA:CPU two
    # to four times as long (BENCHMARKS.md, "Long context").
    turned = jax.lax.optimization_barrier(tuple(x.swapaxes(-1, -2) for x in (q, gradient)))

    def add(key: Array, sums: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        dq, dk, dv = sums
        k, v = row.k[key], row.v[key]
        scores, visible = _scores(q, k, first, index, key)
        weights = jnp.where(visible, jnp.exp(scores - normalizer[..., None]), 0.0)
        dweights = jnp.einsum("kqh,kch->kqc", gradient, v, preferred_element_type=wide)
        dscores = (weights * (dweights - mean[..., None]) * q.shape[-1] ** -0.5).astype(q.dtype)
        weights = weights.astype(q.dtype)
        dq += jnp.einsum("kqc,kch->kqh", dscores, k, preferred_element_type=wide)
        added = (
            jnp.einsum("khq,kqc->khc", of, weight, preferred_element_type=wide)
            for of, weight in zip(turned, (dscores, weights), strict=True)
        )
        # Behind a barrier, or the product is fused with the sum, and slow too.
        to_k, to_v = jax.lax.optimization_barrier(tuple(added))
        dk, dv = dk.at[key].add(to_k), dv.at[key].add(to_v)
        return dq, dk, dv

    start = jnp.min(first) // len(first)
    dq, dk, dv = jax.lax.fori_loop(start, index + 1, add, (jnp.zeros(q.shape, wide), *sums))
    return (dk, dv), dq.astype(q.dtype)


def _backward(chunk: int, kept: tuple[Array, ...], gradient: Array) -> tuple[Array, Array, Array, None]:
    q, k, v, first, out, normalizer = kept
    if not q.size:
        return jnp.zeros_like(q), jnp.zeros_like(k), jnp.zeros_like(v), None
    length, kv_heads, chunk = q.shape[1], k.shape[2], chunk_size(q.shape[1], chunk)

    def one(given: tuple[Array, ...]) -> tuple[Array, Array, Array]:
        q, k, v, first, out, normalizer, gradient = given
        row = _cut_row(q, k, v, first, chunk)
        zeros = jnp.zeros(row.k.swapaxes(-1, -2).shape, jnp.promote_types(k.dtype, jnp.float32))
        out, gradient = _cut(out, kv_heads, chunk), _cut(gradient, kv_heads, chunk)
        queries = (row.q, row.first, out, normalizer, gradient, jnp.arange(len(row.first), dtype=first.dtype))
        (dk, dv), dq = jax.lax.scan(functools.partial(_query_gradients, row), (zeros, zeros), queries)
        dk, dv = dk.swapaxes(-1, -2).astype(k.dtype), dv.swapaxes(-1, -2).astype(v.dtype)
        return _joined(dq, length, chunk), _joined(dk, length, chunk), _joined(dv, length, chunk)

    return *jax.lax.map(one, (q, k, v, first, out, normalizer, gradient)), None


def _output(q: Array, k: Array, v: Array, first: Array, chunk: int) -> Array:
    return _forward(q, k, v, first, chunk)[0]


_attention = jax.custom_vjp(_output, nondiff_argnums=(4,))
_attention.defvjp(_forward, _backward)
