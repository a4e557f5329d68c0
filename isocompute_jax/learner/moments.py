"""Where and how exactly Adam's moments are kept between steps: in float32, in bfloat16, or in the host's memory."""

from __future__ import annotations

from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

Moments = Literal["float32", "bfloat16", "host"]
HOST = "pinned_host"
"""JAX's name of host memory that devices can reach."""


def kept_in_bfloat16(adam: optax.GradientTransformation) -> optax.GradientTransformation:
    """`optax.scale_by_adam`, with its moments rounded to bfloat16 after each step.

    The first moment changes by a tenth a step, and is rounded to nearest. The second changes by a thousandth, less than
    bfloat16 resolves (1/256): rounded to nearest it would stand still, so it is rounded up or down at random, without
    bias (arXiv 2010.06192). The random numbers depend on the step alone: a run that is resumed repeats them.
    """

    def init(params: optax.Params) -> optax.OptState:
        return _cast(adam.init(params), jnp.bfloat16)

    def update(
        updates: optax.Updates, state: Any, params: optax.Params | None = None
    ) -> tuple[optax.Updates, optax.OptState]:
        directions, new = adam.update(updates, _cast(state, jnp.float32), params)
        assert isinstance(new, optax.ScaleByAdamState)
        leaves, structure = jax.tree.flatten(new.nu)
        key = jax.random.fold_in(jax.random.key(0), jnp.asarray(new.count))
        rounded = [randomly_rounded(x, jax.random.fold_in(key, i)) for i, x in enumerate(leaves)]
        return directions, _cast(new, jnp.bfloat16)._replace(nu=jax.tree.unflatten(structure, rounded))

    return optax.GradientTransformation(init, update)


def randomly_rounded(x: Float[Array, "..."], key: Array) -> Float[Array, "..."]:
    """x >= 0 in bfloat16, rounded to one of its two neighbours with a mean of x."""
    bits = jax.lax.bitcast_convert_type(x.astype(jnp.float32), jnp.uint32)
    noise = jax.random.bits(key, x.shape, jnp.uint16).astype(jnp.uint32)
    return jax.lax.bitcast_convert_type(((bits + noise) >> 16).astype(jnp.uint16), jnp.bfloat16)


def in_host_memory(shardings: Any) -> Any:
    """The same shardings, in the host's memory."""
    return jax.tree.map(lambda sharding: sharding.with_memory_kind(HOST), shardings)


def brought_to_device(tree: Any, shardings: Any) -> Any:
    """A tree, in a jitted function, with those of its arrays copied to the device that live in the host's memory."""

    def bring(x: Array, sharding: Any) -> Array:
        return jax.device_put(x, sharding.with_memory_kind("device")) if sharding.memory_kind == HOST else x

    return jax.tree.map(bring, tree, shardings)


def _cast(state: Any, dtype: Any) -> Any:
    return state._replace(**{name: optax.tree.cast(getattr(state, name), dtype) for name in ("mu", "nu")})
