"""Covariances of the model: what configurations share, what is a configuration's own, and what tells runs apart."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

Array = Any
"""NumPy outside of the compiled likelihood, JAX inside."""

SQRT3, SQRT5 = 3.0**0.5, 5.0**0.5

HOLD = 0.3
"""Beyond the last evaluation the departures from the saturating curves stay as they are: the log of compute, as these
see it, goes on by no more than this."""

EARLY = 0.25
"""Runs lie half as far apart as later at this share of the first compute that is evaluated."""

NAMES = (
    "shared_sd",
    "shared_length",
    "own_sd",
    "own_length",
    "own_distance",
    "seed_sd",
    "seed_length",
    "noise_sd",
    "unlike",
)
"""Hyper-parameters; standard deviations are shares of the range, lengths are in ln C, distances in octaves of n.
`unlike` multiplies how far configurations lie apart under their prior, in the saturating form and around it."""

PRIOR_MEDIAN = np.log([0.03, 2.0, 0.01, 2.0, 2.5, 0.012, 1.5, 0.01, 0.7])
PRIOR_SD = np.array([0.7, 0.5, 0.8, 0.5, 0.6, 0.6, 0.6, 0.6, 1.2])
"""Log-normal priors of the hyper-parameters, in the order of `NAMES`."""


class Coordinates(NamedTuple):
    """Where the points of a covariance stand."""

    shared: Array  # [N] log of compute, held beyond the end of the sweep
    own: Array  # [N] log of compute, held beyond the end of the configuration
    seed_taper: Array  # [N] of how far runs lie apart: 0 at the base model, which all runs share, towards 1 in training
    taper: Array  # [N] of how far mean curves depart from the form
    features: Array  # [N, F]


def taper(compute: np.ndarray, half: float) -> np.ndarray:
    """0 at the base model, which all runs share, one half at the compute `half`, and 1 in the long run."""
    return compute / (compute + half)


def log_compute(compute: np.ndarray, unit: float) -> np.ndarray:
    """ln(1 + C / unit), which is 0 at the base model."""
    return np.log1p(compute / unit)


def coordinates(
    compute: np.ndarray, features: np.ndarray, *, own_end: np.ndarray, end: float, unit: float
) -> Coordinates:
    """Coordinates of N points: `compute` [N], their configurations' `features` [N, F] and ends `own_end` [N]."""
    at = log_compute(compute, unit)
    shared, own = (_held(at, log_compute(np.asarray(each), unit)) for each in (end, own_end))
    return Coordinates(shared, own, taper(compute, EARLY * unit), taper(compute, unit), features)


def _held(at: np.ndarray, end: np.ndarray) -> np.ndarray:
    beyond = np.maximum(at - end, 0.0)
    return np.minimum(at, end) - HOLD * np.expm1(-beyond / HOLD)


def _library(array: Array) -> Any:
    """NumPy for its own arrays, JAX for those that it traces."""
    return jnp if isinstance(array, jax.Array) else np


def matern3(distance: Array) -> Array:
    """Matern covariance of smoothness 3/2 at a distance in units of its length."""
    return (1 + SQRT3 * distance) * _library(distance).exp(-SQRT3 * distance)


def matern5(distance: Array) -> Array:
    """Matern covariance of smoothness 5/2 at a distance in units of its length."""
    return (1 + SQRT5 * distance + 5 * distance**2 / 3) * _library(distance).exp(-SQRT5 * distance)


def departures(hyper: Array, left: Coordinates, right: Coordinates) -> Array:
    """Covariance [N, M] of the departures of mean curves from their saturating form.

    A part that all configurations share, and a part of each that its neighbours have in proportion to how alike they
    are.
    """
    numpy = _library(hyper)
    shared_sd, shared_length, own_sd, own_length, distance = numpy.exp(hyper[:5])
    apart = numpy.sqrt(numpy.sum((left.features[:, None] - right.features[None]) ** 2, axis=-1) + 1e-18)
    shared = matern5(abs(left.shared[:, None] - right.shared[None]) / shared_length)
    own = matern5(abs(left.own[:, None] - right.own[None]) / own_length) * matern3(apart / distance)
    return left.taper[:, None] * right.taper[None] * (shared_sd**2 * shared + (own_sd * numpy.exp(hyper[8])) ** 2 * own)


def between_seeds(hyper: Array, left: tuple[Array, Array], right: tuple[Array, Array]) -> Array:
    """Covariance [N, M] of one run's departures from the mean of many; of (log compute, taper) of the points."""
    sd, length = _library(hyper).exp(hyper[5:7])
    return left[1][:, None] * right[1][None] * sd**2 * matern3(abs(left[0][:, None] - right[0][None]) / length)
