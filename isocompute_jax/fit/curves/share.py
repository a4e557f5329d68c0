"""Shares that climb from 0 to 1: the shape of every form, in NumPy with slopes, and in JAX for all forms at once."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

Array = Any
"""NumPy outside of the compiled functions, JAX inside."""


@dataclasses.dataclass(frozen=True)
class Share:
    """A share that climbs: 1 / (1 + exp(-z)), or 1 - exp(-z) where it `saturates`, with z = rate (u - place).

    `theta` holds (place, ln rate), the logarithm of the place where u is compute; without a `place`, (ln rate,) alone.

    Attributes:
      of_compute: u = exp(x), compute in units of C_ref, rather than x.
      saturates: which of the two.
      has_place: whether theta has a place; z = rate u otherwise.
    """

    of_compute: bool = False
    saturates: bool = False
    has_place: bool = True

    def __call__(self, theta: np.ndarray, x: np.ndarray) -> np.ndarray:
        """[..., P] share at x [P], in NumPy."""
        return self.with_slopes(theta, x)[0]

    def with_slopes(self, theta: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """[..., P] share and [..., P, Q] its derivative in theta [..., Q], at x [..., P], in NumPy."""
        theta, x = np.asarray(theta, np.float64)[..., None, :], np.asarray(x, np.float64)
        u = np.exp(x) if self.of_compute else x
        reached = np.isfinite(u)  # x = ln 0 = -inf stands for the base model
        rate, place = np.exp(theta[..., -1]), 0.0
        if self.has_place:
            place = np.exp(theta[..., 0]) if self.of_compute else theta[..., 0]
        z = rate * (np.where(reached, u, 0.0) - place)
        with np.errstate(under="ignore"):
            tail = np.exp(-z if self.saturates else -np.abs(z))
            share = 1.0 - tail if self.saturates else np.where(z < 0, tail, 1.0) / (1.0 + tail)
            slope = tail if self.saturates else tail / (1.0 + tail) ** 2
            slopes = [z * slope]
            if self.has_place:
                slopes.insert(0, -rate * (place if self.of_compute else 1.0) * slope)
        reached = reached & np.ones_like(z, bool)
        return np.where(reached, share, 0.0), np.where(reached[..., None], np.stack(slopes, axis=-1), 0.0)


class ShareKind(NamedTuple):
    """Per curve: whether theta[0] is the logarithm of the place, the share saturates, and low <= high is imposed."""

    log_place: Array  # [L] bool
    saturates: Array  # [L] bool
    ordered: Array  # [L] bool


def share_at(theta: jax.Array, u: jax.Array, kind: ShareKind) -> jax.Array:
    """[P] share of any form, from theta = (place, ln rate); see `Share`."""
    reached = jnp.isfinite(u)
    place = jnp.where(kind.log_place, jnp.exp(jnp.where(kind.log_place, theta[0], 0.0)), theta[0])
    z = jnp.exp(theta[1]) * (jnp.where(reached, u, 0.0) - place)
    tail = jnp.exp(jnp.where((z < 0) & ~kind.saturates, z, -z))  # one exponential for both, which does not overflow
    share = jnp.where(kind.saturates, 1.0 - tail, jnp.where(z < 0, tail, 1.0) / (1.0 + tail))
    return jnp.where(reached, share, 0.0)
