"""Attention over packed rows: one function, and the one place that chooses which kernel computes it.

A row holds several whole sequences. Each token knows where its own begins, and sees what lies between: from `first` to
itself. No kernel holds [T, T] scores.

Where a mesh cuts rows along their tokens, its devices exchange tokens for heads: each of them computes whole rows of a
part of the heads, with any of the kernels, and gets its tokens' outputs back (DeepSpeed-Ulysses, arXiv 2309.14509).
Beside gathering all keys (Llama 3, arXiv 2407.21783) or a ring of them (arXiv 2310.01889) this holds no more than a
device's share, sends less, and shares causal attention out evenly however a row is packed. The heads are its limit.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int

from isocompute_jax import sharding
from isocompute_jax.model.config import AttentionKernel
from isocompute_jax.model.kernels import splash, tokamax
from isocompute_jax.model.kernels.chunked import chunked_attention
from isocompute_jax.model.kernels.imports import warn_once
from isocompute_jax.records.errors import InputError

FUSED = ("mosaic", "triton", "splash")
"""Kernels of one platform, in the order in which `auto` tries them."""

CPU_CHUNK, CPU_LONG_CHUNK, CHUNK = 128, 512, 1024
"""Tokens of a chunk. On CPUs rows of short sequences ask for few, and long ones for more (BENCHMARKS.md, "Long
context"); accelerators, where a step of a loop is several launches, ask for many."""
CPU_LONG = 16_384
"""Tokens of a row that is long."""


def packed_attention(
    q: Float[Array, "N T Q H"],
    k: Float[Array, "N T K H"],
    v: Float[Array, "N T K H"],
    first: Int[Array, "N T"],
    *,
    kernel: AttentionKernel,
    mesh: Mesh | None,
) -> Float[Array, "N T Q H"]:
    """Grouped-query attention within sequences: query t of a row sees its keys first[t] to t.

    softmax(q k' / sqrt(H)) v (arXiv 1706.03762), softmax and sums in float32 at least. Memory is linear in T, and
    gradients are those of the same function. With `chunked`, on CPUs, a sequence's numbers depend on nothing else in
    its row, to the bit.

    Args:
      q: queries; the Q heads are K groups of Q / K, one after the other, which share a kv head.
      k: keys.
      v: values.
      first: index in its row at which a token's sequence begins; equal within a sequence, and t at a token t of
        padding, which sees itself.
      kernel: who computes it; `auto` takes the fused kernel of the device, or `chunked`.
      mesh: rows and their tokens are where its axes put them, and so are heads, if its tensor axis divides both Q and
        K (else each of its devices computes all); None for one device.

    Raises:
      InputError: a kernel that the device, the dtype or the head size does not allow; heads that the devices which
        share a row cannot share (see `context_divides`).
    """
    device = jax.local_devices()[0] if mesh is None else mesh.devices.flat[0]
    chosen = choose_kernel(kernel, device, head_dim=q.shape[-1], dtype=q.dtype)
    attend = _computed_by(chosen, device)
    if mesh is None:
        return attend(q, k, v, first)
    heads = "kv_heads" if _divides(mesh, q) and _divides(mesh, k) else None
    axes = ("rows", "tokens", heads, None)
    specs = tuple(sharding.partition_spec(mesh, x.shape, axes) for x in (q, k, v))
    rows = sharding.partition_spec(mesh, first.shape, ("rows", None))
    context = sharding.mesh_axes(mesh, first.shape[1], "tokens")
    if context:
        attend = functools.partial(_heads_for_tokens, attend, context)
    local = jax.shard_map(attend, mesh=mesh, in_specs=(*specs, rows), out_specs=specs[0], check_vma=False)
    return local(q, k, v, first)


def context_divides(context: int, heads: int, kv_heads: int) -> bool:
    """Whether so many devices can share heads: the query heads evenly, each with one kv head or several of its own."""
    return heads % context == 0 and (kv_heads % context == 0 or context % kv_heads == 0)


def _heads_for_tokens(
    attend: Callable[..., Array], context: tuple[str, ...], q: Array, k: Array, v: Array, first: Array
) -> Array:
    """`attend` of a device's tokens, by devices of the axes `context`, which hold a row's tokens one after the other.

    Args:
      attend: attention of whole rows.
      context: mesh axes.
      q: of this device's tokens; k and v too.
      k: keys.
      v: values.
      first: of whole rows.
    """
    size, heads, kv_heads = jax.lax.axis_size(context), q.shape[2], k.shape[2]
    if not context_divides(size, heads, kv_heads):
        raise InputError(f"a context axis of {size} devices does not divide {heads} heads and {kv_heads} kv heads")
    # A kv head that several devices need is sent to each of them.
    copies = -(-size // kv_heads)
    k, v = (jnp.repeat(x, copies, axis=2) if copies > 1 else x for x in (k, v))
    q, k, v = (jax.lax.all_to_all(x, context, split_axis=2, concat_axis=1, tiled=True) for x in (q, k, v))
    return jax.lax.all_to_all(attend(q, k, v, first), context, split_axis=1, concat_axis=2, tiled=True)


def _divides(mesh: Mesh, x: Array) -> bool:
    """Whether `mesh` cuts the heads of x [N T heads H]."""
    return sharding.partition_spec(mesh, x.shape, (None, None, "kv_heads", None))[2] is not None


def _computed_by(kernel: str, device: Any) -> Callable[[Array, Array, Array, Array], Array]:
    match kernel:
        case "mosaic" | "triton":
            return functools.partial(tokamax.tokamax_attention, implementation=kernel, device=device)
        case "splash":
            return splash.splash_attention
        case _:
            return functools.partial(_in_chunks, device.platform)


def _in_chunks(platform: str, q: Array, k: Array, v: Array, first: Array) -> Array:
    of_cpus = CPU_LONG_CHUNK if q.shape[1] >= CPU_LONG else CPU_CHUNK
    return chunked_attention(q, k, v, first, chunk=of_cpus if platform == "cpu" else CHUNK)


def choose_kernel(kernel: AttentionKernel, device: Any, *, head_dim: int, dtype: Any) -> str:
    """The kernel that computes attention on `device`: `kernel`, or what `auto` stands for.

    Args:
      kernel: what the config asks for.
      device: one of those that the program is compiled for, present or not.
      head_dim: H.
      dtype: of queries, keys and values.

    Raises:
      InputError: `kernel` cannot be used there; the message says why.
    """
    if kernel in FUSED:
        reason = _refusal(kernel, device, head_dim=head_dim, dtype=dtype) or _missing(kernel)
        if reason is not None:
            raise InputError(f"attention = {kernel}: {reason}; `auto` chooses what the device has")
        return kernel
    if kernel == "chunked" or device.platform == "cpu":
        return "chunked"
    refused: dict[str, str] = {}
    absent: list[str] = []
    for name in FUSED:
        reason = _refusal(name, device, head_dim=head_dim, dtype=dtype)
        if reason is None:
            reason = _missing(name)
            if reason is None:
                if absent:
                    warn_once(f"attention = auto: computed by {name}, for want of {_joined(refused, absent)}")
                return name
            absent.append(name)
        refused[name] = reason
    warn_once(
        f"attention = auto: computed in chunks, for there is no fused kernel ({_joined(refused, absent or refused)})"
    )
    return "chunked"


def _joined(reasons: dict[str, str], names: Iterable[str]) -> str:
    """A reason that several kernels share is said once."""
    by_reason: dict[str, list[str]] = {}
    for name in names:
        by_reason.setdefault(reasons[name], []).append(name)
    return "; ".join(f"{', '.join(kernels)}: {reason}" for reason, kernels in by_reason.items())


def _missing(kernel: str) -> str | None:
    """Why a fused kernel that the device could run is not there, or None."""
    match kernel:
        case "mosaic" | "triton":
            return tokamax.missing(kernel)
        case _:
            return splash.missing()


def _refusal(kernel: str, device: Any, *, head_dim: int, dtype: Any) -> str | None:
    """Why a fused kernel cannot be used, or None."""
    platform = "tpu" if kernel == "splash" else "gpu"
    name = jnp.dtype(dtype).name
    dtypes = {
        "mosaic": ("bfloat16", "float16"),
        "triton": ("bfloat16", "float16", "float32"),
        "splash": ("bfloat16", "float32"),
    }
    if device.platform != platform:
        return f"made for {platform.upper()}s, and this is a {device.platform.upper()}"
    if name not in dtypes[kernel]:
        return f"it computes in {' or '.join(dtypes[kernel])}, not {name}"
    # All head sizes are filled up to what the matrix units take; these are the largest whose blocks compile.
    largest = 128 if (kernel, name) == ("triton", "float32") else 256
    if head_dim > largest:
        return f"head_dim = {head_dim} is above {largest}, the largest it has room for in {name}"
    return None if kernel == "splash" else _refused_by_gpu(kernel, device)


def _refused_by_gpu(kernel: str, device: Any) -> str | None:
    """The same, of tokamax's kernels."""
    try:
        capability = float(device.compute_capability)
    except ValueError:  # AMD's are called gfx942, say
        return f"made for NVIDIA GPUs, and this is a {device.device_kind}"
    lowest, beyond = (9.0, 11.0) if kernel == "mosaic" else (8.0, math.inf)
    if not lowest <= capability < beyond:
        wanted = "Hopper or Blackwell (compute capability 9.x or 10.x)" if kernel == "mosaic" else "capability 8.0"
        return f"it needs {wanted}, and {device.device_kind} has {capability}"
    return None
