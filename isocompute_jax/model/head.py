"""The output head: hidden states to logits, in float32 or in bfloat16 products that are summed in float32.

A head in lower precision than float32 is the best-known cause of sampler and learner disagreeing (ScaleRL, arXiv
2510.13786). What costs precision is that logits are *rounded* to bfloat16, and that float32 operands are: the product
of two bfloat16 numbers is exact in float32. Hence three precisions (`ModelConfig.head`), all of whose logits are sums
in float32 at least:

- `float32`: operands as they are, multiplied in float32 on every backend (`Precision.HIGHEST`).
- `bf16_x3`: each float32 operand is x = hi + lo, two bfloat16 numbers with 16 bits of mantissa together, and
  hi hi + hi lo + lo hi are summed: products within about 2^-16 of float32's, at three times the cost of bfloat16
  instead of that of float32. A bfloat16 operand has no lo: the logits of a bfloat16 model take one product, which is
  exact, and its gradient, whose cotangent is float32, two.
- `bf16`: operands, cotangents among them, are rounded to bfloat16.

Both sides see the head that the sampler has, rounded to the model's dtype. The learner's float32 master would be a
slightly other policy than the one that was sampled from (`benchmarks/head_precision.py`).
"""

from __future__ import annotations

import functools
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from isocompute_jax.model.config import ModelConfig
from isocompute_jax.model.params import Params

Precision = Literal["float32", "bf16_x3", "bf16"]


def precision_of(config: ModelConfig) -> Precision:
    """The head's precision, `auto` resolved: bf16_x3 for models narrower than float32, float32 for the others."""
    if config.head != "auto":
        return config.head
    return "bf16_x3" if jnp.dtype(config.dtype).itemsize < 4 else "float32"


def head_table(config: ModelConfig, params: Params) -> Array:
    """The parameter that the head multiplies with: [V, D] where embeddings are tied, [D, V] where not."""
    return params["embed"] if config.tied_embeddings else params["head"]


def logits(config: ModelConfig, params: Params, hidden: Float[Array, "... D"]) -> Float[Array, "... V"]:
    """Hidden states to logits, float32 (float64 for a float64 model), in the precision that `config.head` names.

    Parameters may be wider than `config.dtype` (float32 masters): the head is rounded to it, its gradient is not.
    """
    return _logits(precision_of(config), config.dtype, config.tied_embeddings, hidden, head_table(config, params))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _logits(precision: Precision, dtype: str, tied: bool, hidden: Array, table: Array) -> Array:
    """A rule of its own, because that of the split would round the cotangent of hi to bfloat16."""
    equation = "...d,vd->...v" if tied else "...d,dv->...v"
    return multiply(equation, hidden, table.astype(dtype), precision)


def _logits_forward(
    precision: Precision, dtype: str, tied: bool, hidden: Array, table: Array
) -> tuple[Array, tuple[Array, Array]]:
    return _logits(precision, dtype, tied, hidden, table), (hidden, table)


def _logits_backward(
    precision: Precision, dtype: str, tied: bool, saved: tuple[Array, Array], cotangent: Array
) -> tuple[Array, Array]:
    hidden, table = saved
    to_hidden = "...v,vd->...d" if tied else "...v,dv->...d"
    to_table = "...v,...d->vd" if tied else "...v,...d->dv"
    return (
        multiply(to_hidden, cotangent, table.astype(dtype), precision).astype(hidden.dtype),
        multiply(to_table, cotangent, hidden, precision).astype(table.dtype),
    )


_logits.defvjp(_logits_forward, _logits_backward)


def multiply(equation: str, a: Array, b: Array, precision: Precision, *, start: Array | None = None) -> Array:
    """`start` + `jnp.einsum(equation, a, b)` in a precision of the head; float32, or float64 where an operand is."""
    wide = jnp.promote_types(jnp.promote_types(a.dtype, b.dtype), jnp.float32)
    if precision == "float32":
        product = jnp.einsum(equation, a.astype(wide), b.astype(wide), precision=jax.lax.Precision.HIGHEST)
        return product if start is None else start + product
    keep = 1 if precision == "bf16" else 2
    # The smallest first; lo lo is below what is kept.
    pairs = [(x, y) for i, x in enumerate(_parts(a)[:keep]) for j, y in enumerate(_parts(b)[:keep]) if i + j < 2][::-1]
    product = functools.partial(
        jnp.einsum, equation, precision=jax.lax.Precision.DEFAULT, preferred_element_type=jnp.float32
    )
    total = product(*pairs[0]) if start is None else start
    for pair in pairs if start is not None else pairs[1:]:
        # One after the other: each product is added where it is made, and none waits in memory for the others.
        total, pair = jax.lax.optimization_barrier((total, pair))
        total = total + product(*pair)
    return total.astype(wide)


def _parts(x: Array) -> tuple[Array, ...]:
    """Bfloat16 numbers, the largest first, whose sum is x (to 16 bits of mantissa)."""
    if x.dtype == jnp.bfloat16:
        return (x,)
    x = x.astype(jnp.float32)
    # Not a cast to bfloat16 and back, which XLA may drop as excess precision: lo would be zero.
    high = jax.lax.reduce_precision(x, exponent_bits=8, mantissa_bits=7)
    return high.astype(jnp.bfloat16), (x - high).astype(jnp.bfloat16)
