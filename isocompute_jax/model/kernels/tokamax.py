"""tokamax's flash attention for NVIDIA GPUs: Mosaic on Hopper and Blackwell, Triton on Ampere and later.

https://github.com/openxla/tokamax, an optional extra. Its public function has no argument for sequences in a row, its
operators have: key t is read by the queries from `k_start` on. Both kernels skip blocks of keys outside them.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import logging
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float, Int

from isocompute_jax.model.kernels import ATTENTION_OUTPUT, filled_up
from isocompute_jax.model.kernels.imports import why_missing

Implementation = Literal["mosaic", "triton"]

BLOCK = 128
"""Rows are filled up to a multiple of it, so that no kernel has to."""


_API, _BASE = (f"tokamax._src.ops.attention.{name}" for name in ("api", "base"))
# By name too: tokamax leaves out of its table, without a word, what it could not import.
_MODULES: dict[Implementation, str] = {
    "mosaic": "tokamax._src.ops.attention.pallas_mosaic_gpu",
    "triton": "tokamax._src.ops.attention.pallas_triton",
}


def missing(implementation: Implementation) -> str | None:
    """Why the kernel cannot be had here, or None; it is imported for the answer."""
    return why_missing(_API, _BASE, _MODULES[implementation])


def tokamax_attention(
    q: Float[Array, "N T Q H"],
    k: Float[Array, "N T K H"],
    v: Float[Array, "N T K H"],
    first: Int[Array, "N T"],
    *,
    implementation: Implementation,
    device: Any,
) -> Float[Array, "N T Q H"]:
    """See `packed_attention`. Scores and softmax are float32; float32 inputs are multiplied as TF32.

    Args:
      q: queries.
      k: keys.
      v: values.
      first: of each token, where in its row its sequence begins.
      implementation: of tokamax's.
      device: one of those that the program is compiled for.
    """
    length = first.shape[1]
    padded = -(-length // BLOCK) * BLOCK
    q, k, v = (jnp.pad(x, ((0, 0), (0, padded - length), (0, 0), (0, 0))) for x in (q, k, v))
    return _attention(q, k, v, filled_up(first, padded), implementation, device)[:, :length]


def _forward(
    q: Array, k: Array, v: Array, first: Array, implementation: Implementation, device: Any
) -> tuple[Array, tuple[Array, ...]]:
    with _compiling_for(device):
        operator, options = _operator(implementation, q.dtype, first)
        out, statistics = operator(q, k, v, **options, return_residuals=True)
    # Named here and not inside: to a checkpoint policy the operator's own rule would be opaque.
    out, *statistics = (checkpoint_name(x, ATTENTION_OUTPUT) for x in (out, *statistics))
    return out, (q, k, v, first, out, *statistics)


def _backward(
    implementation: Implementation, device: Any, kept: tuple[Array, ...], gradient: Array
) -> tuple[Array, Array, Array, None]:
    q, k, v, first, out, *statistics = kept
    with _compiling_for(device):
        operator, options = _operator(implementation, q.dtype, first)
        bound = operator.bind(q, k, v, **options)
        options = {name: value for name, value in bound.kwargs.items() if name != "return_residuals"}
        gradients = operator.vjp(tuple(statistics), out, gradient, *bound.args, **options)
    return gradients["q"], gradients["k"], gradients["v"], None


def _output(q: Array, k: Array, v: Array, first: Array, implementation: Implementation, device: Any) -> Array:
    return _forward(q, k, v, first, implementation, device)[0]


_attention = jax.custom_vjp(_output, nondiff_argnums=(4, 5))
_attention.defvjp(_forward, _backward)


def _operator(implementation: Implementation, dtype: Any, first: Array) -> tuple[Any, dict[str, Any]]:
    """tokamax's operator and the options that it is called with."""
    api, base = _tokamax()
    operator = api.IMPLEMENTATIONS["mosaic_gpu" if implementation == "mosaic" else implementation]
    # Said, and not left to a default that depends on the device at hand.
    precision = {
        jnp.dtype(jnp.bfloat16): jax.lax.DotAlgorithmPreset.BF16_BF16_F32,
        jnp.dtype(jnp.float16): jax.lax.DotAlgorithmPreset.F16_F16_F32,
        jnp.dtype(jnp.float32): jax.lax.DotAlgorithmPreset.TF32_TF32_F32,
    }[jnp.dtype(dtype)]
    return operator, {"mask": base.Mask(k_start=first[:, None], is_causal=True), "precision": precision}


@functools.cache
def _tokamax() -> tuple[Any, Any]:
    """Its modules of attention, which `missing` has imported."""
    api, base = map(importlib.import_module, (_API, _BASE))
    # Nothing is tuned here: its heuristics choose blocks, of which it would warn with a page for every shape.
    untuned = "Autotuning cache miss"
    logging.getLogger("absl").addFilter(lambda record: not str(record.msg).startswith(untuned))
    return api, base


def _compiling_for(device: Any) -> contextlib.AbstractContextManager[Any]:
    """tokamax asks the default device what it supports. Programs may be compiled for others, ahead of time."""
    here = jax.local_devices()[0]
    if (here.platform, here.device_kind) == (device.platform, device.device_kind):
        return contextlib.nullcontext()
    return jax.default_device(device)
