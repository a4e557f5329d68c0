"""The layers of the transformer, as functions on arrays.

Dimensions: P problems, G rollouts of a problem, T query tokens, S prompt tokens, D embed, N/K query/kv heads,
R = N/K, H head size, F mlp. Every activation carries [P, G, T, ...]; a plain batch has G = 1.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Bool, Float, Int

from isocompute_jax.model.config import ModelConfig, RopeScaling
from isocompute_jax.model.kernels import ATTENTION_OUTPUT
from isocompute_jax.model.lora import Adapted, Weight


class Keys(NamedTuple):
    """Keys and values to attend to: k, v [P, G, S, K, H], or [P, S, K, H] when the G rollouts share them.

    `mask` is boolean and broadcasts to [P, G, T, S]; False is never attended to.
    """

    k: Array
    v: Array
    mask: Array


def rms_norm(x: Float[Array, "... D"], scale: Float[Array, "D"], *, eps: float) -> Float[Array, "... D"]:
    """x / sqrt(mean(x^2) + eps) x scale, with the mean in float32 (arXiv 1910.07467)."""
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    normed = wide * jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + eps)
    return normed.astype(x.dtype) * scale


def rope_angles(config: ModelConfig, positions: Int[Array, "..."]) -> tuple[Array, Array]:
    """cos and sin [..., H/2] of the rotary embedding, position / theta^(2i/H) (arXiv 2104.09864), stretched or not."""
    i = jnp.arange(config.head_dim // 2, dtype=config.float_dtype)
    frequencies = config.rope_theta ** (-2.0 * i / config.head_dim)
    if config.rope_scaling is not None:
        frequencies = stretched(frequencies, config.rope_scaling)
    angles = positions[..., None].astype(config.float_dtype) * frequencies
    return jnp.cos(angles), jnp.sin(angles)


def stretched(frequencies: Float[Array, "H"], scaling: RopeScaling) -> Float[Array, "H"]:
    """Llama 3.1's frequencies: see `RopeScaling`."""
    turns = scaling.original_positions * frequencies / (2 * math.pi)  # within the original length
    width = scaling.high_frequency - scaling.low_frequency
    above = turns - scaling.low_frequency
    kept = jnp.clip(above / width, 0.0, 1.0) if width else (above >= 0).astype(turns.dtype)
    return kept * frequencies + (1 - kept) * frequencies / scaling.factor


def apply_rope(x: Float[Array, "P G T N H"], cos: Array, sin: Array) -> Float[Array, "P G T N H"]:
    """Rotates the pairs (x_i, x_{i + H/2}), Hugging Face's split-halves convention. cos, sin: [P, G, T, H/2]."""
    cos, sin = cos[..., None, :], sin[..., None, :]
    low, high = jnp.split(x.astype(cos.dtype), 2, axis=-1)
    return jnp.concatenate([low * cos - high * sin, high * cos + low * sin], axis=-1).astype(x.dtype)


def attention(q: Float[Array, "P G T N H"], sources: Sequence[Keys]) -> Float[Array, "P G T N H"]:
    """Grouped-query attention over several sets of keys under one softmax (float32).

    The prompt's keys come as a set of their own without the G axis, so that they are neither copied nor
    recomputed for each rollout. A query that sees no key at all (padding) gets a uniform average, never NaN.
    """
    p, g, t, n, h = q.shape
    kv_heads = sources[0].k.shape[-2]
    wide = jnp.promote_types(q.dtype, jnp.float32)
    q = q.reshape(p, g, t, kv_heads, n // kv_heads, h) * h**-0.5
    scores = []
    for source in sources:
        keys = "pskh" if source.k.ndim == 4 else "pgskh"
        score = jnp.einsum(f"pgtkrh,{keys}->pgktrs", q, source.k, preferred_element_type=wide)
        mask = source.mask[:, :, None, :, None, :]
        scores.append(jnp.where(mask, score, jnp.finfo(wide).min))
    # Whatever is taken off leaves the quotient, and its gradient, as they are.
    highest = jax.lax.stop_gradient(
        functools.reduce(jnp.maximum, [jnp.max(x, axis=-1, keepdims=True, initial=jnp.finfo(wide).min) for x in scores])
    )
    weights = [jnp.exp(score - highest) for score in scores]
    total = functools.reduce(jnp.add, [jnp.sum(x, axis=-1, keepdims=True) for x in weights])
    parts = []
    for source, weight in zip(sources, weights, strict=True):
        keys = "pskh" if source.v.ndim == 4 else "pgskh"
        read = weight.astype(q.dtype)
        parts.append(jnp.einsum(f"pgktrs,{keys}->pgktrh", read, source.v, preferred_element_type=wide))
    out = jnp.einsum("pgktrh->pgtkrh", (functools.reduce(jnp.add, parts) / total).astype(q.dtype))
    return checkpoint_name(out.reshape(p, g, t, n, h), ATTENTION_OUTPUT)


def blockwise_attention(
    q: Float[Array, "R T N H"],
    positions: Int[Array, "R T"],
    read: Callable[[Array | int], tuple[Array, Array]],
    *,
    num_blocks: Array | int,
    first: Int[Array, "R T"] | None = None,
) -> Float[Array, "R T N H"]:
    """Grouped-query attention over keys that are read in blocks, under one running softmax (float32, arXiv 1805.02867).

    Blocks beyond a query's position leave its sums as they are, bit for bit (x 1, + 0): how many are read, which
    depends on the longest sequence, cannot be seen in the others.

    Args:
      q: queries.
      positions: of the queries; each sees the keys from `first` up to its own position.
      read: keys and values [R, K, S, H] of a block: the keys from block x S on.
      num_blocks: blocks to read, at least 1; a Python 1 makes no loop.
      first: position of the first key that each query sees; None for 0. Blocks before all of them are not read.
    """
    r, t, n, h = q.shape
    _, kv_heads, block_size, _ = jax.eval_shape(read, 0)[0].shape
    wide = jnp.promote_types(q.dtype, jnp.float32)
    q = q.reshape(r, t, kv_heads, n // kv_heads, h) * h**-0.5

    def add(block: Array | int, sums: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        highest, total, out = sums
        k, v = read(block)
        keys = block * k.shape[2] + jnp.arange(k.shape[2])
        visible = keys <= positions[:, None, None, :, None]
        if first is not None:
            visible &= keys >= first[:, None, None, :, None]
        scores = jnp.einsum("rtkgh,rksh->rkgts", q, k, preferred_element_type=wide)
        scores = jnp.where(visible, scores, jnp.finfo(wide).min)
        higher = jnp.maximum(highest, jnp.max(scores, axis=-1))
        weights = jnp.exp(scores - higher[..., None])
        scale = jnp.exp(highest - higher)
        added = jnp.einsum("rkgts,rksh->rkgth", weights.astype(v.dtype), v, preferred_element_type=wide)
        return higher, total * scale + jnp.sum(weights, axis=-1), out * scale[..., None] + added

    shape = (r, kv_heads, n // kv_heads, t)
    sums = (jnp.full(shape, jnp.finfo(wide).min, wide), jnp.zeros(shape, wide), jnp.zeros((*shape, h), wide))
    one = isinstance(num_blocks, int) and num_blocks == 1
    start = 0 if first is None else jnp.minimum(jnp.min(first) // block_size, num_blocks - 1)
    _, total, out = add(0, sums) if one else jax.lax.fori_loop(start, num_blocks, add, sums)
    return jnp.einsum("rkgth->rtkgh", out / total[..., None]).reshape(r, t, n, h).astype(q.dtype)


def decoding_attention(q: Float[Array, "P G T N H"], sources: Sequence[Keys]) -> Float[Array, "P G T N H"]:
    """`attention` in decoding: in float32 on CPUs, where XLA has not every product of bfloat16 that it takes there."""

    def in_float32(q: Array, sources: Sequence[Keys]) -> Array:
        wide = [Keys(k.astype(jnp.float32), v.astype(jnp.float32), mask) for k, v, mask in sources]
        return attention(q.astype(jnp.float32), wide).astype(q.dtype)

    if q.dtype != jnp.bfloat16:
        return attention(q, sources)
    return jax.lax.platform_dependent(q, sources, cpu=in_float32, default=attention)


def linear(x: Float[Array, "... D"], weight: Weight) -> Float[Array, "... E"]:
    """x W; of an adapted W x W + scale (x A) B, and no W of its own is made."""
    if not isinstance(weight, Adapted):
        return project(x, weight)
    # Nothing asks for the gradient of the frozen one.
    return x @ weight.base + _low_rank(x, weight)


def to_heads(x: Float[Array, "P G T D"], weight: Weight) -> Float[Array, "P G T N H"]:
    """The same, to heads: W is [D, N, H]."""
    product = functools.partial(jnp.einsum, "pgtd,dnh->pgtnh")
    if not isinstance(weight, Adapted):
        return product(x, weight)
    return product(x, weight.base) + _low_rank(x, weight).reshape(*x.shape[:-1], *weight.base.shape[1:])


def _low_rank(x: Float[Array, "... D"], weight: Adapted) -> Float[Array, "... E"]:
    """scale (x A) B, outputs joined."""
    factors = weight.factors
    a: Any = project(x, factors.a)
    return factors.scale * project(a, factors.b.reshape(factors.b.shape[0], -1))


@jax.custom_vjp
def project(x: Float[Array, "... D"], w: Float[Array, "D E"]) -> Float[Array, "... E"]:
    """x W; the gradient is written out for its order of operands, see `_weight_gradient`."""
    return x @ w


def _project_forward(x: Array, w: Array) -> tuple[Array, tuple[Array, Array]]:
    return x @ w, (x, w)


def _project_backward(saved: tuple[Array, Array], to_out: Array) -> tuple[Array, Array]:
    x, w = saved
    return to_out @ w.T, _weight_gradient(x, to_out)


project.defvjp(_project_forward, _project_backward)


def _over_tokens(left: Float[Array, "... D"], right: Float[Array, "... E"]) -> Float[Array, "D E"]:
    tokens = tuple(range(left.ndim - 1))
    return jax.lax.dot_general(left, right, ((tokens, tokens), ((), ())))


def _weight_gradient(x: Float[Array, "... D"], to_out: Float[Array, "... E"]) -> Float[Array, "D E"]:
    """Of W in x W, where x is as wide as what comes out, or wider: as the transposed one of W^T."""
    # Where XLA:CPU turns the operands in place of the gradient, small products take three times as long, and those of
    # bfloat16 ten times.
    gradient = _over_tokens(to_out, x)
    return jax.lax.platform_dependent(gradient, cpu=jax.lax.optimization_barrier, default=lambda x: x).T


def swiglu(x: Float[Array, "... D"], w_gate: Weight, w_up: Weight, w_down: Weight) -> Float[Array, "... D"]:
    """(silu(x W_gate) * x W_up) W_down (arXiv 2002.05202)."""
    weights = w_gate, w_up, w_down
    if not any(isinstance(w, Adapted) for w in weights):
        plain: Any = _swiglu
        return plain(x, *weights)
    gate, up = (linear(x, w) for w in (w_gate, w_up))
    return linear(jax.nn.silu(gate) * up, w_down)


@jax.custom_vjp
def _swiglu(x: Float[Array, "... D"], w_gate: Array, w_up: Array, w_down: Array) -> Float[Array, "... D"]:
    """The gradient is written out for its order of operands.

    A weight's gradient sums over tokens, for which XLA transposes the left one; derived, that is the wide one, and
    XLA:CPU fuses the transposition with the arithmetic that makes it, strided, which takes longer than the products
    (BENCHMARKS.md, "Beside TRL and tunix").
    """
    return _swiglu_forward(x, w_gate, w_up, w_down)[0]


def _swiglu_forward(x: Array, w_gate: Array, w_up: Array, w_down: Array) -> tuple[Array, tuple[Array, ...]]:
    gate, up = x @ w_gate, x @ w_up
    return (jax.nn.silu(gate) * up) @ w_down, (x, gate, up, w_gate, w_up, w_down)


def _swiglu_backward(saved: tuple[Array, ...], to_out: Array) -> tuple[Array, Array, Array, Array]:
    x, gate, up, w_gate, w_up, w_down = saved
    opened = jax.nn.sigmoid(gate)
    silu = gate * opened
    to_hidden = to_out @ w_down.T
    to_up = to_hidden * silu
    to_gate = to_hidden * up * (opened * (1 + gate * (1 - opened)))

    to_x = to_gate @ w_gate.T + to_up @ w_up.T
    return to_x, _over_tokens(x, to_gate), _over_tokens(x, to_up), _weight_gradient(silu * up, to_out)


_swiglu.defvjp(_swiglu_forward, _swiglu_backward)


def causal_mask(valid: Bool[Array, "P G T"]) -> Bool[Array, "P G T T"]:
    """Query t sees key s when s <= t and key s is not padding."""
    t = valid.shape[-1]
    return jnp.tril(jnp.ones((t, t), bool)) & valid[..., None, :]
